"""The best response of one participant, from published terms alone.

    max over delta in [delta(1), delta(0)] of
        E_k'[ f(Q / (Phi (delta^2 + delta_k'^2) + Upsilon)) ] - c d(delta(0) - delta)

Work in degrees: the utility is not concave in effort in general, so a first-order condition alone proves
nothing. With one effective peer, r = Upsilon / Phi and A = delta'^2 + r, and a linear cost:

    log      stationary at delta = 1/c -/+ sqrt(1/c^2 - A)
    linear   stationary where delta^4 + 2 A delta^2 - (2 kappa Q / (c Phi)) delta + A^2 = 0

In both the smaller root is the local maximum (and the larger effort), the larger the local minimum; without a
real root the utility rises in delta and no effort is best. The answer is the better of the clipped smaller
root and the two ends. For everything else, and for the mean over many peers, `mechanism.global_search` finds
the maximum. Whatever the route, the search proves the bound that the certificate states.

Source: Pang et al. 2025, Theorem 3 and the appendix on scoring functions, corrected (docs/mechanism.md,
section 6). Needs NumPy only, so that a participant can call it without the rest of the mechanism.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt

from mechanism.certificate import Certificate, Status
from mechanism.cost import Convexity, CostFunction, LinearCost, PowerCost, StackedCost
from mechanism.curvature import CurvatureReport, Evidence, relative_curvature
from mechanism.effort import EffortCurve
from mechanism.errors import FieldError
from mechanism.gap_bound import GapBound
from mechanism.global_search import ROUNDING, Maximum, SearchProblem, maximise
from mechanism.payment import Linear, Log, PaymentFunction
from mechanism.score import Score

Array = npt.NDArray[np.float64]
Index = npt.NDArray[np.intp]

#: Rounds of the symmetric iteration. It contracts by a factor that is below 1/2 away from a tangency.
MAX_ROUNDS = 10_000
#: Two degrees closer than this are the same.
DEGREE_TOLERANCE = 1e-14


class PeerRule(Enum):
    """Whom a participant is scored against.

    RANDOM   one peer, drawn at random after the round: the expectation is over the peers.
    MEAN     all peers at once: delta'^2 is the mean of the peers' squares (the paper's consistency remark).
    """

    RANDOM = "random"
    MEAN = "mean"


@dataclass(frozen=True)
class BestResponse:
    """What a participant should do, and what it may expect.

    Attributes:
        effort: the least effort that reaches `degree`, in [0, 1].
        degree: delta after that effort.
        expected_payment, cost, utility: credits a round.
        certificate: a bound on what another degree could gain over `utility`.
        peers: the degrees believed of the peers.
    """

    effort: float
    degree: float
    expected_payment: float
    cost: float
    utility: float
    certificate: Certificate
    peers: tuple[float, ...]


def log_stationary(cost: npt.ArrayLike, peer: npt.ArrayLike) -> Array:
    """The smaller root of delta^2 - 2 delta / c + A = 0, NaN where there is none.

    Args:
        cost: c > 0.
        peer: A = delta'^2 + Upsilon / Phi > 0.
    """
    inverse, A = 1 / np.asarray(cost, dtype=np.float64), np.asarray(peer, dtype=np.float64)
    square = inverse**2 - A
    root = np.sqrt(np.where(square >= 0, square, np.nan))
    # A / (larger root): the difference 1/c - root would cancel.
    return np.asarray(A / (inverse + root))


def linear_stationary(slope: npt.ArrayLike, peer: npt.ArrayLike) -> Array:
    """The smaller positive root of (delta^2 + A)^2 = B delta, NaN where there is none.

    With delta = t^2 this is t^4 - b t + A = 0, b = sqrt(B), which splits into two quadratics over a root
    y > 0 of y^3 - A y - b^2 / 8 = 0; the real pair is t^2 - sqrt(2 y) t + y - b / (2 sqrt(2 y)) = 0.

    Args:
        slope: B = 2 kappa Q / (c Phi) > 0.
        peer: A = delta'^2 + Upsilon / Phi > 0.
    """
    B, A = np.broadcast_arrays(np.asarray(slope, dtype=np.float64), np.asarray(peer, dtype=np.float64))
    y = _resolvent(A, B / 8)
    b, w = np.sqrt(B), np.sqrt(2 * y)
    square = b / w * 2 - w**2
    t = (w - np.sqrt(np.where(square >= 0, square, np.nan))) / 2
    delta = t**2
    for _ in range(
        2
    ):  # the formula cancels; Newton restores the lost digits, from the left where F is convex
        residual = (delta**2 + A) ** 2 - B * delta
        derivative = 4 * delta * (delta**2 + A) - B
        step = np.divide(residual, derivative, out=np.zeros_like(delta), where=derivative < 0)
        delta = np.maximum(delta - step, 0.0)
    return delta


def best_response(
    *,
    payment: PaymentFunction,
    Q: float,
    bound: GapBound,
    effort: EffortCurve,
    cost: CostFunction,
    peers: Sequence[float] | npt.NDArray[np.float64] | None = None,
    rule: PeerRule = PeerRule.RANDOM,
) -> BestResponse:
    """The best response of one participant, with its certificate.

    Args:
        payment, Q, bound: what the terms publish.
        effort, cost: the participant's own curve and cost.
        peers: the degrees that it believes its peers to have; None believes in copies of itself, at the
            equilibrium of least degree that they have among themselves.
        rule: how the terms draw peers.

    Raises:
        FieldError: anything out of its range, no peer, or a payment that decreases.
    """
    start, low = float(effort.start), float(effort.floor)
    score = Score(payment, Q, bound)
    report = relative_curvature(payment, *score.span)
    believed = (
        np.array([_symmetric_least(score, cost, low, start, report)]) if peers is None else _degrees(peers)
    )
    found = _respond(score, cost, low, start, believed, rule, report)
    degree = float(found.degree[0])
    paid = float(_payments(score, np.array([degree]), believed, rule)[0])
    spent = float(np.ravel(cost.value(np.maximum(start - found.degree, 0.0)))[0])
    regret = float(found.upper[0] - found.value[0])
    return BestResponse(
        effort=float(effort.effort(degree)),
        degree=degree,
        expected_payment=paid,
        cost=spent,
        utility=paid - spent,
        certificate=Certificate(
            regret, proof_status(report, cost), proof_basis(report, cost), float(found.rounding[0])
        ),
        peers=tuple(believed.tolist()),
    )


def proof_status(report: CurvatureReport, cost: CostFunction) -> Status:
    """PROVED where nothing rests on a user's function between the points at which it was checked."""
    checked_payment = report.evidence is not Evidence.DECLARED
    return Status.CONDITIONAL if checked_payment or _own_cost(cost) else Status.PROVED


def proof_basis(report: CurvatureReport, cost: CostFunction) -> str:
    """What a certificate of this search rests on, in words."""
    parts = {
        Evidence.DECLARED: "chord bounds of a convex expected payment",
        Evidence.CHECKED: "chord bounds, if the payment keeps to the curvature condition between the checked points",
        Evidence.VIOLATED: "monotone bounds alone, if the payment does not decrease between the checked points; "
        + str(report),
    }[report.evidence]
    if cost.convexity is Convexity.UNKNOWN:
        parts += "; monotone bounds of a cost of unknown convexity"
    if _own_cost(cost):
        parts += "; the cost's shape between the checked points is the user's word"
    return parts


def _own_cost(cost: CostFunction) -> bool:
    if isinstance(cost, StackedCost):
        return any(_own_cost(one) for one in cost.costs)
    return not isinstance(cost, LinearCost | PowerCost)


def _symmetric_least(
    score: Score, cost: CostFunction, low: float, start: float, report: CurvatureReport
) -> float:
    """The least symmetric equilibrium of copies of one participant, by monotone iteration from below."""
    degree = low
    for _ in range(MAX_ROUNDS):
        answer = _respond(score, cost, low, start, np.array([degree]), PeerRule.RANDOM, report)
        following = float(answer.degree[0])
        if abs(following - degree) <= DEGREE_TOLERANCE:
            return following
        # Outside the supermodular case the iteration may cycle; from below it must not turn back.
        degree = max(following, degree)
    return degree


def _respond(
    score: Score,
    cost: CostFunction,
    low: float,
    start: float,
    peers: Array,
    rule: PeerRule,
    report: CurvatureReport,
) -> Maximum:
    """The global maximum against `peers`, from the closed form where there is one, bounded by the search."""

    def payment(_: Index, degree: Array) -> Array:
        return _payments(score, degree, peers, rule)

    def slope(_: Index, degree: Array) -> tuple[Array, Array]:
        first = score.first(_pair_sums(degree, peers, rule)).mean(axis=1)
        return first, ROUNDING * np.abs(first)

    def bend(_: Index, degree: Array) -> Array:
        return np.asarray(score.second(_pair_sums(degree, peers, rule)).mean(axis=1))

    ends = np.array([low]), np.array([start])
    problem = SearchProblem(*ends, ends[1], payment, slope, bend, _ForAnyone(cost), report.holds)
    return maximise(problem, incumbent=_closed_form(score, cost, low, start, peers, rule))


def _closed_form(
    score: Score, cost: CostFunction, low: float, start: float, peers: Array, rule: PeerRule
) -> Array | None:
    """The better of the clipped smaller root and the ends, where the root is closed-form."""
    if not isinstance(cost, LinearCost) or (peers.size > 1 and rule is PeerRule.RANDOM):
        return None
    c = float(np.ravel(cost.coefficient)[0])
    A = float(np.mean(peers**2)) + score.bound.ratio
    if isinstance(score.function, Log):
        root = log_stationary(c, A)
    elif isinstance(score.function, Linear):
        root = linear_stationary(2 * float(score.function.kappa) * score.Q / (c * score.bound.phi), A)
    else:
        return None
    candidates = np.clip(np.array([low, start if np.isnan(root) else float(root), start]), low, start)
    utility = _payments(score, candidates, peers, rule) - cost.value(start - candidates)
    return np.asarray(candidates[[int(np.argmax(utility))]])


@dataclass(frozen=True)
class _ForAnyone:
    """A single participant's cost, whoever asks."""

    cost: CostFunction

    @property
    def convexity(self) -> Convexity:
        return self.cost.convexity

    def value(self, x: npt.ArrayLike) -> Array:
        return self.cost.value(x)

    def first(self, x: npt.ArrayLike) -> Array:
        return self.cost.first(x)

    def second(self, x: npt.ArrayLike) -> Array:
        return self.cost.second(x)

    def take(self, index: Index) -> "_ForAnyone":
        del index
        return self


def _payments(score: Score, degree: Array, peers: Array, rule: PeerRule) -> Array:
    return np.asarray(score.value(_pair_sums(degree, peers, rule)).mean(axis=1))


def _pair_sums(degree: Array, peers: Array, rule: PeerRule) -> Array:
    """delta^2 + delta'^2, shape (degrees, peers)."""
    squares = peers**2 if rule is PeerRule.RANDOM else np.array([np.mean(peers**2)])
    return np.asarray(degree[:, None] ** 2 + squares[None, :])


def _degrees(peers: Sequence[float] | Array) -> Array:
    try:
        degrees = np.asarray(peers, dtype=np.float64).ravel()
    except (TypeError, ValueError):
        raise FieldError("peers", peers, "degrees in [0, 1]") from None
    if degrees.size == 0:
        raise FieldError("peers", [], "at least one peer: a payment needs one to score against")
    if not (np.isfinite(degrees) & (degrees >= 0) & (degrees <= 1)).all():
        raise FieldError("peers", degrees, "degrees in [0, 1]")
    return degrees


def _resolvent(A: Array, q: Array) -> Array:
    """The root y > 0 of y^3 - A y - q = 0, A, q > 0."""
    half, third = q / 2, A / 3
    disc = half**2 - third**3
    root = np.sqrt(np.maximum(disc, 0.0))
    cardano = np.cbrt(half + root) + np.cbrt(half - root)
    angle = np.arccos(np.clip(half / third**1.5, -1.0, 1.0))
    viete = 2 * np.sqrt(third) * np.cos(angle / 3)
    return np.where(disc >= 0, cardano, viete)
