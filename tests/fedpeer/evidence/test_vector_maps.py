"""Ridge regressions from long vectors to shares."""

import numpy as np
import pytest

from fedpeer.evidence.vector_maps import DIRECTION, Scale, fit_halved, fit_whole


def shadows(n: int = 60, noise: float = 0.0, common: float = 0.0) -> tuple[np.ndarray, ...]:
    """Vectors that are linear in the shares, with noise, and a part in common of each half that follows one share."""
    generator = np.random.default_rng(0)
    shares = generator.dirichlet(np.ones(4), size=n)
    halves = np.arange(n) % 2
    own = generator.normal(size=(4, 200))
    vectors = shares @ own + noise * generator.normal(size=(n, 200))
    quirk = generator.normal(size=(2, 200))
    vectors = vectors + common * shares[:, :1] * quirk[halves]
    return vectors, shares, halves


@pytest.mark.parametrize("scale", ["direction", "coordinates"])
def test_a_linear_relation_is_found(scale: str) -> None:
    vectors, shares, _ = shadows()
    fitted, told = fit_whole(vectors, shares, DIRECTION if scale == "direction" else Scale.of(vectors))
    assert np.abs(told - shares).mean() < 0.02
    assert np.abs(fitted(vectors) - shares).mean() < 0.02


def test_what_is_told_of_a_shadow_is_what_the_map_without_it_tells() -> None:
    vectors, shares, _ = shadows(noise=3)
    scale = Scale.of(vectors)
    _, told = fit_whole(vectors, shares, scale)
    # With another penalty chosen the map differs a little.
    without, _ = fit_whole(vectors[1:], shares[1:], scale)
    assert without(vectors[:1])[0] == pytest.approx(told[0], abs=0.05)


def test_a_length_tells_nothing() -> None:
    vectors, shares, halves = shadows(noise=0.1)
    fitted, _ = fit_halved(vectors, shares, halves, DIRECTION)
    assert fitted(7 * vectors) == pytest.approx(fitted(vectors))


def test_halves_do_not_tell_of_what_only_their_own_samples_have_in_common() -> None:
    vectors, shares, halves = shadows(noise=0.5, common=3)
    fitted, told = fit_halved(vectors, shares, halves, DIRECTION)
    assert told == pytest.approx(fitted.of_half(vectors, halves))
    _, whole = fit_whole(vectors, shares, DIRECTION)
    assert np.abs(whole - shares).mean() < np.abs(told - shares).mean()
