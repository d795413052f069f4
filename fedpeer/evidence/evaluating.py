"""Submissions looked at in pieces, wherever there are cores: as the coordinator itself would, bit for bit.

What travels to the executor is the task, the observer, the start, a running sum and the paths of model files. An
executor over machines (`coordinator.remote_workers`) sends models and paths as digests of files in the blob store.
Whatever a worker cannot read is looked at here, where a fault of the file is one, and not of the way to it.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np

from fedpeer.evidence.measuring import EvidenceTask
from fedpeer.evidence.observing import Observation, Observer
from fedpeer.learning.arithmetic import one_blas_thread
from fedpeer.learning.models import Weights
from fedpeer.learning.side_by_side import side_by_side
from fedpeer.protocol.model_file import ModelFileError, open_model

#: Submissions in one piece of work, and pieces that are handed out ahead: what is seen of a model takes some 100 KiB.
_PIECE, _AHEAD = 8, 64


def contract_fault(weights: Weights, start: Weights) -> str:
    """Why `weights` are not a model of the start's form; empty where they are."""
    if weights.keys() != start.keys():
        return f"its tensors are {sorted(weights)}, expected {sorted(start)}"
    for name, expected in start.items():
        array = weights[name]
        if array.shape != expected.shape or array.dtype != expected.dtype:
            return (
                f"tensor {name} is {array.dtype} of shape {array.shape}, expected {expected.dtype} of shape "
                f"{expected.shape}"
            )
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            return f"tensor {name} has a NaN or an infinity"
    return ""


def looked_at(task: EvidenceTask, observer: Observer, start: Weights, weights: Weights) -> Observation | str:
    """What is seen of one model on D_c; or why it breaks the contract."""
    if fault := contract_fault(weights, start):
        return fault
    judged = task.workload.judge(weights, task.validation)
    outputs = judged.losses if judged.outputs is None else judged.outputs
    if not (np.isfinite(outputs).all() and np.isfinite(judged.losses).all()):
        return "its outputs on the validation set are not finite"
    return observer.observe(judged, weights)


def look_at_files(
    task: EvidenceTask, observer: Observer, start: Weights, files: Sequence[Path]
) -> list[Observation | str | None]:
    """`looked_at` of each; None where a file is no model, which the caller finds by itself."""
    found: list[Observation | str | None] = []
    with one_blas_thread():
        for file in files:
            try:
                found.append(looked_at(task, observer, start, open_model(file).weights()))
            except ModelFileError:
                found.append(None)
    return found


def all_looked_at(
    task: EvidenceTask, observer: Observer, start: Weights, files: Sequence[Path], executor: Executor
) -> Iterator[Observation | str | None]:
    """`look_at_files` by the executor, in order; None from where files could not be read, too."""
    pieces = (
        partial(look_at_files, task, observer, start, files[first : first + _PIECE])
        for first in range(0, len(files), _PIECE)
    )
    return _in_order(pieces, len(files), executor)


def without_each(
    losses: Callable[[Sequence[tuple[Path, int]]], list[float | None]],
    parts: Sequence[tuple[Path, int]],
    executor: Executor,
) -> Iterator[float | None]:
    """What `losses` says of each part, in pieces, as `all_looked_at`.

    Args:
        losses: of the mean without each of some files of so many samples.
    """
    pieces = (partial(losses, parts[first : first + _PIECE]) for first in range(0, len(parts), _PIECE))
    return _in_order(pieces, len(parts), executor)


def _in_order(pieces: Iterator[Callable[[], list[Any]]], count: int, executor: Executor) -> Iterator[Any]:
    """What the pieces come to, one after another; None for the rest of `count` once a file cannot be read."""
    given = 0
    try:
        for found in side_by_side(executor, pieces, _AHEAD):
            yield from found
            given += len(found)
    except OSError:
        yield from repeat(None, count - given)
