"""FedAvg from files: the weighted mean of `fedpeer.learning.mean`, in participant-id order, reproducible to the bit.

Running means and variances of batch normalisation are floating-point tensors and are averaged as such.

Blocks are worked out side by side, a few at a time: those few are in memory, whatever the size and number of the
models. What a block comes to depends on no other.

Source: McMahan et al. 2017, algorithm 1.
"""

import hashlib
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from fedpeer.learning.mean import WeightedSum
from fedpeer.protocol.model_file import ModelFile, header, narrow, open_model, widen
from mechanism.errors import FieldError
from mechanism.terms import DTYPE_BYTES, TensorSpec

#: Elements that are read of one file at once.
_BLOCK = 1 << 17

#: Threads that accumulate: NumPy releases the interpreter's lock. More than a few only wait for the memory.
_THREADS = min(4, os.cpu_count() or 1)

#: NumPy's types; a bfloat16 is read as what it is, the upper half of a float32, and a boolean as its byte.
_STORED = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2",
    "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1", "U8": "u1", "BOOL": "u1",
}  # fmt: skip


@dataclass(frozen=True)
class Contribution:
    """One participant's model file and its weight: samples n_k >= 1."""

    participant_id: str
    path: Path
    samples: int


def aggregate(contributions: Sequence[Contribution], target: Path) -> bytes:
    """Writes the mean of the contributions to `target`, a safetensors file; returns its SHA-256.

    Args:
        contributions: in any order; files of one layout, checked against the task's contract before.

    Raises:
        FieldError: no contribution, a weight below 1, a participant twice, or layouts that differ.
    """
    ordered = sorted(contributions, key=lambda c: c.participant_id)
    _check(ordered)
    files = [open_model(c.path) for c in ordered]
    specs = [t.spec for t in files[0].tensors]
    for contribution, file in zip(ordered, files, strict=True):
        if [t.spec for t in file.tensors] != specs:
            raise FieldError("contributions", contribution.participant_id, "models of one layout")
    weights = [c.samples for c in ordered]
    layout = _layout(specs)
    digest = hashlib.sha256()
    with target.open("wb") as out, ThreadPoolExecutor(_THREADS, "mean") as threads:
        _emit(out, digest, header(layout))
        for block in _side_by_side(threads, _block_means(layout, files, weights)):
            _emit(out, digest, block)
    return digest.digest()


def _check(ordered: Sequence[Contribution]) -> None:
    names = [c.participant_id for c in ordered]
    if not names or len(set(names)) != len(names):
        raise FieldError("contributions", names, "at least one, each participant once")
    for contribution in ordered:
        if contribution.samples < 1:
            raise FieldError("samples", contribution.samples, "a weight of at least 1")


def _layout(specs: Sequence[TensorSpec]) -> list[TensorSpec]:
    """The order on disk: wide elements first, so that every tensor is aligned; then by name."""
    return sorted(specs, key=lambda spec: (-DTYPE_BYTES[spec.dtype], spec.name))


def _emit(out: BinaryIO, digest: "hashlib._Hash", data: bytes) -> None:
    out.write(data)
    digest.update(data)


def _side_by_side(threads: ThreadPoolExecutor, work: Iterable[Callable[[], bytes]]) -> Iterator[bytes]:
    """What each piece of work comes to, in order; as many as there are threads are ahead."""
    ahead: deque[Future[bytes]] = deque()
    for piece in work:
        ahead.append(threads.submit(piece))
        if len(ahead) > _THREADS:
            yield ahead.popleft().result()
    while ahead:
        yield ahead.popleft().result()


def _block_means(
    layout: Sequence[TensorSpec], files: Sequence[ModelFile], weights: Sequence[int]
) -> Iterator[Callable[[], bytes]]:
    """The work of the whole file, block by block."""
    places_by_name = [{t.spec.name: (file.path, t.start) for t in file.tensors} for file in files]
    for spec in layout:
        starts = [places[spec.name] for places in places_by_name]
        elements = prod(spec.shape)
        for first in range(0, elements, _BLOCK):
            offset = first * DTYPE_BYTES[spec.dtype]
            places = [(path, start + offset) for path, start in starts]
            yield partial(_mean, places, weights, spec.dtype, min(_BLOCK, elements - first))


def _read(place: tuple[Path, int], into: npt.NDArray[Any]) -> None:
    path, start = place
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        read = os.preadv(descriptor, [into.data], start)
    finally:
        os.close(descriptor)
    if read != into.nbytes:
        raise OSError(f"{path} ends within a tensor; restore it from a backup")


def _mean(places: Sequence[tuple[Path, int]], weights: Sequence[int], dtype: str, count: int) -> bytes:
    raw = np.empty(count, _STORED[dtype])
    bfloat16 = dtype == "BF16"
    total = WeightedSum(count, np.float32 if bfloat16 else raw.dtype)
    for place, weight in zip(places, weights, strict=True):
        _read(place, raw)
        total.add(widen(raw) if bfloat16 else raw, weight)
    mean = total.rounded()
    return (narrow(mean) if bfloat16 else mean).tobytes()
