"""What a pair of degrees is paid, as a function of z = delta^2 + delta'^2.

    phi(z)   = f(x),                           x = Q / (Phi z + Upsilon),  z in [0, 2]
    phi'(z)  = -(Phi / Q) x^2 f'(x)            <= 0, as f does not decrease
    phi''(z) = (Phi / Q)^2 x^3 (x f''(x) + 2 f'(x))

So phi is convex exactly where x f'' + 2 f' >= 0, and then u_k has increasing differences in
(delta_k, delta_k'): d^2 phi / d delta d delta' = 4 delta delta' phi''.

For the functions that ship, phi is up to a constant a mixture of 1/(z + r + tau) with tau >= 0 and
non-negative weights (a Stieltjes function), r = Upsilon / Phi, where no clipping at 0 is reached. The error
bound of the Chebyshev interpolants rests on that (`mechanism.mean_field`).

Source: Pang et al. 2025, section 4 (Payment_k); the convexity is docs/mechanism.md, section 4.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mechanism.errors import FieldError
from mechanism.gap_bound import GapBound
from mechanism.payment import Linear, Log, Log1p, PaymentFunction, Power

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Score:
    """phi and its derivatives; arrays in, arrays of the same shape out.

    Attributes:
        function: f.
        Q: payment coefficient, > 0.
        bound: Phi and Upsilon.
    """

    function: PaymentFunction
    Q: float
    bound: GapBound

    def __post_init__(self) -> None:
        if not isinstance(self.function, PaymentFunction):
            raise FieldError("payment", self.function, "an object with value, first and second")
        try:
            q = float(self.Q)
        except (TypeError, ValueError):
            raise FieldError("Q", self.Q, "a finite number above 0") from None
        if not (np.isfinite(q) and q > 0):
            raise FieldError("Q", q, "a finite number above 0")
        object.__setattr__(self, "Q", q)

    def ratio(self, z: npt.ArrayLike) -> Array:
        """x = Q / (Phi z + Upsilon)."""
        return np.asarray(self.Q / (self.bound.phi * np.asarray(z, dtype=np.float64) + self.bound.upsilon))

    def value(self, z: npt.ArrayLike) -> Array:
        return self.function.value(self.ratio(z))

    def first(self, z: npt.ArrayLike) -> Array:
        x = self.ratio(z)
        return np.asarray(-(self.bound.phi / self.Q) * x**2 * self.function.first(x))

    def second(self, z: npt.ArrayLike) -> Array:
        x = self.ratio(z)
        bend = x * self.function.second(x) + 2 * self.function.first(x)
        return np.asarray(np.square(self.bound.phi / self.Q * x) * x * bend)

    @property
    def span(self) -> tuple[float, float]:
        """The least and the greatest x that two degrees in [0, 1] can reach."""
        return float(self.ratio(2.0)), float(self.ratio(0.0))

    @property
    def kink(self) -> float:
        """z above which a clipped function pays nothing; infinity where nothing is clipped."""
        if isinstance(self.function, Log):
            return (self.Q - self.bound.upsilon) / self.bound.phi
        return float("inf")

    @property
    def stieltjes(self) -> bool:
        """Whether phi is known to be such a mixture, below the kink."""
        return isinstance(self.function, Log | Log1p | Linear | Power)
