"""Model files of rounds that are not finished.

A trained model is written tensor by tensor, so that no second copy of it is ever in memory, in exactly the bytes
of `fedpeer.protocol.model_file.encode_model`: the same weights have the same digest, whoever wrote them.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedpeer.protocol.model_file import (
    ModelFileError,
    check_model,
    header,
    open_model,
    stored_block,
    stored_spec,
)
from mechanism.errors import FieldError
from mechanism.terms import ModelContract
from participant.errors import StateError, WeightsError
from participant.identity import storage_error
from participant.task import Weights

#: The order in which safetensors lays element types out, widest alignment first.
_LAYOUT = ("I64", "F64", "F32", "I32", "BF16", "F16", "I16", "I8", "U8", "BOOL")

#: Bytes written at once.
_BLOCK = 4 << 20


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
        _write(fresh, weights, contract)
    except FieldError as error:
        raise WeightsError(f"the trained weights cannot be sent: {error}") from None
    except OSError as error:
        fresh.unlink(missing_ok=True)
        raise storage_error(f"{fresh} cannot be written", error) from error
    check_weights(fresh, contract)
    fresh.replace(path)


def check_weights(path: Path, contract: ModelContract) -> None:
    """Raises WeightsError where the file is not what the contract asks for; deletes it then."""
    try:
        check_model(path, contract)
    except ModelFileError as error:
        path.unlink(missing_ok=True)
        raise WeightsError(
            "the trained weights do not fit the task's model contract:", error.reasons
        ) from None


def _write(path: Path, weights: Weights, contract: ModelContract) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if not isinstance(weights, dict) and not hasattr(weights, "items"):
        raise FieldError("weights", weights, "a mapping of tensor names to arrays")
    if not weights:
        raise FieldError("weights", {}, "at least one tensor")
    for name in weights:
        if not isinstance(name, str):
            raise FieldError("weights", name, "names that are strings")
    wanted = {spec.name: spec for spec in contract.tensors}
    specs = sorted(
        (stored_spec(name, np.asarray(weights[name]), wanted.get(name)) for name in weights),
        key=lambda spec: (_LAYOUT.index(spec.dtype), spec.name),
    )
    with path.open("wb") as file:
        file.write(header(specs))
        for spec in specs:
            for block in _blocks(np.asarray(weights[spec.name]), spec.dtype):
                file.write(block)
        file.flush()
        os.fsync(file.fileno())


def _blocks(array: npt.NDArray[Any], dtype: str) -> Iterator[bytes]:
    """The array's bytes as `dtype`, row-major and little-endian, in pieces."""
    flat = array.reshape(-1)  # a view of whatever is contiguous
    step = max(1, _BLOCK // max(1, array.itemsize))
    for first in range(0, flat.size, step):
        yield stored_block(flat[first : first + step], dtype)
