"""A torch module with a loss as a workload.

    TorchWorkload(lambda: nn.Linear(58, 10), "cross_entropy", classes=10)
    TorchWorkload(make_adapted_transformer, "cross_entropy", classes=20, travels="trained")

The factory gives a new module, its weights drawn from torch's random state; parameters that require no gradient are
frozen and must be the same whatever the seed. Layers that draw random numbers (dropout) draw them from the seed of the
training. On one machine the same seed gives the same weights, to the bit.
"""

import copy
import hashlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn import functional

from fedpeer.learning.augmentation import lightly_augmented
from fedpeer.learning.dp_sgd import PrivateSteps
from fedpeer.learning.errors import DataError, ModelError, RecipeError
from fedpeer.learning.models import as_array
from fedpeer.learning.optimizers import optimizer_of
from fedpeer.learning.samples import Samples, Weights
from fedpeer.learning.training import EVALUATION_BATCH, epoch_batches, one_thread
from fedpeer.learning.workloads.protocol import Judged, NewWeights, check_layout
from fedpeer.learning.workloads.stacks import train_stack
from fedpeer.terminal import counted
from mechanism.errors import kind_of
from mechanism.terms import Recipe
from mechanism.variation import FOLLOWED, asked_beyond

#: Outputs and targets of a batch to a loss a sample: shape (n,), or (n, ...), of which the mean is taken.
Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

#: What `train` follows of every recipe.
_FOLLOWED = FOLLOWED | {"momentum", "beta2", "epsilon", "weight_decay", "augmentation", "precision"}

#: Types that parameters are trained in, the usual one first.
_TRAINED = dict.fromkeys((torch.float32, torch.float64, torch.bfloat16)).keys()

#: Samples whose gradient is looked at for tensors without one.
_GRADIENT_SAMPLES = 256


def cross_entropy(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Nats; outputs of shape (n, I), or (n, I, ...) with targets (n, ...)."""
    return functional.cross_entropy(outputs, targets, reduction="none")


def squared_error(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Of outputs of the targets' shape, or of shape (n, 1) for targets (n,)."""
    if outputs.shape != targets.shape and outputs.numel() == targets.numel():
        outputs = outputs.reshape(targets.shape)
    if outputs.shape != targets.shape:
        raise DataError(
            f"outputs have shape {tuple(outputs.shape)}; expected that of the targets, {tuple(targets.shape)}"
        )
    return (outputs - targets) ** 2


LOSSES: Mapping[str, Loss] = {"cross_entropy": cross_entropy, "squared_error": squared_error}


class TorchWorkload:
    """See the module's text.

    Args:
        factory: gives a new module. Inputs by name are its keyword arguments.
        loss: a name of `LOSSES`, or a function that gives a loss for each sample.
        classes: of a classifier whose outputs are logits of shape (n, classes); None for anything else.
        travels: "all" of the module's tensors, or those that are "trained" and the buffers beside them: a frozen base
            then stays where it is, and every side makes it with the factory. Terms have its digest, so that everybody
            has the same: one that is computed may differ in last digits from machine to machine; load it from a file.

    Raises:
        ModelError: a factory that gives no module, nothing to train, or frozen tensors that depend on the seed.
    """

    def __init__(
        self,
        factory: Callable[[], nn.Module],
        loss: str | Loss = "cross_entropy",
        *,
        classes: int | None = None,
        travels: Literal["all", "trained"] = "all",
    ) -> None:
        if isinstance(factory, nn.Module) or not callable(factory):
            raise ModelError(
                f"the factory is {kind_of(factory)}; expected a function that makes a new module in each call, such as "
                "lambda: nn.Linear(2, 3)"
            )
        if isinstance(loss, str) and loss not in LOSSES:
            raise ModelError(f"there is no loss {loss!r}; expected a function, or one of {', '.join(LOSSES)}")
        self.dp_sgd = self.stacks = True
        #: Of the smoothing of labels only the cross-entropy of classes knows.
        smoothed = (
            {"label_smoothing"} if classes is not None and loss in ("cross_entropy", cross_entropy) else set()
        )
        self.follows = _FOLLOWED | smoothed
        self._factory = factory
        self._loss: Loss = LOSSES[loss] if isinstance(loss, str) else loss
        self.classes = classes
        self._module = self._made(0)
        self._names = _travelling(self._module, travels)
        self.trainable = tuple(name for name, p in self._module.named_parameters() if p.requires_grad)
        if not self.trainable:
            raise ModelError(
                "the module has no parameter that requires a gradient; expected something to train"
            )
        kinds = {p.dtype for p in self._module.parameters() if p.requires_grad}
        if halves := sorted(str(kind) for kind in kinds - _TRAINED):
            raise ModelError(
                f"the module trains parameters of {' and '.join(halves)}, in which an optimizer's steps overflow or "
                f"vanish; expected {', '.join(map(str, _TRAINED))}: call module.float() or module.bfloat16() in the "
                "factory"
            )
        own, other = (_left_out(module, self._names) for module in (self._module, self._made(1)))
        digests = {n: _tensor_digest(n, own[n]) for n in sorted(own)}
        changed = [n for n in digests if n not in other or _tensor_digest(n, other[n]) != digests[n]]
        self.frozen = hashlib.sha256("".join(digests.values()).encode()).hexdigest() if digests else ""
        if changed:
            raise ModelError(
                f"the frozen tensors {changed[:5]} differ from one call of the factory to the next and do not travel; "
                'load them from a file, or use travels="all"'
            )

    def build(self, seed: int) -> NewWeights:
        return self._weights(self._made(seed))

    def train(
        self,
        weights: Weights,
        samples: Samples,
        recipe: Recipe,
        seed: int,
        on_epoch: Callable[[int], None] | None = None,
    ) -> NewWeights:
        if len(samples) < 2:
            raise DataError(f"training on {counted(len(samples), 'sample')}; expected at least 2")
        if lacking := asked_beyond(recipe, self.follows):
            raise RecipeError(
                f"the recipe asks for {', '.join(lacking)}, which this workload does not follow"
            )
        module = self._at(weights).train()
        if recipe.precision == "float64":
            module.double()
        inputs, targets = self._tensors_of(module, samples)
        if recipe.privacy is not None and recipe.privacy.method == "dp-sgd":
            self._train_privately(module, inputs, targets, recipe, seed, on_epoch)
            return self._in_types_of(weights, module)
        # Only now: the optimizer lays the parameters out anew, so nothing may move them afterwards.
        optimizers = [optimizer_of(group, recipe) for group in _by_type(module)]
        step = self._step_of(recipe, seed)
        with _alone(seed):
            for epoch, batches in enumerate(epoch_batches(len(samples), recipe, seed), start=1):
                for batch in batches:
                    loss = step(_rows(inputs, batch), targets[batch], module)
                    loss.backward()  # type: ignore[no-untyped-call]  # torch's own stub
                    for optimizer in optimizers:
                        optimizer.step()
                if on_epoch is not None:
                    on_epoch(epoch)
        return self._in_types_of(weights, module)

    def _in_types_of(self, weights: Weights, module: nn.Module) -> NewWeights:
        """What of a module that has computed in wider types travels."""
        return {n: array.astype(weights[n].dtype, copy=False) for n, array in self._weights(module).items()}

    def train_stacked(
        self, weights: Weights, samples: Sequence[Samples], recipe: Recipe, seeds: Sequence[int], device: str
    ) -> list[NewWeights]:
        """`train` of each, together (`fedpeer.learning.workloads.stacks`); as many samples of each."""
        module = self._at(weights, shared=False).train()
        tensors = [self._tensors_of(module, part) for part in samples]
        module.to(memory_format=torch.contiguous_format)

        def loss(call: Any, inputs: Any, targets: torch.Tensor) -> torch.Tensor:
            return self._losses(call, inputs, targets).mean()

        with _alone(seeds[0]):
            inputs, targets = zip(*tensors, strict=True)
            made = train_stack(module, _tensors(module), loss, inputs, targets, recipe, seeds, device)
        return [{name: as_array(each[name]) for name in self._names} for each in made]

    def _train_privately(
        self,
        module: nn.Module,
        inputs: torch.Tensor | dict[str, torch.Tensor],
        targets: torch.Tensor,
        recipe: Recipe,
        seed: int,
        on_epoch: Callable[[int], None] | None,
    ) -> None:
        step = self._step_of(recipe, seed)
        with _alone(seed):
            steps = PrivateSteps(module, recipe, len(targets), seed)
            for epoch in range(1, recipe.epochs + 1):
                for rows in steps.batches():
                    steps.step(rows, partial(step, _rows(inputs, rows), targets[rows]))
                if on_epoch is not None:
                    on_epoch(epoch)
            steps.close()

    def judge(self, weights: Weights, samples: Samples) -> Judged:
        module = self._at(weights).eval()
        inputs, targets = self._tensors_of(module, samples)
        losses, outputs = [], []
        with _alone(0), torch.inference_mode():
            for rows in torch.split(torch.arange(len(samples)), EVALUATION_BATCH):
                made = self._outputs(module, _rows(inputs, rows))
                losses.append(self._per_sample(made, targets[rows]).double())
                if self.classes is not None:
                    made = functional.log_softmax(made.double(), dim=1)
                outputs.append(made.double().reshape(len(rows), -1))
        predicted = torch.cat(outputs).numpy()
        # Long predictions, such as those of every token, are no features of a sample.
        short = self.classes is not None or predicted.shape[1] <= _WIDEST_PREDICTION
        return Judged(torch.cat(losses).numpy(), predicted if short else None)

    def gradient_sizes(self, weights: Weights, samples: Samples) -> dict[str, float]:
        module = self._at(weights, shared=False).double().train()
        rows = np.arange(min(len(samples), _GRADIENT_SAMPLES))
        inputs, targets = self._tensors_of(module, samples.select(rows))
        with _alone(0):
            self._losses(module, inputs, targets).mean().backward()  # type: ignore[no-untyped-call]  # as above
        return {
            name: 0.0 if p.grad is None else float(p.grad.square().mean().sqrt())
            for name, p in module.named_parameters()
            if p.requires_grad
        }

    def module_at(self, weights: Weights) -> nn.Module:
        """A module of one's own at `weights`, for a training loop of one's own."""
        return self._at(weights, shared=False)

    def weights_of(self, module: nn.Module) -> NewWeights:
        """What of such a module travels."""
        return self._weights(module)

    def __getstate__(self) -> dict[str, Any]:
        """The module is made again where the workload arrives."""
        return {**vars(self), "_module": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._module = self._made(0)

    def _made(self, seed: int) -> nn.Module:
        with _alone(seed):
            module = self._factory()
        if not isinstance(module, nn.Module):
            raise ModelError(f"the factory gives {kind_of(module)}; expected a torch.nn.Module")
        return module

    def _at(self, weights: Weights, *, shared: bool = True) -> nn.Module:
        """A module of its own at `weights`; `shared` frozen parameters are not copied, and must not be changed."""
        check_layout(weights, self._weights(self._module))
        frozen = {id(p): p for p in self._module.parameters() if shared and not p.requires_grad}
        module = copy.deepcopy(self._module, frozen)
        own = _tensors(module)
        with torch.no_grad():
            for name in self._names:
                own[name].copy_(torch.from_numpy(np.array(weights[name])))
        return module

    def _weights(self, module: nn.Module) -> NewWeights:
        own = _tensors(module)
        return {name: as_array(own[name]) for name in self._names}

    def _tensors_of(
        self, module: nn.Module, samples: Samples
    ) -> tuple[torch.Tensor | dict[str, torch.Tensor], torch.Tensor]:
        """Inputs and targets; real numbers in the type that the module computes in."""
        kind = next((p.dtype for p in module.parameters() if p.is_floating_point()), torch.float32)
        if isinstance(samples.inputs, Mapping):
            return {n: _tensor(a, kind) for n, a in samples.inputs.items()}, _tensor(samples.targets, kind)
        inputs = _tensor(samples.inputs, kind)
        if inputs.ndim == 4:  # channels last is torch's faster layout for convolutions on a CPU
            module.to(memory_format=torch.channels_last)
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        return inputs, _tensor(samples.targets, kind)

    def _outputs(self, module: nn.Module, inputs: torch.Tensor | dict[str, torch.Tensor]) -> torch.Tensor:
        made = module(**inputs) if isinstance(inputs, dict) else module(inputs)
        if not isinstance(made, torch.Tensor):
            raise ModelError(f"the module gives {kind_of(made)}; expected a tensor")
        if self.classes is not None and (made.ndim != 2 or made.shape[1] != self.classes):
            raise ModelError(
                f"the module gives outputs of shape {tuple(made.shape)}; expected (n, {self.classes}), a logit for "
                "each class"
            )
        return made

    def _losses(
        self, module: nn.Module, inputs: torch.Tensor | dict[str, torch.Tensor], targets: torch.Tensor
    ) -> torch.Tensor:
        return self._per_sample(self._outputs(module, inputs), targets)

    def _step_of(
        self, recipe: Recipe, seed: int
    ) -> Callable[[torch.Tensor | dict[str, torch.Tensor], torch.Tensor, nn.Module], torch.Tensor]:
        """The mean loss of a batch, as the recipe has it: with what it says of inputs, targets and precision."""
        draws = torch.Generator().manual_seed(seed)
        smoothing, augmented = float(recipe.label_smoothing), recipe.augmentation == "light"
        rounded = recipe.precision == "bfloat16"

        def mean_loss(
            inputs: torch.Tensor | dict[str, torch.Tensor], targets: torch.Tensor, module: nn.Module
        ) -> torch.Tensor:
            if augmented:
                inputs = lightly_augmented(inputs, draws)
            with torch.autocast("cpu", torch.bfloat16, enabled=rounded):
                outputs = self._outputs(module, inputs)
            if rounded:
                outputs = outputs.float()
            if smoothing:
                return functional.cross_entropy(outputs, targets, label_smoothing=smoothing)
            return self._per_sample(outputs, targets).mean()

        return mean_loss

    def _per_sample(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        losses = self._loss(outputs, targets)
        if losses.ndim == 0 or len(losses) != len(targets):
            raise ModelError(
                f"the loss gives shape {tuple(losses.shape)} for {len(targets)} samples; expected one loss a sample "
                '(in torch: reduction="none")'
            )
        return losses.flatten(1).mean(1) if losses.ndim > 1 else losses


#: Numbers that a model may predict for a sample and that are still looked at one by one.
_WIDEST_PREDICTION = 64


#: torch's random state and its number of threads belong to the process.
_LOCK = threading.RLock()


@contextmanager
def _alone(seed: int) -> Iterator[None]:
    """One of torch's threads, its random state that of `seed`, and no other call of a workload in this process: so that
    participants in threads of one process get the same models as in processes of their own."""
    with _LOCK, one_thread(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def _tensor(array: npt.NDArray[Any], kind: torch.dtype) -> torch.Tensor:
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    return tensor.to(kind) if tensor.is_floating_point() else tensor


def _tensor_digest(name: str, tensor: torch.Tensor) -> str:
    """SHA-256 over name, type, shape and bytes, hexadecimal; of any of torch's types of numbers."""
    kept = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    digest = hashlib.sha256(f"{name} {str(kept.dtype).removeprefix('torch.')} {tuple(kept.shape)}\n".encode())
    digest.update(kept.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _rows(
    inputs: torch.Tensor | dict[str, torch.Tensor], rows: torch.Tensor
) -> torch.Tensor | dict[str, torch.Tensor]:
    return {n: part[rows] for n, part in inputs.items()} if isinstance(inputs, dict) else inputs[rows]


def _tensors(module: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and persistent buffers; a tensor with two names (tied weights) once, under its first."""
    kept = module.state_dict(keep_vars=True)
    first: dict[int, str] = {}
    for name, tensor in kept.items():
        first.setdefault(id(tensor), name)
    return {name: kept[name] for name in first.values()}


def _travelling(module: nn.Module, travels: str) -> tuple[str, ...]:
    """The names of what travels, sorted."""
    tensors = _tensors(module)
    if travels == "all":
        return tuple(sorted(tensors))
    if travels != "trained":
        raise ModelError(f'travels is {travels!r}; expected "all" or "trained"')
    names = {n for n, p in module.named_parameters() if p.requires_grad}
    for prefix, part in module.named_modules():
        if any(p.requires_grad for p in part.parameters(recurse=False)):
            names |= {f"{prefix}.{n}".lstrip(".") for n, _ in part.named_buffers(recurse=False)}
    return tuple(sorted(names & tensors.keys()))


def _left_out(module: nn.Module, names: Sequence[str]) -> dict[str, torch.Tensor]:
    """What stays at home of a module that does not travel whole, buffers that are in no state dict with it."""
    kept, persistent = _tensors(module), module.state_dict().keys()
    found = {name: tensor for name, tensor in kept.items() if name not in names}
    if found:
        found |= {name: buffer for name, buffer in module.named_buffers() if name not in persistent}
    return found


def _by_type(module: nn.Module) -> list[Sequence[torch.Tensor]]:
    """The parameters to train, those of one type together."""
    groups: dict[torch.dtype, list[torch.Tensor]] = {}
    for parameter in module.parameters():
        if parameter.requires_grad:
            groups.setdefault(parameter.dtype, []).append(parameter)
    return cast("list[Sequence[torch.Tensor]]", list(groups.values()))
