"""A copy of the tree in a temporary folder, and tests in it: one forked process for each mutant.

A mutant of a function's body is tried in a process forked from one that has collected the tests already: the functions
get the code of the mutated text. Every other mutant, and each that survives so, is tried in a process that loads the
mutated file; the one that forks it has loaded the libraries and none of our packages. Nothing is ever written to the
tree itself.
"""

import ast
import gc
import importlib
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent

#: Loaded once, before the first fork; what is not installed is not missed.
_LIBRARIES = (
    "pytest", "_pytest.assertion.rewrite", "hypothesis", "hypothesis.extra.numpy", "numpy", "scipy.optimize", "torch",
    "sklearn.ensemble", "safetensors.numpy", "cryptography.x509", "google.protobuf.message", "grpc.aio", "sqlalchemy",
    "pydantic", "typer", "rich", "orjson", "structlog", "pytest_asyncio", "pytest_timeout",
)  # fmt: skip

#: A mutant may ask for all memory there is.
_MEMORY_BYTES = 6 << 30

#: Properties find the same few examples every time, and do not look for the smallest one: one that fails is enough.
_PROFILE = """
from hypothesis import Phase

settings.register_profile(
    "mutants", settings.get_profile("fedpeer"), derandomize=True, database=None, max_examples=25,
    phases=(Phase.explicit, Phase.generate),
)
settings.load_profile("mutants")
"""


@dataclass(frozen=True)
class Outcome:
    """How the tests of a mutant ended: "survived", "killed" or "timeout"; who killed it; how long it took."""

    status: str
    by: str
    seconds: float


class Workplace:
    """The copy. A context manager, which removes it."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="mutants-"))
        self.tree = self._folder / "tree"
        listed = subprocess.run(
            ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
            cwd=ROOT, check=True, capture_output=True,
        )  # fmt: skip
        for name in filter(None, listed.stdout.decode().split("\0")):
            if (ROOT / name).is_file():
                (self.tree / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(ROOT / name, self.tree / name)
        if (ROOT / ".venv").exists():
            (self.tree / ".venv").symlink_to(ROOT / ".venv")
        with (self.tree / "tests" / "conftest.py").open("a") as conftest:
            conftest.write(_PROFILE)
        # Checked by content: a mutant may have the size and, to the second, the age of the one before.
        compiled = [sys.executable, "-m", "compileall", "-q", "--invalidation-mode", "checked-hash", "."]
        subprocess.run([*compiled, "-x", r"\.venv|examples"], cwd=self.tree, check=False)
        for library in _LIBRARIES:
            try:
                importlib.import_module(library)
            except ImportError:
                continue

    def __enter__(self) -> "Workplace":
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def run(self, name: str, source: str | None, tests: Sequence[str], seconds: float) -> Outcome:
        """Runs `tests` with `source` in place of the file `name`; with None the file is as it is."""
        path = self.tree / name
        kept = path.read_bytes()
        if source is not None:
            path.write_text(source)
        try:
            child = self._fork(tests)
            began = time.monotonic()
            code = _ended(child, began + seconds)
            return self._outcome(code, time.monotonic() - began)
        finally:
            path.write_bytes(kept)

    def _fork(self, tests: Sequence[str], *plugins: object) -> int:
        child = os.fork()
        if child:
            return child
        code = 99
        try:
            os.setsid()
            resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY_BYTES, _MEMORY_BYTES))
            self.redirect()
            os.chdir(self.tree)
            os.environ["PYTHONPATH"] = str(self.tree)
            os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
            sys.dont_write_bytecode = True
            sys.path[:] = [str(self.tree), *(p for p in sys.path if p and Path(p) != ROOT)]
            for name in [n for n in sys.modules if n == "tests" or n.startswith("tests.")]:
                del sys.modules[name]
            importlib.invalidate_caches()
            import pytest

            temp = f"--basetemp={self._folder / 'temp'}"
            code = int(
                pytest.main(
                    ["-x", "-q", "--tb=line", "-p", "no:cacheprovider", "-o", "timeout=120", temp, *tests],
                    list(plugins),
                )
            )
            sys.stdout.flush()
        finally:
            os._exit(code)

    def redirect(self) -> None:
        """What this process says goes to a file."""
        output = os.open(self._shown, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)

    @property
    def _shown(self) -> Path:
        return self._folder / "shown"

    def _outcome(self, code: int | None, took: float) -> Outcome:
        if code is None:
            return Outcome("timeout", "", took)
        text = self._shown.read_text(errors="replace")
        if code == 5:
            raise RuntimeError(f"no test ran:\n{text}")
        by = re.search(r"^(?:FAILED|ERROR) (\S+)", text, re.MULTILINE)
        return Outcome("killed" if code else "survived", by.group(1) if by else str(code), took)

    def collected(self, name: str, tests: Sequence[str]) -> "Collected":
        """The tests of a file, collected once for many mutants."""
        return Collected(self, name, tests)


class Collected:
    """A process that has collected tests and forks one more for each mutant. A context manager, which ends it."""

    def __init__(self, place: Workplace, name: str, tests: Sequence[str]) -> None:
        self._place = place
        self._path = place.tree / name
        self._original = self._path.read_text()
        orders, self._orders = os.pipe()
        self._answers, answers = os.pipe()
        self._child = place._fork(tests, _Server(place, self._path, orders, answers))
        os.close(orders)
        os.close(answers)
        self._lines = os.fdopen(self._answers)
        self._lines.readline()  # it has loaded the file as it is, which may be changed from now on

    def __enter__(self) -> "Collected":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._orders)
        self._lines.close()
        with suppress(ProcessLookupError):
            os.killpg(self._child, signal.SIGKILL)
        os.waitpid(self._child, 0)

    def fits(self, source: str) -> bool:
        """Whether a mutant changes the bodies of functions alone."""
        return _outside(source) == _outside(self._original)

    def run(self, source: str, seconds: float) -> Outcome | None:
        """As `Workplace.run`; None where the functions do not take the mutant's code."""
        order = json.dumps({"source": source, "seconds": seconds}).encode()
        os.write(self._orders, len(order).to_bytes(8, "big"))
        sent = 0
        while sent < len(order):
            sent += os.write(self._orders, order[sent:])
        answer = json.loads(self._lines.readline() or '{"code": 98, "took": 0}')
        if answer["code"] in (97, 98):
            return None
        outcome = self._place._outcome(answer["code"], answer["took"])
        return replace(outcome, by=answer["by"] or outcome.by)


class _Server:
    """A pytest plugin: in place of running the tests it waits for mutants."""

    def __init__(self, place: Workplace, path: Path, orders: int, answers: int) -> None:
        self._place, self._path, self._orders, self._answers = place, path, orders, answers

    def pytest_runtestloop(self, session: Any) -> bool:
        os.write(self._answers, b"ready\n")
        with os.fdopen(self._orders, "rb") as orders:
            while head := orders.read(8):
                order = json.loads(orders.read(int.from_bytes(head, "big")))
                began = time.monotonic()
                failed, failing = os.pipe()
                child = os.fork()
                if child == 0:
                    self._try(session, order["source"], failing)  # does not come back
                os.close(failing)
                code = _ended(child, began + order["seconds"])
                with os.fdopen(failed) as said:
                    by = said.read() if code else ""
                answer = {"code": code, "took": time.monotonic() - began, "by": by}
                os.write(self._answers, json.dumps(answer).encode() + b"\n")
        os._exit(0)

    def _try(self, session: Any, source: str, failing: int) -> None:
        code = 99
        try:
            os.setsid()
            self._place.redirect()
            try:
                swap(self._path, source)
            except ValueError:
                os._exit(97)
            code = 0
            for i, item in enumerate(session.items):
                following = session.items[i + 1] if i + 1 < len(session.items) else None
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                if session.testsfailed:
                    os.write(failing, item.nodeid.encode()[:2000])
                    code = 1
                    break
        finally:
            os._exit(code)


def _outside(source: str) -> str:
    """A module without the bodies of its functions."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = []
    return ast.dump(tree)


def _codes(code: CodeType) -> dict[tuple[str, int], CodeType]:
    """The codes of a module's functions by qualified name, and by place among those of one name."""
    found: dict[tuple[str, int], CodeType] = {}
    left, seen = [code], Counter[str]()
    while left:
        inner = [c for c in left.pop(0).co_consts if isinstance(c, CodeType)]
        for one in inner:
            found[one.co_qualname, seen[one.co_qualname]] = one
            seen[one.co_qualname] += 1
        left += inner
    return found


def swap(path: Path, source: str) -> None:
    """Gives every function of the file the code that `source` has for it.

    Raises:
        ValueError: one does not take it.
    """
    before = _codes(compile(path.read_text(), str(path), "exec"))
    after = _codes(compile(source, str(path), "exec"))
    # A statement that is gone takes its generators and lists along; those are made anew at each call.
    if any(not name.endswith(("<genexpr>", "comp>")) for name, _ in before.keys() ^ after.keys()):
        raise ValueError("another set of functions")
    places = {(c.co_qualname, c.co_firstlineno): after.get(key, c) for key, c in before.items()}
    for function in gc.get_objects():
        if isinstance(function, FunctionType) and function.__code__.co_filename == str(path):
            code = places.get((function.__code__.co_qualname, function.__code__.co_firstlineno))
            if code is None:
                raise ValueError(f"{function.__qualname__} is not of this text")
            function.__code__ = code


def _ended(child: int, until: float) -> int | None:
    """The exit code of a process that leads a group; None where it had to be ended. What it started ends with it."""
    code = None
    while code is None and time.monotonic() < until:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            code = os.waitstatus_to_exitcode(status)
        else:
            time.sleep(0.01)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    if code is None:
        os.waitpid(child, 0)
    return code
