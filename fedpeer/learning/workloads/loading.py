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
import inspect
import json
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib.machinery import (
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    ModuleSpec,
    PathFinder,
    SourceFileLoader,
)
from numbers import Integral
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn, TypeVar, cast

import numpy as np

from fedpeer.extras import missing
from fedpeer.learning.errors import LearningError, ModelError, WorkloadError
from fedpeer.learning.samples import Samples, Weights
from fedpeer.learning.workers import spawned_pool
from fedpeer.learning.workloads.protocol import (
    HasGradients,
    HasStacks,
    Judged,
    NewWeights,
    Workload,
    check_layout,
    followed,
    frozen_of,
    trains_dp_sgd,
)
from mechanism.errors import kind_of
from mechanism.terms import Recipe

Result = TypeVar("Result")

#: Characters of somebody else's exception in a sentence.
_LONGEST_TEXT = 300

#: The factory of every architecture of `fedpeer.learning.models`, which are known by their own names.
_CNNS = "fedpeer.learning.workloads.cnns:CnnWorkload"


@dataclass(frozen=True)
class FactorySource:
    """Where something comes from that a factory makes.

    Attributes:
        factory: "package.module:name" of the factory.
        options: its keyword arguments; JSON values.
        folders: looked in for the module before Python's own path.
        expected: SHA-256 of each file, where others are refused.
    """

    factory: str
    options: Mapping[str, Any] = field(default_factory=dict)
    folders: tuple[str, ...] = ()
    expected: Mapping[str, str] | None = None

    def make(self) -> Any:
        """What the factory gives, made in this process, once for equal sources.

        Raises:
            WorkloadError: no such module or name, other files than are expected, or options that the factory refuses.
        """
        context = self.folders, json.dumps(self.checked())
        with _LOCK:
            _enter(context)
            return _made(self.factory, json.dumps(dict(self.options), sort_keys=True), context)

    def checked(self) -> dict[str, str]:
        """Its files, which are those that are expected. Raises WorkloadError as `make`."""
        files = self.files()
        if self.expected is not None and (other := difference(files, self.expected)):
            raise WorkloadError(f"{self.factory} is not the task's: {other}; put the task's files back")
        return files

    def files(self) -> dict[str, str]:
        """SHA-256, hexadecimal, of the factory's file and of each of its `sources`, by its path from the folder of the
        factory's file; nothing is run.

        Raises:
            WorkloadError: a module or a file that is not there, or `sources` that are no list of file names.
        """
        module, _ = self.parts()
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

    def parts(self) -> tuple[str, str]:
        """Module and name of the factory."""
        module, colon, name = self.factory.partition(":")
        if not (module and colon and name):
            raise WorkloadError(
                f"the factory is {self.factory!r}; expected package.module:factory, or the name of an architecture"
            )
        return module, name


@dataclass(frozen=True)
class WorkloadSource(FactorySource):
    """Where a workload comes from.

    Attributes:
        frozen: of its tensors that do not travel, where others are refused (`HasFrozen`); empty: any.
    """

    frozen: str = ""

    @classmethod
    def of_architecture(cls, name: str) -> "WorkloadSource":
        """One of the paper's CNNs by its name."""
        return cls(_CNNS, {"name": name})

    @classmethod
    def of_recipe(cls, recipe: Recipe, folders: tuple[str, ...] = ()) -> "WorkloadSource | None":
        """That of a task's recipe, whose files and frozen tensors are those of the terms; None for "custom"."""
        if recipe.source is not None:
            source = recipe.source
            return cls(recipe.model, source.keywords, folders, source.digests, source.frozen.hex())
        return None if recipe.model == "custom" else cls.of_architecture(recipe.model)

    def load(self) -> Workload:
        """The workload, made in this process, once for equal sources.

        Raises:
            WorkloadError: as `make`, for something that is no workload, and for other frozen tensors than are expected.
        """
        workload = self.make()
        lacks = [n for n in ("classes", "trainable", "build", "train", "judge") if not hasattr(workload, n)]
        if lacks:
            raise WorkloadError(
                f"{self.factory} gives {kind_of(workload)}, which lacks {', '.join(lacks)}; expected a Workload, "
                "such as TorchWorkload makes of a torch module and SklearnWorkload of an estimator"
            )
        classes, names = workload.classes, workload.trainable
        if classes is not None and (
            isinstance(classes, bool) or not isinstance(classes, Integral) or classes < 2
        ):
            raise WorkloadError(
                f"{self.factory} gives a workload whose classes are {classes!r:.60}; expected a whole number of at "
                "least 2, or None where nothing is classified"
            )
        if not isinstance(names, tuple | list) or not all(isinstance(name, str) for name in names):
            raise WorkloadError(
                f"{self.factory} gives a workload whose trainable is {names!r:.60}; expected a tuple of tensors' names"
            )
        frozen = frozen_of(workload)
        if not isinstance(frozen, str) or not re.fullmatch("(?:[0-9a-f]{64})?", frozen):
            raise WorkloadError(
                f"{self.factory} gives a workload whose frozen is {frozen!r:.60}; expected a SHA-256 in hexadecimal or "
                "an empty text"
            )
        if self.frozen and frozen != self.frozen:
            raise WorkloadError(
                f"{self.factory} makes another frozen base than the task's: its tensors that do not travel have the "
                f"digest {frozen[:16] or 'of none'}, expected {self.frozen[:16]}; install the version of the package, "
                "or put the file, that the base comes from in the task"
            )
        return cast("Workload", workload)


def difference(own: Mapping[str, str], other: Mapping[str, str]) -> str:
    """In words, in which files two sources of one factory differ; empty where they are the same."""
    changed = sorted(name for name in own.keys() & other.keys() if own[name] != other[name])
    parts = [f"{name} is another" for name in changed]
    parts += [f"{name} is missing here" for name in sorted(other.keys() - own.keys())]
    parts += [f"{name} is not in the task's" for name in sorted(own.keys() - other.keys())]
    return "; ".join(parts)


#: Folders of a source, and its files with their digests.
_Context = tuple[tuple[str, ...], str]

_LOCK = threading.RLock()

#: The source whose folders stand at the front of Python's path, and the modules of those that stood there before: two
#: tasks may each have a `model.py`, and a task may have a newer one than the task before it.
_entered: _Context = ((), "")
_aside: dict[_Context, dict[str, ModuleType]] = {}
_before: set[str] = set()


def _enter(context: _Context) -> None:
    """Makes the folders of one source, and of no other, those in which its imports look first."""
    global _entered, _before
    if context == _entered:
        return
    folders = tuple(str(Path(folder)) for folder in _entered[0])
    own = {
        name: module
        for name, module in list(sys.modules.items())  # another thread may import meanwhile
        if name not in _before
        and name.partition(".")[0] not in _OURS
        and _below(getattr(module, "__file__", None), folders)
    }
    for name in own:
        del sys.modules[name]
    _aside[_entered] = own
    for folder in _entered[0]:
        sys.path.remove(folder)
    _before = set(sys.modules)
    _entered = context
    sys.path[:0] = context[0]
    for path in list(sys.path_importer_cache):
        if _below(path, context[0]):
            del sys.path_importer_cache[path]  # `_compiling` finds what is there
    importlib.invalidate_caches()
    sys.modules.update(_aside.pop(context, {}))


class _Compiled(SourceFileLoader):
    """Compiles the file as it is, which is what its digest is of: byte code beside it may be that of another one of the
    same length and second."""

    def path_stats(self, path: Any) -> NoReturn:
        raise OSError(path)  # for which Python leaves byte code alone


def _compiling(path: str) -> FileFinder:
    """The finder of modules in a folder that is entered, or below it."""
    if not (_below(path, _entered[0]) and Path(path).is_dir()):
        raise ImportError(path)
    return FileFinder(path, (_Compiled, SOURCE_SUFFIXES), (ExtensionFileLoader, EXTENSION_SUFFIXES))


sys.path_hooks.insert(0, _compiling)

#: Packages that stay even where a task's folder is the one that they are in.
_OURS = ("fedpeer", "mechanism", "coordinator", "participant")


def _below(file: str | None, folders: Sequence[str]) -> bool:
    return (
        file is not None
        and "site-packages" not in file
        and any(Path(file).is_relative_to(f) for f in folders)
    )


@cache
def _made(factory: str, options: str, context: _Context) -> Any:
    source = FactorySource(factory, json.loads(options), context[0])
    module, name = source.parts()
    try:
        make = getattr(importlib.import_module(module), name)
    except (Exception, SystemExit) as error:  # an import runs whatever the module does
        lacking = missing(error) if isinstance(error, ImportError) else None
        raise WorkloadError(
            f"{factory} cannot be imported: {lacking or f'{type(error).__name__}: {error}'}"
        ) from error
    try:
        inspect.signature(make).bind(**source.options)
    except TypeError as error:
        raise WorkloadError(
            f"{factory} is called with the options {dict(source.options)} and nothing else, which does not go: {error}"
        ) from None
    except ValueError:  # of what is written in C, Python may not know it
        pass
    try:
        return make(**source.options)
    except (Exception, SystemExit) as error:
        raise WorkloadError(
            f"{factory} with the options {dict(source.options)} failed: {_said(error)}"
        ) from error


@contextmanager
def calling(what: str) -> Iterator[None]:
    """A failure of somebody else's code inside becomes a WorkloadError of one sentence."""
    try:
        yield
    except LearningError:
        raise
    except (Exception, SystemExit) as error:
        raise WorkloadError(f"{what} failed: {_said(error)}") from None


def apart(factory: str, function: Callable[..., Result], *arguments: Any) -> Result:
    """`function(*arguments)` in a process of its own, which ends with it.

    Args:
        factory: whose code it runs, for the message.

    Raises:
        WorkloadError: the process died.
    """
    with spawned_pool(1) as pool:
        try:
            return pool.submit(function, *arguments).result()
        except BrokenProcessPool as error:
            raise WorkloadError(f"the process that ran {factory} died; is there enough memory?") from error


def _module_file(module: str, folders: tuple[str, ...]) -> Path:
    """The file of a module, found without running it or the packages above it."""
    spec, places = None, list(folders)
    parts = module.split(".")
    for depth in range(len(parts)):
        name = ".".join(parts[: depth + 1])
        spec = PathFinder.find_spec(name, places) or (_found(name) if depth == 0 else None)
        if spec is None:
            break
        places = list(spec.submodule_search_locations or ())
    if spec is None or not spec.origin or not Path(spec.origin).is_file():
        looked = ", ".join(folders) or "Python's path"
        raise WorkloadError(f"there is no module {module} in {looked}; expected its .py file there")
    return Path(spec.origin)


def _found(name: str) -> ModuleSpec | None:
    """Where Python would find a module at the top; an editable install is on no path, but has a finder of its own."""
    for finder in sys.meta_path:
        if spec := finder.find_spec(name, None):
            return spec
    return None


def _declared_sources(path: Path) -> list[str]:
    try:
        tree = ast.parse(path.read_bytes(), path.name)
    except (SyntaxError, ValueError) as error:
        raise WorkloadError(f"{path} is no Python file: {error}") from None
    for node in tree.body:
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
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
        self._lock = threading.RLock()
        self._pool: ProcessPoolExecutor | None = None
        described = self._call("describe")
        self.classes, self.trainable, self.frozen = described[:3]
        self.dp_sgd, self.stacks, self.follows, self._gradients = described[3:]

    def build(self, seed: int) -> NewWeights:
        return cast("NewWeights", self._call("build", seed))

    def train(self, weights: Weights, samples: Samples, recipe: Recipe, seed: int) -> NewWeights:
        return cast("NewWeights", self._call("train", dict(weights), samples, recipe, seed))

    def train_stacked(
        self, weights: Weights, samples: Sequence[Samples], recipe: Recipe, seeds: Sequence[int], device: str
    ) -> list[NewWeights]:
        arguments = dict(weights), samples, recipe, seeds, device
        return cast("list[NewWeights]", self._call("train_stacked", *arguments))

    def judge(self, weights: Weights, samples: Samples) -> Judged:
        return cast("Judged", self._call("judge", dict(weights), samples))

    def gradient_sizes(self, weights: Weights, samples: Samples) -> Mapping[str, float]:
        """Nothing where the workload tells no gradients."""
        if not self._gradients:
            return {}
        return cast("Mapping[str, float]", self._call("gradient_sizes", dict(weights), samples))

    def close(self) -> None:
        """Ends the process after the calls in progress; a later call starts another."""
        with self._lock:
            if self._pool is not None:
                self._pool.shutdown(wait=False)
                self._pool = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Sent to another process it is the workload itself there."""
        return WorkloadSource.load, (self._source,)

    def _call(self, method: str, *arguments: Any) -> Any:
        try:
            with self._lock:
                if self._pool is None:
                    self._pool = spawned_pool(1)
                future = self._pool.submit(_answer, self._source, method, arguments)
            return future.result()
        except BrokenProcessPool as error:
            self.close()
            raise WorkloadError(
                f"the process of the workload {self._source.factory} died in {method}; is there enough memory?"
            ) from error


def _answer(source: WorkloadSource, method: str, arguments: tuple[Any, ...]) -> Any:
    """In the child: what the workload says; its mistakes as sentences, which travel where exceptions may not."""
    workload = source.load()
    if method == "describe":
        gradients = isinstance(workload, HasGradients)
        abilities = (
            trains_dp_sgd(workload),
            isinstance(workload, HasStacks) and workload.stacks,
            followed(workload),
        )
        return workload.classes, workload.trainable, frozen_of(workload), *abilities, gradients
    with calling(f"{source.factory} in {method}"):
        found = getattr(workload, method)(*arguments)
        if odd := _oddness(workload, method, arguments, found):
            raise WorkloadError(f"{source.factory} in {method} gives {odd}")
        return found


def _oddness(workload: Workload, method: str, arguments: tuple[Any, ...], found: Any) -> str:
    """In words, what is wrong with what a method of a workload gives; empty where nothing is."""
    if method == "judge":
        return "" if isinstance(found, Judged) else f"{kind_of(found)}; expected a Judged"
    if method not in ("build", "train"):
        return ""
    if not isinstance(found, Mapping) or not all(isinstance(array, np.ndarray) for array in found.values()):
        return f"{kind_of(found)}; expected a mapping of names to NumPy's arrays"
    if lacking := sorted(set(workload.trainable) - found.keys()):
        return f"tensors without {', '.join(lacking):.200}, which its trainable names"
    if method == "train":
        try:
            check_layout(found, arguments[0])
        except ModelError as error:
            return f"another model than it was given: {error}"
    return ""


def _said(error: BaseException) -> str:
    """An exception of somebody else's code in one line of bounded length, with the last place in a file."""
    place, trace = "", error.__traceback__
    while trace is not None:
        place = f" ({Path(trace.tb_frame.f_code.co_filename).name}, line {trace.tb_lineno})"
        trace = trace.tb_next
    text = " ".join(str(error).split())
    if len(text) > _LONGEST_TEXT:
        text = f"{text[:_LONGEST_TEXT]} ..."
    return f"{type(error).__name__}: {text}{place}"
