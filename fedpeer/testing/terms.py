"""A task for a local market: small terms whose phases end as soon as everybody is in, and changes of them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coordinator.config import TaskConfig, resolve_paths, validated_config
from fedpeer.protocol.model_file import encode_model
from mechanism.terms import MIN_QUORUM
from participant import Weights

#: Terms of a task unless the caller has others: the paper's smallest Phi and Upsilon, a Q that pays about 1.6 credits a
#: round for good data, phases of ten minutes.
DEFAULTS: Mapping[str, Any] = {
    "id": "task",
    "Q": "1000",
    "phi": "300",
    "upsilon": "200",
    "seed": 7,
    "rule": {"name": "paper"},
    "schedule": {"rounds": 2, "quorum": MIN_QUORUM, "effort_seconds": 600, "round_seconds": 600},
    "recipe": {"model": "custom", "samples": 100},
}


def merged(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`values` with `changes`, section by section; a key that is changed to None is left out."""
    result = dict(values)
    for key, value in changes.items():
        known = result.get(key)
        result[key] = (
            {**known, **value} if isinstance(known, Mapping) and isinstance(value, Mapping) else value
        )
    return {key: value for key, value in result.items() if value is not None}


def task_config(
    folder: Path, weights: Weights | None = None, *, paths: Path | None = None, **changes: Any
) -> TaskConfig:
    """The task of `DEFAULTS` with `changes`, which are keys and sections of a task file.

    Args:
        folder: where the first model is written.
        paths: what relative paths of the changes are taken from; None: `folder`.
        weights: the first model; None: the one that the changes name, or the architecture's own.

    Raises:
        ConfigError: an unknown or missing key, or a value out of its range.
    """
    values = merged(DEFAULTS, changes)
    if weights is not None:
        path = folder / f"{values['id']}-initial.safetensors"
        path.write_bytes(encode_model(dict(weights)))
        values["initial_model"] = str(path.absolute())
    return resolve_paths(validated_config(values, TaskConfig, Path("terms")), paths or folder)
