"""The learner's side: what an equilibrium is worth, and the best payment coefficient.

    Payoff(Q) = g(1 / Bound) - T * sum_k E[payment_k]
    Bound     = Omega + V * sum_k p_k^2 + gamma * sum_k p_k delta_k^2
    subject to  u_k >= 0 for every participant

The profile is the least equilibrium (the best for everyone) or the greatest (the worst). Payoff(Q) jumps where
an equilibrium disappears and has kinks, so no local solver is trusted: coefficients on a grid are solved,
the best is refined, and the answer is the best feasible coefficient that was actually evaluated.

Log payment: Q drops out of the best responses, as A ln(Q/gap) = A ln Q - A ln gap, so as long as nothing is clipped
Payoff falls in Q and the optimum lies on the participation boundary, the least Q at which the profile is still
an equilibrium. Below it participants prefer to be paid nothing for nothing, and another profile follows. The
greatest profile must also stay the greatest: clipping adds equilibria of less effort at coefficients above that.

Source: Pang et al. 2025, section 4 (Payoff, Problem 2) and Example 1; docs/mechanism.md, section 5.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from mechanism.best_response import PeerRule
from mechanism.cost import shape_known
from mechanism.equilibrium import Equilibrium, equilibrium
from mechanism.errors import FieldError
from mechanism.extremal_iteration import peer_fields
from mechanism.game import Game, Side
from mechanism.payment import Log
from mechanism.ranges import non_negative, positive, vector, whole
from mechanism.regret import ENOUGH, SAME, expected_payments, regret

Array = npt.NDArray[np.float64]
Index = npt.NDArray[np.intp]
Reward = Callable[[float], float]

#: Utilities above minus this count as participation: the rounding of a utility.
FEASIBLE = 1e-9
#: Coefficients tried before refining, evenly spaced in ln Q.
GRID = 24
#: Golden-section steps: ln Q to 1e-6, so a smooth maximum to 1e-12 of the payoff. Halvings towards a jump.
GOLDEN_STEPS, HALVINGS = 28, 24
#: The boundary of a log payment is known to this share of it.
BOUNDARY = 1e-13
#: Leavers whose point of indifference is looked for at once, and halvings of ln Q that find it.
LEAVERS, BISECTIONS = 16, 55
#: Share of Q by which it is raised at most so that nobody is too close to indifferent for a proof.
INDIFFERENT = 2e-10
#: The same of the greatest profile: what nobody leaves for less than `ENOUGH` is known no better.
JUMP = 1e-11


@dataclass(frozen=True)
class Learner:
    """What the learner gains and pays.

    Attributes:
        omega: Omega > 0, the part of the bound that effort does not move.
        gamma: gamma >= 0, what heterogeneity adds.
        reward: g, non-decreasing on R+, credits; a number R stands for g(y) = R * y.
        rounds: T, rounds that are paid.
        weights: p_k, positive, summing to 1; None for 1/N.
        variance: V >= 0, the part of the bound that more participants average out (sum_k p_k^2 sigma^2).
    """

    omega: float
    gamma: float
    reward: Reward | float
    rounds: int = 1
    weights: Sequence[float] | None = None
    variance: float = 0.0
    g: Reward = field(init=False, repr=False)

    def __post_init__(self) -> None:
        positive("learner.omega", self.omega)
        for name in ("gamma", "variance"):
            non_negative(f"learner.{name}", getattr(self, name))
        whole("learner.rounds", self.rounds)
        if callable(self.reward):
            object.__setattr__(self, "g", self.reward)
            _check_reward(self.reward)
        else:
            scale = non_negative("learner.reward", self.reward)
            object.__setattr__(self, "g", lambda y: scale * y)
        if self.weights is not None:
            weights = vector("learner.weights", self.weights)
            if weights.ndim != 1 or not (weights > 0).all() or not abs(weights.sum() - 1) <= 1e-9:
                raise FieldError("learner.weights", self.weights, "positive numbers that sum to 1")

    def bound(self, degree: Array) -> float:
        """Omega + V sum p_k^2 + gamma sum p_k delta_k^2."""
        weights = self._weights(degree.size)
        spread, heterogeneity = np.square(weights).sum(), (weights * np.square(degree)).sum()
        return float(self.omega + self.variance * spread + self.gamma * heterogeneity)

    def payoff(self, profile: Equilibrium) -> float:
        """g(1/Bound) - T sum of expected payments, credits."""
        return float(self.g(1 / self.bound(profile.degree)) - self.rounds * profile.payment.sum())

    def among(self, index: Index, size: int) -> "Learner":
        """The learner when only the participants at `index` of `size` train."""
        if self.weights is None:
            return self
        weights = np.asarray(self.weights)[index]
        return replace(self, weights=list(weights / weights.sum()))

    def _weights(self, size: int) -> Array:
        if self.weights is None:
            return np.full(size, 1 / size)
        weights = np.asarray(self.weights, dtype=np.float64)
        if weights.size != size:
            raise FieldError("learner.weights", f"{weights.size} entries", f"one a participant: {size}")
        return weights


@dataclass(frozen=True)
class Offer:
    """A coefficient and what follows from it.

    Attributes:
        Q: the coefficient.
        profile: the equilibrium that was assumed.
        payoff: the learner's, credits.
        feasible: whether every utility is at least -`FEASIBLE` and the profile is a converged equilibrium.
        on_boundary: whether a slightly smaller coefficient would lose this profile (log payment).
    """

    Q: float
    profile: Equilibrium
    payoff: float
    feasible: bool
    on_boundary: bool = False

    @property
    def slack(self) -> Array:
        """u_k, what the participation constraint leaves, shape (N,)."""
        return self.profile.utility


def offer(game: Game, learner: Learner, side: Side = "least", start: Array | None = None) -> Offer:
    """What `game` at its own Q is worth to the learner."""
    profile = equilibrium(game, side, start=start)
    return _offer(game.Q, profile, learner)


def best_offer(game: Game, learner: Learner, side: Side = "least", partial: bool = True) -> Offer:
    """The best feasible coefficient against one extremal equilibrium; the Q of `game` is not used.

    Args:
        partial: under a log payment, look below the participation boundary too, where some make no effort.

    Raises:
        FieldError: no coefficient that was tried is feasible (a payment function of negative values).
    """
    return max_offer(payoff_curve(game, learner, side, partial))


def payoff_curve(game: Game, learner: Learner, side: Side = "least", partial: bool = True) -> list[Offer]:
    """Every offer that the search for the best coefficient evaluated, by increasing Q."""
    if (
        isinstance(game.payment, Log)
        and game.rule is PeerRule.RANDOM  # what is clipped is summed for peers drawn at random
        and shape_known(game.cost).all()
    ):
        offers = _log_offers(game, learner, side, partial)
    else:
        offers = _searched_offers(game, learner, side)
    return sorted(offers, key=lambda one: one.Q)


def max_offer(offers: Sequence[Offer]) -> Offer:
    """The best feasible offer; the cheapest of equals."""
    feasible = [one for one in offers if one.feasible]
    if not feasible:
        raise FieldError(
            "Q", [one.Q for one in offers], "a coefficient under which every utility is at least 0"
        )
    return max(feasible, key=lambda one: (one.payoff, -one.Q))


def _offer(Q: float, profile: Equilibrium, learner: Learner, on_boundary: bool = False) -> Offer:
    feasible = bool(profile.utility.min() >= -FEASIBLE) and profile.converged
    return Offer(Q, profile, learner.payoff(profile), feasible, on_boundary)


def _unclipped(game: Game) -> float:
    """The least Q at which no two degrees in reach are clipped."""
    return float(game.bound.gap(game.start.max(), game.start.max())) * (1 + 1e-12)


def _log_scale(game: Game) -> float:
    """A of a log payment."""
    assert isinstance(game.payment, Log)
    return float(game.payment.scale)


def _log_offers(game: Game, learner: Learner, side: Side, partial: bool) -> list[Offer]:
    """The participation boundary, the offers above it, and some below where participants drop out."""
    top = _unclipped(game)
    free = equilibrium(game.with_q(top), side)
    boundary = _log_boundary(game, free, top, _log_required(game, free, top))
    if side == "greatest":
        boundary = _greatest_boundary(game, free, boundary, top)
    boundary, profile = _settled(game, free, boundary, side)
    offers = [_offer(boundary, profile, learner, on_boundary=True)]
    if not partial:  # above the boundary the payoff falls
        return offers
    offers += [
        _offer(float(Q), _under(game.with_q(float(Q)), free), learner)
        for Q in np.geomspace(boundary, 2 * max(top, boundary), 9)[1:]
    ]
    # Degrees fall as Q rises: going down from the least, or up from the greatest, each is a valid start for the
    # next.
    coefficients = np.geomspace(boundary, game.bound.upsilon, GRID // 2 + 1)[1:]
    start = free.degree if side == "least" else None
    below: list[Offer] = []
    for Q in coefficients if side == "least" else coefficients[::-1]:
        below.append(offer(game.with_q(float(Q)), learner, side, start))
        start = below[-1].profile.degree
    offers += below
    best = max_offer(offers)
    if not best.on_boundary and best in below:
        offers += _halved(game, learner, side, best, below)
    return offers


def _halved(game: Game, learner: Learner, side: Side, best: Offer, below: list[Offer]) -> list[Offer]:
    """Payoff falls in Q until someone drops out: halve towards the next coefficient below."""
    lower = max((one.Q for one in below if one.Q < best.Q), default=best.Q)
    found = []
    for _ in range(HALVINGS):
        middle = (lower * best.Q) ** 0.5
        tried = offer(game.with_q(middle), learner, side)
        found.append(tried)
        if tried.feasible and tried.payoff > best.payoff:
            best = tried
        else:
            lower = middle
    return found


def _log_required(game: Game, free: Equilibrium, top: float) -> float:
    """The least Q at which `free` leaves everyone a utility of at least 0, payments clipped at 0."""
    # Unclipped, A ln Q + (payment - A ln top) >= cost has a closed form, and clipping only raises a payment.
    high = min(float(top * np.exp(np.max(-free.utility) / _log_scale(game))), top)
    worst = float(free.degree.max())
    if high >= float(game.bound.gap(worst, worst)):
        return high
    low = min(game.bound.upsilon, high)
    for _ in range(BISECTIONS):
        middle = (low * high) ** 0.5
        if _under(game.with_q(middle), free).utility.min() >= -ENOUGH:
            high = middle
        else:
            low = middle
    return high


def _log_boundary(game: Game, free: Equilibrium, top: float, required: float) -> float:
    """The least Q in [required, top] at which `free` is still an equilibrium of the clipped game.

    As Q falls, a profile whose payments are unclipped loses ln Q on all peers, a deviation only on those that
    still pay it: one who would leave for some degree at Q would leave for it at every lower one. So Q rises, each
    time to where the last leavers are indifferent, until nobody leaves: never past the boundary, and ends on it.
    """
    Q = min(required, top)
    while top > Q:
        who, where = _leavers(game, free.degree, Q)
        if who.size == 0:
            break
        raised = _indifferent(game, free.degree, who, where, Q, top)
        if raised <= Q * (1 + BOUNDARY):
            break
        Q = raised
    return float(Q)


def _leavers(game: Game, degree: Array, Q: float) -> tuple[Index, Array]:
    """Those who would gain most by leaving the profile when the coefficient is Q and payments are clipped at 0."""
    clipped = game.with_q(Q)
    found = regret(clipped, peer_fields(clipped)(degree), degree, ENOUGH)
    # The profile itself is known to 1e-11; what that is worth is second order.
    leave = np.flatnonzero(found.gain > 10 * ENOUGH + found.rounding)
    who = leave[np.argsort(-found.gain[leave], kind="stable")[:LEAVERS]]
    return who, found.better[who]


def _indifferent(game: Game, degree: Array, who: Index, where: Array, Q: float, top: float) -> float:
    """Where in [Q, top] one of `who` is indifferent between its degree and that in `where`: the greatest such Q."""
    mine = np.arange(who.size)
    stay, leave = (np.log(game.bound.gap(at[:, None], degree)) for at in (degree[who], where))
    # Nobody is its own peer.
    stay[mine, who] = leave[mine, who] = np.inf
    cost, start = game.cost.take(who), game.start[who]
    saved = (cost.value(start - degree[who]) - cost.value(start - where)) / _log_scale(game)
    low, high = np.full(who.size, np.log(Q)), np.full(who.size, np.log(top))
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        paid = [np.maximum(middle[:, None] - logs, 0.0).sum(axis=1) for logs in (leave, stay)]
        gains = (paid[0] - paid[1]) / (game.size - 1) + saved > 0
        low, high = np.where(gains, middle, low), np.where(gains, high, middle)
    return float(np.exp(high.max()))


def _greatest_boundary(game: Game, free: Equilibrium, low: float, top: float) -> float:
    """The least Q in [low, top] at which `free` is the greatest equilibrium of the clipped game, not only one.

    What a lower degree adds to a utility does not fall as Q rises, so the greatest equilibrium falls in Q and
    reaches `free` at one coefficient: halving finds it. Each profile above it is a valid start for the next.
    """
    above = equilibrium(game.with_q(low), "greatest").degree
    if _same(above, free):
        return low
    high = top
    while high > low * (1 + JUMP):
        middle = (low * high) ** 0.5
        found = equilibrium(game.with_q(middle), "greatest", start=above).degree
        if _same(found, free):
            high = middle
        else:
            low, above = middle, found
    return high


def _settled(game: Game, free: Equilibrium, Q: float, side: Side) -> tuple[float, Equilibrium]:
    """`Q` and its extremal equilibrium as `equilibrium` finds it, which is `free`.

    At the boundary somebody is indifferent, to rounding: Q rises by as little as it takes for the solver, which
    knows nothing of this search, to agree, and if so little is enough, to prove it.
    """
    step, most = BOUNDARY, np.inf
    agreed: tuple[float, Equilibrium] | None = None
    while True:
        found = equilibrium(game.with_q(Q), side)
        if _same(found.degree, free) or _unclipped(game) <= Q:
            agreed, most = agreed or (Q, found), min(most, Q * (1 + INDIFFERENT))
            if found.certified:
                return Q, found
        if agreed is not None and Q * (1 + step) > most:
            return agreed
        Q, step = Q * (1 + step), 4 * step


def _same(degree: Array, free: Equilibrium) -> bool:
    return float(np.abs(degree - free.degree).max()) <= SAME


def _under(game: Game, free: Equilibrium) -> Equilibrium:
    """The degrees of `free` with what they are paid in `game`; its certificate is that of `free`."""
    payment = expected_payments(game, peer_fields(game)(free.degree), free.degree)
    payment = np.maximum(payment, 0.0)  # a difference of two sums, each rounded
    return replace(free, payment=payment, utility=payment - free.cost)


def _searched_offers(game: Game, learner: Learner, side: Side) -> list[Offer]:
    """A grid in ln Q, a golden section around its best, and halving towards a jump below."""

    tried: dict[float, Offer] = {}

    def at(log_q: float) -> Offer:
        if log_q not in tried:
            tried[log_q] = offer(game.with_q(float(np.exp(log_q))), learner, side)
        return tried[log_q]

    def worth(log_q: float) -> float:
        return at(log_q).payoff if at(log_q).feasible else -np.inf

    low, high = np.log(game.bound.upsilon) - 7, np.log(float(game.bound.gap(1.0, 1.0))) + 1
    grid = [float(q) for q in np.linspace(low, high, GRID)]
    step = grid[1] - grid[0]
    while max(grid, key=worth) == grid[-1] and len(grid) < 4 * GRID:
        grid.append(grid[-1] + step)
    if worth(max(grid, key=worth)) > -np.inf:
        best = _golden(worth, max(grid, key=worth), step)
        # Right below a smooth maximum the payoff is nearly the same; below a jump it is not.
        near = best - 1e-6
        if worth(near) < worth(best) - 1e-4 * (abs(worth(best)) + 1):
            low = near
            for _ in range(HALVINGS):
                middle = (low + best) / 2
                low, best = (low, middle) if worth(middle) > worth(best) else (middle, best)
    return list(tried.values())


def _golden(worth: Callable[[float], float], centre: float, reach: float) -> float:
    """A maximizer of `worth` near `centre`; the best point that was evaluated."""
    share = (5**0.5 - 1) / 2
    a, b = centre - reach, centre + reach
    c, d = b - share * (b - a), a + share * (b - a)
    for _ in range(GOLDEN_STEPS):
        if worth(c) >= worth(d):
            b, d = d, c
            c = b - share * (b - a)
        else:
            a, c = c, d
            d = a + share * (b - a)
    return max((centre, c, d), key=worth)


def _check_reward(reward: Reward) -> None:
    values = [float(reward(y)) for y in np.geomspace(1e-6, 1e6, 121)]
    if not np.isfinite(values).all() or (np.diff(values) < 0).any():
        raise FieldError("learner.reward", reward, "a finite, non-decreasing function of 1/Bound")
