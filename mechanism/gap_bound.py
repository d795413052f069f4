"""The bound on the generalization gap of two participants' models, as the payment uses it.

    |F_c(w^k) - F_c(w^k')| <= Phi * (delta_k^2 + delta_k'^2) + Upsilon,      Phi, Upsilon > 0

`strongly_convex` and `stochastic` give constants for which this is a theorem (docs/mechanism.md, section 2), with the
larger square in place of the sum, too: F_c(w^k') >= F_c(w*), so the gap is at most
F_c(w^k) - F_c(w*) <= (L/2) |w^k - w*|^2, and |w^k - w*| <= |w^k - v_E| + |v_E - w*| <= 2 G S delta_k + rho G / mu;
square with (a + b)^2 <= 2 a^2 + 2 b^2. `paper` reproduces the numbers of the source's experiments, which are no bound;
`fit` takes measured losses.

Source: replaces Pang et al. 2025, Theorem 2; the hyperparameter analysis of its appendix.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mechanism.bounds.steps import StepSums, step_sums
from mechanism.errors import FieldError
from mechanism.ranges import non_negative, positive, positives, whole

#: The paper's experiments: eta = 0.01 and L = 100, so that eta * L = 1.
PAPER_STRONG_CONVEXITY = 0.01


@dataclass(frozen=True)
class GapBound:
    """Phi and Upsilon, in units of the loss.

    Raises:
        FieldError: a constant that is not finite or not above 0. At Upsilon <= 0 the payment f(Q/gap) is
            undefined for two participants of degree 0.
    """

    phi: float
    upsilon: float

    def __post_init__(self) -> None:
        for name in ("phi", "upsilon"):
            object.__setattr__(self, name, positive(name, getattr(self, name)))

    @property
    def ratio(self) -> float:
        """r = Upsilon / Phi: how much of the gap no effort removes."""
        return self.upsilon / self.phi

    def gap(self, degree: npt.ArrayLike, peer: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Phi * (degree^2 + peer^2) + Upsilon."""
        square = np.square(np.asarray(degree, dtype=np.float64)) + np.square(
            np.asarray(peer, dtype=np.float64)
        )
        return np.asarray(self.phi * square + self.upsilon)

    @classmethod
    def paper(cls, gradient_bound: float, local_steps: int, mu: float = PAPER_STRONG_CONVEXITY) -> "GapBound":
        """Phi = 6 * E * G^2 and Upsilon = 2 * G^2 / mu: the numbers of the paper's experiments.

        They are not a bound: Phi takes 2 where the theorem has 16, Upsilon lost a factor L, and the formula
        of Upsilon is negative for odd E, which is refused here as the paper refuses it.
        """
        g, mu = positives(gradient_bound=gradient_bound, mu=mu)
        if whole("local_steps", local_steps) % 2:
            reason = "an even number: for odd E the paper's Upsilon is -2*G^2/mu - eta*G^2/2, and no payment exists"
            raise FieldError("local_steps", local_steps, reason)
        return cls(6 * local_steps * g**2, 2 * g**2 / mu)

    @classmethod
    def strongly_convex(
        cls, smoothness: float, gradient_bound: float, mu: float, step_sizes: Sequence[float]
    ) -> "GapBound":
        """Gradient steps on mu-strongly convex, L-smooth label losses: a bound that holds.

            Phi = 4 L G^2 S^2,   Upsilon = L rho^2 G^2 / mu^2
            S = sum_s eta_s prod_{r>s} (1 - eta_r mu),   rho = prod_t (1 - eta_t mu)

        Args:
            step_sizes: eta_0 ... eta_{E-1}, each in (0, 2 / (L + mu)].
        """
        L, g, mu, sums = _contraction(smoothness, gradient_bound, mu, step_sizes)
        return cls(4 * L * g**2 * sums.total**2, L * sums.shrink**2 * g**2 / mu**2)

    @classmethod
    def stochastic(
        cls, smoothness: float, gradient_bound: float, mu: float, step_sizes: Sequence[float], sigma: float
    ) -> "GapBound":
        """As `strongly_convex`, in expectation, with stochastic gradients of variance at most sigma^2.

        Phi = 6 L G^2 S^2,   Upsilon = 1.5 L (sigma^2 V^2 + rho^2 G^2 / mu^2)
        V^2 = sum_s eta_s^2 prod_{r>s} (1 - eta_r mu)^2
        """
        L, g, mu, sums = _contraction(smoothness, gradient_bound, mu, step_sizes)
        noise = non_negative("sigma", sigma) ** 2 * sums.variance
        return cls(6 * L * g**2 * sums.total**2, 1.5 * L * (noise + sums.shrink**2 * g**2 / mu**2))

    @classmethod
    def fit(
        cls, degrees: npt.ArrayLike, peers: npt.ArrayLike, gaps: npt.ArrayLike, coverage: float = 1.0
    ) -> "GapBound":
        """Constants from measured gaps: least-squares slope, then the least offset that covers.

        Args:
            degrees, peers, gaps: one measured pair an entry; gaps are |F_c(w^k) - F_c(w^k')| >= 0.
            coverage: share of the measured pairs that the bound must hold for, in (0, 1].

        Raises:
            FieldError: lengths that differ, fewer than two pairs, values out of range, or gaps that do not
                grow with the degrees, so that no Phi > 0 describes them.
        """
        d, p, y = (np.asarray(v, dtype=np.float64).ravel() for v in (degrees, peers, gaps))
        if not d.size == p.size == y.size or d.size < 2:
            raise FieldError(
                "gaps", f"{d.size}, {p.size}, {y.size} entries", "one gap a pair, at least two pairs"
            )
        for name, values, top in (("degrees", d, 1.0), ("peers", p, 1.0), ("gaps", y, math.inf)):
            if not np.isfinite(values).all() or (values < 0).any() or (values > top).any():
                raise FieldError(name, values, f"finite numbers in [0, {top:g}]")
        if not 0 < coverage <= 1:
            raise FieldError("coverage", coverage, "a share in (0, 1]")
        x = d**2 + p**2
        spread = float(((x - x.mean()) ** 2).sum())
        phi = float(((x - x.mean()) * (y - y.mean())).sum()) / spread if spread > 0 else math.nan
        if not phi > 0:
            raise FieldError("gaps", f"a slope of {phi:g}", "gaps that grow with delta_k^2 + delta_k'^2")
        residuals = np.sort(y - phi * x)
        offset = float(residuals[math.ceil(coverage * residuals.size) - 1])
        if offset <= 0:
            raise FieldError(
                "upsilon", offset, "a number above 0: at this coverage the line lies below 0; raise coverage"
            )
        # One unit of rounding up, so that the pair that set the offset is covered in floating point too.
        return cls(phi, math.nextafter(offset * (1 + 1e-12), math.inf))


def _contraction(
    smoothness: float, gradient_bound: float, mu: float, step_sizes: Sequence[float]
) -> tuple[float, float, float, StepSums]:
    """L, G, mu, and the sums over the steps, which bring strongly convex runs closer."""
    L, g, mu = positives(smoothness=smoothness, gradient_bound=gradient_bound, mu=mu)
    if not len(step_sizes):
        raise FieldError("step_sizes", [], "at least one local step")
    return L, g, mu, step_sums(step_sizes, L, mu)
