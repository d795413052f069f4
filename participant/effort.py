"""How much effort to make: strategies, and the explanation of one.

    BestResponse    argmax over e of  E[ f(Q / (Phi*(delta(e)^2 + delta'^2) + Upsilon)) ] - cost(delta(0) - delta(e)),
                    or of what that is worth for sure to one who weighs the risk of the draw (`mechanism.risk`)
    Fixed           always the same effort
    a function      (terms, counts) -> effort

delta(0) is computed from the task's counts; the curve says what effort makes of it. The best response and
its certificate come from `mechanism.best_response`, so a participant decides by the rule that it is paid by.

Source: Pang et al. 2025, section 4; corrections in docs/mechanism.md.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np

from mechanism.degree import noniid_degree, stratum_counts
from mechanism.errors import MechanismError
from mechanism.readable import Readable, Table
from mechanism.statements import EFFORT_PLACES
from mechanism.terms import Terms
from participant.errors import EffortError, ParticipantError

if TYPE_CHECKING:
    from mechanism.best_response import OptimalEffort as Answer
    from mechanism.cost import CostFunction
    from mechanism.effort import EffortCurve
    from mechanism.gap_bound import GapBound
    from mechanism.risk import Attitude

#: Gives the curve of a participant whose data have the degree delta(0).
CurveOfStart: TypeAlias = "Callable[[float], EffortCurve]"

#: Efforts at which an explanation shows the utility.
EXPLAINED_POINTS = 11


@dataclass(frozen=True)
class Decision:
    """An effort and why.

    Attributes:
        effort: in [0, 1], six places.
        reason: a sentence.
        answer: the best response that it rests on, where it does.
    """

    effort: Decimal
    reason: str
    answer: "Answer | None" = None


class EffortStrategy(Protocol):
    """Decides once a task, after the terms are known and before data are collected."""

    def decide(self, terms: Terms, counts: Sequence[int]) -> Decision:
        """The effort for a task with `terms`, of a participant whose data now have the label `counts`."""


Effort: TypeAlias = EffortStrategy | float | Callable[[Terms, Sequence[int]], float]


@dataclass(frozen=True)
class Fixed:
    """Always the same effort in [0, 1]."""

    effort: float

    def decide(self, terms: Terms, counts: Sequence[int]) -> Decision:
        del terms, counts
        return Decision(effort_decimal(self.effort), f"the effort is set to {self.effort:g}")


@dataclass(frozen=True)
class Chosen:
    """The effort that a user's function gives."""

    function: Callable[[Terms, Sequence[int]], float]

    def decide(self, terms: Terms, counts: Sequence[int]) -> Decision:
        try:
            effort = self.function(terms, counts)
        except ParticipantError:
            raise
        except Exception as error:
            name = getattr(self.function, "__name__", type(self.function).__name__)
            raise EffortError(
                f"the effort function {name} raised {type(error).__name__}: {error}; it is called with the terms and "
                "the counts, and returns a number from 0 to 1",
                public="the participant's effort function failed",
            ) from error
        return Decision(effort_decimal(effort), f"the participant's own function chose {float(effort):g}")


@dataclass(frozen=True)
class BestResponse:
    """The effort that maximises what a round is worth.

    Attributes:
        cost: credits; None: one credit for each unit of degree (`mechanism.cost.LinearCost(1)`).
        curve: what effort makes of the data: a curve, or a function of delta(0) that gives one; None: the paper's
            delta(0) * exp(-e).
        peers: the degrees believed of the others; None: that they are like oneself.
        attitude: how the risk is weighed of which peers are drawn, `mechanism.risk.CARA` or `CRRA`; None: not at all.
            It changes nothing where the terms draw everybody, or where peers are believed to be alike.
    """

    cost: "CostFunction | None" = None
    curve: "EffortCurve | CurveOfStart | None" = None
    peers: Sequence[float] | None = None
    attitude: "Attitude | None" = None

    def decide(self, terms: Terms, counts: Sequence[int]) -> Decision:
        return self.explain(terms, counts).decision

    def explain(self, terms: Terms, counts: Sequence[int]) -> "Explanation":
        """The decision with the utility at every tenth of effort.

        Raises:
            EffortError: a curve that increases, a cost that decreases, or one that does not start at delta(0).
        """
        # These pull in the solver, which a participant with a fixed effort does not need.
        from mechanism.best_response import best_response
        from mechanism.gap_bound import GapBound

        try:
            start = noniid_degree(stratum_counts(counts, terms.strata_names), terms.reference)
            curve, cost = self._curve(float(start)), self._cost()
            bound = GapBound(float(terms.phi), float(terms.upsilon))
            answer = best_response(
                payment=terms.payment,
                Q=float(terms.Q),
                bound=bound,
                effort=curve,
                cost=cost,
                peers=self.peers,
                drawn=terms.rule.peers,
                attitude=None if terms.all_peers else self.attitude,
            )
        except MechanismError as error:
            raise EffortError(f"no best effort can be computed: {error}") from error
        decision = Decision(effort_decimal(answer.effort), _because(answer), answer)
        return Explanation(terms.task_id, start, decision, self._points(terms, bound, curve, cost, answer))

    def _points(
        self, terms: Terms, bound: "GapBound", curve: "EffortCurve", cost: "CostFunction", answer: "Answer"
    ) -> tuple["Point", ...]:
        """Figures of a round at every tenth of effort."""
        from mechanism.risk import Lottery
        from mechanism.score import Score

        efforts = np.linspace(0.0, 1.0, EXPLAINED_POINTS)
        degrees = np.asarray(curve.degree(efforts), dtype=np.float64)
        squares = np.square(np.asarray(answer.peers, dtype=np.float64))
        score = Score(terms.payment, float(terms.Q), bound)
        against = score.value(np.square(degrees)[:, None] + squares[None, :])
        payments = against.mean(axis=1)
        costs = np.asarray(cost.value(np.maximum(float(curve.start) - degrees, 0.0)), dtype=np.float64)
        # Of a mean of some of the peers, drawn without replacement.
        drawn, size = terms.rule.peers, squares.size
        deviations, equivalents = np.zeros_like(payments), payments - costs
        if drawn < size and not terms.all_peers:
            deviations = against.std(axis=1) * np.sqrt((size - drawn) / (drawn * (size - 1)))
            if self.attitude is not None:
                lottery = Lottery(score, squares, drawn, self.attitude, float(costs.max()))
                equivalents = lottery.worth(degrees, costs).equivalent
        columns = (efforts, degrees, payments, deviations, costs, equivalents)
        return tuple(Point(*map(float, row)) for row in zip(*columns, strict=True))

    def _curve(self, start: float) -> "EffortCurve":
        from mechanism.effort import EffortCurve, ExponentialEffort

        if self.curve is None:
            return ExponentialEffort(start)
        curve = self.curve
        if not isinstance(curve, EffortCurve):
            if not callable(curve):
                raise EffortError(
                    f"the curve is {curve!r}; expected a curve, or a function of delta(0) that makes one"
                )
            curve = curve(start)
        if not isinstance(curve, EffortCurve):
            raise EffortError(
                f"the curve function gave {curve!r}; expected a curve, such as ExponentialEffort(start), or "
                "CallableEffort around a function of the effort"
            )
        if abs(float(curve.start) - start) > CURVE_TOLERANCE:
            raise EffortError(
                f"the effort curve starts at a degree of {float(curve.start):.6g}, the counts have "
                f"{start:.6g}; give a curve that starts there, or a function of delta(0) that makes one"
            )
        return curve

    def _cost(self) -> "CostFunction":
        from mechanism.cost import CostFunction, LinearCost

        if self.cost is None:
            return LinearCost(1.0)
        if not isinstance(self.cost, CostFunction):
            raise EffortError(
                f"the cost is {self.cost!r}; expected a cost function, such as LinearCost(1.0), or CallableCost around "
                "a function of the degree that is improved"
            )
        return self.cost


#: By how much delta(0) of a curve may differ from that of the counts: a curve is often written with two digits.
CURVE_TOLERANCE = 0.01


@dataclass(frozen=True)
class Point:
    """Figures of a round at one effort, in credits.

    Attributes:
        payment: expected; deviation: by how much that of a round differs, since peers are drawn (standard deviation).
        equivalent: what would be taken for sure in the place of the round, its cost taken off; the utility where risk
            is not weighed.
    """

    effort: float
    degree: float
    payment: float
    deviation: float
    cost: float
    equivalent: float

    @property
    def utility(self) -> float:
        return self.payment - self.cost


@dataclass(frozen=True, repr=False)
class Explanation(Readable):
    """Why an effort is the best: prints as a table with the utility curve.

    Attributes:
        task_id: of which task.
        start: delta(0), exact.
        decision: what follows.
        points: figures at every tenth of effort.
        remarks: why the task cannot be taken part in as things are, a sentence each.
    """

    task_id: str
    start: Fraction
    decision: Decision
    points: tuple[Point, ...]
    remarks: tuple[str, ...] = ()

    def record(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "task": self.task_id,
            "start_degree": str(self.start),
            "effort": str(self.decision.effort),
            "reason": self.decision.reason,
            "remarks": list(self.remarks),
            "points": [{**vars(point), "utility": point.utility} for point in self.points],
        }

    def __str__(self) -> str:
        low = min(0.0, *(p.equivalent for p in self.points))
        high = max(p.equivalent for p in self.points)
        lines = [
            self._title,
            "Expected figures of one round, in credits, +- what a draw of peers changes (standard deviation):",
            "",
            "effort  degree  payment  +-          cost  utility  for sure",
        ]
        for point in self.points:
            width = round(24 * (point.equivalent - low) / (high - low)) if high > low else 0
            lines.append(
                f"{point.effort:6.2f}  {point.degree:6.4f}  {point.payment:7.4f}  {point.deviation:<7.4f}  "
                f"{point.cost:7.4f}  {point.utility:7.4f}  {point.equivalent:8.4f}  {'#' * width}"
            )
        return "\n".join([*lines, "", self.decision.reason, *self.remarks])

    @property
    def _title(self) -> str:
        return f"Task {self.task_id}: your data have a non-iid degree of {float(self.start):.4f}."

    def _table(self) -> Table:
        rows = [
            (
                f"{p.effort:.2f}",
                *(f"{x:.4f}" for x in (p.degree, p.payment, p.deviation, p.cost, p.utility, p.equivalent)),
            )
            for p in self.points
        ]
        return Table(
            self._title,
            ("effort", "degree", "payment", "+-", "cost", "utility", "for sure"),
            rows,
            " ".join([self.decision.reason, *self.remarks]),
        )


def strategy_of(effort: Effort) -> EffortStrategy:
    """The strategy that a user means by a strategy, a number or a function.

    Raises:
        EffortError: something else, or a number outside [0, 1].
    """
    if hasattr(effort, "decide"):
        return effort
    if callable(effort):
        return Chosen(effort)
    effort_decimal(effort)
    return Fixed(float(effort))


def decision_of(strategy: EffortStrategy, terms: Terms, counts: Sequence[int]) -> Decision:
    """What a strategy, perhaps a user's own, decides.

    Raises:
        EffortError: it failed, or gave something else.
    """
    name = type(strategy).__name__
    try:
        decision = strategy.decide(terms, counts)
    except ParticipantError:
        raise
    except Exception as error:
        what = f"{name}.decide raised {type(error).__name__}"
        raise EffortError(f"{what}: {error}", public=what) from error
    if not isinstance(decision, Decision):
        raise EffortError(f"{name}.decide returned {decision!r}; expected a Decision")
    return decision


def explained(effort: Any) -> BestResponse:
    """The strategy that is to be explained; None: `BestResponse()`.

    Raises:
        EffortError: a fixed effort or a user's own strategy, which do not weigh efforts against each other.
    """
    if effort is None:
        return BestResponse()
    if not isinstance(effort, BestResponse):
        raise EffortError(
            f"the effort to explain is {effort!r}; expected a BestResponse: a number, Fixed or a function weighs no "
            "efforts against each other"
        )
    return effort


def effort_decimal(effort: float) -> Decimal:
    """`effort` as it is signed: a decimal of six places.

    Raises:
        EffortError: not a number in [0, 1].
    """
    try:
        number = float(effort)
    except (TypeError, ValueError):
        number = float("nan")
    if not 0 <= number <= 1:
        raise EffortError(f"the effort is {effort!r}; expected a number from 0 to 1")
    return Decimal(repr(number)).quantize(Decimal(1).scaleb(-EFFORT_PLACES), rounding=ROUND_HALF_EVEN)


def _because(answer: "Answer") -> str:
    peers = (
        f"{len(answer.peers)} peers of degree {min(answer.peers):.3f} to {max(answer.peers):.3f}"
        if len(answer.peers) > 1
        else f"a peer of degree {answer.peers[0]:.3f}"
    )
    doing = "No effort is best" if answer.effort == 0 else f"An effort of {answer.effort:.4f} is best"
    certificate, risk = answer.certificate, answer.equivalent < answer.utility
    sure = f", which is worth {answer.equivalent:.4f} for sure" if risk else ""
    what = "is worth" if risk else "earns"
    return (
        f"{doing}: with degree {answer.degree:.4f} against {peers} a round pays {answer.expected_payment:.4f}, "
        f"costs {answer.cost:.4f} and leaves {answer.utility:.4f}{sure}. No other effort {what} more than "
        f"{certificate.max_regret:.1e} above that ({certificate.status.value})."
    )
