"""Data, models and clients as people bring them to the adapters: they work, or are refused before the claim."""

import json
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier, SGDRegressor
from sklearn.naive_bayes import MultinomialNB
from sklearn.neural_network import MLPClassifier
from torch import nn
from torch.utils.data import Dataset, Subset, TensorDataset

from fedpeer.learning.models import initial_weights, load_weights, weights_of
from fedpeer.learning.partition import uniform_reference
from mechanism.errors import FieldError
from mechanism.terms import Recipe, Terms
from participant.adapters.flower import NumPyClientTask, add_settlement, array_names, numbered_order
from participant.adapters.numpy import FunctionTask, SoftmaxRegression
from participant.adapters.sklearn import SklearnTask
from participant.adapters.torch import DatasetTask, TorchTask
from participant.errors import EffortError, TaskError, TrainingError
from participant.model_store import write_weights
from participant.task import Task, Trained, TrainingRound, Weights
from participant.work import LocalTrainer
from tests.participant.adapters.test_flower import SECRET, START, FitStrategy, fit_results
from tests.participant.adapters.test_flower import terms as flower_terms
from tests.participant.adapters.test_torch import digits_terms, terms_for

pytestmark = pytest.mark.arithmetic

INPUTS, LABELS = load_digits(return_X_y=True)
INPUTS = INPUTS / 16
NAMES = [f"digit {i}" for i in range(10)]


def terms(weights: Weights, classes: int = 10, **recipe: Any) -> Terms:
    values = {
        "model": "custom", "epochs": 2, "batch_size": 32, "optimizer": "sgd", "learning_rate": Decimal("0.2"),
        "samples": 100, **recipe,
    }  # fmt: skip
    return replace(terms_for(weights, Recipe(**values)), reference=uniform_reference(classes))


def unchanged(weights: Weights, _: TrainingRound) -> Weights:
    return weights


class Client:
    """A Flower client that trains nothing."""

    def fit(self, parameters: list[Any], config: dict[str, Any]) -> tuple[list[Any], int, dict[str, Any]]:
        return parameters, 1, {}


ADAPTERS: dict[str, Callable[[Any], Task]] = {
    "function": lambda counts: FunctionTask(unchanged, counts),
    "collected": lambda counts: FunctionTask(unchanged, [1, 1], lambda effort: counts),
    "flower": lambda counts: NumPyClientTask(Client(), counts),
}


@pytest.mark.parametrize("kind", ADAPTERS)
def test_counts_are_read_by_label_in_every_adapter(kind: str) -> None:
    task = ADAPTERS[kind](Counter({1: 97, 0: 1}))
    trainer = LocalTrainer(task)
    trainer.prepare(flower_terms(START))
    trainer.collect(0.5)
    assert trainer.counts() == (1, 97)
    assert task.label_counts() == (1, 97)


@pytest.mark.parametrize("kind", ADAPTERS)
@pytest.mark.parametrize("counts", [{1, 97}, {0: 1, 1: 97}.values(), {5: 1}, [0.5, 1.0]])
def test_counts_without_an_order_are_refused_by_every_adapter(kind: str, counts: Any) -> None:
    def claimed() -> object:
        trainer = LocalTrainer(ADAPTERS[kind](counts))
        trainer.prepare(flower_terms(START))
        trainer.collect(0.5)
        return trainer.counts()

    with pytest.raises(TaskError, match="counts"):
        claimed()


def test_a_task_of_ones_own_may_return_a_counter() -> None:
    class Own(Task):
        def __init__(self, counts: Any) -> None:
            self.held = counts

        def label_counts(self) -> Any:
            return self.held

        def train(self, weights: Weights, round: TrainingRound) -> Weights:  # noqa: A002 - as Task.train
            return weights

    trainer = LocalTrainer(Own(Counter([1, 1, 0, 1])))
    trainer.prepare(flower_terms(START))
    assert trainer.counts() == (1, 3)
    trainer = LocalTrainer(Own({1, 3}))
    trainer.prepare(flower_terms(START))
    with pytest.raises(EffortError, match=r"Own\.label_counts cannot be used: .*no order of strata"):
        trainer.counts()


def test_clients_of_a_flower_run_report_their_counts_by_label_too(tmp_path: Path) -> None:
    strategy = add_settlement(FitStrategy(), flower_terms(START), SECRET, tmp_path / "l")
    results = fit_results([5, 5], [8, 2], [9, 1])
    results[1][1].metrics["label_counts"] = json.dumps({"1": 2, "0": 8})
    strategy.aggregate_fit(1, results, [])
    assert json.loads((tmp_path / "l").read_text())["degrees"]["client-1"] == "3/10"
    for text in ("[5, 5", '{"a": 1}', "[5.5, 4.5]", f"[{'9' * 5000}, 1]", None.__class__):
        results[1][1].metrics["label_counts"] = text
        with pytest.raises(FieldError, match="client-1"):
            strategy.aggregate_fit(2, results, [])


ROWS: dict[str, Callable[..., Any]] = {
    "softmax": lambda inputs, labels, classes: SoftmaxRegression(inputs, labels, classes=classes),
    "sklearn": lambda inputs, labels, classes: SklearnTask(
        SGDClassifier(loss="log_loss", random_state=0), inputs, labels, classes=classes
    ),
}


@pytest.mark.parametrize("kind", ROWS)
@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        (LABELS.astype(np.int32), 10),
        (LABELS.astype(np.float64), 10),
        (torch.from_numpy(LABELS), 10),
        (np.array(NAMES)[LABELS], NAMES),
        (np.array(NAMES, object)[LABELS].tolist(), NAMES),
    ],
)
def test_labels_of_every_type_and_names_of_classes_are_counted_and_trained_on(
    kind: str, labels: Any, classes: Any
) -> None:
    task = ROWS[kind](INPUTS, labels, classes)
    published = terms(task.start_weights())
    task.prepare(published)
    assert list(task.label_counts()) == np.bincount(LABELS).tolist()
    made = task.train(task.start_weights(), TrainingRound(published, "ada", 1))
    assert made.metrics["accuracy"] > 0.8


@pytest.mark.parametrize("kind", ROWS)
@pytest.mark.parametrize(
    ("inputs", "labels", "words"),
    [
        (INPUTS, LABELS + 0.5, "a label is 0.5"),
        (INPUTS, np.array(NAMES)[LABELS], "list of class names"),
        (INPUTS, LABELS + 1, "labels run from 1 to 10"),
        (np.where(INPUTS > 0.99, np.nan, INPUTS), LABELS, "NaN"),
        (INPUTS + 1j, LABELS, "real numbers"),
        (INPUTS[:0], LABELS[:0], "n at least 1"),
    ],
)
def test_rows_that_cannot_be_used_are_refused_at_once(
    kind: str, inputs: Any, labels: Any, words: str
) -> None:
    with pytest.raises(TaskError, match=words):
        ROWS[kind](inputs, labels, 10)


@pytest.mark.parametrize("kind", ROWS)
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_a_linear_model_is_returned_in_the_type_that_the_task_has(
    kind: str, dtype: Any, tmp_path: Path
) -> None:
    task = ROWS[kind](INPUTS, LABELS, 10)
    start = {name: array.astype(dtype) for name, array in task.start_weights().items()}
    published = terms(start, learning_rate=Decimal("0.01"))
    task.prepare(published)
    made = task.train(start, TrainingRound(published, "ada", 1))
    write_weights(tmp_path / "made", made.weights, published.contract)


@pytest.mark.parametrize("kind", ROWS)
def test_a_linear_model_of_whole_numbers_or_other_labels_is_refused_at_prepare(kind: str) -> None:
    task = ROWS[kind](INPUTS, LABELS, 10)
    whole = {name: array.astype(np.int64) for name, array in task.start_weights().items()}
    with pytest.raises(TaskError, match="real numbers"):
        task.prepare(terms(whole))
    with pytest.raises(TaskError, match="the data have 10 labels, the task 5"):
        task.prepare(terms(task.start_weights(), classes=5))


@pytest.mark.parametrize(
    ("estimator", "words"),
    [
        (MultinomialNB(), "keeps no coef_"),
        (MLPClassifier((5,)), "keeps no coef_"),
        (SGDRegressor(), "not a classifier"),
        (SGDClassifier(early_stopping=True), "early_stopping"),
        (SGDClassifier(class_weight="balanced"), "class_weight"),
        (SGDClassifier(alpha=-1), "alpha"),
    ],
)
def test_an_estimator_that_cannot_take_part_is_refused_before_the_claim(estimator: Any, words: str) -> None:
    zeros = {"coef_": np.zeros((10, 64)), "intercept_": np.zeros(10)}
    with pytest.raises(TaskError, match=words):
        SklearnTask(estimator, INPUTS, LABELS, classes=10).prepare(terms(zeros))


def linear(labels: Any, classes: Any = 3, module: nn.Module | None = None, **options: Any) -> TorchTask:
    inputs = torch.randn(33, 4, generator=torch.Generator().manual_seed(1))
    return TorchTask(
        nn.Linear(4, 3) if module is None else module,
        Pairs(inputs, labels),
        classes=classes,
        device="cpu",
        **options,
    )


class Pairs(Dataset[Any]):
    """Items as they are, of which nothing is known before they are read."""

    def __init__(self, inputs: Any, labels: Any) -> None:
        self.inputs, self.labels = inputs, labels
        self.seen: list[int] = []

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, i: int) -> Any:
        self.seen.append(i)
        return self.inputs[i], self.labels[i]


THREE = np.arange(33) % 3


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        (torch.from_numpy(THREE).int(), 3),
        (torch.from_numpy(THREE).double(), 3),
        (THREE.astype(np.uint8), 3),
        (THREE.tolist(), 3),
        ([("cat", "dog", "owl")[i] for i in THREE], ["cat", "dog", "owl"]),
    ],
)
def test_a_module_trains_on_labels_of_every_type(labels: Any, classes: Any) -> None:
    task = linear(labels, classes)
    start = weights_of(task.module)
    published = terms(start, 3)
    task.prepare(published)
    assert task.label_counts() == (11, 11, 11)
    after = weights_of(task.module)
    assert all(np.array_equal(after[name], start[name]) for name in start), (
        "the step that was tried leaves nothing"
    )
    made = task.train(start, TrainingRound(published, "ada", 1))
    assert not np.array_equal(made.weights["weight"], start["weight"])


def test_a_loss_of_ones_own_may_want_real_numbers() -> None:
    def loss(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return nn.functional.binary_cross_entropy_with_logits(outputs[:, 0], labels)

    task = linear(torch.from_numpy(THREE % 2).float(), 2, nn.Linear(4, 1), loss=loss)
    task.prepare(terms(weights_of(task.module), 2))


@pytest.mark.parametrize("whole", [TensorDataset, Pairs])
def test_a_part_of_a_data_set_has_its_own_counts(whole: Any) -> None:
    data = whole(torch.zeros(33, 4), torch.from_numpy(THREE))
    task = TorchTask(nn.Linear(4, 3), Subset(data, [0, 1, 3]), classes=3)
    assert task.label_counts() == (2, 1, 0)


class Broken(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")


def frozen() -> nn.Module:
    module = nn.Linear(4, 3)
    return module.requires_grad_(False)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: linear(THREE + 0.5), "a label is 0.5"),
        (lambda: linear(THREE + 1), "labels run from 1 to 3"),
        (lambda: linear(["cat"] * 33), "list of class names"),
        (lambda: linear(["cow"] * 33, ["cat", "dog", "owl"]), "a label is 'cow'"),
        (lambda: linear(THREE, module=Broken(4, 3)), "one step of training was tried before the claim"),
        (lambda: linear(THREE, module=nn.Linear(4, 2)), "2 outputs; expected one for each of 3 labels"),
        (lambda: linear(THREE, module=nn.Linear(5, 3)), "one step of training was tried"),
        (lambda: linear(THREE, module=frozen()), "one step of training was tried"),
        (lambda: linear(THREE, loss=lambda a, b: a), "one step of training was tried"),
        (lambda: linear(THREE, loss=lambda a, b: a.sum() * float("nan")), "its loss is nan"),
        (lambda: TorchTask(nn.Linear(4, 3), Pairs([], []), classes=3), "no samples"),
    ],
)
def test_what_no_step_can_be_made_with_is_refused_at_prepare(
    make: Callable[[], TorchTask], words: str
) -> None:
    task = make()
    with pytest.raises(TaskError, match=words):
        task.prepare(terms(weights_of(task.module), 3))


def normalising() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))


@pytest.mark.parametrize("make", [lambda: nn.Linear(4, 3), normalising])
@pytest.mark.parametrize("batch_size", [4, 32])  # 33 samples: one is left over
def test_every_sample_is_trained_on(make: Callable[[], nn.Module], batch_size: int) -> None:
    task = linear(THREE, module=make())
    published = terms(weights_of(task.module), 3, batch_size=batch_size, epochs=1)
    task.prepare(published)
    task.dataset.seen.clear()  # type: ignore[attr-defined]  # of Pairs
    task.train(weights_of(task.module), TrainingRound(published, "ada", 1))
    assert sorted(task.dataset.seen) == list(range(33))  # type: ignore[attr-defined]  # of Pairs


def test_batches_of_one_sample_train_a_module_without_normalisation_and_keep_others_out() -> None:
    plain = linear(THREE)
    published = terms(weights_of(plain.module), 3, batch_size=1)
    plain.prepare(published)
    plain.train(weights_of(plain.module), TrainingRound(published, "ada", 1))
    other = linear(THREE, module=normalising())
    with pytest.raises(TaskError, match="no variance over one"):
        other.prepare(terms(weights_of(other.module), 3, batch_size=1))


@pytest.mark.parametrize("make", [lambda: nn.Linear(4, 3), normalising])
def test_a_training_that_moves_no_parameter_is_an_error(make: Callable[[], nn.Module]) -> None:
    """With batch normalisation the running statistics move all the same."""
    task = linear(THREE, module=make())
    published = terms(weights_of(task.module), 3, learning_rate=Decimal("1e-30"))
    with pytest.raises(TrainingError, match="moved no parameter"):
        task.train(weights_of(task.module), TrainingRound(published, "ada", 1))


@pytest.mark.parametrize(
    "wrap",
    [nn.DataParallel, torch.compile, lambda module: nn.DataParallel(torch.compile(module))],
    ids=["parallel", "compiled", "both"],
)
def test_of_a_wrapped_module_the_one_inside_is_taken_and_that_is_said_once(
    wrap: Callable[[nn.Module], Any], caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    module = nn.Linear(4, 3)
    start = weights_of(module)
    wrapped = wrap(module)
    assert weights_of(wrapped).keys() == start.keys()
    load_weights(wrapped, start)
    published = terms(start, 3)
    with caplog.at_level(logging.WARNING, logger="participant"):
        task = linear(THREE, module=wrapped)
        task.prepare(published)
        made = task.train(start, TrainingRound(published, "ada", 1))
    assert [record.message for record in caplog.records if "the one inside" in record.message] == [
        f"the module is a {type(wrapped).__name__}; the one inside it is trained and sent"
    ]
    write_weights(tmp_path / "made", made.weights, published.contract)


@pytest.mark.parametrize("batch_size", [1, 64])
def test_a_data_set_task_refuses_at_prepare_what_it_cannot_train(batch_size: int) -> None:
    task = DatasetTask("digits", majority=3, degree="0.5")
    published = digits_terms(batch_size=batch_size)
    if batch_size == 1:
        with pytest.raises(TaskError, match="batch_size is 1"):
            task.prepare(published)
        return
    task.prepare(published)
    other = terms_for(initial_weights("mnist-cnn", 0), published.recipe)
    with pytest.raises(TaskError, match="not those of its workload digits-cnn"):
        task.prepare(other)


def test_arrays_of_a_flower_client_come_in_the_order_of_the_model() -> None:
    names = array_names(1002)
    assert numbered_order(sorted(names)) == names
    assert numbered_order(sorted(str(i) for i in range(12))) == [str(i) for i in range(12)]
    assert numbered_order(["blocks.10", "blocks.2"]) == ["blocks.2", "blocks.10"]
    for unnumbered in (["a", "b"], ["a0", "b1"], ["a1", "a01"], ["blocks.2.weight", "blocks.10.weight"]):
        assert numbered_order(unnumbered) is None
    weights = {name: np.full(1, number, np.float32) for number, name in enumerate(names)}
    seen: list[int] = []

    class Recorder(Client):
        def fit(self, parameters: list[Any], config: dict[str, Any]) -> Any:
            seen.extend(int(array[0]) for array in parameters)
            return [array + 1 for array in parameters], 1, {}

    task, published = NumPyClientTask(Recorder(), [1, 1]), flower_terms(weights)
    task.prepare(published)
    made = task.train(dict(sorted(weights.items())), TrainingRound(published, "ada", 1))
    assert seen == list(range(1002))
    assert all(made.weights[name][0] == weights[name][0] + 1 for name in names)


def test_a_flower_client_whose_order_nobody_knows_is_refused_at_prepare() -> None:
    module = nn.Sequential(*[nn.Linear(2, 2) for _ in range(11)])
    weights = weights_of(module)
    with pytest.raises(TaskError, match=r"give `names`, such as list\(model\.state_dict\(\)\)"):
        NumPyClientTask(Client(), [1, 1]).prepare(flower_terms(weights))
    NumPyClientTask(Client(), [1, 1], names=list(module.state_dict())).prepare(flower_terms(weights))
    with pytest.raises(TaskError, match="each once"):
        NumPyClientTask(Client(), [1, 1], names=["a", "a"])


def test_a_flower_client_whose_arrays_have_other_shapes_is_refused_at_prepare() -> None:
    class Shaped(Client):
        def get_parameters(self, config: dict[str, Any]) -> list[Any]:
            return [np.zeros(2), np.zeros((2, 3))]

    with pytest.raises(TaskError, match="in the client's own order"):
        NumPyClientTask(Shaped(), [1, 1]).prepare(flower_terms(START))
    NumPyClientTask(Shaped(), [1, 1], names=["array-001", "array-000"]).prepare(flower_terms(START))


@pytest.mark.parametrize("returned", [None, ([1], 2), [np.zeros(1)]])
def test_a_flower_client_that_returns_something_else_is_one_sentence(returned: Any) -> None:
    class Odd(Client):
        def fit(self, parameters: list[Any], config: dict[str, Any]) -> Any:
            return returned

    task = NumPyClientTask(Odd(), [1, 1])
    with pytest.raises(TaskError, match="expected arrays, samples, metrics"):
        task.train(START, TrainingRound(flower_terms(START), "ada", 1))


def test_trained_holds_what_a_framework_returns() -> None:
    assert Trained({"w": torch.zeros(1)}).samples is None  # type: ignore[dict-item]  # as users write it
