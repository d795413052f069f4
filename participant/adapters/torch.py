"""Tasks for PyTorch.

TorchTask      any nn.Module with any map-style Dataset of (input, label)
DatasetTask    the data sets, label mixes and CNNs of `learning`: start skew, effort curve, recipe
"""

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

from fedpeer.learning.datasets import LabelledData, load_splits
from fedpeer.learning.models import load_weights, weights_of
from fedpeer.learning.partition import LabelMix, draw, majority_minority, toward_reference
from fedpeer.learning.training import evaluate, train
from fedpeer.protocol.model_file import stored_spec
from mechanism.effort import EffortCurve, ExponentialEffort
from mechanism.terms import Terms
from participant.errors import TaskError
from participant.task import Task, Trained, TrainingRound, Weights

#: Makes the optimizer of one round from the module's parameters.
OptimizerFactory = Callable[[Any], torch.optim.Optimizer]


class TorchTask(Task):
    """Trains an nn.Module on a Dataset, by the task's recipe.

    Subclass it and override `collect` to let effort improve the data; set `dataset` there.

    Args:
        module: its state_dict is what travels; the task's contract must have the same names, types and shapes.
        dataset: map-style, items (input, integer label).
        classes: number of labels I.
        loss: mean loss of a batch; default: cross-entropy.
        optimizer: default: what the recipe names, "adam" or "sgd" (momentum 0.9), at its learning rate.
        device: default: CUDA where there is one, else the CPU.
        seed: decides the order of the samples; the same seed gives the same model on the same machine and CPU
            thread count.
    """

    def __init__(
        self,
        module: nn.Module,
        dataset: Dataset[Any],
        *,
        classes: int,
        loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = nn.functional.cross_entropy,
        optimizer: OptimizerFactory | None = None,
        device: str | torch.device | None = None,
        seed: int = 0,
    ) -> None:
        self.module = module
        self.dataset = dataset
        self.classes = classes
        self.loss = loss
        self.optimizer = optimizer
        self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self.seed = seed

    def prepare(self, terms: Terms) -> None:
        """Refuses a task whose models are not this module's."""
        wanted = {spec.name: spec for spec in terms.contract.tensors}
        own = {n: stored_spec(n, a, wanted.get(n)) for n, a in weights_of(self.module).items()}
        differing = sorted(name for name in own.keys() | wanted.keys() if own.get(name) != wanted.get(name))
        if differing:
            raise TaskError(
                f"the module does not fit the task's model contract at {', '.join(differing[:5])}"
                f"{' and others' if len(differing) > 5 else ''}; build the architecture {terms.recipe.model!r}"
            )
        if self.classes != len(terms.reference):
            raise TaskError(f"the data have {self.classes} labels, the task {len(terms.reference)}")

    def label_counts(self) -> Sequence[int]:
        counts: list[int] = torch.bincount(_labels(self.dataset), minlength=self.classes).tolist()
        return counts

    def train(self, weights: Weights, round: TrainingRound) -> Trained:  # noqa: A002 - as Task.train
        load_weights(self.module.cpu(), weights)
        module = self.module.to(self.device).train()
        recipe = round.recipe
        optimizer = self._optimizer(module, round)
        order = torch.Generator().manual_seed(round.seed(self.seed))
        loader = DataLoader(self.dataset, recipe.batch_size, shuffle=True, generator=order)
        for epoch in range(recipe.epochs):
            total = batches = 0.0
            for inputs, labels in loader:
                if len(labels) < 2:
                    continue  # batch normalisation has no variance over one sample
                optimizer.zero_grad()
                loss = self.loss(module(inputs.to(self.device)), labels.to(self.device))
                loss.backward()  # type: ignore[no-untyped-call]  # torch's own stub
                optimizer.step()
                total, batches = total + float(loss.detach()), batches + 1
            round.progress((epoch + 1) / recipe.epochs, loss=total / max(batches, 1.0))
        samples = len(self.dataset)  # type: ignore[arg-type]  # a map-style data set has a length
        return Trained(weights_of(module), samples)

    def _optimizer(self, module: nn.Module, round: TrainingRound) -> torch.optim.Optimizer:  # noqa: A002 - as Task.train
        if self.optimizer is not None:
            return self.optimizer(module.parameters())
        rate = float(round.recipe.learning_rate)
        if round.recipe.optimizer == "adam":
            return torch.optim.Adam(module.parameters(), lr=rate)
        return torch.optim.SGD(module.parameters(), lr=rate, momentum=0.9)


class DatasetTask(Task):
    """A participant with skewed data from one of `learning`'s data sets and the learner's own architecture.

    Its data start as a majority-minority mix of degree `degree` and move toward p^(c) with effort, at
    delta(e) = degree * exp(-rate * e). They are drawn anew each round, without replacement where they last, from the
    training part of the data set; what the learner keeps for validation is never among them.

    Args:
        dataset: "digits", "fashion-mnist", ...
        majority: the label that its data are skewed to.
        degree: delta(0); or
        share: the majority's share, which the paper calls delta.
        rate: of the effort curve, > 0.
        samples: how many it trains on; default: what the recipe asks for.
        split_seed: the seed by which the learner split the data set.
        validation: the size of the learner's validation part; default: the data set's own.
        test: the size of the held-out part; default: the data set's own.
        seed: decides the draw and the order of training.
        root: the folder of the data sets.
    """

    def __init__(
        self,
        dataset: str,
        *,
        majority: int,
        degree: float | str | None = None,
        share: float | str | None = None,
        rate: float = 1.0,
        samples: int | None = None,
        split_seed: int = 0,
        validation: int | None = None,
        test: int | None = None,
        seed: int = 0,
        root: str | None = None,
    ) -> None:
        self.pool: LabelledData = load_splits(
            dataset, seed=split_seed, validation=validation, test=test, root=root
        ).train
        self.majority = majority
        self.degree = None if degree is None else Fraction(str(degree))
        self.share = None if share is None else Fraction(str(share))
        self.rate = rate
        self.samples = samples
        self.seed = seed
        self.start: LabelMix | None = None
        self.mix: LabelMix | None = None

    def data(self, round_: int) -> LabelledData:
        """What it trains on in a round: the same label counts each time, other samples, as in the paper."""
        generator = np.random.default_rng([self.seed, round_])
        return draw(self.pool, self._prepared(self.mix).counts, generator).data

    def curve(self) -> EffortCurve:
        """delta(e) of these data."""
        return ExponentialEffort(float(self._prepared(self.start).degree), self.rate)

    def prepare(self, terms: Terms) -> None:
        if self.pool.classes != len(terms.reference):
            raise TaskError(
                f"{self.pool.name} has {self.pool.classes} labels, the task {len(terms.reference)}; "
                "name the data set that the learner names"
            )
        samples = self.samples or terms.recipe.samples
        self.start = self.mix = majority_minority(
            terms.reference, samples, majority=self.majority, degree=self.degree, share=self.share
        )

    def label_counts(self) -> Sequence[int]:
        return self._prepared(self.mix).counts

    def collect(self, effort: float) -> None:
        start = self._prepared(self.start)
        target = Fraction(float(self.curve().degree(effort)))
        self.mix = toward_reference(start, min(target, start.degree))

    def train(self, weights: Weights, round: TrainingRound) -> Trained:  # noqa: A002 - as Task.train
        recipe, data = round.recipe, self.data(round.number)
        made = train(
            weights,
            data,
            recipe,
            round.seed(self.seed),
            on_epoch=lambda done: round.progress(done / recipe.epochs),
        )
        return Trained(made, len(data), self._metrics(made, data, recipe.model))

    def _metrics(self, weights: Weights, data: LabelledData, model: str) -> Mapping[str, float]:
        evaluation = evaluate(weights, data, model)
        return {"loss": evaluation.loss, "accuracy": evaluation.accuracy}

    def _prepared(self, mix: LabelMix | None) -> LabelMix:
        if mix is None:
            raise TaskError("the task has no data before `prepare` has told it the terms")
        return mix


def _labels(dataset: Any) -> torch.Tensor:
    """The labels of a map-style data set, without loading its inputs where it keeps them apart."""
    if isinstance(dataset, Subset):
        return _labels(dataset.dataset)[torch.as_tensor(dataset.indices, dtype=torch.int64)]
    if isinstance(dataset, TensorDataset):
        return dataset.tensors[1].to(torch.int64)
    targets = getattr(dataset, "targets", None)  # torchvision's name for them
    if targets is not None and getattr(dataset, "target_transform", None) is None:
        return torch.as_tensor(targets, dtype=torch.int64)
    return torch.as_tensor([int(dataset[i][1]) for i in range(len(dataset))], dtype=torch.int64)
