"""Shares from the direction of an update."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpeer.evidence.sketch import Array
from fedpeer.evidence.updates import directions, fit_update_shares

pytestmark = pytest.mark.arithmetic


def pulled(shares: Array, noise: float, generator: np.random.Generator) -> Array:
    """Updates to which every label adds its own direction, of 60 weights, beside noise and one common pull."""
    own = np.random.default_rng(7).normal(size=(shares.shape[1], 60))
    return shares @ own + 3 * own.sum(axis=0) + noise * generator.normal(size=(len(shares), 60))


def some_shares(count: int, generator: np.random.Generator) -> Array:
    return generator.dirichlet(np.full(4, 0.8), count)


def test_updates_tell_shares_that_the_fit_has_not_seen() -> None:
    generator = np.random.default_rng(0)
    shares, others = some_shares(60, generator), some_shares(40, generator)
    fitted, left_out = fit_update_shares(pulled(shares, 0.3, generator), shares)
    assert np.abs(fitted(pulled(others, 0.3, generator)) - others).mean() < 0.05
    assert np.abs(left_out - shares).mean() < 0.05


@given(st.floats(1e-3, 1e3))
def test_the_length_of_an_update_says_nothing(scale: float) -> None:
    generator = np.random.default_rng(1)
    shares = some_shares(30, generator)
    sketches = pulled(shares, 0.5, generator)
    fitted, _ = fit_update_shares(sketches, shares)
    np.testing.assert_allclose(fitted(scale * sketches), fitted(sketches), atol=1e-9)


def test_the_residual_of_a_shadow_left_out_is_that_of_a_fit_without_it() -> None:
    generator = np.random.default_rng(2)
    shares = some_shares(20, generator)
    found = directions(pulled(shares, 1.0, generator))
    _, left_out = fit_update_shares(found, shares)
    penalties = []
    for penalty in np.logspace(-4, 1, 14) * np.linalg.eigvalsh(np.cov(found.T) * 19)[-1]:
        refitted = np.empty_like(shares)
        for i in range(20):
            rest = np.arange(20) != i
            # The unpenalised intercept, written out: both sides centred on those that remain.
            centre, mean = found[rest].mean(axis=0), shares[rest].mean(axis=0)
            x, y = found[rest] - centre, shares[rest] - mean
            refitted[i] = (found[i] - centre) @ np.linalg.solve(
                x.T @ x + penalty * np.eye(60), x.T @ y
            ) + mean
        penalties.append(refitted)
    assert min(np.abs(refitted - left_out).max() for refitted in penalties) < 1e-6
    best = min(penalties, key=lambda refitted: float(np.square(refitted - shares).mean()))
    np.testing.assert_allclose(left_out, best, atol=1e-6)


def test_a_model_that_did_not_move_has_no_direction() -> None:
    assert not directions(np.zeros((1, 5))).any()
