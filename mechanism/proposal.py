"""Terms from wishes: the scale, Q, penalty and stake that bring participants to a degree, under a log payment.

    A       the least with which nobody is above t in any equilibrium, and a tenth more; at least c (2 x^2 + r) / (2 x)
    Q       the least at which that stays so where payments are clipped at 0, and a tenth more; or what the budget buys
    lambda  such that who makes no effort and claims t loses a round's pay: the mean payment over (s - t)^2
    stake   what the dearest participant saves in a round in which it makes no effort

t is the degree wanted, s the greatest degree without effort, c the greatest cost of a degree, r = Upsilon / Phi, and x
is t, or sqrt(r/2) where t is above: there less is paid for as much. That A is where copies of the dearest are at t in
their least equilibrium. The greatest, in which everybody expects little of the others, takes up to the `sure` scale,
the greater of that at x = t and at x = s, with which nobody is above t in any population (docs/mechanism.md, section
5); how much of it a population needs is solved for.

Participants have linear costs and can reach every degree down to a hundredth of where they start. Their costs and
starts are spread evenly over the ranges given, in orders that do not follow each other.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal

import numpy as np

from mechanism.canonical import MAX_INTEGER
from mechanism.cost import LinearCost
from mechanism.effort import ExponentialEffort
from mechanism.equilibrium import Equilibrium, equilibrium, solve
from mechanism.errors import FieldError
from mechanism.game import Game
from mechanism.gap_bound import GapBound
from mechanism.payment import Log
from mechanism.ranges import Array, degree, positive, whole
from mechanism.settlement import MICRO, max_payment_micro

#: The least degree that effort reaches, over the one without.
REACH = 0.01
#: What is proposed over the least that does, of A and of Q: costs are guesses.
MARGIN = 1.1
#: Halvings that find the least, to a hundredth or so: the margin is ten of them.
HALVINGS = 7
#: Participants that are solved for at most; more of them, as evenly spread, do about the same.
POPULATION = 40
#: Significant digits of what is proposed.
DIGITS = 4


@dataclass(frozen=True)
class Wishes:
    """What the learner wants and expects.

    Attributes:
        degree: t, which nobody shall be above, in (0, 1).
        costs: least and greatest cost of lowering a degree by 1, credits; at least a micro-credit.
        starts: least and greatest degree without effort.
        participants, rounds: places, and rounds that are paid.
        budget: credits for all of them; None: the least, and a tenth of Q more.

    Raises:
        FieldError: a value out of its range; a budget below `least_bill`, or costs at which that is more than a ledger
            holds.
    """

    degree: float
    costs: tuple[float, float]
    starts: tuple[float, float]
    participants: int
    rounds: int
    budget: float | None = None

    def __post_init__(self) -> None:
        for name, least in (("costs", 1 / MICRO), ("starts", 0.0)):
            low, high = getattr(self, name)
            positive(name, low)
            if not low <= positive(name, high):
                raise FieldError(name, [low, high], "the least before the greatest")
            if low < least:
                raise FieldError(name, [low, high], f"at least {least:.6f} credits, the least that is paid")
        for start in self.starts:
            degree("starts", start)
        if not 0 < self.degree < self.starts[1]:
            raise FieldError(
                "degree",
                self.degree,
                f"above 0 and below {self.starts[1]:g}, the greatest degree without effort",
            )
        whole("participants", self.participants, 2)
        whole("rounds", self.rounds)
        least, most = least_bill(self), MAX_INTEGER / MICRO
        rounds = f"{self.rounds} round" + "s" * (self.rounds != 1)
        asked = f"a degree of {self.degree:g} in {rounds} of {self.participants} participants"
        if least > most:
            raise FieldError(
                "costs",
                list(self.costs),
                f"less: {asked} takes {least:.4g} credits, and a bill is at most {most:.10g}",
            )
        if self.budget is None:
            return
        if positive("budget", self.budget) < least:
            raise FieldError(
                "budget",
                self.budget,
                f"at least {rounded(least):f} credits for {asked}: so much the effort itself costs, whatever phi and "
                "upsilon are, and they may take more. Or ask for a higher degree, fewer places or rounds",
            )
        if self.budget > most:
            raise FieldError("budget", self.budget, f"at most {most:.10g} credits, the most of a bill")


def least_bill(wishes: Wishes) -> float:
    """Credits that the task pays at least where nobody is above the wanted degree, whatever phi and upsilon are.

        K R max_k c_k (s_k - t)+,   K participants, R rounds

    Nobody is worse off than without effort, and no payment is below 0: that of the dearest covers what its effort
    costs, and the bill has the largest payment for every place.
    """
    count = min(wishes.participants, POPULATION)
    spared = np.linspace(*wishes.costs, count) * np.maximum(_starts(wishes, count) - wishes.degree, 0)
    return float(spared.max()) * wishes.participants * wishes.rounds


@dataclass(frozen=True)
class Proposal:
    """What to write into the terms, and what follows from it.

    Attributes:
        payment, Q, claim_penalty, stake_micro: as terms have them.
        bill: the most that the task can then pay, credits.
        sure: the scale with which nobody is above the wanted degree whatever the population within the ranges.
        least, greatest: the equilibria of the population that is expected.
    """

    payment: Log
    Q: Decimal
    claim_penalty: Decimal
    stake_micro: int
    bill: Decimal
    sure: Decimal
    least: Equilibrium
    greatest: Equilibrium


def propose(bound: GapBound, wishes: Wishes) -> Proposal:
    """Terms of a log payment for `wishes`.

    Raises:
        FieldError: a budget at which somebody prefers to do nothing.
    """
    cost, start = wishes.costs[1], wishes.starts[1]
    low, sure = scales(bound.ratio, wishes.degree, start, cost)
    top = float(bound.gap(start, start))  # from here on nobody's payment is clipped

    def works(scale: float, Q: float) -> bool:
        game = Game(Log(Decimal(scale)), Q, bound, *_population(wishes))
        return float(equilibrium(game, "greatest").degree.max()) <= wishes.degree

    scale = _least(lambda A: works(A, top), low, sure * (1 + 1e-9))
    payment = Log(rounded(scale * MARGIN, ROUND_CEILING))
    least = _least(lambda Q: works(float(payment.scale), Q), bound.upsilon, top)
    Q = _coefficient(wishes, bound, payment, least)
    game = Game(payment, float(Q), bound, *_population(wishes))
    solution = solve(game)
    paid, span = solution.greatest.payment.mean(), start - wishes.degree
    saved = cost * (start - min(float(solution.least.degree.min()), start))
    return Proposal(
        payment,
        Q,
        rounded(float(paid) / span**2, ROUND_CEILING),
        math.ceil(saved * MICRO),
        _bill(wishes, bound, payment, Q),
        rounded(sure, ROUND_CEILING),
        solution.least,
        solution.greatest,
    )


def scales(ratio: float, wanted: float, start: float, cost: float) -> tuple[float, float]:
    """A with which nobody is above `wanted` in the least equilibrium of copies, and in any of any population.

    Args:
        ratio: Upsilon / Phi.
        start: the greatest degree without effort.
        cost: the greatest.
    """

    def level(x: float) -> float:
        return cost * (2 * x**2 + ratio) / (2 * x)

    return level(min(wanted, math.sqrt(ratio / 2))), max(level(wanted), level(start))


def _least(works: Callable[[float], bool], low: float, high: float) -> float:
    """About the least value in [low, high] that works; `high` does, and so does what is above one that does."""
    if works(low):
        return low
    for _ in range(HALVINGS):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if works(middle) else (middle, high)
    return high


def _population(wishes: Wishes) -> tuple[ExponentialEffort, LinearCost]:
    count = min(wishes.participants, POPULATION)
    return (
        ExponentialEffort(_starts(wishes, count), np.full(count, -math.log(REACH))),
        LinearCost(np.linspace(*wishes.costs, count)),
    )


def _starts(wishes: Wishes, count: int) -> Array:
    places = np.arange(count)
    # The golden ratio's multiples: as even as the costs, and in no order that follows theirs.
    order = np.argsort(np.argsort(places * (5**0.5 - 1) / 2 % 1))
    return np.quantile(wishes.starts, order / (count - 1))


def _coefficient(wishes: Wishes, bound: GapBound, payment: Log, least: float) -> Decimal:
    if wishes.budget is None:
        return rounded(least * MARGIN, ROUND_CEILING)
    places = wishes.participants * wishes.rounds
    exponent = wishes.budget / places / float(payment.scale)
    needed = places * float(payment.scale) * math.log(least / bound.upsilon)
    if exponent > math.log(1e12):
        raise FieldError(
            "budget", wishes.budget, "less: Q would be above 10^12 times upsilon; ask for a lower degree"
        )
    Q = rounded(bound.upsilon * math.exp(exponent), ROUND_FLOOR)
    if rounded(least, ROUND_CEILING) > Q:
        raise FieldError(
            "budget",
            wishes.budget,
            f"at least {needed * 1.001:.4g} credits for a degree of {wishes.degree:g} in {wishes.rounds} rounds of "
            f"{wishes.participants} participants: with less somebody would rather do nothing. Or ask for a higher "
            "degree, fewer places or rounds",
        )
    return Q


def _bill(wishes: Wishes, bound: GapBound, payment: Log, Q: Decimal) -> Decimal:
    head = max_payment_micro(Q, Decimal(bound.upsilon), payment.exact)
    return Decimal(head * wishes.participants * wishes.rounds) / MICRO


def rounded(value: float, rounding: str = ROUND_CEILING) -> Decimal:
    """The shortest decimal that is read as `value`, to `DIGITS` significant digits."""
    return Context(prec=DIGITS, rounding=rounding).create_decimal(repr(float(value)))
