"""What a training returns is read, whichever library it is of, or is one sentence before anything is sent."""

from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedpeer.protocol.model_file import contract_of, encode_model, open_model
from mechanism.terms import ModelContract
from participant.errors import TrainingError, WeightsError
from participant.journal import Journal
from participant.model_store import moved, write_weights
from participant.task import Trained, TrainingRound, Weights
from tests.participant.simulated_market import Cats, SimulatedMarket, start_weights
from tests.participant.test_steps_under_faults import engage, take_part

pytestmark = pytest.mark.arithmetic

WANTED = {"layer.bias": np.arange(2, dtype=np.float32), "layer.weight": np.ones((2, 3), np.float32)}


def contract(dtype: str = "F32") -> ModelContract:
    made = contract_of(WANTED, Decimal(1000), 10_000)
    specs = tuple(type(spec)(spec.name, dtype, spec.shape) for spec in made.tensors)
    return ModelContract(specs, made.max_norm, made.max_bytes)


class Holder:
    """An array of a library that has nothing but `numpy`."""

    def numpy(self) -> Any:
        return WANTED["layer.bias"]


@pytest.mark.parametrize(
    "bias",
    [
        torch.arange(2, dtype=torch.float32, requires_grad=True),
        nn.Parameter(torch.arange(2, dtype=torch.float32)),
        torch.arange(4, dtype=torch.float32)[:2],
        Holder(),
        np.arange(2, dtype=">f4"),
    ],
)
def test_a_weight_of_any_library_is_sent_as_what_it_is(bias: Any, tmp_path: Path) -> None:
    write_weights(tmp_path / "made", {**WANTED, "layer.bias": bias}, contract())
    assert (tmp_path / "made").read_bytes() == encode_model(WANTED)


def test_bfloat16_is_sent_where_the_task_has_it_and_refused_elsewhere(tmp_path: Path) -> None:
    weights: Any = {name: torch.from_numpy(array).bfloat16() for name, array in WANTED.items()}
    write_weights(tmp_path / "made", weights, contract("BF16"))
    assert np.array_equal(open_model(tmp_path / "made").weights()["layer.bias"], [0, 1])
    write_weights(tmp_path / "made", weights, contract())  # float32 holds every bfloat16
    with pytest.raises(WeightsError, match="expected F16"):
        write_weights(tmp_path / "made", weights, contract("F16"))


@pytest.mark.parametrize(
    ("bias", "words"),
    [
        ("text", "expected an array of numbers"),
        (None, "expected an array of numbers"),
        ([[0], [0, 1]], "expected an array of numbers"),
        (torch.zeros(2).to_sparse(), "expected an array of numbers"),
        (torch.zeros(2, device="meta"), "expected an array of numbers"),
        (torch.zeros(2, dtype=torch.complex64), "expected an array of numbers"),
        (torch.zeros(2, dtype=torch.float8_e4m3fn), "expected an array of numbers"),
        (np.ma.array([0, 1], mask=[0, 1]), "a value for each weight"),
        (np.array([0, np.nan], np.float32), "NaN"),
        ([0.0, 1.0], "is F64 of shape"),
    ],
)
def test_what_is_no_weight_is_one_sentence(bias: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=words):
        write_weights(tmp_path / "made", {**WANTED, "layer.bias": bias}, contract())
    assert list(tmp_path.glob("made*")) == []


@pytest.mark.parametrize("weights", [[1, 2], (WANTED, 3), np.zeros(3), nn.Linear(3, 2), 5, {}])
def test_what_is_no_mapping_of_weights_is_one_sentence(weights: Any, tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="cannot be sent"):
        write_weights(tmp_path / "made", weights, contract())


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "module._orig_mod."])
def test_weights_of_a_wrapped_module_are_sent_under_the_names_inside(
    prefix: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    wrapped = {prefix + name: array for name, array in WANTED.items()}
    write_weights(tmp_path / "made", wrapped, contract())
    assert (tmp_path / "made").read_bytes() == encode_model(WANTED)
    assert len([r for r in caplog.records if "the module inside" in r.message]) == 1
    with pytest.raises(WeightsError, match="is missing"):
        write_weights(tmp_path / "made", {"net." + name: array for name, array in WANTED.items()}, contract())


class Returning(Cats):
    """Cats of which a training returns what the test wants."""

    def __init__(self, step: float = 1.0, **options: Any) -> None:
        super().__init__()
        self.step, self.options = np.float32(step), options

    def train(self, weights: Weights, round: TrainingRound) -> Trained:  # noqa: A002 - as Task.train
        changed = {n: a + self.step if a.dtype == np.float32 else a + 1 for n, a in weights.items()}
        return Trained(changed, **self.options)


@pytest.mark.parametrize(
    "samples",
    [2**60, 2**53, 0, -1, 1.5, 100.0, True, "many", float("nan"), pytest.param(10**5000, id="5001 digits")],
)
def test_samples_that_no_statement_can_carry_cost_a_round_and_not_the_run(
    samples: Any, tmp_path: Path
) -> None:
    market = SimulatedMarket(rounds=1)
    report = take_part(market, tmp_path, Returning(samples=samples))
    assert "expected a whole number from 1 to 9007199254740991" in report.rounds[0].missed
    assert market.failures == {1: ["the number of samples cannot be used"]}
    assert not market.models


def test_samples_may_be_of_numpys_types(tmp_path: Path) -> None:
    market = SimulatedMarket(rounds=1)
    take_part(market, tmp_path, Returning(samples=np.int64(7)))
    assert len(market.models[1]) == 1


@pytest.mark.parametrize(
    "metrics",
    [5, ["loss"], {"loss": "low"}, pytest.param({"loss": 10**5000}, id="5001 digits"), {1: torch.zeros(2)}],
)
def test_metrics_that_cannot_be_kept_cost_nothing(metrics: Any, tmp_path: Path) -> None:
    market = SimulatedMarket(rounds=1)
    take_part(market, tmp_path, Returning(metrics=metrics))
    assert len(market.models[1]) == 1


@pytest.mark.parametrize("step", [0.0, 1e-30])
def test_a_training_that_moved_nothing_is_not_sent(step: float, tmp_path: Path) -> None:
    """The counter of batches moved; no weight did, but for those that were zero."""
    market = SimulatedMarket(rounds=1)
    report = take_part(market, tmp_path, Returning(step))
    assert "moved no weight" in report.rounds[0].missed
    assert market.failures == {1: ["the training moved no weight"]}
    assert not market.models


def test_a_loop_of_ones_own_cannot_send_what_it_was_sent(tmp_path: Path) -> None:
    market, journal = SimulatedMarket(rounds=1), Journal(tmp_path / "journal.db")
    engagement = engage(market, tmp_path, journal)
    market.run(engagement.claim(Decimal("0.3"), {0: 30, 1: 10}))
    assert engagement.claimed_counts == (30, 10)
    start = engagement.models.start(engagement.task_id, 1)
    start.parent.mkdir(exist_ok=True)
    start.write_bytes(encode_model(start_weights()))
    write_weights(engagement.trained_path(1), start_weights(), engagement.terms.contract)
    with pytest.raises(TrainingError, match="moved no weight"):
        market.run(engagement.submit(1, 40))
    assert not engagement.trained_path(1).exists()
    journal.close()


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({"w": np.ones(3)}, {"w": np.ones(3)}, False),
        ({"w": np.ones(3)}, {"w": np.ones(3) + 1e-6}, True),
        ({"w": np.zeros(3)}, {"w": np.zeros(3) + 1e-30}, True),
        ({"w": np.ones(3), "b": np.zeros(3)}, {"w": np.ones(3), "b": np.full(3, 1e-30)}, False),
        ({"w": np.ones(3), "n": np.array(1)}, {"w": np.ones(3), "n": np.array(2)}, False),
        ({"n": np.array(1)}, {"n": np.array(2)}, True),
        ({"n": np.array(1)}, {"n": np.array(1)}, False),
    ],
)
def test_what_counts_as_moved(before: Weights, after: Weights, expected: bool, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(encode_model(before))
    (tmp_path / "b").write_bytes(encode_model(after))
    assert moved(tmp_path / "a", tmp_path / "b") is expected
