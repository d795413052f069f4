"""Architectures by name.

The paper's CNNs, as its appendix gives them: two 5 x 5 convolutions, each followed by batch normalisation,
ReLU and 2 x 2 max pooling. The appendix does not say what follows; we take a linear read-out for
Fashion-MNIST, one hidden layer of 500 for MNIST and LeNet's 120 and 84 for CIFAR, which are the usual heads
for these widths. `digits-cnn` is our own for images of 8 x 8.

Source: Pang et al. 2025, appendix on models and parameters.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from fedpeer.learning.errors import ModelError
from fedpeer.learning.samples import Weights as Weights


@dataclass(frozen=True)
class Architecture:
    """A CNN of two convolutions.

    Attributes:
        image: channels, height and width of its input.
        classes: number of labels I.
        channels: output channels of the two convolutions.
        kernel: side of the convolutions, pixels.
        padding: zeros added on each side before a convolution, pixels.
        hidden: widths of the layers between the convolutions and the read-out.
    """

    image: tuple[int, int, int]
    classes: int
    channels: tuple[int, int]
    kernel: int = 5
    padding: int = 0
    hidden: tuple[int, ...] = ()

    def module(self) -> nn.Sequential:
        """A new module, initialised from torch's current random state."""
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        width, side = self.image[0], self.image[1]
        for i, channels in enumerate(self.channels, start=1):
            layers[f"conv{i}"] = nn.Conv2d(width, channels, self.kernel, padding=self.padding)
            layers[f"norm{i}"] = nn.BatchNorm2d(channels)
            layers[f"relu{i}"] = nn.ReLU()
            layers[f"pool{i}"] = nn.MaxPool2d(2)
            width, side = channels, (side + 2 * self.padding - self.kernel + 1) // 2
        layers["flatten"] = nn.Flatten()
        width = width * side * side
        for i, hidden in enumerate(self.hidden, start=1):
            layers[f"hidden{i}"] = nn.Linear(width, hidden)
            layers[f"hidden_relu{i}"] = nn.ReLU()
            width = hidden
        layers["output"] = nn.Linear(width, self.classes)
        return nn.Sequential(layers)


ARCHITECTURES: Mapping[str, Architecture] = {
    "digits-cnn": Architecture((1, 8, 8), 10, (16, 32), kernel=3, padding=1),
    "mnist-cnn": Architecture((1, 28, 28), 10, (20, 50), hidden=(500,)),
    "fashion-mnist-cnn": Architecture((1, 28, 28), 10, (16, 32)),
    "cifar10-cnn": Architecture((3, 32, 32), 10, (6, 16), hidden=(120, 84)),
    "cifar100-coarse-cnn": Architecture((3, 32, 32), 20, (6, 16), hidden=(120, 84)),
}

#: The architecture that each data set of `fedpeer.learning.datasets` is trained with.
FOR_DATASET: Mapping[str, str] = {name.removesuffix("-cnn"): name for name in ARCHITECTURES}


def architecture(name: str) -> Architecture:
    """The architecture called `name`.

    Raises:
        ModelError: no such name.
    """
    if name not in ARCHITECTURES:
        raise ModelError(f"there is no model {name!r}; expected one of {', '.join(ARCHITECTURES)}")
    return ARCHITECTURES[name]


def build(name: str, seed: int) -> nn.Sequential:
    """A module of the architecture `name`, its weights drawn from `seed`; torch's random state is left alone.

    Raises:
        ModelError: no such name.
    """
    chosen = architecture(name)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return chosen.module()


def initial_weights(name: str, seed: int) -> dict[str, npt.NDArray[Any]]:
    """The weights of `build(name, seed)`: what round 1 starts from."""
    return weights_of(build(name, seed))


def inside(module: nn.Module) -> nn.Module:
    """The module that torch.compile, DataParallel or DistributedDataParallel wraps; any other as it is.

    Wrappers put their own word before the names of all weights, which no other participant's model has.
    """
    while True:
        if "_orig_mod" in module._modules:  # torch.compile's
            module = cast("nn.Module", module._modules["_orig_mod"])
        elif isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel):
            module = module.module
        else:
            return module


def weights_of(module: nn.Module) -> dict[str, npt.NDArray[Any]]:
    """A copy of the parameters and buffers of the module, or of the one `inside` it; counters stay int64 scalars of
    shape ().

    NumPy has no bfloat16: such a tensor comes as float32, which holds each of its values.
    """
    return {name: as_array(tensor) for name, tensor in inside(module).state_dict().items()}


def as_array(tensor: torch.Tensor) -> npt.NDArray[Any]:
    """A copy on the CPU; of bfloat16 as float32."""
    tensor = tensor.detach().cpu()
    array: npt.NDArray[Any] = (tensor.float() if tensor.dtype is torch.bfloat16 else tensor).numpy().copy()
    return array


def weights_digest(weights: Weights) -> str:
    """SHA-256 over names, types, shapes and bytes of the tensors in name order, hexadecimal."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        array = np.ascontiguousarray(weights[name])
        digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def load_weights(module: nn.Module, weights: Weights) -> None:
    """Copy `weights` into `module`, or into the one `inside` it.

    Raises:
        ModelError: a missing or unknown name, a wrong shape or type; nothing has been copied then.
    """
    module = inside(module)
    own = module.state_dict()
    if own.keys() != weights.keys():
        missing, unknown = sorted(own.keys() - weights.keys()), sorted(weights.keys() - own.keys())
        raise ModelError(f"weights lack {missing} and have the unknown {unknown}; expected {sorted(own)}")
    tensors = {}
    for name, target in own.items():
        array = np.asarray(weights[name])
        halved = target.dtype is torch.bfloat16  # comes as float32, as `weights_of` gives it
        expected = np.dtype(np.float32) if halved else cast("np.dtype[np.generic]", target.numpy().dtype)
        if array.shape != tuple(target.shape) or array.dtype != expected:
            raise ModelError(
                f"tensor {name} is {array.dtype} of shape {array.shape}; "
                f"expected {expected} of shape {tuple(target.shape)}"
            )
        # from_numpy wants writable memory in native order; a copy is made by load_state_dict anyway, in its own type.
        tensors[name] = torch.from_numpy(np.array(array, copy=True).reshape(array.shape))
    module.load_state_dict(tensors)
