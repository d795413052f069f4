"""Likeness of models beyond what their mixes explain."""

import numpy as np
import pytest

from fedpeer.evidence.likeness import Pull, fit_pull, mix_of
from fedpeer.evidence.likeness import _kernel as kernel
from fedpeer.evidence.mix_lines import lines_and_rest
from fedpeer.evidence.sketch import Array, directions

pytestmark = pytest.mark.arithmetic

STRATA, WIDTH, SHADOWS = 5, 400, 80

#: No variation of the recipe.
NO_WAY = np.zeros((0, WIDTH))


def vectors(mixes: Array, own: Array, shared: Array | float = 0.0) -> Array:
    """A pull that bends with the share of each stratum, what samples in common do, and what one's own do."""
    pulls = np.random.default_rng(7).normal(size=(STRATA, WIDTH))
    return mixes**0.7 @ pulls + shared + own


def noise(count: int, generator: np.random.Generator) -> Array:
    return generator.normal(size=(count, WIDTH)) / 3


def test_a_mix_in_common_is_no_likeness_and_samples_in_common_are() -> None:
    generator = np.random.default_rng(0)
    mixes = generator.dirichlet(np.full(STRATA, 0.4), SHADOWS)
    pull, _ = fit_pull(vectors(mixes, noise(SHADOWS, generator)), mixes, np.arange(SHADOWS) % 2)
    same = np.tile([0.0, 0.1, 0.8, 0.1, 0.0], (2, 1))
    first, second = vectors(same, noise(2, generator))
    assert directions(first) @ directions(second) > 0.75, "honest participants of one mix look alike"
    again = first + noise(1, generator)[0] / 3
    one, other, third = pull.left(np.array([first, second, again]), same[[0, 0, 0]])
    assert abs(one @ other) < 0.3
    assert one @ third > 0.9
    np.testing.assert_allclose(one @ one, 1)


def test_few_shadows_tell_a_pull_that_bends_with_what_else_a_model_has() -> None:
    """As from a fresh start: what is learnt of a stratum hangs on the others that a model has."""
    generator = np.random.default_rng(3)
    mixes = generator.dirichlet(np.full(STRATA, 1.0), 32 + 80)
    pulls = np.random.default_rng(8).normal(size=(STRATA**2, WIDTH))
    pairs = np.sqrt(np.einsum("ni,nj->nij", mixes, mixes)).reshape(len(mixes), -1)
    models = pairs @ pulls + noise(len(mixes), generator) / 2
    pull, _ = fit_pull(models[:32], mixes[:32], np.arange(32) % 2)
    left = pull.left(models[32:], mixes[32:])
    # A pull that is linear in the shares and their square roots leaves 0.108.
    assert np.abs(left @ left.T)[np.triu_indices(80, 1)].mean() < 0.09


def test_pairs_of_different_halves_have_in_common_what_two_participants_have() -> None:
    """Shadows of a half share samples, which pull them the same way; participants share none with anybody."""
    gaps = []
    for seed in range(8):
        generator = np.random.default_rng(seed)
        halves = np.arange(SHADOWS) % 2
        shared = noise(2, generator) * 1.5
        mixes = generator.dirichlet(np.full(STRATA, 1.0), SHADOWS + 40)
        own = noise(SHADOWS + 40, generator)
        trained = vectors(mixes[:SHADOWS], own[:SHADOWS], shared[halves])
        pull, rest = fit_pull(trained, mixes[:SHADOWS], halves)
        shadows = rest.alike(NO_WAY).mean()
        others = pull.left(vectors(mixes[SHADOWS:], own[SHADOWS:]), mixes[SHADOWS:])
        participants = (others @ others.T)[np.triu_indices(40, 1)].mean()
        assert participants > 0.1, "the map lies off by what the halves have of their own"
        gaps.append(shadows - participants)
    assert abs(np.mean(gaps)) < 0.05


def test_a_pair_is_compared_by_the_map_that_has_seen_neither() -> None:
    generator = np.random.default_rng(5)
    mixes, halves = generator.dirichlet(np.full(STRATA, 0.5), 30), np.arange(30) % 2
    trained = vectors(mixes, noise(30, generator))
    _, rest = fit_pull(trained, mixes, halves)
    alike = rest.alike(NO_WAY)
    for i, j in ((0, 1), (8, 21)):
        others = np.setdiff1d(np.arange(30), [i, j])
        # H of the map of all gives the kernel over the penalty, K / a = H (I - H)^-1, and so the map without both.
        kernel = rest.hat @ np.linalg.inv(np.eye(30) - rest.hat)
        weights = np.linalg.solve(kernel[np.ix_(others, others)] + np.eye(28), trained[others])
        one, other = trained[[i, j]] - kernel[np.ix_([i, j], others)] @ weights
        expected = directions(one - rest.difference) @ directions(other)
        np.testing.assert_allclose(alike[i // 2, j // 2], expected, atol=1e-6)


def test_shadows_of_one_mix_are_as_alike_as_participants_of_it() -> None:
    """Each is in the map of the other, which takes off a part of what both have; participants are in none."""
    gaps, naive = [], []
    for seed in range(8):
        generator = np.random.default_rng(seed)
        # Of each mix one shadow in either half, so that what is known of it is known from these two.
        mixes = np.repeat(generator.dirichlet(np.full(STRATA, 0.3), SHADOWS // 2), 2, axis=0)
        trained = vectors(mixes, noise(SHADOWS, generator))
        pull, rest = fit_pull(trained, mixes, np.arange(SHADOWS) % 2)
        left = pull.left(vectors(mixes, noise(SHADOWS, generator)), mixes)
        participants = np.einsum("ij,ij->i", left[::2], left[1::2]).mean()
        gaps.append(rest.alike(NO_WAY).diagonal().mean() - participants)
        alone = directions(rest.alone())
        naive.append(np.einsum("ij,ij->i", alone[::2], alone[1::2]).mean() - participants)
    # Without both, the map has seen two models less of this mix, of which it knows but few: a little too much is left.
    assert 0 < np.mean(gaps) < 0.1
    assert np.mean(naive) < -3 * np.mean(gaps)


def test_estimated_shares_become_a_distribution() -> None:
    found = mix_of(np.array([[0.5, -0.2, 1.5], [0.0, 0.0, -1.0]]))
    np.testing.assert_allclose(found[0], [0.25, 0, 0.75])
    np.testing.assert_allclose(found[1], 0)


def test_of_a_mix_that_no_shadow_has_less_is_known() -> None:
    generator = np.random.default_rng(2)
    mixes = generator.dirichlet(np.full(STRATA, 2.0), SHADOWS)
    mixes[:20] = np.eye(STRATA)[1]
    lines, _ = lines_and_rest(vectors(mixes, noise(SHADOWS, generator)), mixes)
    seen, unseen = lines.unknown(np.eye(STRATA)[[1, 3]])
    assert 0 < seen < 0.2
    assert unseen > 2 * seen
    np.testing.assert_allclose(lines(mixes[:1])[0], vectors(mixes[:1], np.zeros((1, WIDTH)))[0], atol=1)


def test_how_far_the_error_is_in_common_is_that_of_the_map_without_both() -> None:
    """Of shadows it follows from the hat matrix; by the map without both they are models like any others."""
    generator = np.random.default_rng(5)
    mixes, halves = generator.dirichlet(np.full(STRATA, 0.4), SHADOWS), np.arange(SHADOWS) % 2
    pull, rest = fit_pull(vectors(mixes, noise(SHADOWS, generator)), mixes, halves)
    kernel = np.linalg.inv(pull.inverse) - pull.penalty * np.eye(SHADOWS)
    common = rest.common()
    assert common.shape == ((halves == 0).sum(), (halves == 1).sum())
    for row, column in ((0, 0), (3, 17), (20, 5)):
        i, j = np.flatnonzero(halves == 0)[row], np.flatnonzero(halves == 1)[column]
        kept = np.setdiff1d(np.arange(SHADOWS), [i, j])
        inverse = np.linalg.inv(kernel[np.ix_(kept, kept)] + pull.penalty * np.eye(len(kept)))
        without = Pull(mixes[kept], pull.weights[kept], inverse, pull.penalty)
        found = without.common(mixes[[i]], mixes[[j]])
        np.testing.assert_allclose(common[row, column], found[0, 0], atol=1e-6)


def test_models_err_alike_the_more_the_less_any_shadow_is_like_both() -> None:
    """Shadows know mixes of the first three strata; of the others nothing."""
    generator = np.random.default_rng(6)
    mixes = np.zeros((SHADOWS, STRATA))
    mixes[:, :3] = generator.dirichlet(np.ones(3), SHADOWS)
    pull, _ = fit_pull(vectors(mixes, noise(SHADOWS, generator)), mixes, np.arange(SHADOWS) % 2)
    known, unknown, other = np.eye(STRATA)[[0, 3, 4]]
    both = np.array([known, unknown, (unknown + known) / 2, other])
    common = pull.common(both, both)
    np.testing.assert_allclose(common, common.T, atol=1e-9)
    assert (np.linalg.eigvalsh(common) > -1e-9).all(), "it is a covariance of models' errors"
    assert (np.diag(common) < 1).all()
    assert common[0, 0] < common[2, 2] < common[1, 1]
    assert abs(common[0, 1]) < common[1, 2]


def test_two_of_a_mix_that_no_shadow_has_are_as_alike_as_is_said() -> None:
    """In the mean over worlds that are as the map takes them to be: Gaussian, of its kernel."""
    for mix in ([0.2, 0.0, 0.0, 0.8, 0.0], [0.5, 0.3, 0.2, 0.0, 0.0]):
        said, alike = [], []
        for seed in range(20):
            generator = np.random.default_rng(seed)
            mixes = np.zeros((SHADOWS, STRATA))
            mixes[:, :3] = generator.dirichlet(np.ones(3), SHADOWS)
            mixes = np.concatenate([mixes, np.tile(mix, (2, 1))])
            values, axes = np.linalg.eigh(kernel(mixes, mixes))
            pulled = axes * np.sqrt(np.maximum(values, 0)) @ generator.normal(size=(len(mixes), WIDTH))
            models = pulled + generator.normal(size=(len(mixes), WIDTH)) / 2
            pull, _ = fit_pull(models[:-2], mixes[:-2], np.arange(SHADOWS) % 2)
            one, other = pull.left(models[-2:], mixes[-2:])
            said.append(pull.common(mixes[-2:-1], mixes[-1:])[0, 0])
            alike.append(one @ other)
        assert abs(np.mean(said) - np.mean(alike)) < 0.05
