"""Model files of rounds that are not finished.

A trained model is written tensor by tensor, so that no second copy of it is ever in memory, in exactly the bytes
of `fedpeer.protocol.model_file.encode_model`: the same weights have the same digest, no matter which writes them.
"""

import logging
import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedpeer.protocol.model_file import (
    ModelFileError,
    changed,
    check_model,
    header,
    open_model,
    stored_block,
    stored_spec,
)
from mechanism.errors import FieldError, kind_of
from mechanism.privacy import noised
from mechanism.terms import ModelContract, Terms
from participant.errors import StateError, WeightsError
from participant.identity import stored
from participant.task import Weights

#: The order in which safetensors lays element types out, widest alignment first.
_LAYOUT = ("I64", "F64", "F32", "I32", "BF16", "F16", "I16", "I8", "U8", "BOOL")

#: Bytes written at once.
_BLOCK = 4 << 20

#: What torch puts before the names of a module that it wraps: torch.compile, and DataParallel with its like.
WRAPPERS = ("_orig_mod", "module")

_log = logging.getLogger("participant")


class ModelStore:
    """The models folder of one participant."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def start(self, task_id: str, round_: int) -> Path:
        """Where the model lies that a round starts from."""
        return self._folder / f"{task_id}-{round_}.start.safetensors"

    def trained(self, task_id: str, round_: int) -> Path:
        """Where the trained model lies until it is recorded."""
        return self._folder / f"{task_id}-{round_}.trained.safetensors"

    def path(self, name: str) -> Path:
        return self._folder / name

    def forget(self, task_id: str, round_: int) -> None:
        """Deletes the files of a finished round."""
        for path in (self.start(task_id, round_), self.trained(task_id, round_)):
            path.unlink(missing_ok=True)
            path.with_suffix(".part").unlink(missing_ok=True)


def read_weights(path: Path) -> dict[str, npt.NDArray[Any]]:
    """The weights in a model file, in memory."""
    try:
        return open_model(path).weights()
    except (OSError, ModelFileError) as error:
        raise StateError(f"{path} cannot be read ({error}); delete it, it is fetched again") from error


def write_weights(path: Path, weights: Weights, contract: ModelContract) -> None:
    """Writes `weights` to `path`, which appears only when the whole file fits the contract.

    Raises:
        WeightsError: names, types, shapes or values that the contract does not allow.
        StateError: the disk is full.
    """
    fresh = path.with_suffix(".new")
    try:
        with stored(fresh):
            _write(fresh, weights, contract)
        check_weights(fresh, contract)
        fresh.replace(path)
    except FieldError as error:
        raise WeightsError(
            f"the trained weights cannot be sent: {error}", public="the trained weights cannot be sent"
        ) from None
    finally:
        fresh.unlink(missing_ok=True)


def write_trained(path: Path, weights: Weights, start: Path, terms: Terms) -> None:
    """As `write_weights`, with the noise of the recipe's privacy where its method is "update".

    The noise comes from the operating system's randomness, and nothing of it is kept.

    Args:
        start: the model file that was trained from.
    """
    privacy = terms.recipe.privacy
    if privacy is not None and privacy.method == "update":
        before = read_weights(start)
        try:
            if not (hasattr(weights, "keys") and hasattr(weights, "items")):
                raise FieldError("weights", kind_of(weights), "a mapping of tensor names to arrays")
            made = _unwrapped(dict(weights.items()), before)
            found = {name: plain_array(name, array) for name, array in made.items()}
            if {n: a.shape for n, a in found.items()} == {n: a.shape for n, a in before.items()}:
                weights = noised(before, found, privacy, np.random.default_rng())
            else:
                raise FieldError("weights", sorted(found), f"{sorted(before)}, in the shapes that came")
        except FieldError as error:
            raise WeightsError(
                f"the trained weights cannot be sent: {error}", public="the trained weights cannot be sent"
            ) from None
    write_weights(path, weights, terms.contract)


def check_weights(path: Path, contract: ModelContract) -> None:
    """Raises WeightsError where the file is not what the contract asks for; deletes it then."""
    try:
        check_model(path, contract)
    except ModelFileError as error:
        path.unlink(missing_ok=True)
        raise WeightsError(
            "the trained weights do not fit the task's model contract:", error.reasons
        ) from None


def moved(start: Path, trained: Path) -> bool:
    """Whether a training changed a model, or one without floating-point weights in any of its others; see `changed`.

    Raises:
        StateError: a file that cannot be read.
    """
    try:
        before, after = open_model(start), open_model(trained)
        old = {tensor.spec: tensor for tensor in before.tensors}
        if old.keys() != {tensor.spec for tensor in after.tensors}:
            return True  # another layout, which is refused for itself
        floating = [t for t in after.tensors if t.spec.dtype in ("F64", "F32", "F16", "BF16")]
        pairs = (
            pair
            for t in floating or after.tensors
            for pair in zip(after.blocks(t), before.blocks(old[t.spec]), strict=True)
        )
        return changed(pairs) if floating else not all(np.array_equal(new, was) for new, was in pairs)
    except (OSError, ModelFileError) as error:
        raise StateError(f"{start} or {trained} cannot be read ({error}); delete both") from error


def plain_array(name: str, value: Any) -> npt.NDArray[Any]:
    """A weight as NumPy's array, whichever library's it is: on the host, without a gradient, bfloat16 as float32.

    Raises:
        FieldError: it is not an array of numbers.
    """
    expected = "an array of numbers, or a tensor that can be read as one"
    try:
        if hasattr(value, "detach") and hasattr(value, "cpu"):
            value = value.detach().cpu()
            value = value.float() if str(value.dtype) == "torch.bfloat16" else value
        if not isinstance(value, np.ndarray) and hasattr(value, "numpy"):  # torch's, TensorFlow's, Flower's
            value = value.numpy()
        if np.ma.is_masked(value):
            raise FieldError(f"weights[{name}]", "a masked array", "a value for each weight")
        array = np.asarray(value)
    except FieldError:
        raise
    except Exception as error:  # each library has its own
        what = f"{kind_of(value)} ({str(error).partition('.')[0]})"
        raise FieldError(f"weights[{name}]", what, expected) from None
    if array.dtype.name == "bfloat16":  # of the package ml_dtypes
        return array.astype(np.float32)
    if array.dtype.kind not in "fiub":
        raise FieldError(f"weights[{name}]", f"an array of dtype {array.dtype}", expected)
    return array


def _unwrapped(weights: Weights, wanted: Collection[str]) -> Weights:
    """`weights` under the names of the module inside, where they come under those of a wrapper around it."""
    if weights.keys() == set(wanted):
        return weights
    inside = {".".join(part for part in name.split(".") if part not in WRAPPERS): name for name in weights}
    if len(inside) != len(weights) or inside.keys() != set(wanted):
        return weights
    _log.warning("the trained weights are those of a wrapped module; the module inside it is sent")
    return {name: weights[given] for name, given in inside.items()}


def _write(path: Path, weights: Weights, contract: ModelContract) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if not (hasattr(weights, "keys") and hasattr(weights, "items")):
        raise FieldError(
            "weights",
            f"{kind_of(weights)}",
            "a mapping of tensor names to arrays, or a `Trained` with one",
        )
    if not weights:
        raise FieldError("weights", {}, "at least one tensor")
    for name in weights:
        if not isinstance(name, str):
            raise FieldError("weights", name, "names that are strings")
    wanted = {spec.name: spec for spec in contract.tensors}
    weights = _unwrapped(dict(weights.items()), wanted)
    specs = sorted(
        (stored_spec(name, plain_array(name, weights[name]), wanted.get(name)) for name in weights),
        key=lambda spec: (_LAYOUT.index(spec.dtype), spec.name),
    )
    with path.open("wb") as file:
        file.write(header(specs))
        for spec in specs:
            for block in _blocks(plain_array(spec.name, weights[spec.name]), spec.dtype):
                file.write(block)
        file.flush()
        os.fsync(file.fileno())


def _blocks(array: npt.NDArray[Any], dtype: str) -> Iterator[bytes]:
    """The array's bytes as `dtype`, row-major and little-endian, in pieces."""
    flat = array.reshape(-1)  # a view of whatever is contiguous
    step = max(1, _BLOCK // max(1, array.itemsize))
    for first in range(0, flat.size, step):
        yield stored_block(flat[first : first + step], dtype)
