"""FedAvg from files: a weighted mean, in participant-id order, reproducible to the bit.

    w = sum_k n_k w_k / sum_k n_k

Floating-point tensors are accumulated in float64, block by block and participant by participant, then rounded
once to their own type. Since the order of additions is fixed, the same files give the same bytes on every
machine with IEEE 754 arithmetic. Running means and variances of batch normalisation are floating-point tensors
and are averaged as such. Integer tensors (batch counters) are averaged exactly in integers and rounded half to
even; boolean ones take the weighted majority, false on a tie.

Only one block of one tensor is in memory at a time, whatever the size and number of the models.

Source: McMahan et al. 2017, algorithm 1.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from mechanism.errors import FieldError
from mechanism.terms import DTYPE_BYTES, TensorSpec
from wire.model_file import ModelFile, StoredTensor, open_model

#: Elements accumulated at once: 2 MiB of float64 stay in the second-level cache.
_BLOCK = 1 << 18

#: NumPy's types; bfloat16 is handled as the upper half of a float32.
_FLOATS = {"F64": "<f8", "F32": "<f4", "F16": "<f2"}
_INTEGERS = {"I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1", "U8": "u1", "BOOL": "u1"}


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
    digest = hashlib.sha256()
    with target.open("wb") as out:
        layout = _layout(specs)
        _emit(out, digest, _header(layout))
        for spec in layout:
            for block in _mean_blocks(spec, files, weights):
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


def _header(layout: Sequence[TensorSpec]) -> bytes:
    entries: dict[str, Any] = {}
    position = 0
    for spec in layout:
        end = position + spec.size_bytes
        entries[spec.name] = {
            "dtype": spec.dtype,
            "shape": list(spec.shape),
            "data_offsets": [position, end],
        }
        position = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _emit(out: BinaryIO, digest: "hashlib._Hash", data: bytes) -> None:
    out.write(data)
    digest.update(data)


def _mean_blocks(spec: TensorSpec, files: Sequence[ModelFile], weights: Sequence[int]) -> Iterator[bytes]:
    sources = [(file.path, _tensor(file, spec.name)) for file in files]
    few = len(sources) <= _OPEN_FILES
    streams: list[BinaryIO | None] = [path.open("rb") if few else None for path, _ in sources]
    try:
        elements = prod(spec.shape)
        for first in range(0, elements, _BLOCK):
            count = min(_BLOCK, elements - first)
            raw = (
                _read(path, stream, tensor.start + first * DTYPE_BYTES[spec.dtype], count, spec.dtype)
                for (path, tensor), stream in zip(sources, streams, strict=True)
            )
            if spec.dtype in _INTEGERS:
                yield _integer_mean(raw, weights, spec.dtype)
            else:
                yield _float_mean(raw, weights, spec.dtype)
    finally:
        for stream in streams:
            if stream is not None:
                stream.close()


#: Files held open at once; with more participants each block opens its file anew. Well below the usual 1,024.
_OPEN_FILES = 256


def _tensor(file: ModelFile, name: str) -> StoredTensor:
    return next(t for t in file.tensors if t.spec.name == name)


def _read(path: Path, stream: BinaryIO | None, start: int, count: int, dtype: str) -> bytes:
    if stream is None:
        with path.open("rb") as opened:
            return _read(path, opened, start, count, dtype)
    stream.seek(start)
    return stream.read(count * DTYPE_BYTES[dtype])


def _float_mean(blocks: Iterator[bytes], weights: Sequence[int], dtype: str) -> bytes:
    total: npt.NDArray[np.float64] | None = None
    for raw, weight in zip(blocks, weights, strict=True):
        values = _floats(raw, dtype).astype(np.float64)
        values *= weight
        total = values if total is None else np.add(total, values, out=total)
    assert total is not None  # there is at least one contribution
    total /= sum(weights)
    if dtype == "BF16":
        return _to_bfloat16(total.astype(np.float32))
    return total.astype(_FLOATS[dtype]).tobytes()


def _floats(raw: bytes, dtype: str) -> npt.NDArray[Any]:
    if dtype == "BF16":
        return (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32)
    return np.frombuffer(raw, _FLOATS[dtype])


def _to_bfloat16(values: npt.NDArray[np.float32]) -> bytes:
    """Round to nearest even: add half of the dropped half, and the last kept bit."""
    bits = values.view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) >> 16
    return rounded.astype("<u2").tobytes()


def _integer_mean(blocks: Iterator[bytes], weights: Sequence[int], dtype: str) -> bytes:
    # Python's integers: a product of a counter and a number of samples can exceed 64 bits.
    total: npt.NDArray[np.object_] | None = None
    for raw, weight in zip(blocks, weights, strict=True):
        values = np.frombuffer(raw, _INTEGERS[dtype]).astype(object) * weight
        total = values if total is None else total + values
    assert total is not None  # there is at least one contribution
    samples = sum(weights)
    means = [round(Fraction(int(value), samples)) for value in total]
    return np.array(means, dtype=_INTEGERS[dtype]).tobytes()
