"""A workload by name: "package.module:factory", with options, from the operator's own folders.

    source = WorkloadSource("shop.models:make_mlp", {"hidden": 64}, folders=("/srv/task",))
    source.files()             # what the factory is made of, each file with its SHA-256
    workload = source.load()   # in this process; `IsolatedWorkload(source)` in one of its own

The factory's code is never sent: each side has it. So that both have the same, the terms can name the digest of the
factory's file and of those that it declares beside it,

    sources = ["layers.py", "tables.py"]     # in the factory's module; paths from its folder

which is read without running anything.
"""

import ast
import hashlib
import importlib
import json
import multiprocessing
import sys
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from functools import cache
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, cast

from fedpeer.extras import missing
from fedpeer.learning.errors import LearningError, WorkloadError
from fedpeer.learning.samples import Samples, Weights
from fedpeer.learning.workers import begin_worker
from fedpeer.learning.workloads.protocol import HasGradients, Judged, NewWeights, Workload
from mechanism.errors import kind_of
from mechanism.terms import Recipe

#: The factory of every architecture of `fedpeer.learning.models`, which are known by their own names.
_CNNS = "fedpeer.learning.workloads.cnns:CnnWorkload"


@dataclass(frozen=True)
class WorkloadSource:
    """Where a workload comes from.

    Attributes:
        factory: "package.module:name" of what gives a `Workload`.
        options: its keyword arguments; JSON values.
        folders: looked in for the module before Python's own path.
    """

    factory: str
    options: Mapping[str, Any] = field(default_factory=dict)
    folders: tuple[str, ...] = ()

    @classmethod
    def of_architecture(cls, name: str) -> "WorkloadSource":
        """One of the paper's CNNs by its name."""
        return cls(_CNNS, {"name": name})

    def load(self) -> Workload:
        """The workload, made in this process, once for equal sources.

        Raises:
            WorkloadError: no such module or name, options that the factory refuses, or something that is no workload.
        """
        return _loaded(self.factory, json.dumps(dict(self.options), sort_keys=True), self.folders)

    def files(self) -> dict[str, str]:
        """SHA-256, hexadecimal, of the factory's file and of each of its `sources`, by its path from the folder of the
        factory's file; nothing is run.

        Raises:
            WorkloadError: a module or a file that is not there, or `sources` that are no list of file names.
        """
        module, _ = self._parts()
        path = _module_file(module, self.folders)
        found = {path.name: path}
        for name in _declared_sources(path):
            other = path.parent / name
            if not other.is_file():
                raise WorkloadError(f"{path} declares the source {name!r}, which is not a file beside it")
            found[name] = other
        return {name: hashlib.sha256(found[name].read_bytes()).hexdigest() for name in sorted(found)}

    def digest(self) -> str:
        """SHA-256, hexadecimal, over the factory's name, its options and its files."""
        text = json.dumps([self.factory, dict(self.options), self.files()], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def _parts(self) -> tuple[str, str]:
        module, colon, name = self.factory.partition(":")
        if not (module and colon and name):
            raise WorkloadError(
                f"the workload is {self.factory!r}; expected package.module:factory, or the name of an architecture"
            )
        return module, name


def difference(own: Mapping[str, str], other: Mapping[str, str]) -> str:
    """In words, in which files two sources of one factory differ; empty where they are the same."""
    changed = sorted(name for name in own.keys() & other.keys() if own[name] != other[name])
    parts = [f"{name} is another" for name in changed]
    parts += [f"{name} is missing here" for name in sorted(other.keys() - own.keys())]
    parts += [f"{name} is not in the task's" for name in sorted(own.keys() - other.keys())]
    return "; ".join(parts)


@cache
def _loaded(factory: str, options: str, folders: tuple[str, ...]) -> Workload:
    source = WorkloadSource(factory, json.loads(options), folders)
    module, name = source._parts()
    for folder in reversed(folders):
        if folder not in sys.path:
            sys.path.insert(0, folder)
    try:
        make = getattr(importlib.import_module(module), name)
    except Exception as error:  # an import runs whatever the module does
        lacking = missing(error) if isinstance(error, ImportError) else None
        raise WorkloadError(
            f"the workload {factory} cannot be imported: {lacking or f'{type(error).__name__}: {error}'}"
        ) from error
    try:
        workload = make(**source.options)
    except Exception as error:
        raise WorkloadError(
            f"{factory} with the options {dict(source.options)} failed: {_said(error)}"
        ) from error
    lacks = [n for n in ("classes", "trainable", "build", "train", "judge") if not hasattr(workload, n)]
    if lacks:
        raise WorkloadError(
            f"{factory} gives {kind_of(workload)}, which lacks {', '.join(lacks)}; expected a Workload"
        )
    return cast("Workload", workload)


def _module_file(module: str, folders: tuple[str, ...]) -> Path:
    """The file of a module, found without running it or the packages above it."""
    places: list[str] | None = [*folders, *sys.path]
    spec = None
    parts = module.split(".")
    for depth in range(len(parts)):
        spec = PathFinder.find_spec(".".join(parts[: depth + 1]), places)
        if spec is None:
            break
        places = list(spec.submodule_search_locations or ())
    if spec is None or not spec.origin or not Path(spec.origin).is_file():
        looked = ", ".join(folders) or "Python's path"
        raise WorkloadError(f"there is no module {module} in {looked}; expected its .py file there")
    return Path(spec.origin)


def _declared_sources(path: Path) -> list[str]:
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError) as error:
        raise WorkloadError(f"{path} is no Python file: {error}") from None
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        if any(isinstance(target, ast.Name) and target.id == "sources" for target in targets):
            try:
                names = ast.literal_eval(cast("ast.Assign", node).value)
            except ValueError:
                names = None
            plain = isinstance(names, list | tuple) and all(isinstance(name, str) for name in names)
            if not plain or any(Path(name).is_absolute() or ".." in Path(name).parts for name in names):
                raise WorkloadError(
                    f"{path}: sources is not a plain list of the names of files below its folder; expected one such as "
                    '["layers.py"]'
                )
            return list(names)
    return []


class IsolatedWorkload:
    """A workload in a process of its own, so that its crash or its want of memory costs a call and no service.

    Raises:
        WorkloadError: as `WorkloadSource.load`; of every call, where the workload fails in it or its process dies.
    """

    def __init__(self, source: WorkloadSource) -> None:
        self._source = source
        self._pool: ProcessPoolExecutor | None = None
        self.classes, self.trainable, self._gradients = self._call("describe")

    def build(self, seed: int) -> NewWeights:
        return cast("NewWeights", self._call("build", seed))

    def train(self, weights: Weights, samples: Samples, recipe: Recipe, seed: int) -> NewWeights:
        return cast("NewWeights", self._call("train", dict(weights), samples, recipe, seed))

    def judge(self, weights: Weights, samples: Samples) -> Judged:
        return cast("Judged", self._call("judge", dict(weights), samples))

    def gradient_sizes(self, weights: Weights, samples: Samples) -> Mapping[str, float]:
        """Nothing where the workload tells no gradients."""
        if not self._gradients:
            return {}
        return cast("Mapping[str, float]", self._call("gradient_sizes", dict(weights), samples))

    def close(self) -> None:
        """Ends the process; a later call starts another."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None

    def _call(self, method: str, *arguments: Any) -> Any:
        if self._pool is None:
            # Spawned: a fork of a process with running threads may hang.
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(1, context, initializer=begin_worker)
        try:
            return self._pool.submit(_answer, self._source, method, arguments).result()
        except BrokenProcessPool as error:
            self.close()
            raise WorkloadError(
                f"the process of the workload {self._source.factory} died in {method}; is there enough memory?"
            ) from error


def _answer(source: WorkloadSource, method: str, arguments: tuple[Any, ...]) -> Any:
    """In the child: what the workload says; its mistakes as sentences, which travel where exceptions may not."""
    workload = source.load()
    if method == "describe":
        return workload.classes, workload.trainable, isinstance(workload, HasGradients)
    try:
        return getattr(workload, method)(*arguments)
    except LearningError:
        raise
    except Exception as error:
        raise WorkloadError(f"{source.factory} failed in {method}: {_said(error)}") from None


def _said(error: BaseException) -> str:
    """An exception of somebody else's code in one line, with the last place in a file."""
    place, trace = "", error.__traceback__
    while trace is not None:
        place = f" ({Path(trace.tb_frame.f_code.co_filename).name}, line {trace.tb_lineno})"
        trace = trace.tb_next
    return f"{type(error).__name__}: {error}{place}"
