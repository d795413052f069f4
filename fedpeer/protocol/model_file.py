"""Model files: safetensors, read with suspicion.

A file is 8 bytes of little-endian header length, a JSON header, and the tensors' bytes without a gap. The
sender may lie about every number in it, so the header is checked against the file before anything is mapped,
and a tensor is only ever read in blocks. Layout: the safetensors format description.
"""

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save

from fedpeer.protocol.limits import (
    FRAME_BYTES,
    MAX_DIMENSIONS,
    MAX_MODEL_HEADER_BYTES,
    MAX_TENSOR_NAME,
    MAX_TENSORS,
)
from mechanism.errors import FieldError
from mechanism.terms import DTYPE_BYTES, ModelContract, TensorSpec

#: Weights as the SDK and the coordinator hand them around.
Weights = Mapping[str, npt.NDArray[Any]]

#: NumPy's type for each element type that it has. It has no bfloat16: those are read as float32, which holds each of
#: them, and written from float32 by rounding to the nearest, half to even.
_NUMPY = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2",
    "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1", "U8": "u1", "BOOL": "?",
}  # fmt: skip
_SAFETENSORS = {np.dtype(code): name for name, code in _NUMPY.items() if name != "BF16"}
_FLOATING = {"F64", "F32", "F16", "BF16"}

#: Bytes of the number that announces the header's length.
_PREFIX = 8

#: Elements of a tensor that are checked at once: 1 MiB of float32.
_BLOCK = 1 << 18

#: Bytes of a header of which several are remembered: a sender chooses them. Of longer ones, one is: that of the models
#: that are read one after another.
_SHORT_HEADER = 256 << 10

#: Bytes of a file that are read at once.
_PIECE = 1 << 20

#: Elements that are compared at once: 8 MiB of float64.
_ELEMENTS = 1 << 20

#: The least change of a model that counts as training, of its own length. One step at any rate that teaches changes it
#: ten thousand times as much; what is less has moved weights that were zero, and no others.
LEAST_CHANGE = 1e-10


class ModelFileError(ValueError):
    """A file that is not a model, or not the model that the contract asks for; `reasons` lists all that is wrong."""

    def __init__(self, *reasons: str) -> None:
        super().__init__("; ".join(reasons))
        self.reasons = reasons


@dataclass(frozen=True)
class StoredTensor:
    """One tensor of a file and where its bytes are, counted from the start of the file."""

    spec: TensorSpec
    start: int


@dataclass(frozen=True)
class ModelFile:
    """A safetensors file whose header fits its size. Tensors in name order."""

    path: Path
    tensors: tuple[StoredTensor, ...]

    def weights(self) -> dict[str, npt.NDArray[Any]]:
        """All tensors in memory, by name; bfloat16 comes widened."""
        mapped, found = np.memmap(self.path, np.uint8, mode="r"), {}
        for spec, start in ((tensor.spec, tensor.start) for tensor in self.tensors):
            stored = mapped[start : start + spec.size_bytes].view(_NUMPY[spec.dtype]).reshape(spec.shape)
            found[spec.name] = widen(stored) if spec.dtype == "BF16" else np.array(stored)
        return found

    def blocks(self, tensor: StoredTensor) -> Iterator[npt.NDArray[Any]]:
        """The tensor's elements one after the other, in pieces that are read and not mapped; bfloat16 comes widened.

        Raises:
            ModelFileError: the file has been cut since it was opened.
        """
        spec, left = tensor.spec, tensor.spec.size_bytes
        with self.path.open("rb") as file:
            file.seek(tensor.start)
            while left:
                data = file.read(min(left, _BLOCK * DTYPE_BYTES[spec.dtype]))
                if len(data) % DTYPE_BYTES[spec.dtype] or not data:
                    raise ModelFileError(f"the file ends in the tensor {spec.name!r}")
                left -= len(data)
                block: npt.NDArray[Any] = np.frombuffer(data, _NUMPY[spec.dtype])
                yield widen(block) if spec.dtype == "BF16" else block


def open_model(path: Path) -> ModelFile:
    """Reads the header of a safetensors file and checks it against the file.

    Raises:
        ModelFileError: the file is truncated, its header lies, or it exceeds the limits.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        length = _header_length(file.read(_PREFIX), size)
        return ModelFile(path, _known_tensors(file.read(length), size))


def model_specs(content: bytes) -> tuple[TensorSpec, ...]:
    """The tensors of the safetensors file `content`, in name order.

    Raises:
        ModelFileError: as `open_model`.
    """
    length = _header_length(content[:_PREFIX], len(content))
    text = content[_PREFIX : _PREFIX + length]
    return tuple(tensor.spec for tensor in _known_tensors(text, len(content)))


def check_model(path: Path, contract: ModelContract) -> ModelFile:
    """Opens a file and holds it against a contract: layout first, then every value.

    Raises:
        ModelFileError: with every reason that was found, each naming the tensor.
    """
    check = ModelCheck(contract, path.stat().st_size)
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            check.feed(piece)
    check.finish()
    return ModelFile(path, check.tensors)


class ModelCheck:
    """A model file held against a contract while it comes in, so that nothing of it has to be read again.

        check = ModelCheck(contract, size)
        for piece in pieces:
            check.feed(piece)
        check.finish()

    Args:
        size: bytes of the whole file.

    Raises:
        ModelFileError: on construction, `feed` and `finish`, as soon as it shows that the file will not do.
    """

    def __init__(self, contract: ModelContract, size: int) -> None:
        if size > contract.max_bytes:
            raise ModelFileError(f"the file has {size} bytes; the task accepts at most {contract.max_bytes}")
        self.tensors: tuple[StoredTensor, ...] = ()
        self._contract = contract
        self._size = size
        self._fed = 0
        self._header: bytearray | None = bytearray()
        self._coming: list[StoredTensor] = []
        self._values = _Values("", "")
        self._squares: list[float] = []
        #: Euclidean norm of all floating-point tensors together, once the file is whole.
        self.norm = math.nan

    def feed(self, piece: bytes | memoryview) -> None:
        """Takes the next bytes of the file."""
        rest = memoryview(piece)
        self._fed += len(rest)
        if self._header is not None:
            rest = self._feed_header(rest)
        while rest and self._coming:
            tensor = self._coming[-1].spec
            missing = tensor.size_bytes - self._values.fed
            self._values.feed(rest[:missing])
            rest = rest[missing:]
            if self._values.fed == tensor.size_bytes:
                self._squares.append(self._values.squares())
                self._coming.pop()
                self._begin_tensor()

    def finish(self) -> None:
        """The file is whole."""
        if self._fed != self._size:
            raise ModelFileError(f"the file ends at byte {self._fed} of {self._size}")
        if self._header is not None:
            _header_length(bytes(self._header), self._size)
        self.norm = math.sqrt(math.fsum(self._squares))
        limit = self._contract.max_norm
        if Decimal(self.norm) > limit:
            raise ModelFileError(f"the model's norm is {self.norm:.6g}; the task accepts at most {limit}")

    def _feed_header(self, rest: memoryview) -> memoryview:
        """Collects the header; returns what follows it."""
        assert self._header is not None
        rest = self._collect(rest, _PREFIX)
        if len(self._header) < _PREFIX:
            return rest
        end = _PREFIX + _header_length(bytes(self._header[:_PREFIX]), self._size)
        rest = self._collect(rest, end)
        if len(self._header) < end:
            return rest
        text = bytes(self._header[_PREFIX:])
        self.tensors = _known_tensors(text, self._size)
        if reasons := _layout_reasons(self.tensors, self._contract):
            raise ModelFileError(*reasons)
        self._header = None
        self._coming = sorted(
            (t for t in self.tensors if t.spec.size_bytes), key=lambda t: t.start, reverse=True
        )
        self._begin_tensor()
        return rest

    def _collect(self, rest: memoryview, end: int) -> memoryview:
        """Adds to the header up to its byte `end`; returns what is left over."""
        assert self._header is not None
        taken = max(0, end - len(self._header))
        self._header += rest[:taken]
        return rest[taken:]

    def _begin_tensor(self) -> None:
        if self._coming:
            spec = self._coming[-1].spec
            self._values = _Values(spec.name, spec.dtype)


class _Values:
    """The values of one tensor as they come: the sum of their squares, and how many are not finite."""

    def __init__(self, name: str, dtype: str) -> None:
        self.fed = 0
        self._name = name
        self._dtype = dtype
        self._cut = b""  # the first bytes of an element whose rest is in the next piece
        self._total = 0.0
        self._bad = 0

    def feed(self, data: memoryview) -> None:
        self.fed += len(data)
        if self._dtype not in _FLOATING:
            return
        width = DTYPE_BYTES[self._dtype]
        if self._cut:
            missing = width - len(self._cut)
            self._cut += data[:missing]
            data = data[missing:]
            if len(self._cut) < width:
                return
            self._add(self._cut)
        whole = len(data) - len(data) % width
        for first in range(0, whole, _BLOCK * width):
            self._add(data[first : min(whole, first + _BLOCK * width)])
        self._cut = bytes(data[whole:])

    def squares(self) -> float:
        """The sum of the squares of all values.

        Raises:
            ModelFileError: it is not finite.
        """
        if self._bad:
            raise ModelFileError(f"tensor {self._name!r} has {self._bad} values that are NaN or infinite")
        if not math.isfinite(self._total):
            raise ModelFileError(f"tensor {self._name!r} is too large: the sum of its squares overflows")
        return self._total

    def _add(self, data: bytes | memoryview) -> None:
        block: npt.NDArray[Any] = np.frombuffer(data, _NUMPY[self._dtype])
        if self._dtype == "BF16":
            block = widen(block)
        squares = _squares(block)
        if not math.isfinite(squares):
            self._bad += int(block.size - np.count_nonzero(np.isfinite(block)))
        self._total += squares


def changed(pairs: Iterable[tuple[npt.NDArray[Any], npt.NDArray[Any]]], least: float = LEAST_CHANGE) -> bool:
    """Whether weights moved: |new - old| > least * |old|, Euclidean norms over all pairs (new, old) together."""
    change = length = 0.0
    for new, old in pairs:
        fresh, was = new.reshape(-1), old.reshape(-1)
        for first in range(0, was.size, _ELEMENTS):
            block = was[first : first + _ELEMENTS].astype(np.float64)
            step = fresh[first : first + _ELEMENTS].astype(np.float64) - block
            change, length = change + float(np.dot(step, step)), length + float(np.dot(block, block))
    return change > least**2 * length


def encode_model(weights: Weights) -> bytes:
    """The safetensors bytes of `weights`; equal weights give equal bytes.

    Raises:
        FieldError: no tensor, a name that is not a short string, or an element type that safetensors has not.
    """
    if not weights:
        raise FieldError("weights", {}, "at least one tensor")
    arrays = {}
    for name in sorted(weights):
        spec = tensor_spec(name, weights[name])
        arrays[name] = np.ascontiguousarray(weights[name], dtype=_NUMPY[spec.dtype]).reshape(spec.shape)
    return bytes(save(arrays))


def tensor_spec(name: str, array: npt.NDArray[Any]) -> TensorSpec:
    """Name, element type and shape of an array as a contract writes them.

    Raises:
        FieldError: an element type that safetensors has not.
    """
    dtype = _SAFETENSORS.get(np.asarray(array).dtype.newbyteorder("<"))
    if dtype is None:
        raise FieldError(
            f"weights[{name}].dtype", str(np.asarray(array).dtype), "one of " + ", ".join(DTYPE_BYTES)
        )
    return TensorSpec(name, dtype, tuple(int(n) for n in np.asarray(array).shape))


def stored_spec(name: str, array: npt.NDArray[Any], wanted: TensorSpec | None) -> TensorSpec:
    """As what an array is written where a contract wants `wanted` under its name.

    As what it is; but a float32 array as BF16 where that is wanted, since NumPy has no such type.

    Raises:
        FieldError: an element type that safetensors has not.
    """
    if wanted is not None and wanted.dtype == "BF16" and array.dtype == np.float32:
        return TensorSpec(name, "BF16", tuple(int(n) for n in array.shape))
    return tensor_spec(name, array)


def stored_block(block: npt.NDArray[Any], dtype: str) -> bytes:
    """The bytes of a piece of an array that is written as `dtype` of `stored_spec`."""
    stored = narrow(block) if dtype == "BF16" else block.astype(_NUMPY[dtype], copy=False)
    return bytes(stored.tobytes())


def header(layout: Sequence[TensorSpec]) -> bytes:
    """The length and the header of a file of these tensors, one after the other; ends at a multiple of 8 bytes."""
    entries: dict[str, Any] = {}
    position = 0
    for spec in layout:
        end = position + spec.size_bytes
        entries[spec.name] = {"dtype": spec.dtype, "shape": list(spec.shape), "data_offsets": [position, end]}
        position = end
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(_PREFIX, "little") + text


def check_header(specs: Sequence[TensorSpec]) -> None:
    """Raises ModelFileError where a file of these tensors, however it lays them out, could have too long a header.

    Writers differ in the order, which changes the offsets' digits, and some write what is not ASCII as escapes.
    """
    plain = header(sorted(specs, key=lambda spec: spec.size_bytes, reverse=True))
    names = "".join(spec.name for spec in specs)
    escaped = len(json.dumps(names)) - len(json.dumps(names, ensure_ascii=False).encode())
    if (most := len(plain) + escaped) > MAX_MODEL_HEADER_BYTES:
        raise ModelFileError(
            f"its {len(specs)} tensors need a header of {most} bytes; at most {MAX_MODEL_HEADER_BYTES} are accepted"
        )


def contract_of(weights: Weights, max_norm: Decimal, max_bytes: int) -> ModelContract:
    """The contract that asks for models like `weights`."""
    return ModelContract(tuple(tensor_spec(n, weights[n]) for n in sorted(weights)), max_norm, max_bytes)


def file_digest(path: Path) -> bytes:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def frames(path: Path, offset: int = 0, size: int = FRAME_BYTES) -> Iterator[tuple[int, bytes]]:
    """The file from `offset` on, in frames of `size` bytes: (offset, bytes)."""
    with path.open("rb") as file:
        file.seek(offset)
        while data := file.read(size):
            yield offset, data
            offset += len(data)


def _header_length(prefix: bytes, size: int) -> int:
    length = int.from_bytes(prefix, "little")
    if len(prefix) < _PREFIX or length > size - _PREFIX:
        raise ModelFileError(
            f"not a safetensors file: its {size} bytes do not hold the header that it announces"
        )
    if length > MAX_MODEL_HEADER_BYTES:
        raise ModelFileError(f"the header has {length} bytes; at most {MAX_MODEL_HEADER_BYTES} are accepted")
    return length


def _tensors(text: bytes, size: int) -> tuple[StoredTensor, ...]:
    """What the header `text` of a file of `size` bytes announces, in name order."""
    try:
        header = json.loads(text, object_pairs_hook=_unique_members)
    except (ValueError, RecursionError):
        raise ModelFileError("not a safetensors file: its header is not JSON") from None
    if not isinstance(header, dict):
        raise ModelFileError("not a safetensors file: its header is not a JSON object")
    header.pop("__metadata__", None)
    if len(header) > MAX_TENSORS:
        raise ModelFileError(f"the file has {len(header)} tensors; at most {MAX_TENSORS} are accepted")
    start = _PREFIX + len(text)
    found = [_stored(name, entry, start) for name, entry in header.items()]
    _check_gapless(found, start, size)
    return tuple(sorted(found, key=lambda t: t.spec.name))


#: What a round's participants send begins with the same header.
_tensors_of_short = lru_cache(maxsize=8)(_tensors)
_tensors_of_long = lru_cache(maxsize=1)(_tensors)


def _known_tensors(text: bytes, size: int) -> tuple[StoredTensor, ...]:
    """`_tensors`, remembered."""
    return (_tensors_of_short if len(text) <= _SHORT_HEADER else _tensors_of_long)(text, size)


def _unique_members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a name occurs twice")
    return members


def _stored(name: str, entry: Any, start: int) -> StoredTensor:
    if len(name) > MAX_TENSOR_NAME:
        raise ModelFileError(
            f"a tensor's name has {len(name)} characters; at most {MAX_TENSOR_NAME} are accepted"
        )
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise ModelFileError(f"tensor {name!r}: expected exactly dtype, shape and data_offsets")
    shape, offsets = entry["shape"], entry["data_offsets"]
    if not _naturals(shape) or len(shape) > MAX_DIMENSIONS:
        raise ModelFileError(f"tensor {name!r}: the shape is not a list of at most {MAX_DIMENSIONS} sizes")
    if not _naturals(offsets) or len(offsets) != 2:
        raise ModelFileError(f"tensor {name!r}: data_offsets are not two positions")
    try:
        spec = TensorSpec(name, entry["dtype"], tuple(shape))
    except (FieldError, TypeError) as error:
        raise ModelFileError(f"tensor {name!r}: {error}") from None
    if offsets[1] - offsets[0] != spec.size_bytes:
        raise ModelFileError(
            f"tensor {name!r}: {offsets[1] - offsets[0]} bytes are announced, shape and dtype need {spec.size_bytes}"
        )
    return StoredTensor(spec, start + offsets[0])


def _naturals(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(n, int) and not isinstance(n, bool) and 0 <= n < 2**63 for n in value
    )


def _check_gapless(found: list[StoredTensor], start: int, size: int) -> None:
    position = start
    for tensor in sorted(found, key=lambda t: (t.start, t.spec.size_bytes)):
        if tensor.start != position:
            raise ModelFileError(f"tensor {tensor.spec.name!r} begins at {tensor.start}, expected {position}")
        position += tensor.spec.size_bytes
    if position != size:
        raise ModelFileError(f"the tensors end at byte {position}, the file at {size}")


def _layout_reasons(tensors: Sequence[StoredTensor], contract: ModelContract) -> list[str]:
    have = {t.spec.name: t.spec for t in tensors}
    want = {spec.name: spec for spec in contract.tensors}
    reasons = [f"tensor {name!r} is missing" for name in want if name not in have]
    reasons += [f"tensor {name!r} is not in the contract" for name in have if name not in want]
    for name in want.keys() & have.keys():
        if have[name] != want[name]:
            reasons.append(
                f"tensor {name!r} is {have[name].dtype} of shape {list(have[name].shape)}; "
                f"expected {want[name].dtype} of shape {list(want[name].shape)}"
            )
    return sorted(reasons)


def _squares(block: npt.NDArray[Any]) -> float:
    """Sum of squares: in the block's own float32 where that is finite, which is faster, else in float64."""
    with np.errstate(over="ignore", invalid="ignore"):  # an overflow is what is looked for
        if block.dtype == np.float32:
            total = float(np.dot(block, block))
            if math.isfinite(total):
                return total
        wide = block.astype(np.float64)
        return float(np.dot(wide, wide))


def widen(bfloat16: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """bfloat16 is the upper half of a float32."""
    return (bfloat16.astype(np.uint32) << 16).view(np.float32)


def narrow(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """The nearest bfloat16s, half to even, little-endian: adds half of the dropped half, and the last kept bit.

    What is not a number stays so; what is beyond the largest becomes infinite, as everywhere in IEEE 754.
    """
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) >> 16
    rounded = np.where(np.isnan(values), (bits >> 16) | 0x40, rounded)
    return rounded.astype("<u2")
