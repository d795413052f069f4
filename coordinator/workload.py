"""A task's workload, as the coordinator runs it: fedpeer's own here, an operator's in a process of its own."""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mechanism.terms import Recipe

if TYPE_CHECKING:  # they import torch, which most commands do without
    from fedpeer.learning.workloads.protocol import Workload


def workload_of(recipe: Recipe, folder: Path | None) -> "Workload | None":
    """The workload that a recipe names; None for "custom".

    Args:
        folder: where the factory's module is looked for before Python's own path.

    Raises:
        WorkloadError: a factory that is not there, is not the terms' own, or gives no workload or another frozen base.
    """
    if recipe.model == "custom":
        return None
    from fedpeer.learning.workloads.loading import WorkloadSource

    source = WorkloadSource.of_recipe(recipe, folders_of(folder))
    assert source is not None, "only a custom model has none"
    if recipe.source is None:
        return source.load()
    source.checked()  # the process of one that was loaded before would not look again
    expected = json.dumps(recipe.source.digests)
    return _isolated(source.factory, recipe.source.options, source.folders, expected, source.frozen)


def end(workload: "Workload | None") -> None:
    """Ends what runs for a workload; it starts again where it is needed."""
    close = getattr(workload, "close", None)
    if close is not None:
        close()


def folders_of(folder: Path | None) -> tuple[str, ...]:
    """Where modules of factories are looked for."""
    return () if folder is None else (str(folder),)


def folder_of(settings: Mapping[str, Any]) -> Path | None:
    """That of a stored task."""
    return None if settings.get("folder") is None else Path(settings["folder"])


def runs_apart(recipe: Recipe) -> bool:
    """Whether the workload's code is an operator's own."""
    return recipe.source is not None


@cache
def _isolated(factory: str, options: str, folders: tuple[str, ...], expected: str, frozen: str) -> "Workload":
    """One process for all who ask for the same; it ends when one of them closes it, and starts again."""
    from fedpeer.learning.workloads.loading import IsolatedWorkload, WorkloadSource

    return IsolatedWorkload(
        WorkloadSource(factory, json.loads(options), folders, json.loads(expected), frozen)
    )
