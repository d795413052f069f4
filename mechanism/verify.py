"""Verify a profile against the game, without the solver.

    regret_k = max over delta of  u_k(delta, others) - u_k(delta_k, others)

From the terms alone: no interpolant, no iterate, no search and no certificate of the solver is used, so that an
error there cannot hide here. Payments are summed over every peer, for each point that is looked at; for large
populations under a payment that ships they are summed at `NODES` points of s and continued between them by
cubic Hermite interpolation, |error| <= max phi'''' h^4 / 384, with phi'''' in closed form.

The bound: on [a, b], where phi is convex, H(delta^2) lies below its chord in delta^2, and that (concave in
delta) below its tangent at the middle. A cost lies above a line too: its chord where it is concave or linear,
its tangent where convex, its least value otherwise. So u_k lies below a line, whose greater end bounds it. Cells
whose bound exceeds the profile's utility are halved until they do not, or are too narrow to matter.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mechanism.best_response import PeerRule
from mechanism.certificate import Status
from mechanism.cost import own, shape_known
from mechanism.curvature import Evidence
from mechanism.game import Game
from mechanism.payment import Linear, Log, Log1p, Power

Array = npt.NDArray[np.float64]
Index = npt.NDArray[np.intp]
Mean = Callable[[Index, Array], Array]

#: Populations up to this size are summed directly at every point.
DIRECT = 400
#: Nodes in s for larger ones.
NODES = 2048
#: First cells of each participant's range, and halvings of them.
FIRST, HALVINGS = 16, 34
#: Halvings where nothing but monotonicity is known: the bound then closes linearly.
LINEAR_HALVINGS = 13
#: Rounding of one utility, in units of its size.
ROUNDING = 128 * float(np.finfo(np.float64).eps)
#: Participants bounded at once, and (point, peer) pairs summed at once.
CHUNK, PAIRS = 2048, 1 << 20


@dataclass(frozen=True)
class Verification:
    """What the check found.

    Attributes:
        regret: an upper bound for each participant, credits, shape (N,).
        seen: the greatest gain that was actually seen at a point, shape (N,).
        status: PROVED, or CONDITIONAL where it rests on a user's function between checked points.
    """

    regret: Array
    seen: Array
    status: Status

    @property
    def max_regret(self) -> float:
        return float(self.regret.max())

    @property
    def worst(self) -> int:
        """The participant of the greatest bound."""
        return int(np.argmax(self.regret))


def verify(game: Game, profile: npt.ArrayLike, tolerance: float = 1e-12) -> Verification:
    """Bound every participant's regret at `profile`.

    Args:
        profile: degrees, shape (N,).
        tolerance: credits within which a bound need not be refined.

    Raises:
        FieldError: a profile of another length, or outside the participants' ranges.
    """
    degree = game.profile(profile)
    mean, error = _means(game, degree)
    regret, seen = np.empty(game.size), np.empty(game.size)
    for at in range(0, game.size, CHUNK):
        chunk = np.arange(at, min(at + CHUNK, game.size))
        regret[chunk], seen[chunk] = _bound(game, degree, chunk, mean, error, tolerance)
    checked = own(game.cost) or game.curvature.evidence is not Evidence.DECLARED
    return Verification(regret, seen, Status.CONDITIONAL if checked else Status.PROVED)


def _bound(
    game: Game, degree: Array, chunk: Index, mean: Mean, error: float, tolerance: float
) -> tuple[Array, Array]:
    def utility(owner: Index, at: Array) -> tuple[Array, Array]:
        paid = mean(chunk[owner], at)
        return paid, paid - game.cost.take(chunk[owner]).value(game.start[chunk[owner]] - at)

    everyone = np.arange(chunk.size)
    low, high, base = game.floor[chunk], game.start[chunk], utility(everyone, degree[chunk])[1]
    size = np.abs(utility(everyone, low)[0]) + game.cost.take(chunk).value(high - low)
    doubt = 2 * error + ROUNDING * (size + np.abs(base))
    owner = np.repeat(everyone, FIRST)
    step = np.tile(np.arange(FIRST), chunk.size)
    a = low[owner] + (high - low)[owner] * (step / FIRST)
    b = np.where(step == FIRST - 1, high[owner], low[owner] + (high - low)[owner] * ((step + 1) / FIRST))
    (pa, ua), (pb, ub) = utility(owner, a), utility(owner, b)
    regret, seen = np.zeros(chunk.size), np.zeros(chunk.size)
    np.maximum.at(seen, owner, np.maximum(ua, ub) - base[owner])
    linear = not (game.curvature.holds and shape_known(game.cost).all())
    halvings = LINEAR_HALVINGS if linear else HALVINGS
    for halving in range(halvings):
        above = _line_bound(game, chunk[owner], a, b, pa, pb) - base[owner]
        # A gain that was seen is no reason to search on below it.
        keep = above > seen[owner] + tolerance + doubt[owner]
        last = halving == halvings - 1
        np.maximum.at(regret, owner[~keep | last], above[~keep | last])
        owner, a, b, pa, pb = owner[keep], a[keep], b[keep], pa[keep], pb[keep]
        if owner.size == 0 or last:
            break
        middle = (a + b) / 2
        pm, um = utility(owner, middle)
        np.maximum.at(seen, owner, um - base[owner])
        owner, a, b = np.tile(owner, 2), np.concatenate([a, middle]), np.concatenate([middle, b])
        pa, pb = np.concatenate([pa, pm]), np.concatenate([pm, pb])
    return np.maximum(np.maximum(regret, seen), 0.0) + doubt, seen


def _line_bound(game: Game, who: Index, a: Array, b: Array, pa: Array, pb: Array) -> Array:
    """The greater end of a line above u on each cell."""
    cost, start = game.cost.take(who), game.start[who]
    middle, width = (a + b) / 2, b - a
    if game.curvature.holds:
        fall = np.divide(pa - pb, b**2 - a**2, out=np.zeros_like(a), where=b > a)
        paid_a = pa - fall * (middle**2 - a**2) + 2 * middle * fall * (width / 2)
        paid_b = paid_a - 2 * middle * fall * width
    else:
        paid_a = paid_b = pa
    cost_a, cost_b = cost.value(start - a), cost.value(start - b)
    with np.errstate(invalid="ignore"):  # a concave power's tangent where it begins, which is not taken
        touched, slope = cost.value(start - middle), cost.first(start - middle) * (width / 2)
    curved = cost.convex & ~cost.concave
    cost_a = np.where(curved, touched + slope, np.where(shape_known(cost), cost_a, cost_b))
    cost_b = np.where(curved, touched - slope, cost_b)
    return np.asarray(np.maximum(paid_a - cost_a, paid_b - cost_b))


def _means(game: Game, degree: Array) -> tuple[Mean, float]:
    """(who, delta) -> H_who(delta^2), and a bound on its error besides rounding."""
    squares, others = np.square(degree), game.size - 1
    phi, upsilon, Q, pay = game.bound.phi, game.bound.upsilon, game.Q, game.payment

    def paid(z: Array) -> Array:
        return np.asarray(pay.value(Q / (phi * z + upsilon)))

    def of_mean(who: Index, at: Array) -> Array:
        return paid(at**2 + (squares.sum() - squares[who]) / others)

    def direct(who: Index, at: Array) -> Array:
        rows = max(1, PAIRS // game.size)
        total = np.concatenate(
            [paid(at[i : i + rows, None] ** 2 + squares).sum(axis=1) for i in range(0, at.size, rows)]
        )
        return np.asarray((total - paid(at**2 + squares[who])) / others)

    if game.rule is PeerRule.MEAN:
        return of_mean, 0.0
    fourth = _fourth_derivative(game)
    if game.size <= DIRECT or fourth is None:
        return direct, 0.0

    low, high = float(game.floor.min()) ** 2, float(game.start.max()) ** 2
    nodes = np.linspace(low, max(high, low + 1e-9), NODES)
    h = float(nodes[1] - nodes[0])
    values = np.array([paid(node + squares).mean() for node in nodes])
    slopes = np.array([_slope(game, node + squares).mean() for node in nodes])

    def hermite(who: Index, at: Array) -> Array:
        s = at**2
        i = np.clip(((s - low) / h).astype(np.intp), 0, NODES - 2)
        t = (s - nodes[i]) / h
        rise = values[i + 1] - values[i]
        one, two = slopes[i] * h - rise, rise - slopes[i + 1] * h
        mean = values[i] + t * (rise + (1 - t) * (one * (1 - t) + two * t))
        return np.asarray((game.size * mean - paid(s + squares[who])) / others)

    return hermite, game.size / others * fourth(low + float(squares.min())) * h**4 / 384


def _slope(game: Game, z: Array) -> Array:
    """phi'(z), by the chain rule."""
    gap = game.bound.phi * z + game.bound.upsilon
    return np.asarray(game.payment.first(game.Q / gap) * -game.Q * game.bound.phi / gap**2)


def _fourth_derivative(game: Game) -> Callable[[float], float] | None:
    """z -> phi''''(z), which falls with z, for the payments that ship; None where it is not known or kinked."""
    r, pay = game.bound.ratio, game.payment
    if not isinstance(pay, Log | Log1p | Linear | Power):
        return None
    scale = float(pay.scale)
    if isinstance(pay, Log):
        kink = (game.Q - game.bound.upsilon) / game.bound.phi
        return (lambda z: 6 * scale / (z + r) ** 4) if 2 * float(game.start.max()) ** 2 <= kink else None
    if isinstance(pay, Log1p):
        return lambda z: 6 * scale / (z + r) ** 4
    a = float(pay.exponent) if isinstance(pay, Power) else 1.0
    size = scale * (game.Q / game.bound.phi) ** a * a * (a + 1) * (a + 2) * (a + 3)
    return lambda z: size / (z + r) ** (a + 4)
