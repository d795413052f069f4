"""Tasks for PyTorch.

TorchTask      any nn.Module with any map-style Dataset of (input, label)
DatasetTask    the data sets, label mixes and CNNs of `learning`: start skew, effort curve, recipe
"""

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

from fedpeer.learning.datasets import LabelledData, load_splits
from fedpeer.learning.labels import Classes, class_count, whole_labels
from fedpeer.learning.models import build, initial_weights, inside, load_weights, weights_of
from fedpeer.learning.partition import LabelMix, draw, majority_minority, toward_reference
from fedpeer.learning.training import evaluate, joined_batches, train
from fedpeer.protocol.model_file import stored_spec
from mechanism.effort import EffortCurve, ExponentialEffort
from mechanism.terms import Terms
from participant.adapters.fitting import check_moved, counts_of, refusing, tried
from participant.errors import TaskError
from participant.task import Counts, Task, Trained, TrainingRound, Weights

_log = logging.getLogger("participant")

#: Makes the optimizer of one round from the module's parameters.
OptimizerFactory = Callable[[Any], torch.optim.Optimizer]


class TorchTask(Task):
    """Trains an nn.Module on a Dataset, by the task's recipe.

    Subclass it and override `collect` to let effort improve the data; set `dataset` there.

    Args:
        module: its state_dict is what travels; the task's contract must have the same names, types and shapes. Of one
            that torch.compile, DataParallel or DistributedDataParallel wraps it is the state_dict of the module inside.
        dataset: map-style, items (input, label); a label is a whole number in [0, I) or a class name.
        classes: I, or the learner's list of class names in the reference's order.
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
        classes: Classes,
        loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = nn.functional.cross_entropy,
        optimizer: OptimizerFactory | None = None,
        device: str | torch.device | None = None,
        seed: int = 0,
    ) -> None:
        self.module = inside(module)
        if self.module is not module:
            _log.warning("the module is a %s; the one inside it is trained and sent", type(module).__name__)
        self.dataset = dataset
        with refusing():
            self.classes = class_count(classes)
        self._classes = classes
        self.loss = loss
        self.optimizer = optimizer
        self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self.seed = seed

    def prepare(self, terms: Terms) -> None:
        """Refuses a task whose models are not this module's, data that it cannot count, and a step that fails.

        One step of training is made on the first samples, and the module put back as it was.
        """
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
        samples = sum(self.counts())
        if not samples:
            raise TaskError("the data set has no samples; expected at least one to train on")
        if self._normalised and min(terms.recipe.batch_size, samples) < 2:
            raise TaskError(
                f"batches have {min(terms.recipe.batch_size, samples)} sample, and the module normalises over batches, "
                "which has no variance over one; use a module without batch normalisation, or stay out"
            )
        self._try_a_step(TrainingRound(terms, "", 1))

    def label_counts(self) -> Counts:
        return counts_of(self._labels(), self.classes)

    def train(self, weights: Weights, round: TrainingRound) -> Trained:  # noqa: A002 - as Task.train
        load_weights(self.module.cpu(), weights)
        module = self.module.to(self.device).train()
        recipe = round.recipe
        optimizer = self._optimizer(module, round)
        order = torch.Generator().manual_seed(round.seed(self.seed))
        samples = len(self.dataset)  # type: ignore[arg-type]  # a map-style data set has a length
        for epoch in range(recipe.epochs):
            total = batches = 0.0
            for batch in self._loader(torch.randperm(samples, generator=order), recipe.batch_size):
                loss = self._step(module, optimizer, batch)
                total, batches = total + loss, batches + 1
            round.progress((epoch + 1) / recipe.epochs, loss=total / max(batches, 1.0))
        trained = weights_of(module)
        check_moved(weights, trained, (name for name, _ in module.named_parameters()))
        return Trained(trained, samples)

    @property
    def _normalised(self) -> bool:
        """Whether the module has batch normalisation, which cannot train on one sample."""
        return any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in self.module.modules())

    def _loader(self, order: torch.Tensor, size: int) -> DataLoader[Any]:
        """The samples in this order, each once; with batch normalisation a last one alone joins the batch before."""
        batches = joined_batches(order, size) if self._normalised else torch.split(order, size)
        return DataLoader(self.dataset, batch_sampler=[batch.tolist() for batch in batches])

    def _step(self, module: nn.Module, optimizer: torch.optim.Optimizer, batch: Any) -> float:
        """One step on a batch; its loss."""
        inputs, labels = batch
        optimizer.zero_grad()
        outputs, targets = module(inputs.to(self.device)), self._targets(labels).to(self.device)
        if _by_class(self.loss) and outputs.ndim > 1 and outputs.shape[1] < self.classes:
            raise TaskError(
                f"the module has {outputs.shape[1]} outputs; expected one for each of {self.classes} labels"
            )
        loss = self.loss(outputs, targets)
        loss.backward()  # type: ignore[no-untyped-call]  # torch's own stub
        optimizer.step()
        return float(loss.detach())

    def _targets(self, labels: Any) -> torch.Tensor:
        """A batch's labels as the loss reads them: int64, unless a loss of the user's own wants real numbers."""
        if isinstance(labels, torch.Tensor) and labels.is_floating_point() and not _by_class(self.loss):
            return labels
        with refusing():
            return torch.from_numpy(whole_labels(labels, self._classes))

    def _labels(self) -> npt.NDArray[np.int64]:
        """The labels of all samples."""
        with refusing():
            return whole_labels(_raw_labels(self.dataset), self._classes)

    def _try_a_step(self, round: TrainingRound) -> None:  # noqa: A002 - as Task.train
        """Raises TaskError where a step on the first samples, and on one where a batch may be so small, fails."""
        module, size = self.module.to(self.device), round.recipe.batch_size
        before, training = {n: t.detach().clone() for n, t in module.state_dict().items()}, module.training
        samples = len(self.dataset)  # type: ignore[arg-type]  # a map-style data set has a length
        devices = [self.device] if self.device.type == "cuda" else []
        sizes = {min(size, samples)} | ({1} if samples % size == 1 and not self._normalised else set())
        try:
            with torch.random.fork_rng(devices=devices), tried():
                optimizer = self._optimizer(module.train(), round)
                for count in sorted(sizes):
                    [batch] = self._loader(torch.arange(count), count)
                    loss = self._step(module, optimizer, batch)
                    if not math.isfinite(loss):
                        raise TaskError(
                            f"one step of training was tried before the claim and its loss is {loss}; look for values "
                            "in the data that are NaN or infinite, and at the learning rate"
                        )
                optimizer.zero_grad()
        finally:
            module.load_state_dict(before)
            module.train(training)

    def _optimizer(self, module: nn.Module, round: TrainingRound) -> torch.optim.Optimizer:  # noqa: A002 - as Task.train
        """Of a module that stands at the round's start; its steps have the recipe's proximal term."""
        rate, mu = float(round.recipe.learning_rate), float(round.recipe.proximal)
        if self.optimizer is not None:
            optimizer = self.optimizer(module.parameters())
        elif round.recipe.optimizer == "adam":
            optimizer = torch.optim.Adam(module.parameters(), lr=rate)
        else:
            optimizer = torch.optim.SGD(module.parameters(), lr=rate, momentum=0.9)
        if mu:
            start = [parameter.detach().clone() for parameter in module.parameters()]

            def pull(*_: Any) -> None:
                """mu (w - start) beside the gradient."""
                for parameter, before in zip(module.parameters(), start, strict=True):
                    if parameter.grad is not None:
                        parameter.grad.add_(parameter.detach() - before, alpha=mu)

            optimizer.register_step_pre_hook(pull)
        return optimizer


class DatasetTask(Task):
    """A participant with skewed data from one of `learning`'s data sets and the learner's own architecture.

    Its data start as a majority-minority mix of degree `degree` and move toward p^(c) with effort, at
    delta(e) = degree * exp(-rate * e). They are drawn in each round, without replacement where they last, from the
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
        return draw(self.pool, self._prepared(self.mix).counts, generator)

    def curve(self) -> EffortCurve:
        """delta(e) of these data."""
        return ExponentialEffort(float(self._prepared(self.start).degree), self.rate)

    def prepare(self, terms: Terms) -> None:
        """Refuses a task of other labels, images or weights, and one in which a step of training fails."""
        if self.pool.classes != len(terms.reference):
            raise TaskError(
                f"{self.pool.name} has {self.pool.classes} labels, the task {len(terms.reference)}; "
                "name the data set that the learner names"
            )
        samples = self.samples or terms.recipe.samples
        self.start = self.mix = majority_minority(
            terms.reference, samples, majority=self.majority, degree=self.degree, share=self.share
        )
        start = initial_weights(terms.recipe.model, 0)
        wanted = {spec.name: spec for spec in terms.contract.tensors}
        if {n: stored_spec(n, a, wanted.get(n)) for n, a in start.items()} != wanted:
            raise TaskError(
                f"the task's models are not of the architecture {terms.recipe.model!r} that its recipe names; tell the "
                "learner, or bring a task of your own"
            )
        with tried():
            few = np.arange(min(len(self.pool), samples, max(2, terms.recipe.batch_size)))
            train(start, self.pool.select(few), replace(terms.recipe, epochs=1), seed=0)

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
        check_moved(weights, made, (name for name, _ in build(recipe.model, seed=0).named_parameters()))
        return Trained(made, len(data), vars(evaluate(made, data, recipe.model)))

    def _prepared(self, mix: LabelMix | None) -> LabelMix:
        if mix is None:
            raise TaskError("the task has no data before `prepare` has given it the terms")
        return mix


def _raw_labels(dataset: Any) -> Any:
    """The labels of a map-style data set, without loading its inputs where it keeps them apart."""
    if isinstance(dataset, Subset):
        labels, chosen = _raw_labels(dataset.dataset), [int(i) for i in dataset.indices]
        return (
            labels[chosen] if isinstance(labels, torch.Tensor | np.ndarray) else [labels[i] for i in chosen]
        )
    if isinstance(dataset, TensorDataset):
        return dataset.tensors[1]
    targets = getattr(dataset, "targets", None)  # torchvision's name for them
    if targets is not None and getattr(dataset, "target_transform", None) is None:
        return targets
    return [_scalar(dataset[i][1]) for i in range(len(dataset))]


def _scalar(label: Any) -> Any:
    """A label that a data set gives as a tensor of no dimension."""
    return label.item() if isinstance(label, torch.Tensor | np.generic) and label.ndim == 0 else label


def _by_class(loss: Any) -> bool:
    """Whether a loss takes a label as the number of a class."""
    functions = (nn.functional.cross_entropy, nn.functional.nll_loss)
    return loss in functions or isinstance(loss, nn.CrossEntropyLoss | nn.NLLLoss)
