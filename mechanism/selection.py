"""Whom the learner selects, and what each is paid.

A participant's required coefficient is the least Q at which its expected payment covers its cost:

    Q_k = inf { Q : E[f(Q / gap_k)] >= Cost_k }

The selection is a threshold in it: the m participants of least Q_k, for the m whose game, solved with its own
best coefficient, is worth most. Solving again matters: without the others' degrees everyone's payment changes.

Source: Pang et al. 2025, section 4.2 ("the learner would accordingly select agents for training").
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mechanism.equilibrium import Equilibrium, equilibrium
from mechanism.extremal_iteration import below_kink
from mechanism.game import Game, Side
from mechanism.learner import Learner, Offer, best_offer, offer
from mechanism.mean_field import PAIRS
from mechanism.payment import Linear, Log, Power
from mechanism.ranges import whole
from mechanism.terms import MIN_QUORUM

Array = npt.NDArray[np.float64]
Index = npt.NDArray[np.intp]

#: Sizes of the selection that are solved before the best is refined.
SIZES = 12
#: Halvings of ln Q where the required coefficient has no closed form.
BISECTIONS = 60


@dataclass(frozen=True)
class Selection:
    """The answer.

    Attributes:
        selected: indices of the participants, increasing.
        required: Q_k of everyone at the equilibrium among all, shape (N,).
        threshold: the greatest Q_k of those selected.
        offer: the best offer in the game among them; its arrays follow `selected`.
        payoffs: payoff of each size that was solved.
    """

    selected: Index
    required: Array
    threshold: float
    offer: Offer
    payoffs: dict[int, float]


def select(
    game: Game, learner: Learner, quorum: int = MIN_QUORUM, side: Side = "least", fixed_q: bool = False
) -> Selection:
    """The best threshold selection.

    Args:
        quorum: the fewest participants that may be selected, at least 2.
        fixed_q: keep the coefficient of `game` instead of choosing the best for each selection.

    Raises:
        FieldError: a quorum below 2 or above the population.
    """
    whole("quorum", quorum, 2, game.size)
    everyone = equilibrium(game, side)
    required = required_coefficients(game, everyone)
    order = np.argsort(required, kind="stable")
    solved: dict[int, Offer] = {}

    def payoff(size: int) -> float:
        if size not in solved:
            chosen = np.sort(order[:size])
            among, objective = game.select(chosen), learner.among(chosen, game.size)
            if fixed_q:
                solved[size] = offer(among, objective, side)
            else:
                solved[size] = best_offer(among, objective, side, partial=False)
        one = solved[size]
        return one.payoff if one.feasible else -np.inf

    sizes = sorted({round(s) for s in np.geomspace(quorum, game.size, SIZES)})
    while True:
        best = max(sizes, key=payoff)
        i = sizes.index(best)
        between = {(best + size) // 2 for size in sizes[max(i - 1, 0) : i + 2]} - set(sizes)
        if not between:
            break
        sizes = sorted({*sizes, *between})
    chosen = np.sort(order[:best])
    return Selection(
        chosen, required, float(required[chosen].max()), solved[best], {m: payoff(m) for m in sorted(solved)}
    )


def required_coefficients(game: Game, profile: Equilibrium) -> Array:
    """Q_k at a profile, shape (N,); 0 where the participant does nothing that costs."""
    cost, payment = profile.cost, profile.payment
    pay = game.payment
    if isinstance(pay, Log) and below_kink(game):
        return np.asarray(game.Q * np.exp((cost - payment) / float(pay.scale)))
    if isinstance(pay, Linear | Power):
        exponent = float(pay.exponent) if isinstance(pay, Power) else 1.0
        return np.asarray(game.Q * (cost / payment) ** (1 / exponent))
    return _bisected(game, profile)


def _bisected(game: Game, profile: Equilibrium) -> Array:
    low, required = np.log(game.bound.upsilon) - 40.0, np.empty(game.size)
    rows = max(1, PAIRS // game.size)
    for at in range(0, game.size, rows):
        mine = np.arange(at, min(at + rows, game.size))
        gap = game.bound.gap(profile.degree[mine, None], profile.degree)
        a, b = np.full(mine.size, low), np.full(mine.size, low + 120.0)
        for _ in range(BISECTIONS):
            middle = (a + b) / 2
            paid = game.payment.value(np.exp(middle)[:, None] / gap)
            mean = (paid.sum(axis=1) - paid[np.arange(mine.size), mine]) / (game.size - 1)
            enough = mean >= profile.cost[mine]
            b, a = np.where(enough, middle, b), np.where(enough, a, middle)
        required[mine] = np.where(profile.cost[mine] > 0, np.exp(b), 0.0)
    return required
