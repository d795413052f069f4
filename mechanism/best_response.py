"""The best response of one participant, from published terms alone.

    max over delta in [delta(1), delta(0)] of
        max(0, w E_k'[ f(Q / (Phi (delta^2 + delta_k'^2) + Upsilon)) ] - fee (1 - w)) - c d(delta(0) - delta)

with w the weight of its data (`mechanism.coverage`), 1 where nobody else has them and there are enough.

Work in degrees: the utility is not concave in effort in general, so a first-order condition alone proves
nothing. `mechanism.global_search` finds the maximum, and proves the bound that the certificate states.

Source: Pang et al. 2025, Theorem 3 and the appendix on scoring functions, corrected (docs/mechanism.md,
section 6). Needs NumPy only, so that a participant can call it without the rest of the mechanism.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt

from mechanism.certificate import Certificate, Status
from mechanism.cost import CostFunction, over, own, shape_known
from mechanism.curvature import CurvatureReport, Evidence, relative_curvature
from mechanism.deviation import Deviations
from mechanism.effort import EffortCurve
from mechanism.errors import FieldError
from mechanism.gap_bound import GapBound
from mechanism.global_search import maximise
from mechanism.mean_field import PeerSums
from mechanism.payment import PaymentFunction
from mechanism.ranges import non_negative, whole
from mechanism.risk import LISTED, Attitude, Lottery, averse_maximum
from mechanism.score import Score

Array = npt.NDArray[np.float64]

#: Rounds of the symmetric iteration. It contracts by a factor that is below 1/2 away from a tangency.
MAX_ROUNDS = 10_000
#: Two degrees closer than this are the same.
DEGREE_TOLERANCE = 1e-13


class PeerRule(Enum):
    """Whom a participant is scored against.

    RANDOM   one peer, drawn at random after the round: the expectation is over the peers.
    MEAN     all peers at once: delta'^2 is the mean of the peers' squares (the paper's consistency remark).
    """

    RANDOM = "random"
    MEAN = "mean"


@dataclass(frozen=True)
class OptimalEffort:
    """What a participant should do, and what it may expect.

    Attributes:
        effort: the least effort that reaches `degree`, in [0, 1].
        degree: delta after that effort.
        expected_payment, cost, utility: credits a round.
        certificate: a bound on what another degree could gain over `equivalent`.
        peers: the degrees believed of the peers.
        equivalent: what would be taken for sure in the place of the round, credits; the utility where risk is not
            weighed, or there is none.
        exact: whether that is computed from every draw (`mechanism.risk`).
    """

    effort: float
    degree: float
    expected_payment: float
    cost: float
    utility: float
    certificate: Certificate
    peers: tuple[float, ...]
    equivalent: float
    exact: bool = True


def best_response(
    *,
    payment: PaymentFunction,
    Q: float,
    bound: GapBound,
    effort: EffortCurve,
    cost: CostFunction,
    peers: Sequence[float] | npt.NDArray[np.float64] | None = None,
    rule: PeerRule = PeerRule.RANDOM,
    drawn: int = 1,
    attitude: Attitude | None = None,
    weight: float = 1.0,
    fee: float = 0.0,
) -> OptimalEffort:
    """The best response of one participant, with its certificate.

    A weight w is a cost 1/w times as high in units of what is paid. Where what is left after the fee is less than what
    it costs, nothing is done for it.

    Args:
        payment, Q, bound: what the terms publish.
        effort, cost: the participant's own curve and cost.
        peers: the degrees that it believes its peers to have; None believes in copies of itself, at the
            equilibrium of least degree that they have among themselves.
        rule: how the terms draw peers.
        drawn: how many of the peers a round draws; matters to an attitude alone. All, or more: nothing is drawn.
        attitude: how risk is weighed; None: not at all.
        weight: w in (0, 1].
        fee: of the terms, credits.

    Raises:
        FieldError: anything out of its range, no peer, a payment that decreases, or, with an attitude, one that is not
            known to be convex in the squares of degrees.
    """
    start, low = float(effort.start), float(effort.floor)
    cost, lost = over(cost, weight) if weight != 1 else cost, non_negative("fee", fee) * (1 - weight)
    score = Score(payment, Q, bound)
    report = relative_curvature(payment, *score.span)
    believed = (
        np.array([_symmetric_least(score, cost, low, start, report)]) if peers is None else _degrees(peers)
    )
    problem = _problem(score, cost, low, start, believed, rule, report)
    whole("drawn", drawn, 1)
    if attitude is not None and weight != 1:
        raise FieldError(
            "weight", weight, "1 with an attitude to risk: what a lower one does to it is not known"
        )
    if attitude is not None and rule is PeerRule.RANDOM and drawn < believed.size:
        return _averse(score, effort, cost, believed, drawn, attitude, report, problem)
    found, me = maximise(problem), np.array([0])
    degree = found.degree
    paid, spent = (weight * float(amount(me, degree)[0]) for amount in (problem.payment, problem.costs))
    if lost and paid - lost < spent:  # no payment is below 0
        degree = np.array([start])
        paid, spent = weight * float(problem.payment(me, degree)[0]), 0.0
    paid = max(paid - lost, 0.0) if lost else paid
    return OptimalEffort(
        effort=float(effort.effort(degree[0])),
        degree=float(degree[0]),
        expected_payment=paid,
        cost=spent,
        utility=paid - spent,
        certificate=Certificate(
            float(found.upper[0] - found.value[0]),
            proof_status(report, cost),
            proof_basis(report, cost),
            float(found.rounding[0]),
        ),
        peers=tuple(believed.tolist()),
        equivalent=paid - spent,
    )


def _averse(
    score: Score,
    effort: EffortCurve,
    cost: CostFunction,
    believed: Array,
    drawn: int,
    attitude: Attitude,
    report: CurvatureReport,
    problem: Deviations,
) -> OptimalEffort:
    if not report.holds:
        raise FieldError(
            "payment", score.function, f"a payment that bends as risk aversion needs it: {report}"
        )
    low, start, me = float(problem.low[0]), float(problem.start[0]), np.array([0])
    most = float(np.max(cost.value(np.array([start - low]))))
    lottery = Lottery(score, np.square(believed), drawn, attitude, most)
    found = averse_maximum(lottery, cost, low, start, start)
    degree = np.array([found.degree])
    paid, spent = (float(amount(me, degree)[0]) for amount in (problem.payment, problem.costs))
    status = proof_status(report, cost) if lottery.exact else Status.NONE
    basis = "bounds of the slope of the certainty equivalent on cells of degrees"
    if not lottery.exact:
        basis += f"; of {LISTED} draws in the place of all, so what they leave out is not bounded"
    regret = found.upper - found.equivalent + found.rounding
    return OptimalEffort(
        effort=float(effort.effort(found.degree)),
        degree=found.degree,
        expected_payment=paid,
        cost=spent,
        utility=paid - spent,
        certificate=Certificate(regret if lottery.exact else np.inf, status, basis, found.rounding),
        peers=tuple(believed.tolist()),
        equivalent=found.equivalent,
        exact=lottery.exact,
    )


def proof_status(report: CurvatureReport, cost: CostFunction) -> Status:
    """PROVED where nothing rests on a user's function between the points at which it was checked."""
    checked_payment = report.evidence is not Evidence.DECLARED
    return Status.CONDITIONAL if checked_payment or own(cost) else Status.PROVED


def proof_basis(report: CurvatureReport, cost: CostFunction) -> str:
    """What a certificate of this search rests on, in words."""
    parts = {
        Evidence.DECLARED: "chord bounds of a convex expected payment",
        Evidence.CHECKED: "chord bounds, if the payment keeps to the curvature condition between the checked points",
        Evidence.VIOLATED: "monotone bounds alone, if the payment does not decrease between the checked points; "
        + str(report),
    }[report.evidence]
    if not shape_known(cost).all():
        parts += "; monotone bounds of a cost of unknown convexity"
    if own(cost):
        parts += "; the cost's shape between the checked points is the user's word"
    return parts


def _symmetric_least(
    score: Score, cost: CostFunction, low: float, start: float, report: CurvatureReport
) -> float:
    """The least symmetric equilibrium of copies of one participant, by monotone iteration from below."""
    degree = low
    for _ in range(MAX_ROUNDS):
        problem = _problem(score, cost, low, start, np.array([degree]), PeerRule.RANDOM, report)
        following = float(maximise(problem).degree[0])
        if abs(following - degree) <= DEGREE_TOLERANCE:
            return following
        # Outside the supermodular case the iteration may cycle; from below it must not turn back.
        degree = max(following, degree)
    return degree


def _problem(
    score: Score,
    cost: CostFunction,
    low: float,
    start: float,
    peers: Array,
    rule: PeerRule,
    report: CurvatureReport,
) -> Deviations:
    """One participant's utilities against `peers`."""
    squares, ends = np.square(peers), (np.array([low]), np.array([start]))
    grow, own = (1.0, 0.0) if rule is PeerRule.RANDOM else (0.0, 1.0)
    field, mean = PeerSums(score, squares), np.array([squares.mean()])
    return Deviations(*ends, ends[1], cost, report.holds, score, field, grow, own, mean)


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
