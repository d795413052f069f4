"""Strata: a finite partition of samples that everybody can count in their own data.

A participant's data are balanced where their counts over the strata are those of D_c. Labels are the usual strata;
a measured target has quantiles; a column, a site or a topic serves as well.

    strata = quantile_strata(targets, 5)      # edges from D_c, published with the task
    strata.of(samples)                        # the stratum of each sample, int64 in [0, S)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

import numpy as np
import numpy.typing as npt

from fedpeer.learning.errors import DataError
from fedpeer.learning.labels import whole_labels
from fedpeer.learning.samples import Samples

Codes = npt.NDArray[np.int64]


class Strata(Protocol):
    """A partition of samples into strata with names."""

    @property
    def names(self) -> tuple[str, ...]: ...

    def of(self, samples: Samples) -> Codes:
        """The stratum of each sample, shape (n,)."""


@dataclass(frozen=True)
class LabelStrata:
    """The samples' targets are class numbers, or names; each class is a stratum.

    Attributes:
        names: of the classes, in the order of the reference.
    """

    names: tuple[str, ...]

    def of(self, samples: Samples) -> Codes:
        return whole_labels(samples.targets, self.names)


@dataclass(frozen=True)
class QuantileStrata:
    """Intervals of the target: stratum i has edges[i - 1] <= target < edges[i].

    Attributes:
        edges: ascending, finite.
    """

    edges: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.edges or not np.isfinite(self.edges).all() or list(self.edges) != sorted(set(self.edges)):
            raise DataError(f"the edges of strata are {self.edges}; expected ascending finite numbers")

    @property
    def names(self) -> tuple[str, ...]:
        low, high = self.edges[0], self.edges[-1]
        inner = [f"[{a:g}, {b:g})" for a, b in zip(self.edges, self.edges[1:], strict=False)]
        return (f"below {low:g}", *inner, f"from {high:g}")

    def of(self, samples: Samples) -> Codes:
        targets = np.asarray(samples.targets)
        if targets.ndim == 2 and targets.shape[1] == 1:
            targets = targets[:, 0]
        if targets.ndim != 1 or targets.dtype.kind not in "iuf" or not np.isfinite(targets).all():
            raise DataError("strata by quantile need one finite number a sample as its target")
        return np.searchsorted(np.array(self.edges), targets, side="right").astype(np.int64)


def quantile_strata(targets: npt.ArrayLike, quantiles: int) -> QuantileStrata:
    """Strata of about equal size in `targets`.

    Raises:
        DataError: fewer than two strata, or a target that repeats so often that two edges are one.
    """
    values = np.asarray(targets, dtype=np.float64).ravel()
    if quantiles < 2 or len(values) < quantiles or not np.isfinite(values).all():
        raise DataError(
            f"{quantiles} strata of {len(values)} targets; expected at least 2, and a finite target for each"
        )
    edges = np.quantile(values, np.arange(1, quantiles) / quantiles)
    if len(set(edges.tolist())) < len(edges):
        raise DataError(
            f"the targets repeat so often that {quantiles} quantiles are not distinct; ask for fewer strata, "
            "or name a column"
        )
    return QuantileStrata(tuple(edges.tolist()))


def counts_over(codes: Codes, strata: int) -> tuple[int, ...]:
    """Samples of each stratum."""
    return tuple(int(n) for n in np.bincount(codes, minlength=strata))


def reference_over(codes: Codes, strata: int) -> tuple[Fraction, ...]:
    """p^(c) over strata, exact, as D_c has it.

    Raises:
        DataError: a stratum without samples.
    """
    counts = counts_over(codes, strata)
    if 0 in counts:
        raise DataError(f"stratum {counts.index(0)} has no sample in D_c; expected some of each")
    return tuple(Fraction(n, sum(counts)) for n in counts)


def balanced_halves(codes: Codes, generator: np.random.Generator) -> Sequence[Codes]:
    """Two disjoint halves of the samples' numbers, each with every stratum's share of the whole, within one sample."""
    order = generator.permutation(len(codes))
    order = order[np.argsort(codes[order], kind="stable")]
    return order[0::2], order[1::2]
