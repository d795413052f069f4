"""A task that could never be scored is refused before anybody hears of it."""

import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from coordinator import dry_round
from coordinator.cli import app
from coordinator.config import MIN_SHADOWS, TaskConfig
from coordinator.dry_round import prove
from coordinator.errors import CoordinatorError, MarketTaskError
from coordinator.opening import prepare_task
from coordinator.operator import Operator
from fedpeer.evidence import fitting
from fedpeer.evidence.planning import trainings
from fedpeer.learning.datasets import load_splits
from fedpeer.learning.models import initial_weights
from fedpeer.protocol.model_file import encode_model
from tests.integration.market import make_folder, task_config

DIGITS = load_splits("digits", seed=0, validation=300, test=100)

#: A recipe by which a model learns something.
LONGER = {"samples": 100, "epochs": 6}


def task(**changes: Any) -> TaskConfig:
    """Digits under a recipe that takes a moment; `changes` by section."""
    values: dict[str, Any] = {
        "id": "t",
        "Q": 1000,
        "phi": 300,
        "upsilon": 200,
        "seed": 7,
        "schedule": {"rounds": 2, "capacity": 4},
        "recipe": {"model": "digits-cnn", "samples": 40, "epochs": 2, "batch_size": 20},
        "data": {"dataset": "digits", "validation": 300, "test": 100},
    }
    for section, value in changes.items():
        both = isinstance(value, dict) and section in values and section != "data"
        values[section] = {**values[section], **value} if both else value
    return TaskConfig.model_validate(values)


def brought(folder: Path, **changes: Any) -> dict[str, str]:
    """A [data] section of files; `changes` to the arrays of D_c, or of the test set under `test_`."""
    files = {}
    for key, part in (("file", DIGITS.validation), ("test_file", DIGITS.test)):
        arrays: dict[str, Any] = {"images": part.images, "labels": part.labels, "classes": 10}
        prefix = "" if key == "file" else "test_"
        arrays |= {name: changes[prefix + name] for name in arrays if prefix + name in changes}
        files[key] = str(folder / f"{key}.npz")
        np.savez(files[key], **arrays)
    return files


def refused(**changes: Any) -> str:
    with pytest.raises((CoordinatorError, ValueError)) as caught:
        prove(prepare_task(task(**changes), 0.0))
    return str(caught.value)


def test_a_task_that_can_be_scored_is_proved_and_says_how_long_its_evidence_takes() -> None:
    progress: list[str] = []
    proof = prove(prepare_task(task(recipe=LONGER), 0.0), progress.append)
    assert proof.training_seconds is not None
    assert proof.evidence_seconds is not None
    assert proof.accuracy is not None
    assert "evidence of a round will take about" in proof.sentence()
    assert "longer than a round" not in proof.sentence()
    assert "longer than a round" in replace(proof, round_seconds=0).sentence()
    assert proof.doubts == ()
    assert proof.half_width is not None
    assert 0 < proof.half_width < 0.3
    assert f"With 30 shadows degrees are known to +-{proof.half_width:.2f}" in proof.sentence()
    assert "LOOK AGAIN" not in proof.sentence()
    assert 0.09 < proof.chance < 0.15
    assert " LOOK AGAIN: it is odd." in replace(proof, doubts=("it is odd.",)).sentence()
    assert progress[0] == "training model 1 of 2"
    assert "measuring and settling a round of three" in progress
    assert progress[-1] == "training shadow models: 40 of 40"


def test_shadows_that_are_too_few_to_tell_samples_are_said_to_be() -> None:
    few = prove(prepare_task(task(evidence={"shadows": 12}), 0.0)).doubts
    assert any(
        "the screen of samples tells nothing: of 12 shadows" in doubt
        and "Honest participants lose nothing" in doubt
        for doubt in few
    )
    [unread] = [doubt for doubt in few if "number of samples is read" in doubt]
    assert "in any round: that takes 50 shadows in a round, and there are 12" in unread
    [later] = dry_round._uncounted(60, 30)
    assert "in the rounds after the first: that takes 50 shadows in a round, and there are 30" in later
    assert dry_round._uncounted(100, 50) == ()


def test_a_long_recipe_is_proved_by_a_shorter_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dry_round, "_NUMBERS", 1e5)
    config = task(recipe={"samples": 60, "epochs": 3})
    proof = prove(prepare_task(config, 0.0))
    assert proof.evidence_seconds is not None
    assert proof.training_seconds is not None
    assert proof.evidence_seconds > 100 * proof.training_seconds


def test_a_task_on_claims_is_proved_as_far_as_it_can_be(tmp_path: Path) -> None:
    claims = {"rule": {"name": "paper"}}
    with_data = prove(prepare_task(task(**claims), 0.0))
    assert with_data.accuracy is not None
    assert with_data.evidence_seconds is None
    without = prove(prepare_task(task(**claims, data=None, reference=["1/10"] * 10), 0.0))
    assert without.training_seconds is not None
    assert without.accuracy is None
    custom = prove(prepare_task(task_config(tmp_path), 0.0))
    assert custom.training_seconds is None
    assert "models keep the contract" in custom.sentence()


@pytest.mark.parametrize("rule", ["verified", "paper"])
@pytest.mark.parametrize(
    ("recipe", "said"),
    [
        ({"batch_size": 1}, "batch_size is 1; expected at least 2: batch normalisation"),
        ({"samples": 1}, "samples is 1; expected at least 2"),
        ({"learning_rate": "1e-12"}, "choose a larger one"),
        ({"learning_rate": "1e-9", "optimizer": "sgd"}, "choose a larger one"),
        ({"learning_rate": "10"}, "the model's norm is"),
        ({"learning_rate": "1000", "optimizer": "sgd"}, "choose a smaller one"),
    ],
)
def test_a_recipe_that_trains_nobody_is_refused(rule: str, recipe: dict[str, Any], said: str) -> None:
    words = refused(rule={"name": rule}, recipe=recipe)
    assert said in words
    assert "expected" in words


IMAGES, LABELS = DIGITS.validation.images, DIGITS.validation.labels


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"images": np.where(np.arange(300).reshape(-1, 1, 1, 1) == 9, np.nan, IMAGES)}, "NaN, infinite"),
        ({"images": np.where(IMAGES.max() == IMAGES, np.inf, IMAGES)}, "NaN, infinite"),
        ({"images": np.zeros_like(IMAGES)}, "inputs that are all the same"),
        ({"images": np.full_like(IMAGES, 0.5)}, "inputs that are all the same"),
        ({"images": np.rint(IMAGES * 255)}, "pixels from 0 to 255"),
        ({"images": (IMAGES * 255).astype(np.uint8)}, "pixels from 0 to 255"),
        ({"images": IMAGES * 1000 - 300.5}, "pixels from -300.5 to 699.5"),
        (
            {"labels": np.where(LABELS == 7, 1, LABELS)},
            "D_c has 0 samples of stratum 7; expected at least 10 of each",
        ),
        ({"labels": np.full_like(LABELS, 3)}, "the labels [3]; expected samples of several labels"),
        ({"test_labels": np.full(100, 3)}, "the held-out set has 100 samples, of the labels [3]"),
        ({"test_images": np.zeros((100, 1, 8, 8))}, "the held-out set has 100 inputs that are all the same"),
        (
            {"test_images": np.tile(IMAGES[:100], 2)},
            "the held-out samples do not go with D_c: a sample's inputs are 1 x 8 x 16; expected 1 x 8 x 8",
        ),
        ({"test_classes": 11}, "has the classes 11, D_c 10"),
        ({"test_images": np.rint(DIGITS.test.images * 16)}, "the held-out set has pixels from 0 to 16"),
    ],
)
def test_data_that_tell_nothing_of_a_model_are_refused(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    assert said in refused(data=brought(tmp_path, **changes))


SHUFFLED = np.random.default_rng(1).permutation(LABELS)
NOISE = np.random.default_rng(2).random(IMAGES.shape, dtype=np.float32)
OTHER_TEST = np.random.default_rng(3).permutation(DIGITS.test.labels)


@pytest.mark.arithmetic
@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"labels": SHUFFLED}, id="labels"),
        pytest.param({"images": NOISE}, id="images", marks=pytest.mark.extended),
    ],
)
def test_data_of_which_nothing_can_be_learnt_are_refused_unless_the_operator_says_so(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    data = brought(tmp_path, **changes)
    words = refused(data=data)
    assert "knows nothing of the labels of the other" in words
    assert "--accept-noise" in words
    proof = prove(prepare_task(task(data=data), 0.0), accept_noise=True)
    [doubt, *others] = proof.doubts
    assert "standard deviations where at least 3 are expected" in doubt
    assert all("models hardly show what they were trained on" in other for other in others)
    assert f" LOOK AGAIN: {doubt}" in proof.sentence()
    # Without evidence nothing is paid by D_c: it is said, not refused.
    claims = prove(prepare_task(task(data=data, rule={"name": "paper"}), 0.0))
    assert "knows nothing of the labels" in claims.doubts[0]


@pytest.mark.arithmetic
@pytest.mark.parametrize("rule", [pytest.param("verified", marks=pytest.mark.extended), "paper"])
def test_a_held_out_set_with_the_labels_of_other_images_is_refused(tmp_path: Path, rule: str) -> None:
    changes: dict[str, Any] = {"rule": {"name": rule}, "recipe": LONGER}
    data = brought(tmp_path, test_labels=OTHER_TEST)
    words = refused(data=data, **changes)
    assert "the held-out set is not like D_c: of its 100 samples" in words
    proof = prove(prepare_task(task(data=data, **changes), 0.0), accept_noise=True)
    assert "the held-out set is not like D_c" in proof.doubts[0]


@pytest.mark.arithmetic
def test_a_held_out_set_with_some_wrong_labels_or_few_samples_is_taken_and_said(tmp_path: Path) -> None:
    half = np.where(np.arange(100) < 70, OTHER_TEST, DIGITS.test.labels)
    few = {"test_labels": OTHER_TEST[:8], "test_images": DIGITS.test.images[:8]}
    for changes in ({"test_labels": half}, few):
        config = task(data=brought(tmp_path, **changes), rule={"name": "paper"}, recipe=LONGER)
        [doubt] = prove(prepare_task(config, 0.0)).doubts
        assert "the held-out set is not like D_c" in doubt


def test_a_held_out_set_that_is_not_held_out_is_said(tmp_path: Path) -> None:
    again = {"test_images": IMAGES[:100], "test_labels": LABELS[:100]}
    config = task(data=brought(tmp_path, **again), rule={"name": "paper"}, recipe=LONGER)
    [doubt] = prove(prepare_task(config, 0.0)).doubts
    assert "100 of the 100 held-out inputs stand in D_c, too" in doubt


def test_what_needs_no_data_is_refused_before_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordinator.opening.load_learner_data", lambda *_: pytest.fail("read"))
    monkeypatch.setattr("coordinator.opening._initial_model", lambda *_: pytest.fail("made"))
    for changes, said in (
        ({"recipe": {"batch_size": 1}}, "recipe.batch_size is 1; expected at least 2"),
        ({"recipe": {"samples": 1}}, "recipe.samples is 1; expected at least 2"),
        ({"recipe": {"optimizer": "adamw"}}, "recipe.optimizer"),
        ({"recipe": {"model": "digits"}}, "recipe.model is 'digits'; expected one of digits-cnn, "),
        ({"recipe": {"model": "digits"}, "initial_model": "own.safetensors"}, 'or "custom" for a model'),
        ({"schedule": {"quorum": 1}}, "schedule.quorum"),
        ({"rule": {"name": "fair"}}, "rule.name"),
        ({"payment": {"name": "cubic"}}, "payment.name"),
        ({"id": "No Such Id"}, "id is 'No Such Id'"),
    ):
        assert said in refused(**changes)


def test_a_first_model_without_finite_outputs_is_refused(tmp_path: Path) -> None:
    weights = initial_weights("digits-cnn", 0)
    weights["norm1.running_var"] = -np.ones_like(weights["norm1.running_var"])
    path = tmp_path / "start.safetensors"
    path.write_bytes(encode_model(weights))
    assert "NaN or infinite" in refused(initial_model=str(path))


def test_a_round_that_pays_nobody_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedpeer.evidence.evaluating.contract_fault", lambda *_: "it is of another kind")
    words = refused()
    assert "would all be refused" in words
    assert "of another kind" in words


def test_a_servers_step_that_leaves_the_contract_is_refused_with_its_section() -> None:
    words = refused(rule={"name": "paper"}, aggregation={"name": "fedyogi", "rate": 1_000_000})
    assert "aggregation.rate is 1000000; expected a step of fedyogi that keeps the model's contract" in words
    assert words.endswith("change [aggregation] in the task file")


def test_a_disk_that_is_full_is_no_fault_of_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device", "a file")

    monkeypatch.setattr("coordinator.dry_round.merge", full)
    with pytest.raises(OSError, match="No space left"):
        prove(prepare_task(task(rule={"name": "paper"}), 0.0))


def test_a_proof_that_is_interrupted_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def interrupted(text: str) -> None:
        assert list(tmp_path.iterdir())
        if "model 2" in text:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prove(prepare_task(task(), 0.0), interrupted)
    assert not list(tmp_path.iterdir())


def test_a_fault_that_nobody_foresaw_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def odd(*_: Any) -> None:
        raise IndexError("list index out of range")

    monkeypatch.setattr("coordinator.dry_round.merge", odd)
    with pytest.raises(
        MarketTaskError, match="fail so in every round: IndexError: list index out of range; look at"
    ):
        prove(prepare_task(task(rule={"name": "paper"}), 0.0))


TASK_FILE = """
id = "t"
Q = 1000
phi = 300
upsilon = 200
reference = [{reference}]
[rule]
name = "paper"
[schedule]
rounds = 2
capacity = 4
[recipe]
model = "digits-cnn"
samples = 40
batch_size = 20
learning_rate = {rate}
"""


def test_nothing_is_recorded_of_a_task_that_is_refused(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "state")
    file = tmp_path / "task.toml"

    def opened(rate: str) -> Result:
        reference = ", ".join(['"1/10"'] * 10)
        file.write_text(TASK_FILE.format(reference=reference, rate=rate))
        return CliRunner().invoke(app, ["open", str(file), "--state", str(folder.path), "--yes", "--json"])

    bad = opened("1e-12")
    assert isinstance(bad.exception, MarketTaskError)
    assert "choose a larger one" in str(bad.exception)
    operator = Operator(folder)
    assert operator.tasks() == []
    assert operator.ledger_size() == 0
    assert not list(folder.models.rglob("*.safetensors"))
    good = opened("0.001")
    again = opened("0.001")
    assert "there is a task 't' already" in str(again.exception)
    assert "dry round" not in again.stderr, "before it is proved"
    assert good.exit_code == 0, good.output
    assert json.loads(good.stdout)["training_seconds"] > 0
    assert "Proved in a dry round" in good.stderr
    assert [report.row.id for report in operator.tasks()] == ["t"]
    operator.close()


def test_a_limit_of_trainings_gives_the_shadows_of_a_round_and_the_interval_that_they_buy() -> None:
    proof = prove(prepare_task(task(evidence={"trainings": 36}), 0.0))
    assert proof.shadows == (27, 27, 19)
    assert proof.models == (trainings(27), trainings(19, later=True))
    assert proof.task.row.settings["evidence"]["shadows"] == 27
    assert "With 27 shadows degrees are known to" in proof.sentence()
    assert "for 36 trainings, or 34 in later rounds" in proof.sentence()
    said = refused(evidence={"trainings": 22})
    assert "evidence.trainings is 22" in said
    assert "at least 23" in said


@pytest.mark.extended
def test_a_limit_of_seconds_is_held_by_what_the_dry_round_takes() -> None:
    proof = prove(prepare_task(task(evidence={"shadows": 10**6, "seconds": 600}), 0.0))
    assert proof.evidence_seconds is not None
    assert proof.evidence_seconds <= 600
    assert proof.shadows is not None
    assert proof.task.row.settings["evidence"]["shadows"] == proof.shadows[1] < 10**6
    said = refused(evidence={"seconds": 1e-6})
    assert "evidence.seconds is 1e-06" in said
    assert "on this machine" in said


def test_a_task_may_ask_for_as_few_shadows_as_evidence_can_use() -> None:
    assert MIN_SHADOWS == fitting.MIN_SHADOWS
