"""FedAvg from files: the weighted mean of `fedpeer.learning.mean`, in participant-id order, reproducible to the bit.

Running means and variances of batch normalisation are floating-point tensors and are averaged as such.

Blocks are worked out side by side, a few at a time: those few are in memory, whatever the size and number of the
models. What a block comes to depends on no other. Tensors of one type are cut into blocks as if they were one, and what
lies in one piece in a file is read at once, so that twenty thousand small tensors cost no more than a few large ones.

Source: McMahan et al. 2017, algorithm 1.
"""

import hashlib
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import BinaryIO

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

#: Bytes, counted from the start of a file or of a row of tensors.
_Offsets = npt.NDArray[np.int64]

#: What is to be read of a file.
_Places = Callable[[], list[tuple[int, int]]]

#: NumPy's types; a bfloat16 is read as what it is, the upper half of a float32, and a boolean as its byte.
_STORED = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2",
    "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1", "U8": "u1", "BOOL": "u1",
}  # fmt: skip


def aggregate(parts: Mapping[str, tuple[Path, int]], target: Path) -> bytes:
    """Writes the mean of the participants' models to `target`, a safetensors file; returns its SHA-256.

    Args:
        parts: model file and weight, samples n_k >= 1, by participant id; files of one layout, checked against the
            task's contract before.

    Raises:
        FieldError: no part, a weight below 1, or layouts that differ.
    """
    names = sorted(parts)
    paths, weights = [parts[name][0] for name in names], [parts[name][1] for name in names]
    if not names or min(weights) < 1:
        raise FieldError("parts", weights, "at least one, each of a weight of at least 1")
    specs = [tensor.spec for tensor in open_model(paths[0]).tensors]
    order = _order(specs)
    layout = [specs[i] for i in order]
    starts = [_starts(name, open_model(path), specs)[order] for name, path in zip(names, paths, strict=True)]
    digest = hashlib.sha256()
    with target.open("wb") as out, ThreadPoolExecutor(_THREADS, "mean") as threads:
        _emit(out, digest, header(layout))
        for block in _side_by_side(threads, _block_means(layout, paths, starts, weights)):
            _emit(out, digest, block)
    return digest.digest()


def _order(specs: Sequence[TensorSpec]) -> list[int]:
    """The order on disk: wide elements first, so that every tensor is aligned; then by type, then by name."""

    def key(place: int) -> tuple[int, str, str]:
        spec = specs[place]
        return -DTYPE_BYTES[spec.dtype], spec.dtype, spec.name

    return sorted(range(len(specs)), key=key)


def _starts(name: str, file: ModelFile, specs: Sequence[TensorSpec]) -> _Offsets:
    """Where each of the tensors begins in a file, which must have these and no others."""
    if [tensor.spec for tensor in file.tensors] != specs:
        raise FieldError("parts", name, "models of one layout")
    return np.array([tensor.start for tensor in file.tensors], np.int64)


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
    layout: Sequence[TensorSpec], paths: Sequence[Path], starts: Sequence[_Offsets], weights: Sequence[int]
) -> Iterator[Callable[[], bytes]]:
    """The work of the whole file, block by block: the tensors of one type are cut as if they were one."""
    first = 0
    for dtype, of_type in groupby(layout, key=lambda spec: spec.dtype):
        sizes = np.array([spec.size_bytes for spec in of_type], np.int64)
        chosen, first = slice(first, first + len(sizes)), first + len(sizes)
        ends, width = np.cumsum(sizes), DTYPE_BYTES[dtype]
        begins = ends - sizes
        whole = int(ends[-1])
        for begin in range(0, whole, _BLOCK * width):
            end = min(begin + _BLOCK * width, whole)
            places = [
                (path, partial(_spans, found[chosen], begins, ends, begin, end))
                for path, found in zip(paths, starts, strict=True)
            ]
            yield partial(_mean, places, weights, dtype, (end - begin) // width)


def _spans(starts: _Offsets, begins: _Offsets, ends: _Offsets, begin: int, end: int) -> list[tuple[int, int]]:
    """Where bytes [begin, end) of tensors in a row lie in a file: (position, length) of what is in one piece there.

    Args:
        starts: where each tensor begins in the file.
        begins, ends: where it begins and ends in the row.
    """
    touched = slice(int(np.searchsorted(ends, begin, "right")), int(np.searchsorted(begins, end, "left")))
    low, high = np.maximum(begins[touched], begin), np.minimum(ends[touched], end)
    positions, lengths = starts[touched] + low - begins[touched], high - low
    broken = positions[1:] != positions[:-1] + lengths[:-1]
    firsts = np.flatnonzero(np.concatenate(([True], broken)))
    return list(zip(positions[firsts].tolist(), np.add.reduceat(lengths, firsts).tolist(), strict=True))


def _read(path: Path, spans: Sequence[tuple[int, int]], into: memoryview) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for position, length in spans:
            if os.preadv(descriptor, [into[:length]], position) != length:
                raise OSError(f"{path} ends within a tensor; restore it from a backup")
            into = into[length:]
    finally:
        os.close(descriptor)


def _mean(places: Sequence[tuple[Path, _Places]], weights: Sequence[int], dtype: str, count: int) -> bytes:
    raw = np.empty(count, _STORED[dtype])
    bfloat16 = dtype == "BF16"
    total = WeightedSum(count, np.float32 if bfloat16 else raw.dtype)
    for (path, spans), weight in zip(places, weights, strict=True):
        _read(path, spans(), raw.data.cast("B"))
        total.add(widen(raw) if bfloat16 else raw, weight)
    mean = total.rounded()
    return (narrow(mean) if bfloat16 else mean).tobytes()
