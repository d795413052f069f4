"""How alike two models are beyond what their mixes explain.

Models of one mix are pulled the same way, on whichever samples they were trained. What the mix p pulls is a ridge
regression on shadows in the dual, of shadows of the mixes p_1 .. p_n:

    pull(p) = sum_i k(p, p_i) a_i,   k(p, q) = p q + b + b^2 + b^4,   b = sum_s sqrt(p_s q_s)
    likeness = cosine of v - pull(p) and v' - pull(p')

The terms p q and b alone are linear in the shares and in their square roots, since the first samples of a stratum count
most. From a fresh start that falls short: what a model learns of one stratum hangs on the others that it has. The
powers of b, the affinity of two mixes, bend the pull. Without them what the mixes explain stays in the residuals of a
few shadows, pairs of them look alike, and the limit of a link rises above what a model on the same samples shows.

What is left of a model is its own samples': a copy has 1, a model trained again on the same samples little less, and
models of different samples little, unless no shadow is like the mixes that both have. Then what the map errs by is left
of both, and two that hold the same half of the strata look alike without a sample in common. How far it goes follows
from the mixes: as a Gaussian process the map errs by c, and of two models

    common(p, q) = c(p, q) / sqrt((c(p, p) + a) (c(q, q) + a)),   c(p, q) = k(p, q) - k_p' (K + a)^-1 k_q

with a the ridge penalty, K the kernel's matrix of the shadows and k_p the kernel of p with each. That is the cosine
that is expected of models whose own samples leave as much as shadows' do (`fedpeer.evidence.comparing` takes it to what
models have).

Two participants are in no map, so the likeness of two shadows is taken by the map without either. With R = (I - H) V
what a map of all leaves, that of i and j is

    (I - H_S)^-1 R_S,  S = {i, j},        common(i, j) = H_ij / sqrt((1 - H_ii) (1 - H_jj))

By maps without one alone, which know the other, two shadows of a like mix would be less alike than participants are:
the map has gone half of the way to the other. Shadows of one half of D_c share samples, which the map does not know:
their residuals have a mean in common, d more than those of the other half. It lies between the two halves, so that
pairs of shadows of different halves have -d/2 and d/2 in common; two participants, whose samples are of neither, lie as
far from it and on one side of it. From what is left of the first half d is therefore taken: pairs of different halves
then have in common what two participants have.

Source: Rasmussen and Williams, "Gaussian Processes for Machine Learning", 2006, equations 2.24 and 5.12.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedpeer.evidence.regression import least_penalty
from fedpeer.evidence.sketch import Array, directions, without

#: Candidates of the ridge penalty, over the largest eigenvalue of the kernel's matrix.
_PENALTIES = np.logspace(-5, 0.5, 14)

_TINY = 1e-9


@dataclass(frozen=True, eq=False)
class Pull:
    """What a mix does to one kind of vector.

    Attributes:
        mixes: p_i of the shadows, (n, S); weights: a_i, (n, B).
        inverse: (K + a)^-1, (n, n); penalty: a.
    """

    mixes: Array
    weights: Array
    inverse: Array
    penalty: float

    def left(self, vectors: Array, mixes: Array, away: Array | float = 0.0) -> Array:
        """What is left of models that are in no map, shape (n, B), as directions.

        Args:
            away: what is taken off, too: d of shadows of the first half.
        """
        return directions(vectors - _kernel(mixes, self.mixes) @ self.weights - away)

    def common(self, mixes: Array, others: Array) -> Array:
        """common(p, q) of the module's text, of models that are no shadows, each of (n, S) with each of (m, S)."""
        known, of_others = (_kernel(each, self.mixes) for each in (mixes, others))
        joint: Array = _kernel(mixes, others) - known @ self.inverse @ of_others.T
        own, theirs = (self._alone(*each) for each in ((mixes, known), (others, of_others)))
        result: Array = joint / np.sqrt(np.outer(own, theirs))
        return result

    def _alone(self, mixes: Array, known: Array) -> Array:
        """c(p, p) + a."""
        total = mixes.sum(axis=1)
        whole = np.square(mixes).sum(axis=1) + total + total**2 + total**4
        errors = whole - np.einsum("ij,ij->i", known @ self.inverse, known)
        result: Array = np.maximum(errors, 0) + self.penalty
        return result


@dataclass(frozen=True, eq=False)
class Rest:
    """What a map leaves of its own shadows; see the module's text.

    Attributes:
        residuals: of each shadow by the map without it, R_i over 1 - H_ii, (n, B); hat: H, (n, n).
        halves: of D_c, (n,); difference: d, (B,).
    """

    residuals: Array
    hat: Array
    halves: npt.NDArray[np.int64]
    difference: Array

    def alone(self) -> Array:
        """Of each shadow by the map without it, (n, B)."""
        return self.residuals - np.outer(self.halves == 0, self.difference)

    def common(self) -> Array:
        """Of each shadow of the first half with each of the second, by the map without both, (n_0, n_1)."""
        left = np.sqrt(np.maximum(1 - self.hat.diagonal(), _TINY))
        found: Array = (self.hat / np.outer(left, left))[np.ix_(self.halves == 0, self.halves == 1)]
        return found

    def alike(self, moved: Array) -> Array:
        """Cosines of each shadow of the first half with each of the second, by the map without both, (n_0, n_1).

        Args:
            moved: directions that are taken off all, (k, B).
        """
        fitted = self.residuals * np.maximum(1 - self.hat.diagonal(), _TINY)[:, None]
        seconds = np.flatnonzero(self.halves == 1)
        of_second, known = 1 - self.hat.diagonal()[seconds], fitted[seconds]
        found = []
        for first in np.flatnonzero(self.halves == 0):
            both, of_first = self.hat[first, seconds], 1 - self.hat[first, first]
            inverse = np.maximum(of_first * of_second - both**2, _TINY)
            one = np.outer(of_second, fitted[first]) + both[:, None] * known
            other = of_first * known + np.outer(both, fitted[first])
            one, other = (
                directions(without(part / inverse[:, None] - away, list(moved)))
                for part, away in ((one, self.difference), (other, 0.0))
            )
            found.append(np.einsum("ij,ij->i", one, other))
        return np.array(found)


def fit_pull(vectors: Array, mixes: Array, halves: npt.NDArray[np.int64]) -> tuple[Pull, Rest]:
    """The map, and what it leaves of the shadows.

    Args:
        vectors: shape (n, B); mixes: distributions over the strata, (n, S); halves: of D_c, (n,).
    """
    pull, residuals, hat = _fitted(vectors, mixes)
    difference = residuals[halves == 0].mean(axis=0) - residuals[halves == 1].mean(axis=0)
    return pull, Rest(residuals, hat, halves, difference)


def pull_of(vectors: Array, mixes: Array) -> tuple[Pull, Array]:
    """The map of the penalty with the least error, and what is left of each without it."""
    pull, residuals, _ = _fitted(vectors, mixes)
    return pull, residuals


def _fitted(vectors: Array, mixes: Array) -> tuple[Pull, Array, Array]:
    """The map of the penalty with the least error, what is left of each without it, and H."""
    values, axes = np.linalg.eigh(_kernel(mixes, mixes))
    values = np.maximum(values, 0)
    chosen, residuals = least_penalty(axes, values, vectors, _PENALTIES * values[-1])
    hat = (axes * (values / (values + chosen))) @ axes.T
    inverse = (axes / (values + chosen)) @ axes.T
    return Pull(mixes, inverse @ vectors, inverse, float(chosen)), residuals, hat


def mix_of(shares: Array) -> Array:
    """Estimated shares, shape (..., S), as distributions: none below 0, summing to 1."""
    positive = np.maximum(shares, 0)
    result: Array = positive / np.maximum(positive.sum(axis=-1, keepdims=True), 1e-9)
    return result


def _kernel(mixes: Array, others: Array) -> Array:
    """k of the module's text, of each with each."""
    affinity = np.sqrt(mixes) @ np.sqrt(others).T
    result: Array = mixes @ others.T + affinity + affinity**2 + affinity**4
    return result
