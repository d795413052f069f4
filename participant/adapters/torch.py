"""Tasks for PyTorch.

TorchTask      any nn.Module with any map-style Dataset of (input, label)
DatasetTask    the data sets and CNNs of `learning`, skewed to a label
"""

import copy
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

from fedpeer.learning.augmentation import lightly_augmented
from fedpeer.learning.datasets import load_splits
from fedpeer.learning.dp_sgd import PrivateSteps, pull, recipe_optimizer
from fedpeer.learning.labels import Classes, class_count, whole_labels
from fedpeer.learning.models import inside, load_weights, weights_of
from fedpeer.learning.samples import of_labelled
from fedpeer.learning.training import joined_batches
from mechanism.lifecycle import needs_evidence
from mechanism.terms import Recipe, Terms
from mechanism.variation import FOLLOWED, Part
from participant.adapters.fitting import check_moved, counts_of, differing, refusing, tried
from participant.adapters.following import check_followed, keep, wished, wishes_of
from participant.adapters.workload import SkewedTask
from participant.errors import TaskError
from participant.task import Counts, Task, Trained, TrainingRound, Weights

_log = logging.getLogger("participant")

#: What of a recipe is followed here.
_FOLLOWED = FOLLOWED | {"momentum", "beta2", "epsilon", "weight_decay", "label_smoothing", "augmentation"}

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
        optimizer: default: the recipe's. Where the task is paid on evidence, kind and numbers of one's own are kept
            within what the terms allow.
        recipe: how one would rather train, such as {"epochs": 6}: parts of `mechanism.terms.Recipe`, followed as nearly
            as the terms allow.
        device: default: CUDA where there is one, else the CPU.
        seed: decides the order of the samples; the same seed gives the same model on the same machine and CPU
            thread count. With privacy, the operating system's randomness decides, and no two models are the same.
    """

    dp_sgd = True

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
        recipe: Mapping[str, Any] | None = None,
    ) -> None:
        self.wishes = wished(recipe)
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
        self._augments: torch.Generator | None = None
        self._smoothed: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = loss

    def prepare(self, terms: Terms) -> None:
        """Refuses a task whose models are not this module's, data that it cannot count, and a step that fails.

        One step of training is made on the first samples, and the module put back as it was.
        """
        if names := differing(terms, weights_of(self.module)):
            raise TaskError(
                f"the module does not fit the task's model contract at {names}; build the architecture "
                f"{terms.recipe.model!r}"
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
        check_followed(terms.recipe, _FOLLOWED, "TorchTask")
        keep(terms.recipe, self._all_wishes(terms), say=True)
        self._try_a_step(TrainingRound(terms, "", 1))

    def label_counts(self) -> Counts:
        return counts_of(self._labels(), self.classes)

    def train(self, weights: Weights, round: TrainingRound) -> Trained:  # noqa: A002 - as Task.train
        load_weights(self.module.cpu(), weights)
        module = self.module.to(self.device).train()
        recipe = self._recipe(round)
        if recipe.privacy is not None and recipe.privacy.method == "dp-sgd":
            self._train_privately(module, round)
            return Trained(weights_of(module), len(self.dataset))  # type: ignore[arg-type]  # as below
        optimizer = self._optimizer(module, round.terms)
        self._begin(recipe, round.seed(self.seed))
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

    def _train_privately(self, module: nn.Module, round: TrainingRound) -> None:  # noqa: A002 - as Task.train
        """By DP-SGD (`fedpeer.learning.dp_sgd`)."""
        samples = len(self.dataset)  # type: ignore[arg-type]  # a map-style data set has a length
        with refusing():
            own = self._own_optimizer(module, round.terms)
            recipe = self._recipe(round)
            steps = PrivateSteps(module, recipe, samples, round.seed(self.seed), own)
        self._begin(recipe, round.seed(self.seed))
        try:
            for epoch in range(1, recipe.epochs + 1):
                for rows in steps.batches():
                    steps.step(rows, partial(self._loss, self._loaded(rows)))
                round.progress(epoch / recipe.epochs)
        finally:
            steps.close()

    def _loaded(self, rows: torch.Tensor) -> Any:
        """A batch of these samples; None where there are none."""
        return next(iter(DataLoader(self.dataset, batch_sampler=[rows.tolist()]))) if len(rows) else None

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
        optimizer.zero_grad()
        loss = self._loss(batch, module)
        loss.backward()  # type: ignore[no-untyped-call]  # torch's own stub
        optimizer.step()
        return float(loss.detach())

    def _loss(self, batch: Any, module: nn.Module) -> torch.Tensor:
        """The mean loss of a batch."""
        inputs, labels = batch
        if self._augments is not None:
            inputs = lightly_augmented(inputs, self._augments)
        outputs, targets = module(inputs.to(self.device)), self._targets(labels).to(self.device)
        if _by_class(self.loss) and outputs.ndim > 1 and outputs.shape[1] < self.classes:
            raise TaskError(
                f"the module has {outputs.shape[1]} outputs; expected one for each of {self.classes} labels"
            )
        return self._smoothed(outputs, targets)

    def _all_wishes(self, terms: Terms) -> dict[str, Part]:
        """Those of this task, and what its own optimizer and loss come to where the rule looks at models."""
        found: dict[str, Part] = {}
        if isinstance(self.loss, nn.CrossEntropyLoss):
            found["label_smoothing"] = wished({"": float(self.loss.label_smoothing)})[""]
        if self.optimizer is not None and needs_evidence(terms.rule.name):
            found |= wishes_of(self.optimizer(self.module.parameters()))
        return found | self.wishes

    def _recipe(self, round: TrainingRound) -> Recipe:  # noqa: A002 - as Task.train
        """The recipe as it is followed."""
        return keep(round.recipe, self._all_wishes(round.terms))

    def _begin(self, recipe: Recipe, seed: int) -> None:
        """What the recipe says of inputs and targets holds for the batches to come."""
        self._augments = torch.Generator().manual_seed(seed) if recipe.augmentation == "light" else None
        self._smoothed = self.loss
        if isinstance(self.loss, nn.CrossEntropyLoss):
            smoothed = copy.copy(self.loss)
            smoothed.label_smoothing = float(recipe.label_smoothing)
            self._smoothed = smoothed
        elif self.loss is nn.functional.cross_entropy:
            self._smoothed = partial(self.loss, label_smoothing=float(recipe.label_smoothing))

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
        recipe = self._recipe(round)
        module, size = self.module.to(self.device), recipe.batch_size
        self._begin(recipe, 0)
        before, training = {n: t.detach().clone() for n, t in module.state_dict().items()}, module.training
        samples = len(self.dataset)  # type: ignore[arg-type]  # a map-style data set has a length
        devices = [self.device] if self.device.type == "cuda" else []
        sizes = {min(size, samples)} | ({1} if samples % size == 1 and not self._normalised else set())
        privacy = recipe.privacy
        try:
            if privacy is not None and privacy.method == "dp-sgd":
                with torch.random.fork_rng(devices=devices), tried(), refusing():
                    own = self._own_optimizer(module, round.terms)
                    steps = PrivateSteps(module.train(), recipe, samples, 0, own)
                    rows = torch.arange(min(size, samples))
                    steps.step(rows, partial(self._loss, self._loaded(rows)))
                    steps.close()
                return
            with torch.random.fork_rng(devices=devices), tried():
                optimizer = self._optimizer(module.train(), round.terms)
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

    def _own_optimizer(self, module: nn.Module, terms: Terms) -> torch.optim.Optimizer | None:
        """The user's, where the rule does not look at models; None: the recipe's as it is followed."""
        if self.optimizer is None or needs_evidence(terms.rule.name):
            return None
        return self.optimizer(module.parameters())

    def _optimizer(self, module: nn.Module, terms: Terms) -> torch.optim.Optimizer:
        """Of a module that stands at the round's start; its steps have the recipe's proximal term and decay."""
        recipe = keep(terms.recipe, self._all_wishes(terms))
        optimizer = self._own_optimizer(module, terms)
        mu, decay = float(recipe.proximal), 0.0
        if optimizer is None:
            optimizer = recipe_optimizer(list(module.parameters()), recipe)
            decay = float(recipe.learning_rate * recipe.weight_decay)
        if mu or decay:
            optimizer.register_step_pre_hook(pull(list(module.parameters()), mu, decay))
        return optimizer


class DatasetTask(SkewedTask):
    """A participant with skewed data from one of `learning`'s data sets; see `SkewedTask`.

    They are drawn from the training part of the data set; what the learner keeps for validation is never among them.

    Args:
        dataset: "digits", "fashion-mnist", ...
        majority, degree, share, rate, seed, folders, recipe: as of `SkewedTask`.
        samples: how many it trains on; default: what the recipe asks for.
        split_seed: the seed by which the learner split the data set.
        validation: the size of the learner's validation part; default: the data set's own.
        test: the size of the held-out part; default: the data set's own.
        root: the folder of the data sets.
    """

    def __init__(
        self,
        dataset: str,
        *,
        majority: int | str,
        degree: float | str | None = None,
        share: float | str | None = None,
        rate: float = 1.0,
        samples: int | None = None,
        split_seed: int = 0,
        validation: int | None = None,
        test: int | None = None,
        seed: int = 0,
        root: str | None = None,
        folders: Sequence[str | Path] = (),
        recipe: Mapping[str, Any] | None = None,
    ) -> None:
        pool = load_splits(dataset, seed=split_seed, validation=validation, test=test, root=root).train
        super().__init__(
            of_labelled(pool),
            majority=majority,
            degree=degree,
            share=share,
            rate=rate,
            size=samples,
            seed=seed,
            recipe=recipe,
        )


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
