"""Strata: a finite partition of samples that everybody can count in their own data.

A participant's data are balanced where their counts over the strata are those of D_c. Labels are the usual strata;
a measured target has quantiles; a column, a site or a topic serves as well. `mechanism.workload` has what terms say of
them; here it becomes a number for each sample.

    strata = quantiles_of(samples.targets, 5)                # edges from D_c, published with the task
    codes = strata_of(strata, names).of(samples)             # the stratum of each sample, int64 in [0, S)
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fedpeer.learning.errors import DataError
from fedpeer.learning.labels import whole_labels
from fedpeer.learning.samples import Array, Samples
from mechanism.errors import kind_of
from mechanism.records import MAX_DECIMAL_DIGITS
from mechanism.workload import MAX_STRATA, Coded, Column, Labels, Quantiles, Strata

if TYPE_CHECKING:
    from fedpeer.learning.workloads.loading import FactorySource

Codes = npt.NDArray[np.int64]

#: A whole number as int64 is written.
_WHOLE = re.compile(r"-?(0|[1-9][0-9]*)")


@dataclass(frozen=True)
class StrataOf:
    """Terms' strata with what counts them here.

    Attributes:
        names: of the strata, or for labels of the classes, in the order of the reference.
        folders: where the module of a factory is looked for before Python's own path.
    """

    strata: Strata
    names: tuple[str, ...]
    folders: tuple[str, ...] = ()

    def of(self, samples: Samples) -> Codes:
        """The stratum of each sample, shape (n,).

        Raises:
            DataError: a sample that belongs to none, or no such column.
            WorkloadError: a factory that is not here, is another here, or fails.
        """
        if isinstance(self.strata, Labels):
            return whole_labels(samples.targets, self.names)
        if isinstance(self.strata, Quantiles):
            of = self.strata.of
            values = measured(samples.targets if of == "target" else samples.column(of), of)
            edges = np.array([float(edge) for edge in self.strata.edges])
            return np.searchsorted(edges, values, side="right").astype(np.int64)
        if isinstance(self.strata, Column):
            places = {value: place for place, value in enumerate(self.strata.values)}
            own = texts_of(samples.column(self.strata.column), self.strata.column)
            if unknown := sorted(set(own) - places.keys()):
                raise DataError(
                    f"column {self.strata.column} has the values {unknown!r:.120}, which are no strata; expected "
                    f"{', '.join(self.strata.values):.200}"
                )
            return np.array([places[value] for value in own], dtype=np.int64)
        return _coded(self.strata, self.folders, samples)


def strata_of(strata: Strata, names: Sequence[str], folders: Sequence[str] = ()) -> StrataOf:
    """What counts the terms' `strata`, whose names are the terms' `strata_names`."""
    return StrataOf(strata, tuple(names), tuple(folders))


def beside_of(strata: object) -> tuple[str, ...]:
    """The column that strata need beside inputs and target, by what they or a task file's section name; () for none."""
    of = getattr(strata, "column", None) or getattr(strata, "of", None) or "target"
    return () if of == "target" else (of,)


def codes_of(strata: object) -> tuple[str, ...]:
    """The column whose values are the strata, by what they or a task file's section name; () for none."""
    column = getattr(strata, "column", None)
    return (column,) if column else ()


def named_of(strata: object) -> tuple[str, ...]:
    """The column of the terms' strata where not all of these are whole numbers; () for none."""
    if not isinstance(strata, Column) or all(_WHOLE.fullmatch(value) for value in strata.values):
        return ()
    return (strata.column,)


def quantiles_of(values: npt.ArrayLike, quantiles: int, of: str = "target") -> Quantiles:
    """Strata of about equal size in `values`, the target or the column `of`.

    Raises:
        DataError: fewer than two strata, or values that repeat so often that two edges are one.
    """
    numbers = measured(np.asarray(values), of)
    if not 2 <= quantiles <= min(len(numbers), MAX_STRATA):
        raise DataError(
            f"{quantiles} strata of {len(numbers)} values; expected 2 to {MAX_STRATA}, a value for each"
        )
    if numbers.min() == numbers.max():
        raise DataError(
            f"the values of {of} are all {numbers[0]:g}, which tells no strata apart; name another column, or a factory"
        )
    found = np.quantile(numbers, np.arange(1, quantiles) / quantiles)
    # The shortest text that reads back is exact; no more digits than a decimal of the terms may have.
    last = Decimal(1).scaleb(-MAX_DECIMAL_DIGITS)
    edges = [Decimal(repr(edge)) for edge in found.tolist()]
    edges = [
        edge.quantize(last) if int(edge.as_tuple().exponent) < -MAX_DECIMAL_DIGITS else edge for edge in edges
    ]
    # A value below the first edge is needed as well: what is the least has no place below itself.
    if len(set(edges)) < len(edges) or float(edges[0]) <= numbers.min():
        raise DataError(
            f"the values of {of} repeat so often that {quantiles} quantiles are not distinct; ask for fewer strata, "
            "or name a column"
        )
    return Quantiles(of, tuple(edges))


def column_of(name: str, values: Array) -> Column:
    """The values of a column of texts or whole numbers as strata, in their order.

    Raises:
        DataError: fewer than two values, more than 2,000, or measured ones.
    """
    own = set(texts_of(values, name))
    found = sorted(own, key=int) if values.dtype.kind in "iu" else sorted(own)
    if not 2 <= len(found) <= MAX_STRATA:
        raise DataError(f"column {name} has {len(found)} values; expected 2 to {MAX_STRATA} strata")
    return Column(name, tuple(found))


def measured(values: Array, name: str) -> npt.NDArray[np.float64]:
    """One finite number a sample as float64, shape (n,). Raises DataError for anything else."""
    array = np.asarray(values)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1 or array.dtype.kind not in "iufb" or not np.isfinite(array).all():
        has = "texts" if array.dtype.kind == "U" else f"{array.dtype} of shape {array.shape}"
        raise DataError(
            f"strata by quantile need one finite number a sample of {name}, which is {has}; name the column itself, or "
            "a factory"
        )
    return array.astype(np.float64)


def texts_of(values: Array, name: str) -> list[str]:
    """Texts as they are, whole numbers in digits. Raises DataError for measured ones."""
    array = np.asarray(values)
    if array.ndim != 1 or array.dtype.kind not in "iuUO":
        raise DataError(
            f"column {name} is {array.dtype} of shape {array.shape}; expected a text or a whole number a sample, or "
            "strata by quantile"
        )
    return [str(value) for value in array.tolist()]


def _coded(strata: Coded, folders: tuple[str, ...], samples: Samples) -> Codes:
    # It imports torch, which other strata do without.
    from fedpeer.learning.workloads.loading import FactorySource

    source = FactorySource(strata.factory, strata.source.keywords, folders, strata.source.digests)
    found = coded_by(source, samples)
    if len(found) and found.max() >= len(strata.strata):
        raise DataError(
            f"{strata.factory} gives strata up to {found.max()}; expected 0 to {len(strata.strata) - 1}"
        )
    return found


def coded_by(source: "FactorySource", samples: Samples) -> Codes:
    """The number from 0 that the function of a factory gives each sample; called in this process.

    Of a table it sees inputs and target, and no other column.

    Raises:
        DataError: it gives something else.
        WorkloadError: it is not here, is another here, or fails.
    """
    from fedpeer.learning.workloads.loading import calling  # as above

    function = source.make()
    if not callable(function):
        raise DataError(
            f"{source.factory} gives {kind_of(function)}; expected a function that gives each of the samples a number"
        )
    seen = (
        f"it was given {samples.described()}; of a table it sees no other column: make what it needs an input"
    )
    with calling(f"{source.factory} ({seen})"):
        try:
            given: Any = function(samples)
            found = np.asarray(given)
        except DataError as error:  # such as of `Samples.column`
            raise DataError(f"{source.factory} cannot count: {error}; {seen}") from None
    if found.shape != (len(samples),) or found.dtype.kind not in "iu" or (found < 0).any():
        has = f"{found.dtype} of shape {found.shape}" if found.shape else kind_of(given)
        if found.dtype.kind in "iu" and found.size and found.min() < 0:
            has += f" with {found.min()} among them"
        raise DataError(
            f"the function of {source.factory} gives {has}; expected a whole number from 0 for each of "
            f"{len(samples)} samples"
        )
    codes: Codes = found.astype(np.int64)
    return codes


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
