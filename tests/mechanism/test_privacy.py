"""Noise on updates, and what a round's steps are to an accountant."""

from decimal import Decimal
from typing import Any

import numpy as np
import pytest

from mechanism.errors import FieldError
from mechanism.privacy import Gaussians, Privacy, gaussians, noised
from mechanism.terms import Recipe
from tests.participant.simulated_market import terms


def noise(method: str = "update", clip: str = "2", multiplier: str = "0.5") -> Privacy:
    return Privacy(method, Decimal(clip), Decimal(multiplier), Decimal("0.00001"))


START: dict[str, Any] = {
    "a": np.zeros(20_000, np.float32),
    "b": np.ones((10_000, 2), np.float64),
    "count": np.array(3, np.int64),
}


def test_a_small_change_gets_noise_of_the_clip_times_the_multiplier() -> None:
    trained = {"a": START["a"] + np.float32(0.001), "b": START["b"], "count": np.array(9, np.int64)}
    made = noised(START, trained, noise(), np.random.default_rng(1))
    for name in ("a", "b"):
        assert made[name].dtype == START[name].dtype
        assert (made[name] - trained[name]).std() == pytest.approx(1.0, rel=0.03)
        assert (made[name] - trained[name]).mean() == pytest.approx(0.0, abs=0.03)
    assert made["count"] == 3, "what has no noise must not tell of the data"


def test_a_large_change_is_clipped_over_all_tensors_together() -> None:
    trained = {"a": START["a"] + 3, "b": START["b"] - 4, "count": START["count"]}
    made = noised(START, trained, noise(multiplier="0.000001"), np.random.default_rng(1))
    change = np.concatenate([(made[n].astype(float) - START[n]).ravel() for n in ("a", "b")])
    assert np.linalg.norm(change) == pytest.approx(2.0, rel=1e-3)
    assert change[0] / change[-1] == pytest.approx(-3 / 4, rel=1e-3)


def test_a_model_that_did_not_move_gets_noise_too() -> None:
    made = noised(START, START, noise(), np.random.default_rng(1))
    assert made["a"].std() == pytest.approx(1.0, rel=0.03)


def test_variances_stay_variances() -> None:
    start = {"norm.running_var": np.full(1000, 0.01, np.float32)}
    made = noised(start, start, noise(), np.random.default_rng(1))["norm.running_var"]
    assert made.min() == 0
    assert made.max() > 1


def test_a_change_without_a_norm_is_refused() -> None:
    with pytest.raises(FieldError, match="finite"):
        noised(START, {**START, "a": START["a"] + np.float32("nan")}, noise(), np.random.default_rng(1))


def test_what_a_round_tells() -> None:
    assert gaussians(noise("update"), 150, 20, 5) == Gaussians(0.25, 1.0, 1)
    assert gaussians(noise("dp-sgd"), 150, 20, 5) == Gaussians(0.5, 1 / 8, 40)
    assert gaussians(noise("dp-sgd"), 5, 20, 3) == Gaussians(0.5, 1.0, 3)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("method", "magic"),
        ("clip", "0"),
        ("clip", "1000001"),
        ("noise_multiplier", "-1"),
        ("noise_multiplier", "10001"),
        ("delta", "1"),
        ("delta", "0"),
    ],
)
def test_values_out_of_range(field: str, value: str) -> None:
    values = {"method": "update", "clip": "1", "noise_multiplier": "1", "delta": "0.1", field: value}
    numbers = {name: text if name == "method" else Decimal(text) for name, text in values.items()}
    with pytest.raises(FieldError, match=f"privacy.{field}"):
        Privacy(**numbers)  # type: ignore[arg-type]


def test_terms_without_privacy_have_the_record_that_they_had() -> None:
    from dataclasses import replace

    plain = terms()
    assert "privacy" not in plain.record()["recipe"]
    assert "retention_seconds" not in plain.record()["schedule"]
    private = replace(
        plain,
        recipe=replace(plain.recipe, privacy=noise()),
        schedule=replace(plain.schedule, retention_seconds=0),
    )
    assert type(private).parse(private.canonical) == private
    assert private.record()["recipe"]["privacy"] == {
        "method": "update", "clip": "2", "noise_multiplier": "0.5", "delta": "0.00001",
    }  # fmt: skip
    assert "retention  models are deleted 0 s after the end" in str(private)
    assert Recipe("custom", 1, 8, "sgd", Decimal("0.1"), 10) == plain.recipe
