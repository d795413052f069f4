"""Least and greatest equilibrium, with a certificate.

Where the game is supermodular (`mechanism.curvature`), iterated best responses from the all-minimum profile rise
to the least equilibrium and from the all-maximum profile fall to the greatest; where they meet, there is one.
The least degrees are the best for every participant, whose utility falls in its peers' degrees, and give the
learner the tightest bound.

    smooth games    `mechanism.monotone` on a shared field, O(N) a sweep
    clipped log     the same steps on the field of `mechanism.clipped`
    all others      brackets of the global best responses against every peer, O(N^2) a sweep (mean of peers: O(N))

Each of these passes no equilibrium on its way, so that one profile lies under all of them and the other over all.
Two things remain to be shown of each, and what is not shown is not claimed:

    max_regret      what anyone gains by leaving it: where a utility is flat a profile far from every equilibrium has
                    next to none
    within          an equilibrium lies no further from it than this. From below, with z no more than this above
                    the profile: if no best response to z lies above z, best responses map what lies between the
                    profile and z into itself, and hold still somewhere in it (Tarski)

Outside the supermodular case nothing says that the iteration ends, or that an equilibrium exists. Then the
answer says so: `certificate.status` is CONDITIONAL where a profile was found that bounds of the payment's
monotonicity alone certify, and NONE where not.

Source: Topkis 1998, theorem 4.2.1 and section 4.3; Tarski 1955.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from mechanism.best_response import PeerRule, proof_basis, proof_status
from mechanism.certificate import Certificate, Status
from mechanism.clipped import ClippedField
from mechanism.cost import shape_known
from mechanism.curvature import Evidence
from mechanism.field import Field, Layout, PeerField, Pool, blocks
from mechanism.game import Game
from mechanism.global_search import FINEST, SearchProblem, bracket, maximise
from mechanism.jump import RESOLUTION, Profile, beyond, doubt, first_maximizer, jumps
from mechanism.monotone import ROUGH, SMALL, Climb, applies, below_kink, convex_marginal_cost
from mechanism.payment import Log
from mechanism.regret import (
    PAIRS,
    SEARCHED,
    Regret,
    clipped_regret,
    direct_problem,
    direct_regret,
    field_problem,
    field_regret,
)

Array = npt.NDArray[np.float64]
Index = npt.NDArray[np.intp]
Side = Literal["least", "greatest"]
SIDES: tuple[Side, Side] = ("least", "greatest")

#: Distance to the limit at which an iteration stops, in degrees.
TOLERANCE = 2e-11
#: Regret below which a participant stays where it is: above the rounding of a utility, far below a micro-credit.
ENOUGH = 1e-12
#: Bounds above this are sharpened participant by participant, credits.
LOOSE = 5e-11
#: Regret, as a share of the greatest payment, above which a profile is not called an equilibrium.
RELATIVE_REGRET = 1e-6
#: Two equilibria closer than this everywhere are one.
SAME = 1e-9
#: Distances at which an equilibrium is tried to be shown, and the one beyond which it is not called located.
WITHIN, FURTHEST = (1e-9, 1e-8, 1e-7, 5e-7), 1e-6
#: Times that a distance is widened for those who would go further, and how much further than they would.
WIDENED, WIDER = 12, 1.25
#: Participants up to which it is tried, one by one: some ten seconds.
MAX_LOCATED = 50_000
#: To what brackets are known in the first sweeps.
COARSEST = 1e-3
#: Rounds of climbing and jumping.
MAX_ROUNDS = 10_000
#: Sweeps of certified best responses.
MAX_SWEEPS = 2_000
#: The same where the game is not supermodular and the iteration may cycle.
MAX_CYCLING = 60
#: Regret above which a profile outside the supermodular case is not called an equilibrium, credits.
NO_EQUILIBRIUM = 1e-3


@dataclass(frozen=True)
class Equilibrium:
    """One profile that no participant gains by leaving, up to `certificate.max_regret`.

    Attributes:
        degree, effort: shape (N,).
        payment, cost, utility: expected credits a round, shape (N,).
        iterations: sweeps over the participants.
        converged: whether the iteration came to rest; where not, the certificate still holds.
        within: an equilibrium provably lies this close in every degree; infinity where that was not shown. Where
            not, the profile is an epsilon-equilibrium, with `certificate.max_regret` for the epsilon.
    """

    degree: Array
    effort: Array
    payment: Array
    cost: Array
    utility: Array
    certificate: Certificate
    iterations: int
    converged: bool
    within: float = np.inf

    @property
    def certified(self) -> bool:
        """Whether it is proved that nobody gains more than `max_regret`, and that an equilibrium is `within`."""
        return self.certificate.certified and self.converged and bool(np.isfinite(self.within))


@dataclass(frozen=True)
class Solution:
    """Both extremal equilibria.

    Attributes:
        unique: whether they meet, so that no other equilibrium exists.
    """

    least: Equilibrium
    greatest: Equilibrium

    @property
    def unique(self) -> bool:
        """Proved only where both ends are certified: otherwise False says that it is not known."""
        meet = float(np.abs(self.least.degree - self.greatest.degree).max()) <= SAME
        return meet and self.least.certified and self.greatest.certified

    def __iter__(self):  # type: ignore[no-untyped-def]  # unpacks as (least, greatest)
        return iter((self.least, self.greatest))


def solve(game: Game, tolerance: float = TOLERANCE) -> Solution:
    """The least and the greatest equilibrium of `game`."""
    if _is_smooth(game):
        with Pool(game.size) as pool:
            least, climb = _smooth(game, "least", tolerance, pool)
            return _ordered(least, _smooth(game, "greatest", tolerance, pool, (least, climb))[0])
    ends = [equilibrium(game, side, tolerance) for side in SIDES]
    return _ordered(*ends)


def _ordered(least: Equilibrium, greatest: Equilibrium) -> Solution:
    """Both ends, the least nowhere above the greatest."""
    if (least.degree <= greatest.degree).all():
        return Solution(least, greatest)
    apart = float(np.abs(least.degree - greatest.degree).max())
    one, other = sorted((least, greatest), key=lambda end: (not end.certified, end.certificate.max_regret))
    if apart <= SAME and (one.certified or not other.certified):
        return Solution(one, replace(one, iterations=greatest.iterations))
    # Outside the supermodular case the two iterations need not be in order: neither is an extreme.
    unproved = replace(one, converged=False, within=np.inf)
    return Solution(unproved, unproved)


def equilibrium(
    game: Game, side: Side = "least", tolerance: float = TOLERANCE, start: Array | None = None
) -> Equilibrium:
    """One extremal equilibrium of `game`.

    Args:
        side: the least degrees (the most effort) or the greatest.
        tolerance: distance of the degrees to the limit, at least 1e-14.
        start: a profile known to lie under the least (over the greatest) equilibrium, where there is one; it
            saves sweeps in a game whose payment is clipped within reach.
    """
    if _is_smooth(game):
        with Pool(game.size) as pool:
            return _smooth(game, side, tolerance, pool)[0]
    if game.rule is PeerRule.RANDOM and isinstance(game.payment, Log) and convex_marginal_cost(game):
        return _clipped(game, side, tolerance, start)
    if not (game.curvature.holds and shape_known(game.cost, game.size).all()):
        return _searched(game, side, tolerance)
    return _general(game, side, tolerance, start)


def _is_smooth(game: Game) -> bool:
    return game.rule is PeerRule.RANDOM and applies(game)


def _smooth(
    game: Game, side: Side, tolerance: float, pool: Pool, other: tuple[Equilibrium, Climb] | None = None
) -> tuple[Equilibrium, Climb]:
    """The answer of one side, with its climb; `other` are those of the side that was solved before."""
    known = other[1] if other is not None and other[0].converged else None
    climb = Climb.start(game, side, pool, None if other is None else other[1].order)
    rests, within = False, np.inf

    def field_of(degree: Array) -> Field:
        return Field.of(climb.fine, degree, pool)

    if side == "greatest":
        climb.field = field_of(climb.degree)
        _leave(climb)
    climb.approach(SMALL if known is None else ROUGH)
    if other is None:
        climb.sort()
    for _ in range(MAX_ROUNDS):
        # Most who jump do so long before the climb has converged.
        jumped = _leave(climb)
        if other is not None and known is not None and climb.meets(known, tolerance):
            return replace(other[0], iterations=climb.sweeps), climb
        if known is not None and jumped:
            continue
        climb.draw_near()
        if _leave(climb):
            continue
        climb.run(tolerance)
        if other is not None and known is not None and climb.meets(known, tolerance):
            return replace(other[0], iterations=climb.sweeps), climb
        regret = _regret(climb)
        assert climb.field is not None
        rests = not _jump(climb, regret, climb.field)
        if not rests:
            continue
        if climb.contraction < 1:
            # The limit is known to a tenth of the tolerance, and the residual contracts by this factor.
            within = tolerance / (1 - climb.contraction)
        if within > SAME:
            within = min(within, _within(game, side, climb.answer(), field_of))
        if np.isfinite(within) or not _forward(climb, field_of):
            break
    assert climb.field is not None
    degree, payment = climb.answer(), np.empty(game.size)
    payment[climb.order] = field_payments(game, climb.field, climb.degree, pool)
    certificate = _certificate(game, regret)
    rests = rests and _at_rest(regret, payment)
    rests = climb.converged and rests
    return _answer(game, degree, payment, certificate, climb.sweeps, rests, within), climb


def _clipped(game: Game, side: Side, tolerance: float, start: Array | None) -> Equilibrium:
    low, high = game.lowest**2, game.highest**2

    def field_of(degree: Array) -> ClippedField:
        return ClippedField.of(game.score, degree, low, high)

    with Pool(0) as pool:
        climb = Climb.start(game, side, pool)
        if start is not None:
            climb.degree = game.profile(start).copy()
        rests, within = False, np.inf
        if side == "greatest":
            field = field_of(climb.degree)
            _jump(climb, clipped_regret(game, field, climb.degree, ENOUGH), field)
        for _ in range(MAX_ROUNDS):
            climb.run_on(field_of, tolerance)
            field = field_of(climb.degree)
            regret = clipped_regret(game, field, climb.degree, ENOUGH)
            rests = not _jump(climb, regret, field)
            if not rests:
                continue
            within = _within(game, side, climb.degree, field_of)
            if np.isfinite(within) or not _forward(climb, field_of):
                break
    degree, squares, others = climb.degree, np.square(climb.degree), game.size - 1
    payment = (game.size * field.level(squares) - game.score.value(2 * squares)) / others
    certificate = _certificate(game, regret)
    rests = rests and _at_rest(regret, payment)
    return _answer(game, degree, payment, certificate, climb.sweeps, climb.converged and rests, within)


def _nearest(game: Game, side: Side, degree: Array, field: PeerField | None, resolution: float) -> Array:
    """The nearest that everyone's best responses to an iterate can be: from below the least, from above the greatest.

    Args:
        field: that of the profile; None sums over every peer.
    """
    found = np.empty_like(degree)
    for chunk, problem in _problems(game, degree, field):
        x = degree[chunk]
        found[chunk] = first_maximizer(beyond(problem, side, x), side, x, x, doubt(field), resolution)
    return found


def _within(game: Game, side: Side, degree: Array, field_of: Callable[[Array], PeerField | None]) -> float:
    """How far from `degree`, an end of a climb, an equilibrium provably lies at most; infinity where not shown.

    Everyone is moved by the same at first. Whose best responses then lie further along, though those of all together
    come closer, is moved further.
    """
    if game.size > MAX_LOCATED:
        return np.inf
    for width in WITHIN:
        z = degree + width if side == "least" else degree - width
        for _ in range(WIDENED):
            z = np.clip(z, game.floor, game.start)
            apart = float(np.abs(z - degree).max())
            if not apart <= FURTHEST:
                break
            reached = _reached(game, side, degree, z, field_of(z), width / 16)
            over = reached > z if side == "least" else reached < z
            if not over.any() and np.isfinite(reached).all():
                return apart
            z = np.where(over, degree + WIDER * (reached - degree), z)
    return np.inf


def _reached(
    game: Game, side: Side, degree: Array, z: Array, field: PeerField | None, resolution: float
) -> Array:
    """The furthest beyond `z` that anybody may do better against peers at `z` than at `z` or `degree` before it.

    `z` itself where nobody can.
    """
    furthest = np.empty_like(z)
    for chunk, problem in _problems(game, z, field):
        end: Literal["lower", "upper"] = "upper" if side == "least" else "lower"
        ends = bracket(beyond(problem, side, z[chunk]), end, degree[chunk], doubt(field), resolution)
        if side == "least":
            furthest[chunk] = np.maximum(ends.upper, z[chunk])
        else:
            furthest[chunk] = np.minimum(ends.lower, z[chunk])
    return furthest


def _forward(climb: Climb, field_of: Callable[[Array], PeerField]) -> bool:
    """Move everyone to the nearest that a best response can be, however little it gains; whether anyone moved far."""
    degree = climb.answer()
    ends = _nearest(climb.game, climb.side, degree, field_of(degree), SAME / 8)
    movers = np.flatnonzero(np.abs(ends - degree)[climb.order] > SAME)
    if movers.size:
        climb.jump(movers, ends[climb.order][movers])
    return bool(movers.size)


def _regret(climb: Climb) -> Regret:
    assert climb.field is not None
    return field_regret(
        climb.game, climb.field, climb.degree, climb.low, climb.high, climb.order, climb.pool, LOOSE
    )


def _leave(climb: Climb) -> bool:
    """Jumps during a climb; whether anyone jumped."""
    assert climb.field is not None
    profile = Profile(climb.game, climb.field, climb.degree, climb.low, climb.high, climb.order, climb.costs)
    movers, degree = jumps(profile, climb.side, climb.pool, ENOUGH)
    if movers.size:
        climb.jump(movers, degree)
    return bool(movers.size)


def _jump(climb: Climb, regret: Regret, field: PeerField) -> bool:
    """Move those who gain by it, in the iteration's direction, to the first place that may hold a best response.

    Of best responses that are tied up to rounding none is passed. Returns whether anyone moved.
    """
    x, side = climb.degree, climb.side
    forward = regret.better > x if side == "least" else regret.better < x
    movers = np.flatnonzero(forward & (regret.gain > ENOUGH + regret.rounding))
    where = np.empty(movers.size)
    for at in range(0, movers.size, SEARCHED):
        part = slice(at, at + SEARCHED)
        chunk = movers[part]
        problem = field_problem(climb.game, field, x, climb.low, climb.high, climb.order, chunk)
        ahead = beyond(problem, side, x[chunk])
        where[part] = first_maximizer(ahead, side, x[chunk], regret.better[chunk], doubt(field), RESOLUTION)
    moved = np.abs(where - x[movers]) > SAME
    if moved.any():
        climb.jump(movers[moved], where[moved])
    return bool(moved.any())


def _at_rest(regret: Regret, payment: Array) -> bool:
    """Whether the certificate itself says that this is an equilibrium, whatever the iteration thinks."""
    return float(regret.bound.max()) <= RELATIVE_REGRET * max(1.0, float(payment.max()))


def field_payments(game: Game, field: Field, degree: Array, pool: Pool) -> Array:
    """Expected payments at a profile; the field's constant comes from one sum over all peers."""
    others, anchor = game.size - 1, np.square(degree[:1])

    def constant(block: slice) -> float:
        return float(game.score.value(anchor + np.square(degree[block])).sum())

    pieces = blocks(degree.size)
    mean = sum(pool.map(constant, pieces)) / game.size - float(field.level(anchor)[0])

    def part(block: slice) -> Array:
        squares = np.square(degree[block])
        total = game.size * (field.level(squares) + mean)
        return np.asarray((total - game.score.value(2 * squares)) / others)

    return np.concatenate(pool.map(part, pieces))


def direct_payments(game: Game, degree: Array) -> Array:
    """Expected payments at a profile, summing over every peer."""
    step = max(1, min(SEARCHED, PAIRS // game.size))
    parts = []
    for at in range(0, game.size, step):
        chunk = np.arange(at, min(at + step, game.size))
        problem = direct_problem(game, degree, chunk)
        parts.append(problem.payment(np.arange(chunk.size), degree[chunk]))
    return np.concatenate(parts)


def _general(game: Game, side: Side, tolerance: float, start: Array | None = None) -> Equilibrium:
    """Everyone to the nearest that its best responses to the last profile can be, until it rests."""
    degree = (game.floor if side == "least" else game.start).copy()
    if start is not None:
        degree = game.profile(start).copy()
    with Pool(game.size) as pool:
        layout = _layout(game) if _shares_field(game) else None

        def field_of(profile: Array) -> Field | None:
            return Field.of(layout, profile, pool) if layout is not None else None

        converged, sweeps, resolution = False, 0, COARSEST
        for sweeps in range(1, MAX_SWEEPS + 1):  # noqa: B007  reported
            new = _nearest(game, side, degree, field_of(degree), resolution)
            new = np.maximum(new, degree) if side == "least" else np.minimum(new, degree)
            move = float(np.abs(new - degree).max())
            degree = new
            if resolution <= FINEST and move <= max(tolerance / 10, 1e-13):
                converged = True
                break
            if move <= 8 * resolution:
                resolution = max(resolution / 64, FINEST)
        within = _within(game, side, degree, field_of) if converged else np.inf
        return _judged(game, degree, field_of(degree), pool, sweeps, converged, within)


def _searched(game: Game, side: Side, tolerance: float) -> Equilibrium:
    """Best responses of everyone against the last profile, by a search that brackets none of them.

    For games that are not supermodular, where this may cycle, and for costs of unknown shape: nothing says which of
    several equilibria is found.
    """
    degree = (game.floor if side == "least" else game.start).copy()
    supermodular = game.curvature.holds
    shared = supermodular and _shares_field(game)
    converged, sweeps = False, 0
    with Pool(game.size) as pool:
        layout = _layout(game) if shared else None
        for sweeps in range(1, (MAX_SWEEPS if supermodular else MAX_CYCLING) + 1):  # noqa: B007  reported
            new = _responses(
                game, degree, side, Field.of(layout, degree, pool) if layout is not None else None
            )
            if supermodular:  # rounding must not turn a monotone iteration back
                new = np.maximum(new, degree) if side == "least" else np.minimum(new, degree)
            move = float(np.abs(new - degree).max())
            degree = new
            if move <= max(tolerance / 10, 1e-13):
                converged = True
                break
        field = Field.of(layout, degree, pool) if layout is not None else None
        return _judged(game, degree, field, pool, sweeps, converged, np.inf)


def _judged(
    game: Game, degree: Array, field: Field | None, pool: Pool, sweeps: int, converged: bool, within: float
) -> Equilibrium:
    if field is not None:
        everyone = np.arange(game.size)
        regret = field_regret(game, field, degree, game.floor, game.start, everyone, pool, ENOUGH)
        payment = field_payments(game, field, degree, pool)
    else:
        regret = direct_regret(game, degree, ENOUGH)
        payment = direct_payments(game, degree)
    return _answer(game, degree, payment, _certificate(game, regret, converged), sweeps, converged, within)


def _shares_field(game: Game) -> bool:
    return game.rule is PeerRule.RANDOM and game.score.stieltjes and below_kink(game)


def _layout(game: Game) -> Layout:
    return Layout.of(game.score, game.lowest**2, game.highest**2)


def _responses(game: Game, degree: Array, side: Side, field: Field | None) -> Array:
    new = np.empty_like(degree)
    for chunk, problem in _problems(game, degree, field):
        new[chunk] = maximise(problem, prefer=side, incumbent=degree[chunk]).degree
    return new


def _problems(game: Game, degree: Array, field: PeerField | None) -> Iterator[tuple[Index, SearchProblem]]:
    """Everyone's best-response problem against a profile, some at a time; without a field by sums over every peer."""
    everyone = np.arange(game.size)
    wide = field is not None or game.rule is PeerRule.MEAN
    step = SEARCHED if wide else max(1, min(SEARCHED, PAIRS // game.size))
    for at in range(0, game.size, step):
        chunk = everyone[at : at + step]
        yield (
            chunk,
            direct_problem(game, degree, chunk)
            if field is None
            else field_problem(game, field, degree, game.floor, game.start, everyone, chunk),
        )


def _certificate(game: Game, regret: Regret, converged: bool = True) -> Certificate:
    worst = float(regret.bound.max())
    status = proof_status(game.curvature, game.cost)
    basis = proof_basis(game.curvature, game.cost)
    if not np.isfinite(worst):
        return Certificate(
            float("inf"), Status.NONE, "no bound could be computed: a function is not finite somewhere"
        )
    if game.curvature.evidence is Evidence.VIOLATED and not (converged and worst < NO_EQUILIBRIUM):
        return Certificate(worst, Status.NONE, "no equilibrium was found, and none need exist: " + basis)
    return Certificate(worst, status, basis, float(regret.rounding.max()))


def _answer(
    game: Game,
    degree: Array,
    payment: Array,
    certificate: Certificate,
    sweeps: int,
    converged: bool,
    within: float,
) -> Equilibrium:
    cost = game.costs(degree)
    return Equilibrium(
        degree, game.efforts(degree), payment, cost, payment - cost, certificate, sweeps, converged, within
    )
