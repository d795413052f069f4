"""What every workload keeps, whatever library computes it."""

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression, Ridge, SGDClassifier, SGDRegressor
from sklearn.neural_network import MLPClassifier, MLPRegressor
from torch import nn

from fedpeer.learning.errors import LearningError, ModelError
from fedpeer.learning.samples import Samples
from fedpeer.learning.workloads.baseline import MeanWorkload
from fedpeer.learning.workloads.cnns import CnnWorkload
from fedpeer.learning.workloads.protocol import HasGradients, Workload
from fedpeer.learning.workloads.sklearn import SklearnWorkload
from fedpeer.learning.workloads.torch import TorchWorkload
from mechanism.terms import Recipe

RECIPE = Recipe("custom", epochs=4, batch_size=8, optimizer="adam", learning_rate=Decimal("0.02"), samples=60)

CLASSES, WIDTH = 3, 6


def classified(n: int = 60, seed: int = 0) -> Samples:
    """Three classes that a linear model tells apart."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(CLASSES, size=n)
    centres = np.eye(CLASSES, WIDTH) * 2
    inputs = centres[labels] + generator.normal(size=(n, WIDTH)) * 0.5
    return Samples(inputs.astype(np.float32), labels.astype(np.int64))


def measured(n: int = 60, seed: int = 0) -> Samples:
    generator = np.random.default_rng(seed)
    inputs = generator.normal(size=(n, WIDTH)).astype(np.float32)
    return Samples(inputs, (inputs @ np.arange(WIDTH)).astype(np.float32) / 4 + 3)


def images(n: int = 60, seed: int = 0) -> Samples:
    generator = np.random.default_rng(seed)
    labels = generator.integers(10, size=n).astype(np.int64)
    pixels = generator.uniform(size=(n, 1, 8, 8)) * 0.1
    pixels[np.arange(n), 0, labels % 8, labels // 8] += 1
    return Samples(pixels.astype(np.float32), labels)


def documents(n: int = 60, seed: int = 0) -> Samples:
    """Token numbers beside their mask; the first token gives the class away."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(CLASSES, size=n).astype(np.int64)
    tokens = generator.integers(CLASSES, 20, size=(n, 5))
    tokens[:, 0] = labels
    return Samples({"tokens": tokens, "mask": np.ones((n, 5), dtype=np.float32)}, labels)


class Normed(nn.Module):
    """A perceptron with a normalisation of the given kind; its first bias has no gradient before a batch norm."""

    def __init__(self, norm: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.inner, self.norm, self.head = nn.Linear(WIDTH, 8), norm(), nn.Linear(8, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.norm(self.inner(x))))


class Tied(nn.Module):
    """The same matrix to the hidden layer and back."""

    def __init__(self) -> None:
        super().__init__()
        self.there, self.back = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.back.weight = self.there.weight
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.back(torch.relu(self.there(x)))))


class Adapted(nn.Module):
    """A frozen embedding and layer, with a low-rank adapter and a head."""

    def __init__(self) -> None:
        super().__init__()
        fixed = torch.Generator().manual_seed(7)
        self.embedding = nn.Embedding(20, 8)
        self.base = nn.Linear(8, 8)
        for parameter in (*self.embedding.parameters(), *self.base.parameters()):
            parameter.data = torch.randn(parameter.shape, generator=fixed) / 2
            parameter.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(2, 8))
        self.up = nn.Parameter(torch.zeros(8, 2))
        self.drop = nn.Dropout(0.1)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        x = torch.tanh(self.base(x) + x @ self.down.T @ self.up.T)
        x = (x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        return self.head(self.drop(x))


@dataclass(frozen=True)
class Case:
    make: Callable[[], Workload]
    samples: Callable[..., Samples]
    learns: bool = True


CASES = {
    "cnn": Case(lambda: CnnWorkload("digits-cnn"), images),
    "batch norm": Case(
        lambda: TorchWorkload(lambda: Normed(lambda: nn.BatchNorm1d(8)), classes=CLASSES), classified
    ),
    "group norm": Case(
        lambda: TorchWorkload(lambda: Normed(lambda: nn.GroupNorm(2, 8)), classes=CLASSES), classified
    ),
    "tied": Case(lambda: TorchWorkload(Tied, classes=CLASSES), classified),
    "adapters": Case(lambda: TorchWorkload(Adapted, classes=CLASSES, travels="trained"), documents),
    "bfloat16": Case(
        lambda: TorchWorkload(lambda: nn.Linear(WIDTH, CLASSES).to(torch.bfloat16), classes=CLASSES),
        classified,
    ),
    "regression": Case(lambda: TorchWorkload(lambda: nn.Linear(WIDTH, 1), "squared_error"), measured),
    "own loss": Case(
        lambda: TorchWorkload(lambda: nn.Linear(WIDTH, 1), lambda out, y: (out[:, 0] - y).abs()), measured
    ),
    "SGDClassifier": Case(
        lambda: SklearnWorkload(SGDClassifier(loss="log_loss"), features=WIDTH, classes=CLASSES), classified
    ),
    "LogisticRegression": Case(
        lambda: SklearnWorkload(
            LogisticRegression(max_iter=20, warm_start=True), features=WIDTH, classes=CLASSES
        ),
        classified,
    ),
    "SGDRegressor": Case(lambda: SklearnWorkload(SGDRegressor(), features=WIDTH), measured),
    "Ridge": Case(lambda: SklearnWorkload(Ridge(), features=WIDTH), measured),
    "MLPClassifier": Case(
        lambda: SklearnWorkload(MLPClassifier(hidden_layer_sizes=(8,)), features=WIDTH, classes=CLASSES),
        classified,
    ),
    "MLPRegressor": Case(
        lambda: SklearnWorkload(MLPRegressor(hidden_layer_sizes=(8,)), features=WIDTH), measured
    ),
    "mean": Case(MeanWorkload, measured),
    "class shares": Case(lambda: MeanWorkload(classes=CLASSES), classified, learns=False),
}


@pytest.fixture(params=CASES, scope="module")
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


@pytest.fixture(scope="module")
def workload(case: Case) -> Workload:
    return case.make()


def test_a_seed_gives_the_same_weights_and_all_seeds_the_same_layout(workload: Workload) -> None:
    one, again, other = workload.build(1), workload.build(1), workload.build(2)
    assert one.keys() == again.keys() == other.keys()
    for name, array in one.items():
        assert np.array_equal(array, again[name])
        assert array.shape == other[name].shape
        assert array.dtype == other[name].dtype
    assert set(workload.trainable) <= one.keys()
    assert workload.trainable


def test_training_is_reproducible_and_leaves_its_arguments_alone(case: Case, workload: Workload) -> None:
    start, samples = workload.build(1), case.samples()
    kept = {name: array.copy() for name, array in start.items()}
    one, again = (workload.train(start, samples, RECIPE, 5) for _ in range(2))
    for name, array in one.items():
        assert np.array_equal(array, again[name])
        assert np.array_equal(start[name], kept[name])
        assert array.shape == start[name].shape
        assert array.dtype == start[name].dtype


def test_all_that_is_called_trainable_moves(case: Case, workload: Workload) -> None:
    start = workload.build(1)
    trained = workload.train(start, case.samples(), RECIPE, 5)
    for name in workload.trainable:
        assert not np.array_equal(trained[name], start[name]), name


def test_training_lowers_the_losses(case: Case, workload: Workload) -> None:
    start, fresh = workload.build(1), case.samples(seed=1)
    before = workload.judge(start, fresh)
    after = workload.judge(workload.train(start, case.samples(), RECIPE, 5), fresh)
    assert before.losses.shape == after.losses.shape == (len(fresh),)
    assert before.losses.dtype == np.float64
    assert np.isfinite(after.losses).all()
    if case.learns:
        assert after.losses.mean() < before.losses.mean()


def test_outputs_of_a_classifier_are_log_probabilities(case: Case, workload: Workload) -> None:
    samples = case.samples()
    judged = workload.judge(workload.build(1), samples)
    assert judged.outputs is not None
    assert len(judged.outputs) == len(samples)
    if workload.classes is not None:
        assert judged.outputs.shape == (len(samples), workload.classes)
        assert np.exp(judged.outputs).sum(axis=1) == pytest.approx(1, abs=1e-6)
        picked = judged.outputs[np.arange(len(samples)), samples.targets]
        assert judged.losses == pytest.approx(-picked, abs=2e-2)  # in bfloat16, too


def test_samples_of_few_classes_are_trained_on(case: Case, workload: Workload) -> None:
    samples = case.samples()
    if workload.classes is None:
        return
    few = samples.select(np.flatnonzero(samples.targets < 1))
    trained = workload.train(workload.build(1), few, RECIPE, 5)
    judged = workload.judge(trained, samples)
    assert np.isfinite(judged.losses).all()
    assert judged.losses[samples.targets == 0].mean() < judged.losses[samples.targets != 0].mean()


def test_weights_of_another_layout_are_refused(case: Case, workload: Workload) -> None:
    weights = workload.build(1)
    name = workload.trainable[0]
    lacking = {n: a for n, a in weights.items() if n != name}
    wider = {**weights, name: np.zeros((*weights[name].shape, 2), weights[name].dtype)}
    for wrong in (lacking, wider):
        with pytest.raises(LearningError, match=name):
            workload.judge(wrong, case.samples())
        with pytest.raises(LearningError, match=name):
            workload.train(wrong, case.samples(), RECIPE, 1)


def test_gradients_are_told_of_every_trainable_tensor(case: Case, workload: Workload) -> None:
    if isinstance(workload, HasGradients):
        sizes = workload.gradient_sizes(workload.build(1), case.samples())
        assert set(sizes) == set(workload.trainable)
        assert all(size >= 0 for size in sizes.values())


def test_a_workload_travels_where_its_factory_does() -> None:
    workload = CnnWorkload("digits-cnn")
    other = pickle.loads(pickle.dumps(SklearnWorkload(Ridge(), features=WIDTH)))
    assert set(other.build(0)) == {"coef_", "intercept_"}
    assert workload.classes == 10


@pytest.mark.parametrize("kind", [SGDClassifier, MLPClassifier])
def test_an_estimator_that_decides_when_to_stop_is_refused(kind: type) -> None:
    with pytest.raises(ModelError, match=f"{kind.__name__} has early_stopping=True, .*how many epochs"):
        SklearnWorkload(kind(early_stopping=True), features=WIDTH, classes=CLASSES)


def test_a_perceptron_of_another_solver_learns_by_the_recipes_optimizer() -> None:
    made = {}
    for solver in ("adam", "lbfgs"):
        workload = SklearnWorkload(MLPClassifier((8,), solver=solver), features=WIDTH, classes=CLASSES)
        start, samples = workload.build(1), CASES["MLPClassifier"].samples()
        made[solver] = workload.train(start, samples, RECIPE, 1)
    assert all(np.array_equal(made["adam"][name], made["lbfgs"][name]) for name in made["adam"])
