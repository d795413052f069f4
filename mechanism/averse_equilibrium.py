"""Equilibria of participants who dislike risk, by the number of peers that are drawn.

    delta_k in argmax CE_k(delta; delta_-k)      CE of `mechanism.risk`, S any K of the N - 1 others

Best responses in turn, from the least degrees upwards and from the greatest downwards. Where the game is known to be
supermodular (CARA with a A <= K under a logarithm, docs/mechanism.md, section 4) the iterates are monotone and reach
the least and the greatest equilibrium; elsewhere a profile at rest is an equilibrium too, and no more is claimed. Each
participant is searched by itself against all others, so this is for populations of at most `MAX_PARTICIPANTS`.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mechanism.best_response import PeerRule
from mechanism.equilibrium import equilibrium
from mechanism.errors import FieldError
from mechanism.game import Game, Side
from mechanism.risk import Attitude, AverseMaximum, Lottery, averse_maximum, increasing_differences

Array = npt.NDArray[np.float64]

#: Participants up to which an equilibrium is looked for, one by one.
MAX_PARTICIPANTS = 40
#: Sweeps, and the movement at which a profile rests, in degrees.
MAX_SWEEPS, AT_REST = 500, 1e-9


@dataclass(frozen=True)
class AverseEquilibrium:
    """A profile that nobody gains by leaving, in certainty equivalents.

    Attributes:
        drawn: K.
        degree, effort: shape (N,).
        payment, cost: expected credits a round; equivalent: certainty equivalents less cost, shape (N,).
        max_regret: what anybody could gain at most in certainty equivalents; infinity where draws are approximate.
        extremal: whether the game is known to be supermodular, so that this is the least or the greatest equilibrium,
            as asked, where no two best degrees are tied.
        converged: whether it came to rest.
    """

    drawn: int
    degree: Array
    effort: Array
    payment: Array
    cost: Array
    equivalent: Array
    max_regret: float
    extremal: bool
    converged: bool


def averse_equilibrium(game: Game, side: Side, drawn: int, attitude: Attitude) -> AverseEquilibrium:
    """The equilibrium on one side, `drawn` peers each; all of them, or more, is the game of those who weigh no risk.

    Raises:
        FieldError: too many participants, a payment that is not known to be convex, or the rule of the mean.
    """
    if game.rule is not PeerRule.RANDOM:
        raise FieldError(
            "peer_rule", game.rule.value, "random, where risk is weighed: the mean of all is no draw"
        )
    if drawn >= game.size - 1:
        sure = equilibrium(game, side)
        return AverseEquilibrium(
            drawn, sure.degree, sure.effort, sure.payment, sure.cost, sure.utility, sure.certificate.max_regret,
            sure.certified, sure.converged,
        )  # fmt: skip
    if game.size > MAX_PARTICIPANTS:
        raise FieldError("participants", game.size, f"at most {MAX_PARTICIPANTS}, where risk is weighed")
    if not game.curvature.holds:
        raise FieldError(
            "payment", game.payment, f"a payment that bends as risk aversion needs it: {game.curvature}"
        )
    monotone = increasing_differences(game.score, attitude, drawn)
    degree = (game.floor if side == "least" else game.start).copy()
    converged = False
    for _ in range(MAX_SWEEPS):
        before = degree.copy()
        for k in range(game.size):
            degree[k] = _answer(game, degree, k, drawn, attitude)[0].degree
        if converged := float(np.abs(degree - before).max()) <= AT_REST:
            break
    equivalent, regret = np.zeros(game.size), np.zeros(game.size)
    for k in range(game.size):
        found, equivalent[k], exact = _answer(game, degree, k, drawn, attitude)
        regret[k] = found.upper - equivalent[k] + found.rounding if exact else np.inf
    squares = np.square(degree)
    paid = game.score.value(squares[:, None] + squares[None, :])
    payment = (paid.sum(axis=1) - np.diag(paid)) / (game.size - 1)
    return AverseEquilibrium(
        drawn,
        degree,
        game.efforts(degree),
        np.asarray(payment),
        game.costs(degree),
        equivalent,
        float(regret.max()),
        monotone and converged,
        converged,
    )


def _answer(
    game: Game, degree: Array, k: int, drawn: int, attitude: Attitude
) -> tuple[AverseMaximum, float, bool]:
    """What is best for one participant against the others, what it has now, and whether every draw was counted."""
    mine, low, start = game.cost.take(np.array([k])), float(game.floor[k]), float(game.start[k])
    most = float(mine.value(np.array([start - low]))[0])
    lottery = Lottery(game.score, np.square(np.delete(degree, k)), drawn, attitude, most)
    now = degree[k : k + 1]
    value = lottery.worth(now, mine.value(np.maximum(start - now, 0.0))).equivalent[0]
    return averse_maximum(lottery, mine, low, start, start), float(value), lottery.exact
