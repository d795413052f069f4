"""The condition that makes the game supermodular, and where a function breaks it.

    x f''(x) + 2 f'(x) >= 0   and   f'(x) >= 0      for every x in [Q/(2 Phi + Upsilon), Q/Upsilon]

The functions that ship declare their relative curvature -x f''/f' <= `relative_curvature`; so may a user's.
A function that declares nothing is checked at points, and what rests on that is called conditional.

Source: Topkis 1998, section 2.6 (increasing differences); docs/mechanism.md, section 4.
"""

from dataclasses import dataclass
from enum import Enum

import numpy as np

from mechanism.errors import FieldError
from mechanism.payment import PaymentFunction

#: Points at which an undeclared function is checked, spaced by equal ratios.
CHECK_POINTS = 4097
#: Above this relative curvature the game is no longer supermodular.
LIMIT = 2.0


class Evidence(Enum):
    """How the condition is known to hold, or that it does not."""

    DECLARED = "declared"
    CHECKED = "checked"
    VIOLATED = "violated"


@dataclass(frozen=True)
class CurvatureReport:
    """What the check found.

    Attributes:
        evidence: declared by the function, checked at points, or violated.
        low, high: the range of x that was checked.
        worst_x: where x f'' + 2 f' is least, relative to f'.
        worst_value: x f'' + 2 f' there.
    """

    evidence: Evidence
    low: float
    high: float
    worst_x: float
    worst_value: float

    @property
    def holds(self) -> bool:
        return self.evidence is not Evidence.VIOLATED

    def __str__(self) -> str:
        where = f"x f'' + 2 f' = {self.worst_value:.6g} at x = {self.worst_x:.6g}"
        if self.evidence is Evidence.VIOLATED:
            return f"the relative curvature of f exceeds 2: {where}"
        return f"the relative curvature of f is at most 2 ({self.evidence.value}); the tightest is {where}"


def relative_curvature(function: PaymentFunction, low: float, high: float) -> CurvatureReport:
    """Check the condition for x in [low, high], 0 < low <= high.

    Raises:
        FieldError: a range that is empty or not positive, values that are not finite, or an f that decreases.
    """
    if not 0 < low <= high < np.inf:
        raise FieldError("x range", [low, high], "0 < low <= high, both finite")
    x = np.geomspace(low, high, CHECK_POINTS)
    value, first, second = function.value(x), function.first(x), function.second(x)
    for name, array in (("payment.value", value), ("payment.first", first), ("payment.second", second)):
        if np.shape(array) != x.shape or not np.isfinite(array).all():
            raise FieldError(name, array, "finite values, one an entry")
    # Two equal values may round apart by a few units in the last place.
    slack = 8 * np.finfo(np.float64).eps * np.abs(value).max()
    falls = np.diff(value) < -slack
    if falls.any() or (first < 0).any():
        i = int(np.argmax(first < 0)) if (first < 0).any() else int(np.argmax(falls))
        raise FieldError("payment", float(value[i]), f"a non-decreasing function; it falls at x = {x[i]:.6g}")
    bend = x * second + 2 * first
    scale = np.abs(x * second) + 2 * np.abs(first)
    relative = np.divide(bend, scale, out=np.zeros_like(bend), where=scale > 0)
    i = int(np.argmin(relative))
    evidence = Evidence.CHECKED
    # x f'' and 2 f' cancel: what is left of them below this share of their size is rounding.
    if relative[i] < -1e-12:
        evidence = Evidence.VIOLATED
    elif getattr(function, "relative_curvature", np.inf) <= LIMIT:
        evidence = Evidence.DECLARED
    return CurvatureReport(evidence, low, high, float(x[i]), float(bend[i]))
