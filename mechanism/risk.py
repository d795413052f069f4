"""What those do who dislike risk, where a payment hangs on a draw.

    U(CE(delta)) = E_S[ U(W + P_S(delta) - Cost(delta)) ] - W     greatest over delta in [delta(1), delta(0)]
    P_S(delta)   = mean over j in S of phi(delta^2 + delta_j^2),    S any K of the peers, all equally likely

    CARA   U(w) = -exp(-a w)             a > 0 a credit; wealth does not matter, and the cost comes off CE
    CRRA   U(w) = w^(1 - g) / (1 - g)    g > 0, ln w at 1; W > 0 credits before the round

CE, the certainty equivalent, is in credits: what would be taken for sure in the place of the round. With all peers
(K their number) nothing is drawn, and every attitude answers as the neutral one does.

With CARA the mean over subsets is exact for any number of peers: exp(-a P_S) is a product, so its mean over the
k-subsets of the first m peers follows in one sweep, and its derivative beside it:

    A_(k, m) = (1 - k/m) A_(k, m-1) + (k/m) x_m A_(k-1, m-1),    x_j = exp(-(a/K) phi(delta^2 + delta_j^2)).
 With CRRA all subsets are listed where there are at most `LISTED`; where there
are more, so many are drawn once by a fixed seed, and the answer says that it is approximate.

Proved (docs/mechanism.md, section 3): for phi convex and any increasing concave U, one who is neutral prefers the
higher of two degrees only if the risk-averse does; so risk aversion never lowers the best degree, never raises effort.

Source: Pratt 1964; Arrow 1965.
"""

import math
from dataclasses import dataclass
from itertools import combinations
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from mechanism.cost import CostFunction, marginal_range
from mechanism.deviation import ROUNDING
from mechanism.errors import FieldError
from mechanism.ranges import positive
from mechanism.score import Score

Array = npt.NDArray[np.float64]

#: Subsets of peers that are listed, or drawn where there are more.
LISTED = 20_000
#: Cells that a search begins with, at most has, and times that they are cut.
CELLS, MOST_CELLS, MAX_CUTS = 64, 4096, 60
#: What a search leaves open, credits.
TOLERANCE = 1e-10
#: A * D of the bounds on a cell, beyond which they say nothing.
MOST_TURNED = 20.0
#: Steps that a maximizer is bisected in.
BISECTIONS = 60
#: The largest exponent of CARA: beyond it the worst outcome alone counts, and numbers run out.
MAX_EXPONENT = 500.0
#: The largest g of CRRA.
MAX_RELATIVE = 20.0


@dataclass(frozen=True)
class CARA:
    """Constant absolute risk aversion.

    Attributes:
        aversion: a > 0, a credit. Of a round that pays 1 more or less at even odds 0.5 takes 0.24 off, 1 takes 0.43.
    """

    aversion: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "aversion", positive("cara", self.aversion))

    def __str__(self) -> str:
        return f"CARA {self.aversion:g}"


@dataclass(frozen=True)
class CRRA:
    """Constant relative risk aversion.

    Attributes:
        aversion: g, above 0, at most `MAX_RELATIVE`.
        wealth: W > 0, credits that it has whatever the round pays; more than the round can cost.
    """

    aversion: float
    wealth: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "aversion", positive("crra", self.aversion))
        object.__setattr__(self, "wealth", positive("wealth", self.wealth))
        if self.aversion > MAX_RELATIVE:
            raise FieldError("crra", self.aversion, f"at most {MAX_RELATIVE:g}")

    def __str__(self) -> str:
        return f"CRRA {self.aversion:g} at a wealth of {self.wealth:g}"


#: How somebody weighs risk; None, wherever one is asked for: not at all.
Attitude: TypeAlias = CARA | CRRA


def attitude_of(cara: Any, crra: Any, wealth: Any, prefix: str = "") -> Attitude | None:
    """The attitude that these numbers say; None where they say none.

    Args:
        cara: a of CARA; crra, wealth: g and W of CRRA; None each where it is not given.
        prefix: of the fields' names where they are refused.

    Raises:
        FieldError: both, a wealth without CRRA, CRRA without a wealth, or a number out of its range.
    """
    if cara is not None and crra is not None:
        raise FieldError(f"{prefix}crra", crra, "cara or crra, not both")
    if (crra is None) != (wealth is None):
        field, value = ("wealth", wealth) if crra is None else ("crra", crra)
        raise FieldError(f"{prefix}{field}", value, "crra together with wealth, and only so")
    try:
        return CRRA(crra, wealth) if crra is not None else None if cara is None else CARA(cara)
    except FieldError as error:
        raise FieldError(prefix + error.field, error.value, error.expected) from None


@dataclass(frozen=True)
class _Worth:
    """What some degrees are worth, arrays of one entry a degree.

    Attributes:
        equivalent: CE.
        pull: E_w |d P / d s|, s = delta^2, w in proportion to U'.
        unit: E U' / U'(CE): d CE / d delta is this times (-2 delta pull + marginal cost).
        worst: the least outcome; with CARA, which does not depend on it, 0.
    """

    equivalent: Array
    pull: Array
    unit: Array
    worst: Array


class Lottery:
    """The draw of `drawn` of some peers, as one participant weighs it.

    Args:
        squares: delta_j^2 of the peers.

    Attributes:
        exact: whether every subset is counted.

    Raises:
        FieldError: an aversion beyond what can be computed, or a wealth that the costs may use up.
    """

    def __init__(
        self, score: Score, squares: Array, drawn: int, attitude: Attitude, most_cost: float
    ) -> None:
        self._score, self._squares, self._drawn, self._attitude = score, squares, drawn, attitude
        self.exact = True
        if isinstance(attitude, CARA):
            most = float(score.value(0.0))
            if attitude.aversion * most > MAX_EXPONENT:
                raise FieldError(
                    "cara",
                    attitude.aversion,
                    f"at most {MAX_EXPONENT / most:g}: a round pays up to {most:g}",
                )
            return
        if most_cost * (1 + 1e-6) >= attitude.wealth:
            raise FieldError(
                "wealth", attitude.wealth, f"more than the {most_cost:g} that the round may cost"
            )
        self.exact = math.comb(squares.size, drawn) <= LISTED
        if self.exact:
            subsets = list(combinations(range(squares.size), drawn))
        else:
            chance = np.random.default_rng(0)
            subsets = [chance.choice(squares.size, drawn, replace=False) for _ in range(LISTED)]  # type: ignore[misc]
        self._subsets = np.array(subsets, dtype=np.intp)

    def worth(self, degree: Array, cost: Array) -> _Worth:
        """What degrees are worth at their costs."""
        z = np.square(degree)[:, None] + self._squares[None, :]
        paid, pull = self._score.value(z), -self._score.first(z)
        if isinstance(self._attitude, CARA):
            return self._product(self._attitude.aversion, paid, pull, cost)
        return self._listed(self._attitude, paid, pull, cost)

    def aversion(self, outcome: Array) -> Array:
        """-U''/U' there."""
        if isinstance(self._attitude, CARA):
            return np.full_like(outcome, self._attitude.aversion)
        return np.asarray(self._attitude.aversion / np.maximum(outcome, 1e-300))

    def fall(self, left: Array, right: Array) -> Array:
        """By how much a payment falls at most between two degrees."""
        z = [np.square(degree)[:, None] + self._squares[None, :] for degree in (left, right)]
        return np.asarray((self._score.value(z[0]) - self._score.value(z[1])).max(axis=1))

    def _product(self, a: float, paid: Array, pull: Array, cost: Array) -> _Worth:
        least, drawn = paid.min(axis=1), self._drawn
        # Less than 1 by how much: that keeps its digits where a is small.
        lost = -np.expm1(-(a / drawn) * (paid - least[:, None]))
        x = 1 - lost
        steep = (a / drawn) * pull * x
        below, slope = np.zeros((drawn + 1, paid.shape[0])), np.zeros((drawn + 1, paid.shape[0]))
        k = np.arange(1, drawn + 1)[:, None]
        for m in range(1, paid.shape[1] + 1):
            share = np.minimum(k / m, 1.0)
            last, here, less = x[:, m - 1], steep[:, m - 1], lost[:, m - 1]
            slope[1:] = (1 - share) * slope[1:] + share * (here * (1 - below[:-1]) + last * slope[:-1])
            below[1:] = (1 - share) * below[1:] + share * (less + last * below[:-1])
        equivalent = least - np.log1p(-below[drawn]) / a - cost
        unit = np.ones_like(cost)
        return _Worth(equivalent, slope[drawn] / (a * (1 - below[drawn])), unit, 0 * unit)

    def _listed(self, attitude: CRRA, paid: Array, pull: Array, cost: Array) -> _Worth:
        g, wealth = attitude.aversion, attitude.wealth
        left = wealth + paid[:, self._subsets].mean(axis=2) - cost[:, None]
        steep = pull[:, self._subsets].mean(axis=2)
        # In units of the mean outcome, so that no power runs out of numbers.
        middle = left.mean(axis=1, keepdims=True)
        ratio = left / middle
        marginal = ratio**-g
        logs, h = np.log(ratio), 1 - g
        # By expm1 and log1p, which keep their digits where g is near 1.
        mean_log = np.log1p(np.expm1(h * logs).mean(axis=1)) / h if h else logs.mean(axis=1)
        sure = np.exp(mean_log)
        mean = marginal.mean(axis=1)
        return _Worth(
            sure * middle[:, 0] - wealth,
            (marginal * steep).mean(axis=1) / mean,
            mean / sure**-g,
            left.min(axis=1),
        )


@dataclass(frozen=True)
class AverseMaximum:
    """A best degree, its certainty equivalent, and an upper bound of what any other has."""

    degree: float
    equivalent: float
    upper: float
    rounding: float


def averse_maximum(
    lottery: Lottery, cost: CostFunction, low: float, high: float, start: float
) -> AverseMaximum:
    """The degree in [low, high] of the greatest certainty equivalent, the least of several.

    Cells of degrees are cut in two while one may hold more than the best that was seen. On a cell [x, y] the slope of
    CE lies within bounds that close with its width: |d P_S / d s| falls in s, as phi is convex, and U' at any outcome
    changes by at most a factor exp(A D), A the greatest -U''/U' on the cell and D the greatest change of an outcome.

    Args:
        cost: one entry.
        start: delta(0).
    """

    def costs(degree: Array) -> Array:
        return np.broadcast_to(cost.value(np.maximum(start - degree, 0.0)), degree.shape)

    edges = np.linspace(low, high, CELLS + 1) if high > low else np.array([low, high])
    left, right = edges[:-1], edges[1:]
    known: dict[float, float] = {}
    closed = upper = -np.inf
    for _ in range(MAX_CUTS):
        spent = costs(left), costs(right)
        at = lottery.worth(left, spent[0]), lottery.worth(right, spent[1])
        known.update(zip(left.tolist(), at[0].equivalent.tolist(), strict=True))
        known.update(zip(right.tolist(), at[1].equivalent.tolist(), strict=True))
        best = max(known.values())
        bounds = _cell_bounds(lottery, cost, start, left, right, spent, at)
        upper = max(closed, float(bounds.max()))
        open_ = bounds > best + TOLERANCE
        closed = max(closed, float(bounds[~open_].max(initial=-np.inf)))
        left, right = left[open_], right[open_]
        if not 0 < 2 * left.size <= MOST_CELLS:
            break
        middle = (left + right) / 2
        left, right = np.concatenate([left, middle]), np.concatenate([middle, right])
    degree = min(name for name, value in known.items() if value == best)
    places = sorted(known)
    near = places.index(degree)
    degree, best = _polished(
        lottery, cost, start, degree, best, places[max(near - 1, 0)], places[min(near + 1, len(places) - 1)]
    )
    size = float(lottery.worth(np.array([low]), np.zeros(1)).equivalent[0]) + float(costs(np.array([low]))[0])
    return AverseMaximum(degree, best, max(upper, best), ROUNDING * abs(size))


def _cell_bounds(
    lottery: Lottery,
    cost: CostFunction,
    start: float,
    x: Array,
    y: Array,
    spent: tuple[Array, Array],
    at: tuple[_Worth, _Worth],
) -> Array:
    """What CE is at most on each cell: below the lines from its ends with the steepest slope that the cell may have."""
    change = lottery.fall(x, y) + (spent[0] - spent[1])
    turned = lottery.aversion(np.minimum(at[0].worst, at[1].worst) - change) * change
    factor = np.exp(np.minimum(turned, MOST_TURNED))
    low, high = marginal_range(cost, np.maximum(start - y, 0.0), np.maximum(start - x, 0.0))
    unit = np.maximum(at[0].unit, at[1].unit) * factor**2
    rise = unit * np.maximum(-2 * x * at[1].pull / factor + high, 0.0)
    drop = unit * np.maximum(2 * y * at[0].pull * factor - low, 0.0)
    width, first, last = y - x, at[0].equivalent, at[1].equivalent
    with np.errstate(invalid="ignore"):
        place = np.clip((last - first + drop * width) / np.maximum(rise + drop, 1e-300), 0.0, width)
        tent = np.minimum(first + rise * place, last + drop * (width - place))
    bound = np.where(np.isfinite(rise), np.maximum(tent, np.maximum(first, last)), last + drop * width)
    return np.where((turned > MOST_TURNED) & (width > 0), np.inf, bound)


def _polished(
    lottery: Lottery, cost: CostFunction, start: float, degree: float, best: float, left: float, right: float
) -> tuple[float, float]:
    """The maximizer between two neighbours, by bisection on the sign of the slope, and its equivalent."""

    def worth(at: float) -> tuple[float, float]:
        where = np.array([at])
        gap = np.maximum(start - where, 0.0)
        found = lottery.worth(where, np.broadcast_to(cost.value(gap), where.shape))
        slope = -2 * where * found.pull + np.broadcast_to(cost.first(gap), where.shape)
        return float(found.equivalent[0]), float(slope[0])

    if not (worth(left)[1] > 0 > worth(right)[1]):
        return degree, best
    for _ in range(BISECTIONS):
        middle = (left + right) / 2
        if worth(middle)[1] > 0:
            left = middle
        else:
            right = middle
    value, _ = worth(left)
    return (left, value) if value >= best else (degree, best)


def increasing_differences(score: Score, attitude: Attitude, drawn: int) -> bool:
    """Whether the game of participants with this attitude is known to be supermodular, so that it has equilibria.

    With CARA it is where phi'' >= (a/K) phi'^2, for f = A ln where a A <= K (docs/mechanism.md, section 4).
    """
    if not isinstance(attitude, CARA) or not score.stieltjes:
        return False
    # For every f that ships, (x f'' + 2 f') / (x f'^2) does not rise in x.
    x = np.asarray(score.span[1])
    first, second = score.function.first(x), score.function.second(x)
    return bool(x * second + 2 * first >= attitude.aversion / drawn * x * first**2 * (1 - 1e-12))
