"""The SDK in somebody's project: their folders stay theirs, and their system need be no POSIX one."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from fedpeer.extras import EXTRAS
from tests.packaging.market import SCRIPT, paid_in_a_market

ROOT = Path(__file__).resolve().parents[2]

#: Hides modules from a program, as if they were not there.
HIDE = """
import importlib.abc, sys
class Hidden(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {hidden}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Hidden())
for name in [n for n in sys.modules if n.partition(".")[0] in {hidden}]:
    del sys.modules[name]
"""
POSIX_ONLY = {
    "fcntl", "grp", "pty", "pwd", "readline", "resource", "spwd", "syslog", "termios", "tty", "_posixshmem",
}  # fmt: skip


def environment(*folders: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (*folders, ROOT)))}


def test_a_project_with_folders_of_the_same_names_takes_part(tmp_path: Path) -> None:
    project = tmp_path / "project"
    for name in ("protos", "wire", "learning", "experiments", "benchmarks", "docs"):
        (project / name).mkdir(parents=True)
        (project / name / "__init__.py").write_text(
            "raise ImportError('this folder is the project\\'s own')\n"
        )
    script = project / "train.py"
    script.write_text(SCRIPT.read_text())

    def run(state: Path, market: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, str(script), str(state), market],
            cwd=project, env=environment(project), capture_output=True, text=True, timeout=240, check=False,
        )  # fmt: skip

    paid_in_a_market(tmp_path, run)


def test_the_sdk_takes_part_without_posix_modules(tmp_path: Path) -> None:
    program = HIDE.format(hidden=POSIX_ONLY) + SCRIPT.read_text()

    def run(state: Path, market: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-c", program, str(state), market],
            cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=240, check=False,
        )  # fmt: skip

    paid_in_a_market(tmp_path, run)


def test_a_folder_that_hides_the_package_is_named_by_the_console_script(tmp_path: Path) -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    module, _, function = scripts["fedpeer"].partition(":")
    program = (
        f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\nsys.argv = ['fedpeer', '--version']\n"
        f"from {module} import {function}\nsys.exit({function}())"
    )
    own = tmp_path / "fedpeer"
    own.mkdir()

    def run() -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-c", program],
            cwd=ROOT.parent, env=environment(), capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip

    assert run().returncode == 0  # a folder alone hides nothing
    (own / "__init__.py").write_text("")
    hidden = run()
    assert hidden.returncode == 2, hidden.stderr
    assert hidden.stderr.startswith(
        f"fedpeer: {own / '__init__.py'} hides the package fedpeer, which is in {ROOT}"
    )
    assert len(hidden.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "module", ["participant.service", "participant.cli", "fedpeer.__main__", "fedpeer.cli.plan"]
)
def test_what_a_participant_uses_needs_no_posix_module(module: str) -> None:
    program = HIDE.format(hidden=POSIX_ONLY) + f"import {module}"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        (["coordinator", "init", "market"], "coordinator"),
        (["demo"], "all"),
        (["arena"], "research"),
        (["figures"], "research"),
        (["simulate", "my_task:MyTask"], "testing"),
        (["ledger", "verify", "sqlite:///ledger.db"], "sql"),
    ],
)
def test_a_command_names_the_extra_that_is_missing(tmp_path: Path, arguments: list[str], extra: str) -> None:
    program = HIDE.format(hidden=set(EXTRAS)) + (
        f"sys.argv = ['fedpeer', *{arguments!r}]\nfrom fedpeer.__main__ import main\nsys.exit(main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert f"pip install 'fedpeer[{extra}]'" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "arguments", [["participant", "--help"], ["ledger", "--help"], ["plan", "--help"], ["--help"]]
)
def test_the_base_commands_need_no_extra(tmp_path: Path, arguments: list[str]) -> None:
    program = HIDE.format(hidden=set(EXTRAS)) + (
        f"sys.argv = ['fedpeer', *{arguments!r}]\nfrom fedpeer.__main__ import main\nsys.exit(main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_the_markets_of_tests_name_the_extra_that_is_missing() -> None:
    program = HIDE.format(hidden=set(EXTRAS)) + (
        "try:\n    import fedpeer.testing\nexcept ImportError as error:\n    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("`fedpeer.testing` needs sqlalchemy")
    assert "pip install 'fedpeer[testing]'" in done.stdout


def test_a_market_of_claims_needs_no_learning_framework(tmp_path: Path) -> None:
    """What the extra `testing` leaves out: torch, scikit-learn and SciPy."""
    program = HIDE.format(hidden={"torch", "sklearn", "scipy", "matplotlib", "torchvision"}) + (
        "from fedpeer.testing import LocalMarket\n"
        "with LocalMarket(rounds=1) as market:\n    market.run()\n    print(market.state)\n    market.verify()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.stdout.endswith("CLOSED\n") or "CLOSED" in done.stdout.splitlines(), done.stderr


def test_the_plugin_costs_a_project_that_does_not_use_it_nothing(tmp_path: Path) -> None:
    """pytest loads it by its entry point; no library but pytest's own comes with it."""
    (tmp_path / "test_own.py").write_text(
        "import sys\n\n"
        "def test_own():\n"
        "    heavy = {'torch', 'grpc', 'numpy', 'sqlalchemy', 'pydantic', 'coordinator', 'participant', 'mechanism'}\n"
        "    assert 'fedpeer.pytest_plugin' in sys.modules\n"
        "    assert not heavy & sys.modules.keys()\n"
    )
    metadata = tmp_path / "site" / "fedpeer-0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: fedpeer\nVersion: 0\n")
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["pytest11"]
    lines = [f"{name} = {value}" for name, value in points.items()]
    (metadata / "entry_points.txt").write_text("\n".join(["[pytest11]", *lines, ""]))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_own.py"],
        cwd=tmp_path, env=environment(tmp_path / "site"), capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert "1 passed" in done.stdout, done.stdout


def test_a_task_factory_names_the_extra_that_its_adapter_lacks() -> None:
    program = HIDE.format(hidden={"torch"}) + (
        "from participant.errors import ConfigurationError\n"
        "from participant.trainer_process import TaskSpec\n"
        "try:\n    TaskSpec('participant.adapters.torch:DatasetTask').build()\n"
        "except ConfigurationError as error:\n    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "pip install 'fedpeer[torch]'" in done.stdout
