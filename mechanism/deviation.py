"""What participants have at other degrees, their peers held fixed.

u_k(delta) = H_k(delta^2) - c d(delta_k(0) - delta),      H_k(s) = grow M(s) + own phi(s + shift_k)

one of N drawn at random    M over all N, grow = N / (N - 1), own = -1 / (N - 1), shift = delta_k^2
the mean of the others      grow = 0, own = 1, shift = the mean of their squares
peers from elsewhere        M over them, grow = 1, own = 0
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mechanism.cost import CostFunction
from mechanism.mean_field import PeerField
from mechanism.score import Score

Array = npt.NDArray[np.float64]
Index = npt.NDArray[np.intp]

#: Rounding of one utility, in units of its size: a mean of peers (pairwise sums), one ln, a few products.
ROUNDING = 64 * float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class Slopes:
    """u', u'', H' and c d'' at some degrees; `error` is what H' is off by at most."""

    slope: Array
    bend: Array
    first: Array
    curved: Array
    error: Array


@dataclass(frozen=True)
class Deviations:
    """Utilities of K participants. Methods take pairs: whose (indices below K), and at which degree.

    Attributes:
        low, high: the range of degrees, shape (K,).
        start: delta_k(0), shape (K,).
        cost: one entry a participant.
        convex: whether H is known to be convex in s.
        score, field: phi and M.
        grow, own, shift: as above, `shift` of shape (K,).
    """

    low: Array
    high: Array
    start: Array
    cost: CostFunction
    convex: bool
    score: Score
    field: PeerField
    grow: float
    own: float
    shift: Array

    def payment(self, owner: Index, at: Array) -> Array:
        """H at delta^2, without the constant that the field's level lacks."""
        s = np.square(at)
        paid = self.grow * self.field.level(s) if self.grow else np.zeros_like(s)
        return paid + self.own * self.score.value(s + self.shift[owner]) if self.own else paid

    def first(self, owner: Index, at: Array) -> tuple[Array, Array]:
        """H' at delta^2, and what it is off by at most."""
        s = np.square(at)
        own = self.own * self.score.first(s + self.shift[owner]) if self.own else np.zeros_like(s)
        first = self.grow * self.field.first(s) + own if self.grow else own
        # The own term is taken out of a sum of one sign.
        rounding = ROUNDING * (np.abs(first) + 2 * np.abs(own))
        return first, np.asarray(self.grow * self.field.first_error(s) + rounding)

    def costs(self, owner: Index, at: Array) -> Array:
        return self.cost.take(owner).value(np.maximum(self.start[owner] - at, 0.0))

    def utility(self, owner: Index, at: Array) -> Array:
        return np.asarray(self.payment(owner, at) - self.costs(owner, at))

    def slopes(self, owner: Index, at: Array) -> Slopes:
        s, (first, error) = np.square(at), self.first(owner, at)
        second = self.grow * self.field.second(s) if self.grow else np.zeros_like(s)
        if self.own:
            second += self.own * self.score.second(s + self.shift[owner])
        cost, gap = self.cost.take(owner), np.maximum(self.start[owner] - at, 0.0)
        curved = cost.second(gap)
        slope, bend = 2 * at * first + cost.first(gap), 2 * first + 4 * s * second - curved
        return Slopes(slope, bend, first, curved, error)

    def rounding(self) -> Array:
        """A bound on the rounding of any utility computed here, shape (K,)."""
        everyone = np.arange(self.low.size)
        size = np.abs(self.payment(everyone, self.low)) + np.abs(self.payment(everyone, self.high))
        return np.asarray(ROUNDING * (size + self.costs(everyone, self.low)))
