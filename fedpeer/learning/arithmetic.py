"""What the last digits of training depend on: processor, libraries and device, as a few short texts.

Two machines whose texts are equal train models that are equal bit for bit, as far as that is known before: the last
text is of a small training itself, which is done where it is asked for.
"""

import hashlib
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache

import numpy as np


@cache
def arithmetic(device: str = "") -> Mapping[str, str]:
    """Of this process, on one thread; the names are sorted.

    Args:
        device: of torch, on which models are trained together; empty: they are trained one after another on the CPU.

    `blas`    NumPy's and SciPy's libraries with the kernels that they have chosen
    `cpu`     the machine, and the instruction set that torch uses of it
    `device`  where models are trained
    `numpy`, `torch`  versions
    `probe`   the first 16 digits of SHA-256 over what a small training comes to
    """
    import torch
    from threadpoolctl import threadpool_info

    with suppress(ImportError):
        import scipy.linalg  # noqa: F401  # its library counts, whichever module imports it first

    kernels = {
        f"{found['internal_api']} {found.get('version') or '?'} {found.get('architecture') or '?'}"
        for found in threadpool_info()
        if found["user_api"] == "blas"
    }
    return {
        "blas": ", ".join(sorted(kernels)) or "none",
        "cpu": f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}",
        "device": _device(device),
        "numpy": np.__version__,
        "probe": _probed(device),
        "torch": str(torch.__version__),
    }


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """NumPy's libraries compute on one thread inside: with another number they split sums elsewhere, and round so.

    As `fedpeer.learning.training.one_thread` for torch, the setting is the process's.
    """
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1, "blas"):
        yield


def arithmetic_digest(found: Mapping[str, str]) -> str:
    """A short name of an arithmetic, hexadecimal."""
    text = "\n".join(f"{name} {found[name]}" for name in sorted(found))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _device(device: str) -> str:
    if not device:
        return "cpu"
    import torch

    if not device.startswith("cuda"):
        return f"{device}, in stacks"
    properties = torch.cuda.get_device_properties(device)
    version = f"compute {properties.major}.{properties.minor}, CUDA {torch.version.cuda}"
    return f"{properties.name}, {version}, in stacks"


def _probed(device: str) -> str:
    with one_blas_thread():
        return _probe(device)


def _probe(device: str) -> str:
    """Convolutions, normalisation and products, forward and backward, and a step; products of NumPy."""
    from decimal import Decimal

    from fedpeer.learning.datasets import LabelledData
    from fedpeer.learning.models import initial_weights, weights_digest
    from fedpeer.learning.samples import of_labelled
    from fedpeer.learning.workloads.cnns import CnnWorkload
    from fedpeer.learning.workloads.protocol import train_all
    from mechanism.terms import Recipe

    generator = np.random.default_rng(1)
    images = generator.standard_normal((67, 1, 8, 8)).astype(np.float32)
    data = LabelledData("probe", images, np.arange(67) % 10, 10)
    start, recipe = initial_weights("digits-cnn", 1), Recipe("digits-cnn", 2, 33, "adam", Decimal("0.01"), 67)
    (weights,) = train_all(CnnWorkload("digits-cnn"), start, [of_labelled(data)], recipe, [1], device)
    product = images.reshape(67, 64).T @ images.reshape(67, 64)
    double = product.astype(np.float64) @ product.astype(np.float64)
    found = {**weights, "product": product, "double": double, "values": np.linalg.eigvalsh(double)}
    return weights_digest(found)[:16]
