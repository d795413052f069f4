"""The game that participants play after the terms are published.

    u_k(delta) = H_k(delta^2) - Cost_k(delta_k(0) - delta),    delta in [delta_k(1), delta_k(0)]
    random peer     H_k(s) = mean over k' != k of phi(s + delta_k'^2)
    mean of peers   H_k(s) = phi(s + mean over k' != k of delta_k'^2)

Where phi is convex (`mechanism.curvature`) the game has increasing differences in (delta_k, delta_k'), so it is
supermodular: pure equilibria exist, a least and a greatest among them, whatever the concavity.

Source: Pang et al. 2025, section 4 (two-stage game); Topkis 1998; docs/mechanism.md, section 4.
"""

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from mechanism.best_response import PeerRule
from mechanism.cost import CostFunction
from mechanism.curvature import CurvatureReport, relative_curvature
from mechanism.effort import EffortCurve
from mechanism.errors import FieldError
from mechanism.gap_bound import GapBound
from mechanism.payment import PaymentFunction
from mechanism.score import Score

Array = npt.NDArray[np.float64]
Index = npt.NDArray[np.intp]
#: Which of the two extremal equilibria: that of the least degrees (the most effort), or of the greatest.
Side = Literal["least", "greatest"]


@dataclass(frozen=True)
class Game:
    """Terms and a population of N >= 2 participants.

    Attributes:
        payment, Q, bound: the terms.
        effort: curves with one entry a participant.
        cost: costs with one entry a participant, or one for all.
        rule: how peers are drawn.
        start, floor: delta_k(0) and delta_k(1), shape (N,).
        lowest, highest: the least floor and the greatest start: no degree lies outside.
        score: phi.
        curvature: what is known of the condition that makes the game supermodular.
    """

    payment: PaymentFunction
    Q: float
    bound: GapBound
    effort: EffortCurve
    cost: CostFunction
    rule: PeerRule = PeerRule.RANDOM
    start: Array = field(init=False, repr=False)
    floor: Array = field(init=False, repr=False)
    lowest: float = field(init=False, repr=False)
    highest: float = field(init=False, repr=False)
    score: Score = field(init=False, repr=False)
    curvature: CurvatureReport = field(init=False, repr=False)

    def __post_init__(self) -> None:
        start, floor = np.atleast_1d(self.effort.start), np.atleast_1d(self.effort.floor)
        try:
            size = np.broadcast_shapes(start.shape, np.shape(self.cost.value(np.zeros(start.shape))))
        except ValueError:
            raise FieldError("cost", self.cost, f"one entry a participant: {start.size}") from None
        if len(size) != 1 or size[0] < 2:
            raise FieldError("participants", int(np.prod(size)), "at least 2: a payment needs a peer")
        for name, array in (("start", start), ("floor", floor)):
            object.__setattr__(
                self, name, np.ascontiguousarray(np.broadcast_to(array, size), dtype=np.float64)
            )
        # Asked for once a block of a large population: kept, not found again.
        object.__setattr__(self, "lowest", float(self.floor.min()))
        object.__setattr__(self, "highest", float(self.start.max()))
        score = Score(self.payment, self.Q, self.bound)
        object.__setattr__(self, "Q", score.Q)
        object.__setattr__(self, "score", score)
        object.__setattr__(self, "curvature", relative_curvature(self.payment, *score.span))

    @property
    def size(self) -> int:
        return self.start.size

    def costs(self, degree: Array) -> Array:
        """Cost of each participant at its degree, shape (N,)."""
        return self.cost.value(np.maximum(self.start - degree, 0.0))

    def efforts(self, degree: Array) -> Array:
        """The least effort that reaches each degree, shape (N,)."""
        return np.broadcast_to(self.effort.effort(degree), degree.shape)

    def with_q(self, Q: float) -> "Game":
        """The same population under another coefficient."""
        return Game(self.payment, Q, self.bound, self.effort, self.cost, self.rule)

    def select(self, index: Index) -> "Game":
        """The game among the participants at `index` alone."""
        return Game(
            self.payment, self.Q, self.bound, self.effort.take(index), self.cost.take(index), self.rule
        )

    def profile(self, degree: npt.ArrayLike) -> Array:
        """`degree` as a profile of this game, moved into its range.

        Raises:
            FieldError: another length, or a degree that is not a number or outside the range by more than rounding.
        """
        array = np.asarray(degree, dtype=np.float64)
        if array.shape != self.start.shape:
            raise FieldError("profile", f"shape {array.shape}", f"one degree a participant: {self.size}")
        outside = ~((array >= self.floor - 1e-12) & (array <= self.start + 1e-12))
        if outside.any():
            k = int(np.argmax(outside))
            expected = f"a degree in [{self.floor[k]:.12g}, {self.start[k]:.12g}]"
            raise FieldError(f"profile[{k}]", float(array[k]), expected)
        return np.clip(array, self.floor, self.start)
