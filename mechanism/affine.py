"""Affine maps of features in millionths, with coefficients in billionths: exact."""

from collections.abc import Sequence
from operator import mul

from mechanism.errors import FieldError
from mechanism.settlement import MICRO

#: Coefficients are integers in billionths.
NANO = 1_000_000_000


def affine(weights: Sequence[int], intercept: int, x: Sequence[int]) -> int:
    """intercept + sum_r w_r x_r, billionths of a millionth; FieldError where there is not a weight for each x."""
    if len(weights) != len(x):
        raise FieldError("features", f"{len(x)} regressors", f"{len(weights)}, as the evidence model has")
    products: int = sum(map(mul, weights, x))
    return products + intercept * MICRO


def half_even(numerator: int, denominator: int) -> int:
    """numerator / denominator, rounded to the nearest integer, half to even; the denominator is above 0.

    As `round` of a Fraction, without the greatest common divisor, which takes long where denominators are long.
    """
    whole, rest = divmod(numerator, denominator)
    return whole + (2 * rest > denominator or (2 * rest == denominator and whole % 2 == 1))


def stratum_shares(
    own: Sequence[int],
    mean: Sequence[int],
    intercept: int,
    features: Sequence[Sequence[int]],
    strata: int,
    field: str,
) -> tuple[int, ...]:
    """p_i = a_0 + sum_j (a_j x_ij + b_j mean_i x_ij) of each stratum i, millionths, rounded half-even.

    They need not sum to 1 nor be positive.

    Args:
        own, mean, intercept: a_j, b_j and a_0.
        features: x_ij, a row for each of the strata.
        field: what the features are called where they are refused.

    Raises:
        FieldError: features of another form.
    """
    if len(features) != strata or any(len(row) != len(own) for row in features):
        raise FieldError(field, features, f"{strata} rows of {len(own)} integers")
    of_means = sum(b * sum(column) for b, column in zip(mean, zip(*features, strict=True), strict=True))
    common = of_means + strata * intercept * MICRO
    return tuple(half_even(strata * sum(map(mul, own, row)) + common, strata * NANO) for row in features)
