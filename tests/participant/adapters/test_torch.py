"""The torch tasks on real digits."""

from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from fedpeer.learning.models import initial_weights, weights_of
from fedpeer.learning.partition import uniform_reference
from fedpeer.protocol.model_file import contract_of, encode_model, open_model
from mechanism.degree import noniid_degree
from mechanism.payment import Log
from mechanism.terms import Recipe, Rule, Schedule, Terms
from mechanism.variation import Allowed
from participant.adapters.torch import DatasetTask, TorchTask
from participant.adapters.workload import judged
from participant.errors import TaskError
from participant.model_store import write_weights
from participant.task import Trained, TrainingRound, Weights

pytestmark = pytest.mark.arithmetic


def digits_terms(**recipe: Any) -> Terms:
    values = {
        "model": "digits-cnn",
        "epochs": 2,
        "batch_size": 32,
        "optimizer": "adam",
        "learning_rate": Decimal("0.01"),
        "samples": 200,
    }
    return terms_for(initial_weights("digits-cnn", 0), Recipe(**{**values, **recipe}))


def terms_for(weights: Weights, recipe: Recipe) -> Terms:
    return Terms(
        task_id="digits",
        reference=uniform_reference(10),
        Q=Decimal(1000),
        phi=Decimal(300),
        upsilon=Decimal(200),
        payment=Log(),
        rule=Rule(),
        schedule=Schedule(2, 3, 8, 60, 60),
        contract=contract_of(weights, Decimal(10_000), 10_000_000),
        recipe=recipe,
        budget_micro=10**12,
        seed_commitment=bytes(32),
        validation_commitment=bytes(32),
        initial_model=bytes(32),
    )


def prepared(**options: Any) -> DatasetTask:
    task = DatasetTask("digits", **{"majority": 3, "degree": "0.5", "rate": 1.0, "seed": 5, **options})
    task.prepare(digits_terms())
    return task


def test_effort_moves_the_counts_along_the_curve() -> None:
    task = prepared()
    reference = uniform_reference(10)
    assert abs(noniid_degree(task.counts(), reference) - Fraction(1, 2)) <= Fraction(1, 200)
    for effort in (0.0, 0.3, 1.0):
        task.collect(effort)
        degree = float(noniid_degree(task.counts(), reference))
        assert abs(degree - 0.5 * np.exp(-effort)) <= 1 / 200 + 1e-9
        assert tuple(np.bincount(task.data(1).targets, minlength=10)) == task.counts()
    task.collect(0.3)
    again = task.counts()
    task.collect(0.3)
    assert task.counts() == again


def test_the_data_are_none_of_the_learners() -> None:
    from fedpeer.learning.datasets import load_splits

    splits = load_splits("digits", seed=0)
    kept = {image.tobytes() for image in np.concatenate([splits.validation.images, splits.test.images])}
    drawn = {image.tobytes() for image in np.asarray(prepared().data(1).inputs)}
    own = {image.tobytes() for image in splits.train.images}
    # Scanned digits may repeat to the pixel; beyond those no image of the learner's is drawn.
    assert drawn <= own
    assert len(drawn & kept) <= len(own & kept)


def test_training_learns_and_is_reproducible() -> None:
    task, terms = prepared(degree="0"), digits_terms(epochs=4)
    start = initial_weights("digits-cnn", 0)
    progress: list[float] = []
    round_ = TrainingRound(terms, "ada", 1, None, lambda done, figures: progress.append(done))
    made = task.train(start, round_)
    assert progress == [0.25, 0.5, 0.75, 1.0]
    assert made.samples == 200
    assert made.metrics["accuracy"] > 0.9
    assert made.metrics["accuracy"] > judged(task.workload, start, task.data(1))["accuracy"]
    again = prepared(degree="0")
    assert encode_model(again.train(start, round_).weights) == encode_model(made.weights)
    other = again.train(start, TrainingRound(terms, "ada", 2)).weights
    assert encode_model(other) != encode_model(made.weights), "each round has its own order of samples"


def test_a_task_with_other_labels_is_refused() -> None:
    task = DatasetTask("digits", majority=1, degree="0.5")
    terms = digits_terms()
    object.__setattr__(terms, "reference", uniform_reference(20))
    with pytest.raises(TaskError, match="digits-cnn has 10 classes, the task 20"):
        task.prepare(terms)


class Linear(nn.Module):
    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.layer = nn.Linear(4, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layer(x)
        return out


def linear_task(classes: int = 3) -> TorchTask:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(90, 4, generator=generator)
    labels = inputs[:, :3].argmax(dim=1)
    return TorchTask(Linear(classes), TensorDataset(inputs, labels), classes=3, device="cpu")


def linear_terms() -> Terms:
    recipe = Recipe("custom", 5, 16, "sgd", Decimal("0.1"), 90)
    terms = terms_for({n: t.numpy() for n, t in Linear().state_dict().items()}, recipe)
    object.__setattr__(terms, "reference", uniform_reference(3))
    return terms


def test_any_module_with_any_dataset() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    task, terms = linear_task(), linear_terms()
    task.prepare(terms)
    assert sum(task.label_counts()) == 90
    start = {n: t.numpy().copy() for n, t in Linear().state_dict().items()}
    losses: list[float] = []
    round_ = TrainingRound(terms, "ada", 1, None, lambda done, figures: losses.append(figures["loss"]))
    made = task.train(start, round_)
    assert isinstance(made, Trained)
    assert made.samples == 90
    assert losses[-1] < losses[0]
    again = linear_task()
    assert encode_model(again.train(start, TrainingRound(terms, "ada", 1)).weights) == encode_model(
        made.weights
    )


def test_a_proximal_term_keeps_the_module_near_its_start() -> None:
    terms = linear_terms()
    near = replace(terms, recipe=replace(terms.recipe, proximal=Decimal(2)))
    torch.manual_seed(0)
    start = {n: t.numpy().copy() for n, t in Linear().state_dict().items()}

    def moved(agreed: Terms) -> float:
        made = linear_task().train(start, TrainingRound(agreed, "ada", 1))
        assert isinstance(made, Trained)
        return float(sum(np.square(made.weights[name] - start[name]).sum() for name in start))

    assert 0 < moved(near) < moved(terms) / 2


def test_a_module_that_does_not_fit_the_contract_is_refused() -> None:
    with pytest.raises(TaskError, match=r"at layer\.bias, layer\.weight; build the architecture 'custom'"):
        linear_task(classes=4).prepare(linear_terms())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_training_on_cuda_gives_arrays_on_the_host() -> None:
    task, terms = linear_task(), linear_terms()
    task.device = torch.device("cuda")
    start = {n: t.numpy().copy() for n, t in Linear().state_dict().items()}
    made = task.train(start, TrainingRound(terms, "ada", 1))
    assert all(isinstance(array, np.ndarray) for array in made.weights.values())


def test_a_module_in_bfloat16_trains_in_a_task_of_bfloat16(tmp_path: Path) -> None:
    """Its weights come and go as float32, and are stored as what they are."""
    module = nn.Linear(4, 2).to(torch.bfloat16)
    inputs = torch.randn(40, 4, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)
    labels = torch.arange(40) % 2
    task = TorchTask(module, TensorDataset(inputs, labels), classes=2)
    start = weights_of(module)
    assert {array.dtype for array in start.values()} == {np.dtype(np.float32)}
    terms = terms_for(start, Recipe("custom", 2, 8, "sgd", Decimal("0.5"), 40))
    specs = tuple(replace(spec, dtype="BF16") for spec in terms.contract.tensors)
    terms = replace(terms, reference=uniform_reference(2), contract=replace(terms.contract, tensors=specs))
    task.prepare(terms)
    made = task.train(start, TrainingRound(terms, "p", 1, None, lambda done, figures: None))
    write_weights(tmp_path / "made", made.weights, terms.contract)
    file = open_model(tmp_path / "made")
    assert {t.spec.dtype for t in file.tensors} == {"BF16"}
    for name, array in file.weights().items():
        assert np.array_equal(array, made.weights[name])
        assert not np.array_equal(array, start[name])


def points(**options: Any) -> TorchTask:
    inputs = torch.randn(40, 6, generator=torch.Generator().manual_seed(2))
    data = TensorDataset(inputs, torch.arange(40) % 3)
    return TorchTask(nn.Linear(6, 3), data, classes=3, device="cpu", seed=1, **options)


def points_terms(weights: Weights, rule: str = "verified", **recipe: Any) -> Terms:
    made = terms_for(weights, Recipe("custom", 3, 8, "adam", Decimal("0.01"), 40, **recipe))
    return replace(made, reference=(Fraction(1, 3),) * 3, rule=Rule(rule))


def trained_by(task: TorchTask, terms: Terms, start: Weights) -> np.ndarray:
    task.prepare(terms)
    return np.asarray(task.train(start, TrainingRound(terms, "ada", 1)).weights["weight"])


def test_an_own_optimizer_and_loss_are_kept_within_the_recipe(caplog: pytest.LogCaptureFixture) -> None:
    start = weights_of(points().module)
    plain = trained_by(points(), points_terms(start), start)
    assert caplog.messages == []
    own: Any = {
        "optimizer": lambda p: torch.optim.AdamW(p, lr=0.02, weight_decay=0.1),
        "loss": nn.CrossEntropyLoss(label_smoothing=0.2),
        "recipe": {"batch_size": 4},
    }
    assert np.array_equal(trained_by(points(**own), points_terms(start), start), plain)
    said = [message.split(" is not what")[0] for message in caplog.messages]
    assert said == ["label_smoothing 0.2", "learning_rate 0.02", "weight_decay 0.1", "batch_size 4"]
    wide = points_terms(
        start,
        allowed=Allowed(
            batch_factor=Decimal(2),
            learning_rate=Decimal("0.5"),
            weight_decay=Decimal("0.5"),
            label_smoothing=Decimal("0.1"),
        ),
    )
    caplog.clear()
    found = trained_by(points(**own), wide, start)
    assert [message.split(" is not what")[0] for message in caplog.messages] == [
        "label_smoothing 0.2",
        "learning_rate 0.02",
    ]
    asked = Recipe(
        "custom",
        3,
        4,
        "adam",
        Decimal("0.015"),
        40,
        weight_decay=Decimal("0.1"),
        label_smoothing=Decimal("0.1"),
    )
    assert np.array_equal(found, trained_by(points(), replace(wide, recipe=asked), start))
    assert not np.array_equal(found, plain)


def test_an_optimizer_of_no_recipe_is_replaced(caplog: pytest.LogCaptureFixture) -> None:
    start = weights_of(points().module)
    plain = trained_by(points(), points_terms(start), start)
    other = points(optimizer=lambda p: torch.optim.RMSprop(p, lr=0.5))
    assert np.array_equal(trained_by(other, points_terms(start), start), plain)
    assert caplog.messages[0].startswith("optimizer rmsprop is not what the task's recipe allows (adam)")
    paper = trained_by(other, points_terms(start, "paper"), start)
    assert not np.array_equal(paper, plain), "no model is looked at, so that any training goes"


def test_light_augmentation_and_decay_are_followed_where_the_recipe_has_them() -> None:
    start = weights_of(points().module)
    plain = trained_by(points(), points_terms(start), start)
    for part in ({"augmentation": "light"}, {"weight_decay": Decimal("0.5")}, {"momentum": Decimal("0.2")}):
        terms = points_terms(start, **part)
        one, again = (trained_by(points(), terms, start) for _ in range(2))
        assert np.array_equal(one, again)
        assert not np.array_equal(one, plain)


def test_a_precision_that_is_not_followed_is_refused() -> None:
    task = points()
    with pytest.raises(TaskError, match="asks for precision, which TorchTask does not follow"):
        task.prepare(points_terms(weights_of(task.module), precision="bfloat16"))
