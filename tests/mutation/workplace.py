"""A copy of the tree in a temporary folder, and tests in it: one forked process for each mutant.

The process that forks has loaded the libraries, which take seconds, and none of our packages. Nothing is ever written
to the tree itself.
"""

import importlib
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent

#: Loaded once, before the first fork; what is not installed is not missed.
_LIBRARIES = (
    "pytest", "_pytest.assertion.rewrite", "hypothesis", "hypothesis.extra.numpy", "numpy", "scipy.optimize", "torch",
    "sklearn.ensemble", "safetensors.numpy", "cryptography.x509", "google.protobuf.message", "grpc.aio", "sqlalchemy",
    "pydantic", "typer", "rich", "orjson", "structlog", "pytest_asyncio", "pytest_timeout",
)  # fmt: skip

#: A mutant may ask for all memory there is.
_MEMORY_BYTES = 6 << 30

#: Properties find the same examples every time, and do not look for the smallest one: one that fails is enough.
_PROFILE = """
from hypothesis import Phase

settings.register_profile(
    "mutants", settings.get_profile("fedpeer"), derandomize=True, database=None,
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
            return self._run(tests, seconds)
        finally:
            path.write_bytes(kept)

    def _run(self, tests: Sequence[str], seconds: float) -> Outcome:
        began, shown = time.monotonic(), self._folder / "shown"
        child = os.fork()
        if child == 0:
            self._tests(tests, shown)  # does not come back
        code = None
        while code is None and time.monotonic() - began < seconds:
            found, status = os.waitpid(child, os.WNOHANG)
            if found:
                code = os.waitstatus_to_exitcode(status)
            else:
                time.sleep(0.02)
        # The child leads a group: what it has started ends with it.
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        if code is None:
            os.waitpid(child, 0)
        took = time.monotonic() - began
        if code is None:
            return Outcome("timeout", "", took)
        text = shown.read_text(errors="replace")
        if code == 5:
            raise RuntimeError(f"no test ran:\n{text}")
        by = re.search(r"^(?:FAILED|ERROR) (\S+)", text, re.MULTILINE)
        return Outcome("killed" if code else "survived", by.group(1) if by else str(code), took)

    def _tests(self, tests: Sequence[str], shown: Path) -> None:
        code = 99
        try:
            os.setsid()
            resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY_BYTES, _MEMORY_BYTES))
            output = os.open(shown, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.chdir(self.tree)
            os.environ["PYTHONPATH"] = str(self.tree)
            os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
            sys.dont_write_bytecode = True
            sys.path[:] = [str(self.tree), *(p for p in sys.path if p and Path(p) != ROOT)]
            for name in [n for n in sys.modules if n == "tests" or n.startswith("tests.")]:
                del sys.modules[name]
            importlib.invalidate_caches()
            import pytest

            code = int(
                pytest.main(
                    [
                        "-x",
                        "-q",
                        "--tb=line",
                        "-p",
                        "no:cacheprovider",
                        f"--basetemp={shown.parent / 'temp'}",
                        *tests,
                    ]
                )
            )
            sys.stdout.flush()
        finally:
            os._exit(code)
