"""From a model's features to its degree, over strata of any kind. Exact, so that it replays.

x_ij is feature j of stratum i and q = p^(c). Features are millionths, coefficients billionths:

    share of stratum i:  p_i = a_0 + sum_j (a_j x_ij + b_j mean_i x_ij)
    degree:              v   = (c_0 + sum_r c_r z_r + forest(z)) / 2,   clipped to [0, 1 - min_i q_i]

    z = (for each sorted column j: x_1j..x_Sj ascending;
         p_i - q_i ascending;
         half the L1 distance of the normalised positive shares from q;
         for each level t of `EXCESS_LEVELS`: sum_i max(p_i - t q_i, 0);
         for each column j: mean_i x_ij, then for each the standard deviation over i)

z does not depend on the order of the strata, which have no order. forest is the mean of regression trees
(`mechanism.trees`). Every result is rounded half-even to a millionth once, at its end; a standard deviation is rounded
down.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from fractions import Fraction
from functools import cached_property
from math import isqrt, lcm
from operator import mul
from typing import Any

from mechanism.affine import NANO, affine, half_even, stratum_shares
from mechanism.canonical import Json
from mechanism.degree import reference_distribution
from mechanism.errors import FieldError
from mechanism.ranges import integer, integers, keyed, listed, whole
from mechanism.settlement import MICRO
from mechanism.trees import Forest

#: Multiples of p^(c) above which shares are summed: a degree is what shares have in excess of p^(c), and an estimate
#: that shrinks every share towards p^(c) still shows it in the sums from other levels.
EXCESS_LEVELS = (
    Fraction(0), Fraction(1, 2), Fraction(1), Fraction(3, 2), Fraction(2), Fraction(3), Fraction(5),
)  # fmt: skip


#: Features of a stratum, at most.
MAX_COLUMNS = 100


@dataclass(frozen=True)
class DegreeMap:
    """The maps from features to the degree, fitted on shadow models.

    Attributes:
        reference: q, from `reference_distribution`.
        share_own, share_mean: a_j and b_j, billionths, one a feature, at most `MAX_COLUMNS`.
        share_intercept: a_0, billionths.
        sorted_columns: the features that enter z in order of size, each once.
        weights: c_r, billionths; intercept: c_0, billionths.
        forest: trees over z; bounds and leaves are millionths.
        half_width: of the prediction interval, millionths, at least 0.

    Raises:
        FieldError: what is no integer, or sequences whose lengths do not fit together.
    """

    reference: tuple[Fraction, ...]
    share_own: tuple[int, ...]
    share_mean: tuple[int, ...]
    share_intercept: int
    sorted_columns: tuple[int, ...]
    weights: tuple[int, ...]
    intercept: int
    forest: Forest
    half_width: int

    def __post_init__(self) -> None:
        for name in ("share_own", "share_mean", "sorted_columns", "weights"):
            integers(name, getattr(self, name))
        integer("share_intercept", self.share_intercept)
        integer("intercept", self.intercept)
        whole("half_width", self.half_width, 0)
        columns = len(self.share_own)
        if columns > MAX_COLUMNS:
            raise FieldError("share_own", f"{columns} coefficients", f"at most {MAX_COLUMNS}")
        if len(self.share_mean) != columns:
            raise FieldError("share_mean", self.share_mean, f"{columns} coefficients")
        if len({*self.sorted_columns} & {*range(columns)}) != len(self.sorted_columns):
            raise FieldError("sorted_columns", self.sorted_columns, f"columns below {columns}, each once")
        expected = regressor_count(len(self.reference), columns, len(self.sorted_columns))
        if len(self.weights) != expected or self.forest.regressors != expected:
            raise FieldError("weights", f"{len(self.weights)} and {self.forest.regressors}", f"{expected}")

    def shares(self, features: Sequence[Sequence[int]]) -> tuple[int, ...]:
        """p_i of each stratum, millionths; they need not sum to 1 nor be positive."""
        return stratum_shares(
            self.share_own,
            self.share_mean,
            self.share_intercept,
            features,
            len(self.reference),
            "features",
        )

    def regressors(self, features: Sequence[Sequence[int]]) -> tuple[int, ...]:
        """z, millionths."""
        return regressors(self.reference, self.sorted_columns, features, self.shares(features))

    def degree_micro(self, features: Sequence[Sequence[int]]) -> int:
        """v in [0, 1 - min q], millionths."""
        return self.degree_of(self.regressors(features))

    def degree_of(self, z: Sequence[int]) -> int:
        """v of regressors, millionths."""
        # Half of line and mean leaf, over one denominator.
        trees = len(self.forest.trees)
        both = affine(self.weights, self.intercept, z) * trees + self.forest.total(z) * NANO
        return min(max(half_even(both, 2 * NANO * trees), 0), self._highest)

    @cached_property
    def _highest(self) -> int:
        return int((1 - min(self.reference)) * MICRO)

    def record(self) -> dict[str, Json]:
        plain: dict[str, Json] = {}
        for each in fields(self):
            value = getattr(self, each.name)
            plain[each.name] = list(value) if isinstance(value, tuple) else value
        return {**plain, "reference": [str(q) for q in self.reference], "forest": self.forest.record()}

    @classmethod
    def from_record(cls, record: Any) -> "DegreeMap":
        """Raises FieldError for a record with other keys or other values than `record` writes."""
        values = keyed("degree", record, [each.name for each in fields(cls)])
        for name in ("reference", "share_own", "share_mean", "sorted_columns", "weights"):
            values[name] = listed(name, values[name])
        values["reference"] = reference_distribution(values["reference"])
        values["forest"] = Forest.from_record(values["forest"], len(values["weights"]))
        return cls(**values)


def regressor_count(strata: int, columns: int, sorted_columns: int) -> int:
    """The length of z."""
    return strata * (sorted_columns + 1) + 1 + len(EXCESS_LEVELS) + 2 * columns


def regressors(
    reference: Sequence[Fraction],
    sorted_columns: Sequence[int],
    features: Sequence[Sequence[int]],
    shares: Sequence[int],
) -> tuple[int, ...]:
    """z of the module's text, millionths."""
    strata, columns = len(reference), list(zip(*features, strict=True))
    z: list[int] = []
    for column in sorted_columns:
        z += sorted(columns[column])
    # Over one denominator, so that all sums are of integers: denominator = sum_i parts_i.
    denominator = lcm(*(q.denominator for q in reference))
    parts = [q.numerator * (denominator // q.denominator) for q in reference]
    over, expected = [p * denominator for p in shares], [q * MICRO for q in parts]
    z += sorted(half_even(p - q, denominator) for p, q in zip(over, expected, strict=True))
    z.append(_distance(shares, parts, denominator))
    for level in EXCESS_LEVELS:
        top, bottom = level.as_integer_ratio()
        above = [p * bottom - q * top for p, q in zip(over, expected, strict=True)]
        z.append(half_even(sum([part for part in above if part > 0]), bottom * denominator))
    totals = [sum(column) for column in columns]
    z += [half_even(total, strata) for total in totals]
    z += [
        isqrt((strata * sum(map(mul, column, column)) - total * total) // strata**2)
        for column, total in zip(columns, totals, strict=True)
    ]
    return tuple(z)


def _distance(shares: Sequence[int], parts: Sequence[int], denominator: int) -> int:
    """Half the L1 distance, millionths; 0 where no share is positive."""
    positive = [max(share, 0) for share in shares]
    if not (total := sum(positive)):
        return 0
    off = sum(abs(p * denominator - q * total) for p, q in zip(positive, parts, strict=True))
    return half_even(off * MICRO, 2 * denominator * total)
