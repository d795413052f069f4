"""The next global model from files, reproducible to the bit: the weighted mean of `fedpeer.learning.mean`, in
participant-id order, and the server's optimiser of `mechanism.server_step` where the terms name one.

The optimiser's state is a safetensors file of one F64 vector for each moment, "m" and "v": the elements of all tensors
that it steps, in the order in which the model file that is written here has them.

Blocks are worked out side by side, a few at a time: those few are in memory, whatever the size and number of the
models. What a block comes to depends on no other. Tensors of one type are cut into blocks as if they were one, and what
lies in one piece in a file is read at once, so that twenty thousand small tensors cost no more than a few large ones.

Source: McMahan et al. 2017, algorithm 1.
"""

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from fedpeer.learning.mean import WeightedSum
from fedpeer.learning.side_by_side import side_by_side
from fedpeer.protocol.model_file import (
    ModelFile,
    ModelFileError,
    check_model,
    file_digest,
    header,
    narrow,
    open_model,
    widen,
)
from mechanism.errors import FieldError
from mechanism.server_step import Aggregation, FedAdam, FedAvg, FedAvgM
from mechanism.terms import DTYPE_BYTES, FLOAT_TYPES, ModelContract, TensorSpec

#: Elements that are read of one file at once.
_BLOCK = 1 << 17

#: Threads that accumulate: NumPy releases the interpreter's lock. More than a few only wait for the memory.
_THREADS = min(4, os.cpu_count() or 1)

#: Blocks that are handed out to an executor while the first of them is waited for: 16 MiB of a mean.
_AHEAD = 32

#: Bytes, counted from the start of a file or of a row of tensors.
_Offsets = npt.NDArray[np.int64]

#: What is to be read of a file.
_Places = Callable[[], list[tuple[int, int]]]

#: A file, and what is to be read of it.
_Place = tuple[Path, _Places]

_Array = npt.NDArray[np.float64]

#: NumPy's types; a bfloat16 is read as what it is, the upper half of a float32, and a boolean as its byte.
_STORED = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2",
    "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1", "U8": "u1", "BOOL": "u1",
}  # fmt: skip


#: Vectors of a state file.
_MOMENTS = ("m", "v")


@dataclass(frozen=True)
class Merged:
    """Digests of what a round was merged to.

    Attributes:
        state_sha256: of the file with the server's state; None where there is none.
    """

    model_sha256: bytes
    state_sha256: bytes | None = None


def merge(
    parts: Mapping[str, tuple[Path, int]],
    rule: Aggregation,
    contract: ModelContract,
    start: Path,
    state: Path | None,
    target: Path,
    state_target: Path,
    executor: Executor | None = None,
) -> Merged:
    """What follows from a round by the task's aggregation, written to `target` and `state_target`.

    Args:
        parts: as in `aggregate`.
        start: the model that the round began from.
        state: the server's, as the last round left it; None before the first.
        executor: as in `aggregate`.

    Raises:
        FieldError: as `aggregate`; a step that leaves the contract.
    """
    if isinstance(rule, FedAvg):
        return Merged(aggregate(parts, target, executor=executor))
    digest = aggregate(parts, target, _ServerStep(rule, start, state, state_target), executor)
    try:
        check_model(target, contract)
    except ModelFileError as error:
        raise FieldError(
            "aggregation.rate", rule.rate, f"a step of {rule.name} that keeps the model's contract ({error})"
        ) from None
    return Merged(digest, file_digest(state_target))


def aggregate(
    parts: Mapping[str, tuple[Path, int]],
    target: Path,
    server: "_ServerStep | None" = None,
    executor: Executor | None = None,
) -> bytes:
    """Writes the mean of the participants' models to `target`, a safetensors file; returns its SHA-256.

    Args:
        parts: model file and weight, samples n_k >= 1, by participant id; files of one layout, checked against the
            task's contract before.
        server: moves from its start toward the mean, and its state with it.
        executor: works out blocks of plain means; None: threads of this process do. What a server steps they always do.

    Raises:
        FieldError: no part, a weight below 1, or layouts that differ.
    """
    names = sorted(parts)
    paths, weights = [parts[name][0] for name in names], [parts[name][1] for name in names]
    if not names or min(weights) < 1:
        raise FieldError("parts", weights, "at least one, each of a weight of at least 1")
    specs = [tensor.spec for tensor in open_model(paths[0]).tensors]

    def stepped(spec: TensorSpec) -> bool:
        return server is not None and server.moves(spec)

    order = _order(specs, stepped)
    layout = [specs[i] for i in order]
    starts = [_starts(name, open_model(path), specs)[order] for name, path in zip(names, paths, strict=True)]
    if server is not None:
        server.begin(layout, _starts("the start", open_model(server.start), specs)[order])
    digest = hashlib.sha256()
    with target.open("wb") as out, ThreadPoolExecutor(_THREADS, "mean") as threads:
        _emit(out, digest, header(layout))
        first = 0
        for (dtype, steps), group in groupby(layout, key=lambda spec: (spec.dtype, stepped(spec))):
            sizes = np.array([spec.size_bytes for spec in group], np.int64)
            chosen, first = slice(first, first + len(sizes)), first + len(sizes)
            files = [(path, found[chosen]) for path, found in zip(paths, starts, strict=True)]
            if server is not None and steps:
                files.append((server.start, server.offsets[chosen]))
            blocks = _blocks(files, sizes, weights, dtype, server if steps else None)
            if executor is not None and not steps:
                made = side_by_side(executor, blocks, _AHEAD)
            else:
                made = side_by_side(threads, blocks, _THREADS)
            for block in made:
                _emit(out, digest, block)
    return digest.digest()


def _order(specs: Sequence[TensorSpec], stepped: Callable[[TensorSpec], bool]) -> list[int]:
    """The order on disk: wide elements first, so that every tensor is aligned; then by type, then the plain means, then
    by name.
    """

    def key(place: int) -> tuple[int, str, bool, str]:
        spec = specs[place]
        return -DTYPE_BYTES[spec.dtype], spec.dtype, stepped(spec), spec.name

    return sorted(range(len(specs)), key=key)


def _starts(name: str, file: ModelFile, specs: Sequence[TensorSpec]) -> _Offsets:
    """Where each of the tensors begins in a file, which must have these and no others."""
    if [tensor.spec for tensor in file.tensors] != specs:
        raise FieldError("parts", name, "models of one layout")
    return np.array([tensor.start for tensor in file.tensors], np.int64)


def _emit(out: BinaryIO, digest: "hashlib._Hash", data: bytes) -> None:
    out.write(data)
    digest.update(data)


def _blocks(
    files: Sequence[tuple[Path, _Offsets]],
    sizes: _Offsets,
    weights: Sequence[int],
    dtype: str,
    server: "_ServerStep | None",
) -> Iterator[Callable[[], bytes]]:
    """The work of tensors in a row, block by block: they are cut as if they were one.

    Args:
        files: where each of the tensors begins in each file; last of all the start, where the server steps.
        sizes: of the tensors, bytes.
    """
    ends, width = np.cumsum(sizes), DTYPE_BYTES[dtype]
    begins = ends - sizes
    whole = int(ends[-1])
    for begin in range(0, whole, _BLOCK * width):
        end = min(begin + _BLOCK * width, whole)
        count = (end - begin) // width
        places = [(path, partial(_spans, found, begins, ends, begin, end)) for path, found in files]
        if server is None:
            yield partial(_mean, places, weights, dtype, count)
        else:
            yield partial(_stepped, places[:-1], weights, dtype, count, places[-1], server.next(count))


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


def _mean(places: Sequence[_Place], weights: Sequence[int], dtype: str, count: int) -> bytes:
    return _stored(_sum(places, weights, dtype, count).rounded(), dtype)


def _stepped(
    places: Sequence[_Place],
    weights: Sequence[int],
    dtype: str,
    count: int,
    start: _Place,
    step: Callable[[_Array, _Array], _Array],
) -> bytes:
    mean = _sum(places, weights, dtype, count).mean()
    moved = step(_sum([start], [1], dtype, count).mean(), mean)
    with np.errstate(over="ignore"):  # infinite then, which no contract allows
        return _stored(moved.astype(_computed(dtype)), dtype)


def _sum(places: Sequence[_Place], weights: Sequence[int], dtype: str, count: int) -> WeightedSum:
    raw = np.empty(count, _STORED[dtype])
    total = WeightedSum(count, _computed(dtype))
    for (path, spans), weight in zip(places, weights, strict=True):
        _read(path, spans(), raw.data.cast("B"))
        total.add(widen(raw) if dtype == "BF16" else raw, weight)
    return total


def _computed(dtype: str) -> np.dtype[Any]:
    """The type in which a block is computed: NumPy has no bfloat16."""
    return np.dtype(np.float32 if dtype == "BF16" else _STORED[dtype])


def _stored(block: npt.NDArray[Any], dtype: str) -> bytes:
    return (narrow(block) if dtype == "BF16" else block).tobytes()


class _ServerStep:
    """A step of the server's optimiser: from a start, and the state that the last step left, to the next state.

    Args:
        state: None before the first step.
        target: where the next state is written.
    """

    def __init__(self, rule: FedAvgM | FedAdam, start: Path, state: Path | None, target: Path) -> None:
        self.start = start
        self._rule, self._before, self._after = rule, state, target
        self._taken = 0

    def moves(self, spec: TensorSpec) -> bool:
        """Whether a tensor is stepped, not averaged."""
        return spec.dtype in FLOAT_TYPES and self._rule.steps(spec.name)

    def begin(self, layout: Sequence[TensorSpec], offsets: _Offsets) -> None:
        """Args: offsets: where each tensor of the layout begins in the start."""
        self.offsets = offsets
        count = sum(prod(spec.shape) for spec in layout if self.moves(spec))
        vectors = [TensorSpec(name, "F64", (count,)) for name in _MOMENTS[: self._rule.moments]]
        if (
            self._before is not None
            and [tensor.spec for tensor in open_model(self._before).tensors] != vectors
        ):
            expected = f"a server's state of {count} elements by {self._rule.name}"
            raise FieldError("state", str(self._before), expected)
        head = header(vectors)
        with self._after.open("wb") as file:
            file.write(head)
            file.truncate(len(head) + sum(spec.size_bytes for spec in vectors))
        self._vectors = [len(head) + 8 * count * i for i in range(len(vectors))]

    def next(self, count: int) -> Callable[[_Array, _Array], _Array]:
        """The step of the next `count` elements: start and mean to what the server makes of them."""
        first, self._taken = self._taken, self._taken + count
        return partial(self._step, first, count)

    def _step(self, first: int, count: int, start: _Array, mean: _Array) -> _Array:
        places = [vector + 8 * first for vector in self._vectors]
        if self._before is None:
            state = self._rule.first_state(count)
        else:
            state = [np.fromfile(self._before, "<f8", count, offset=place) for place in places]
        moved, state = self._rule.step(start, mean, state)
        with self._after.open("r+b") as file:
            for place, moment in zip(places, state, strict=True):
                file.seek(place)
                file.write(moment.astype("<f8", copy=False).tobytes())
        return moved
