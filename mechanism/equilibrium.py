"""Least and greatest equilibrium, with a certificate.

Where the game is supermodular (`mechanism.curvature`), iterated best responses from the all-minimum profile rise
to the least equilibrium and from the all-maximum profile fall to the greatest; where they meet, there is one.
The least degrees are the best for every participant, whose utility falls in its peers' degrees, and give the
learner the tightest bound.

    smooth costs    the steps of `mechanism.extremal_iteration`, O(N) a sweep
    others          brackets of everyone's global best responses (`mechanism.global_search`)

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

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from mechanism.best_response import proof_basis, proof_status
from mechanism.certificate import Certificate, Status
from mechanism.cost import shape_known
from mechanism.curvature import Evidence
from mechanism.extremal_iteration import Climb, applies, peer_fields
from mechanism.game import Game, Side
from mechanism.global_search import FINEST, bracket, maximise
from mechanism.mean_field import PeerField
from mechanism.regret import (
    ENOUGH,
    SAME,
    Regret,
    beyond,
    expected_payments,
    first_maximizer,
    problems,
    regret,
)

Array = npt.NDArray[np.float64]
SIDES: tuple[Side, Side] = ("least", "greatest")

#: Distance to the limit at which an iteration stops, in degrees.
TOLERANCE = 2e-11
#: Bounds above this are sharpened participant by participant, credits.
LOOSE = 5e-11
#: Regret, as a share of the greatest payment, above which a profile is not called an equilibrium.
RELATIVE_REGRET = 1e-6
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
    return _ordered(equilibrium(game, "least", tolerance), equilibrium(game, "greatest", tolerance))


def _ordered(least: Equilibrium, greatest: Equilibrium) -> Solution:
    """Both ends, the least nowhere above the greatest."""
    if (least.degree <= greatest.degree).all():
        return Solution(least, greatest)
    apart = float(np.abs(least.degree - greatest.degree).max())
    one = min(least, greatest, key=lambda end: (not end.certified, end.certificate.max_regret))
    if apart <= SAME:
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
            saves sweeps.
    """
    if game.curvature.holds and applies(game):
        return _climbed(Climb(game, side, start), tolerance)
    return _bracketed(game, side, tolerance, start)


def _climbed(climb: Climb, tolerance: float) -> Equilibrium:
    """By steps and jumps."""
    game, side, within = climb.game, climb.side, np.inf
    for _ in range(MAX_ROUNDS):
        climb.run(tolerance)
        found = regret(game, climb.field, climb.degree, LOOSE)
        if climb.jump(found):
            continue
        if climb.contraction < 1:
            # The limit is known to a tenth of the tolerance, and the residual contracts by this factor.
            within = tolerance / (1 - climb.contraction)
        if within > SAME:
            within = min(within, _within(game, side, climb.degree))
        if np.isfinite(within) or not _forward(climb):
            break
    return _answer(game, climb.degree, climb.field, found, climb.sweeps, climb.converged, within)


def _forward(climb: Climb) -> bool:
    """Move everyone to the nearest that a best response can be, however little it gains; whether anyone moved far."""
    ends = _nearest(climb.game, climb.side, climb.field, climb.degree, SAME / 8)
    far = np.abs(ends - climb.degree) > SAME
    if far.any():
        climb.move_to(np.where(far, ends, climb.degree))
    return bool(far.any())


def _bracketed(game: Game, side: Side, tolerance: float, start: Array | None = None) -> Equilibrium:
    """Everyone to the nearest that its best responses to the last profile can be, until it rests.

    Costs of unknown shape, and games that are not supermodular, are searched without a bracket: the iteration may
    cycle, and nothing says which of several equilibria is found.
    """
    degree = game.profile(start) if start is not None else game.floor if side == "least" else game.start
    field_of, supermodular = peer_fields(game), game.curvature.holds
    known = supermodular and bool(shape_known(game.cost).all())
    converged, sweeps, resolution = False, 0, COARSEST
    for sweeps in range(1, (MAX_SWEEPS if supermodular else MAX_CYCLING) + 1):  # noqa: B007  reported
        field = field_of(degree)
        new = _nearest(game, side, field, degree, resolution if known else None)
        if supermodular:  # rounding must not turn a monotone iteration back
            new = np.maximum(new, degree) if side == "least" else np.minimum(new, degree)
        move, degree = float(np.abs(new - degree).max()), new
        if (resolution <= FINEST or not known) and move <= max(tolerance / 10, 1e-13):
            converged = True
            break
        if move <= 8 * resolution:
            resolution = max(resolution / 64, FINEST)
    within = _within(game, side, degree) if known and converged else np.inf
    field = field_of(degree)
    return _answer(game, degree, field, regret(game, field, degree, ENOUGH), sweeps, converged, within)


def _nearest(game: Game, side: Side, field: PeerField, degree: Array, resolution: float | None) -> Array:
    """The nearest that everyone's best responses to an iterate can be: from below the least of them.

    Args:
        resolution: how well it is to be known; None: a best response, by a search that brackets none.
    """
    found = np.empty_like(degree)
    for who, problem in problems(game, field, degree):
        x = degree[who]
        if resolution is None:
            found[who] = maximise(problem, prefer=side, incumbent=x).degree
        else:
            found[who] = first_maximizer(problem, side, x, x, field.level_error, resolution)
    return found


def _within(game: Game, side: Side, degree: Array) -> float:
    """How far from `degree`, an end of an iteration, an equilibrium provably lies at most; infinity where not shown.

    Everyone is moved by the same at first. Whose best responses then lie further along, though those of all together
    come closer, is moved further.
    """
    if game.size > MAX_LOCATED:
        return np.inf
    field_of = peer_fields(game)
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


def _reached(game: Game, side: Side, degree: Array, z: Array, field: PeerField, resolution: float) -> Array:
    """The furthest beyond `z` that anybody may do better against peers at `z` than at `z` or `degree` before it.

    `z` itself where nobody can.
    """
    furthest = np.empty_like(z)
    for who, problem in problems(game, field, z):
        ahead = beyond(problem, side, z[who])
        ends = bracket(
            ahead, "upper" if side == "least" else "lower", degree[who], field.level_error, resolution
        )
        furthest[who] = np.maximum(ends.upper, z[who]) if side == "least" else np.minimum(ends.lower, z[who])
    return furthest


def _answer(
    game: Game, degree: Array, field: PeerField, found: Regret, sweeps: int, converged: bool, within: float
) -> Equilibrium:
    """The profile with what is paid, and what is proved of it."""
    cost, payment = game.costs(degree), expected_payments(game, field, degree)
    worst = float(found.bound.max())
    basis, status = proof_basis(game.curvature, game.cost), proof_status(game.curvature, game.cost)
    certificate = Certificate(worst, status, basis, float(found.rounding.max()))
    if not np.isfinite(worst):
        basis = "no bound could be computed: a function is not finite somewhere"
        certificate = Certificate(float("inf"), Status.NONE, basis)
    elif game.curvature.evidence is Evidence.VIOLATED and not (converged and worst < NO_EQUILIBRIUM):
        certificate = Certificate(
            worst, Status.NONE, "no equilibrium was found, and none need exist: " + basis
        )
    elif applies(game):
        # The certificate itself says that this is an equilibrium, whatever the iteration thinks.
        converged = converged and worst <= RELATIVE_REGRET * max(1.0, float(payment.max()))
    return Equilibrium(
        degree, game.efforts(degree), payment, cost, payment - cost, certificate, sweeps, converged, within
    )
