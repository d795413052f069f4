"""Likeness of models beyond what a label mix in common explains."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpeer.evidence.likeness import MOST_EXPLAINED, Likeness, fit_likeness, mix_of
from fedpeer.evidence.sketch import Array, directions

pytestmark = pytest.mark.arithmetic

COSINES = st.floats(-1, 1)
COMMON = st.floats(0, 1)
LINES = st.builds(Likeness, st.floats(-1, 1), st.floats(-1, 2))


@given(LINES, COMMON)
def test_a_copy_is_one_whatever_its_mix(line: Likeness, common: float) -> None:
    np.testing.assert_allclose(line(np.array(1.0), np.array(common)), 1, atol=1e-12)


@given(LINES, COSINES, COMMON)
def test_likeness_never_exceeds_the_cosine_and_keeps_its_order(
    line: Likeness, cosine: float, common: float
) -> None:
    found = line(np.array([cosine, cosine / 2 + 0.5]), np.array([common, common]))
    assert found[0] <= cosine + 1e-12
    assert found[0] <= found[1] + 1e-12
    assert found[0] >= (cosine - MOST_EXPLAINED) / (1 - MOST_EXPLAINED) - 1e-9


def pulled(shares: Array, generator: np.random.Generator) -> Array:
    """Updates of unit length, of 400 weights: a direction for each label, the mean taken off, and noise."""
    own = np.random.default_rng(7).normal(size=(shares.shape[1], 400))
    return directions((shares - 1 / shares.shape[1]) @ own + generator.normal(size=(len(shares), 400)) / 3)


def test_a_mix_in_common_is_no_likeness_and_samples_in_common_are() -> None:
    generator = np.random.default_rng(0)
    shares = generator.dirichlet(np.full(5, 0.4), 80)
    updates, pairs = pulled(shares, generator), np.triu_indices(80, 1)
    line = fit_likeness((updates @ updates.T)[pairs], (shares @ shares.T)[pairs])
    single = np.tile(np.eye(5)[2], (2, 1))
    first, second = pulled(single, generator)
    again = directions(0.95 * first + 0.05 * second)
    common = np.array(1.0)
    assert first @ second > 0.75, "honest participants of one label look alike"
    assert line(np.array(first @ second), common) < 0.6
    assert line(np.array(first @ again), common) > 0.95


def test_estimated_shares_become_a_distribution() -> None:
    found = mix_of(np.array([[0.5, -0.2, 1.5], [0.0, 0.0, -1.0]]))
    np.testing.assert_allclose(found[0], [0.25, 0, 0.75])
    np.testing.assert_allclose(found[1], 0)
