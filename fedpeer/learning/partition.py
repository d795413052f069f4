"""Label mixes: how many samples of each label a participant holds.

A mix is a tuple of integer counts, so its degree is an exact rational. Four families:

    majority-minority  one label has the share s, the others share the rest along a long tail
                       (weights tail^0, tail^1, ...; tail = 1 is an even rest). Given either s, which the
                       paper calls delta, or the exact degree.
    number of classes  the samples lie evenly on c of the I labels
    Dirichlet          proportions from Dirichlet(alpha * I * p^(c))
    toward reference   p^(c) + (delta'/delta) * (p - p^(c)): what effort does to a mix; its degree is delta'

Proportions become counts by largest remainder: each count is off by less than one sample.

Source: Pang et al. 2025, section 6 (experimental setup); degrees as `mechanism.degree` defines them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from fedpeer.learning.datasets import LabelledData
from fedpeer.learning.errors import DataError
from mechanism.degree import label_distribution, noniid_degree

#: Ratio of one minority label's share to the next larger one's.
LONG_TAIL = Fraction(7, 10)

#: Above this majority share a mix of a given degree keeps the long tail whole; below it the mix is blended
#: with the reference, because a long tail alone has a degree above 0.
BLEND_BELOW = Fraction(1, 2)

Number = int | Fraction | Decimal | float


@dataclass(frozen=True)
class LabelMix:
    """Integer label counts with both of their parameters.

    Attributes:
        counts: samples of each label, length I.
        reference: p^(c), length I, exact.
    """

    counts: tuple[int, ...]
    reference: tuple[Fraction, ...]

    @property
    def samples(self) -> int:
        return sum(self.counts)

    @property
    def distribution(self) -> tuple[Fraction, ...]:
        return label_distribution(self.counts)

    @property
    def degree(self) -> Fraction:
        """delta, exactly."""
        return noniid_degree(self.counts, self.reference)


def uniform_reference(classes: int) -> tuple[Fraction, ...]:
    """p^(c) with the same probability for each of `classes` labels."""
    return (Fraction(1, classes),) * classes


def majority_minority(
    reference: Sequence[Fraction],
    samples: int,
    *,
    majority: int,
    share: Number | None = None,
    degree: Number | None = None,
    tail: Number = LONG_TAIL,
    order: Sequence[int] | None = None,
) -> LabelMix:
    """One majority label, the rest along a long tail.

    Args:
        reference: p^(c), exact, length I.
        samples: n >= 1.
        majority: the label of the majority.
        share: the majority's share in [0, 1] (the paper's parameter). At most p^(c)_majority: the rest is in
            the proportions of p^(c), which is the paper's iid case.
        degree: the exact degree in [0, 1 - p^(c)_majority]; the counts meet it within 1/n. Give this or
            `share`.
        tail: ratio of a minority label's share to the next larger one's, in (0, 1]; 1 is an even rest.
        order: the minority labels from the most to the least frequent; default: ascending from
            majority + 1, cyclic.

    Raises:
        DataError: a parameter out of its range, both or neither of share and degree.
    """
    reference = tuple(reference)
    classes = len(reference)
    if not 0 <= majority < classes:
        raise DataError(f"majority is {majority}; expected a label from 0 to {classes - 1}")
    if (share is None) == (degree is None):
        raise DataError("a majority-minority mix takes either a share or a degree, not both and not neither")
    ratio = _fraction("tail", tail, Fraction(0), Fraction(1))
    if ratio == 0:
        raise DataError("tail is 0; expected a number in (0, 1]")
    ranking = (
        tuple(order) if order is not None else tuple((majority + j) % classes for j in range(1, classes))
    )
    if sorted(ranking) != [label for label in range(classes) if label != majority]:
        raise DataError(f"order is {list(ranking)}; expected each label but {majority} once")
    family = _MajorityFamily(reference, majority, ratio, ranking)
    if share is not None:
        return LabelMix(
            rounded_counts(family.at_share(_fraction("share", share, Fraction(0), Fraction(1))), samples),
            reference,
        )
    assert degree is not None
    target = _fraction("degree", degree, Fraction(0), 1 - reference[majority])
    return LabelMix(
        _nearest_degree(rounded_counts(family.at_degree(target), samples), reference, target), reference
    )


def number_of_classes(
    reference: Sequence[Fraction], samples: int, *, labels: Sequence[int], rest: Number = 0
) -> LabelMix:
    """The samples lie on `labels` only, in the proportions that p^(c) gives them.

    Args:
        labels: the distinct labels that the participant holds.
        rest: share in [0, 1) that goes to all labels along p^(c), for participants with a few samples of the
            others.

    Raises:
        DataError: no label, a repeated or unknown one, or labels to which p^(c) gives nothing.
    """
    reference = tuple(reference)
    if not labels or len(set(labels)) != len(labels) or not set(labels) <= set(range(len(reference))):
        raise DataError(f"labels are {list(labels)}; expected distinct labels from 0 to {len(reference) - 1}")
    mass = sum((reference[label] for label in labels), Fraction(0))
    if mass == 0:
        raise DataError(f"the reference gives no probability to the labels {list(labels)}")
    spread = _fraction("rest", rest, Fraction(0), Fraction(1))
    held = [reference[i] / mass if i in set(labels) else Fraction(0) for i in range(len(reference))]
    mixed = [spread * q + (1 - spread) * p for p, q in zip(held, reference, strict=True)]
    return LabelMix(rounded_counts(mixed, samples), reference)


def dirichlet(
    reference: Sequence[Fraction], samples: int, *, alpha: float, generator: np.random.Generator
) -> LabelMix:
    """Proportions drawn from Dirichlet(alpha * I * p^(c)): alpha per label for a uniform reference.

    Raises:
        DataError: alpha not above 0, or a reference with an empty label.
    """
    if not alpha > 0 or not np.isfinite(alpha):
        raise DataError(f"alpha is {alpha}; expected a number above 0")
    concentration = np.array([float(q) for q in reference]) * len(reference) * alpha
    if (concentration <= 0).any():
        raise DataError("a Dirichlet mix needs a reference without empty labels")
    drawn = generator.dirichlet(concentration)
    if not np.isfinite(drawn).all():
        # A very small alpha underflows to 0/0; in that limit the mix is a single label.
        drawn = np.eye(len(concentration))[
            generator.choice(len(concentration), p=concentration / concentration.sum())
        ]
    exact = [Fraction(float(p)) for p in drawn]
    total = sum(exact)
    return LabelMix(rounded_counts([p / total for p in exact], samples), tuple(reference))


def toward_reference(mix: LabelMix, degree: Number) -> LabelMix:
    """What effort does to a skewed mix: the same direction from p^(c), at a smaller degree.

    Args:
        mix: where the participant starts, of degree delta(0).
        degree: delta(e), in [0, delta(0)]; the counts meet it within 1/n.

    Raises:
        DataError: a degree out of range.
    """
    start = mix.degree
    target = _fraction("degree", degree, Fraction(0), start)
    scale = target / start if start else Fraction(0)
    blended = [q + scale * (p - q) for p, q in zip(mix.distribution, mix.reference, strict=True)]
    counts = rounded_counts(blended, mix.samples)
    return LabelMix(_nearest_degree(counts, mix.reference, target), mix.reference)


def rounded_counts(distribution: Sequence[Fraction], samples: int) -> tuple[int, ...]:
    """Integer counts that sum to `samples`, by largest remainder; ties go to the smaller label.

    Raises:
        DataError: a distribution that does not sum to 1 or has a negative entry, or samples < 1.
    """
    if samples < 1:
        raise DataError(f"samples is {samples}; expected at least 1")
    if any(p < 0 for p in distribution) or sum(distribution) != 1:
        raise DataError(
            f"{[str(p) for p in distribution]} is not a distribution: expected entries >= 0 that sum to 1"
        )
    quotas = [p * samples for p in distribution]
    counts = [int(quota) for quota in quotas]
    by_remainder = sorted(range(len(quotas)), key=lambda label: (counts[label] - quotas[label], label))
    for label in by_remainder[: samples - sum(counts)]:
        counts[label] += 1
    return tuple(counts)


def draw(pool: LabelledData, counts: Sequence[int], generator: np.random.Generator) -> LabelledData:
    """A random sample of `pool` with exactly `counts` samples of each label.

    Without replacement while the label lasts. Where `counts` asks for more than the pool has, all of the
    label's samples are taken and the excess is drawn from them with replacement. The order is random.

    Raises:
        DataError: counts of a wrong length, negative, all zero, or of a label that the pool does not have.
    """
    if len(counts) != pool.classes:
        raise DataError(f"counts are {list(counts)}; expected one for each of {pool.classes} labels")
    return pool.select(draw_rows(pool.labels, counts, generator))


def even_rows(
    codes: npt.NDArray[np.int64], count: int, generator: np.random.Generator
) -> npt.NDArray[np.int64]:
    """`count` rows of which each stratum has its share of the whole, to within one; all where there are no more;
    ascending.

    Args:
        codes: the stratum of each sample, shape (n,).
    """
    order = generator.permutation(len(codes))
    order = order[np.argsort(codes[order], kind="stable")]
    places = np.linspace(0, len(order), min(count, len(order)), endpoint=False).astype(np.int64)
    return np.sort(order[places])


def draw_rows(
    codes: npt.NDArray[np.int64], counts: Sequence[int], generator: np.random.Generator
) -> npt.NDArray[np.int64]:
    """Rows of a pool with exactly `counts` samples of each stratum, drawn as `draw` does.

    Args:
        codes: the stratum of each sample of the pool.

    Raises:
        DataError: counts that are negative, all zero, or of a stratum that the pool does not have.
    """
    if any(count < 0 for count in counts) or sum(counts) == 0:
        raise DataError(f"counts are {list(counts)}; expected counts >= 0, not all zero")
    chosen: list[npt.NDArray[np.int64]] = []
    for stratum, count in enumerate(counts):
        members = np.flatnonzero(codes == stratum)
        if count and not len(members):
            raise DataError(f"{count} samples of stratum {stratum} were asked of a pool that has none")
        distinct = min(int(count), len(members))
        excess = int(count) - distinct
        chosen.append(generator.choice(members, size=distinct, replace=False))
        if excess:
            chosen.append(generator.choice(members, size=excess, replace=True))
    return generator.permutation(np.concatenate(chosen)).astype(np.int64)


@dataclass(frozen=True)
class _MajorityFamily:
    """The majority-minority mixes of one majority, tail and order, as proportions."""

    reference: tuple[Fraction, ...]
    majority: int
    tail: Fraction
    ranking: tuple[int, ...]

    def at_share(self, share: Fraction) -> list[Fraction]:
        if share <= self.reference[self.majority]:
            outside = 1 - self.reference[self.majority]
            if outside == 0:
                return self._with_tail(share)
            return [
                share if i == self.majority else (1 - share) * q / outside
                for i, q in enumerate(self.reference)
            ]
        return self._with_tail(share)

    def at_degree(self, target: Fraction) -> list[Fraction]:
        """The mix whose degree is `target`, to 2^-40."""
        knee = max(BLEND_BELOW, self.reference[self.majority])
        anchor = self._with_tail(knee)
        reach = _degree(anchor, self.reference)
        if target <= reach:
            scale = target / reach if reach else Fraction(0)
            return [q + scale * (p - q) for p, q in zip(anchor, self.reference, strict=True)]
        # Above the knee the degree grows with the share: its slope is 1 minus the tail's share of the labels
        # that lie above the reference.
        return self._with_tail(_bisect(lambda s: _degree(self._with_tail(s), self.reference), target, knee))

    def _with_tail(self, share: Fraction) -> list[Fraction]:
        weights = {label: self.tail**j for j, label in enumerate(self.ranking)}
        total = sum(weights.values())
        return [
            share if i == self.majority else (1 - share) * weights[i] / total
            for i in range(len(self.reference))
        ]


def _bisect(function: Callable[[Fraction], Fraction], target: Fraction, low: Fraction) -> Fraction:
    """s in [low, 1] with function(s) = target to 2^-40, for a non-decreasing function."""
    high = Fraction(1)
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if function(middle) < target else (low, middle)
    return high


def _nearest_degree(
    counts: tuple[int, ...], reference: tuple[Fraction, ...], target: Fraction
) -> tuple[int, ...]:
    """`counts` with single samples moved between labels while that brings the degree nearer to `target`.

    Rounding moves the degree by up to I/(2n); each move changes it by at most 1/n.
    """
    n = sum(counts)
    current = list(counts)
    gap = noniid_degree(current, reference) - target
    while abs(gap) > Fraction(1, 2 * n):
        excess = [count - q * n for count, q in zip(current, reference, strict=True)]
        best = None
        for giver in range(len(current)):
            for taker in range(len(current)):
                if giver == taker or not current[giver]:
                    continue
                change = (
                    abs(excess[giver] - 1) + abs(excess[taker] + 1) - abs(excess[giver]) - abs(excess[taker])
                ) / (2 * n)
                # Among equal gains take from the label with most samples: the mix keeps its form.
                rank = (abs(gap + change), -current[giver], giver, taker)
                if best is None or rank < best:
                    best = rank
        if best is None or best[0] >= abs(gap):
            break
        current[best[2]] -= 1
        current[best[3]] += 1
        gap = noniid_degree(current, reference) - target
    return tuple(current)


def _degree(distribution: Sequence[Fraction], reference: Sequence[Fraction]) -> Fraction:
    return sum((abs(p - q) for p, q in zip(distribution, reference, strict=True)), Fraction(0)) / 2


def _fraction(field: str, value: Number, low: Fraction, high: Fraction) -> Fraction:
    """`value` as an exact rational in [low, high]; a float as the shortest decimal that it stands for."""
    if isinstance(value, bool) or not isinstance(value, int | Fraction | Decimal | float | np.integer):
        raise DataError(f"{field} is {value!r}; expected a number")
    try:
        exact = Fraction(repr(float(value))) if isinstance(value, float) else Fraction(value)
    except (ValueError, OverflowError):
        raise DataError(f"{field} is {value!r}; expected a finite number") from None
    if not low <= exact <= high:
        raise DataError(f"{field} is {value}; expected a number from {low} to {high}")
    return exact
