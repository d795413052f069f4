"""The base install, as a user gets it: in an environment of its own, from a wheel, in a market."""

import os
import re
import resource
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.docs.test_extensions_page import files
from tests.packaging.market import SCRIPT, paid_in_a_market

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

#: Bytes that a base install may take on the disk.
MOST_BYTES = 200_000_000

#: Seconds of the processor that starting Python and importing the SDK may take: the least of some tries.
MOST_SECONDS = 0.5


def lowest() -> list[str]:
    """The lower bounds of the base install, as pins."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    bounds = [re.match(r"([\w-]+)>=([\w.]+)", line) for line in project["dependencies"]]
    assert all(bounds), "every dependency of the base install has a lower bound"
    return [f"{found[1]}=={found[2]}" for found in bounds if found]


def installed(folder: Path, *constraints: str, python: str = sys.executable, source: str = str(ROOT)) -> Path:
    """An environment with the base install alone, or the extras that `source` names; its interpreter."""
    subprocess.run([python, "-m", "venv", folder], check=True)
    interpreter = folder / "bin" / "python"
    pins = folder / "constraints.txt"
    pins.write_text("\n".join(constraints))
    done = subprocess.run(
        [interpreter, "-m", "pip", "install", "--quiet", "--constraint", pins, source],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode and "No matching distribution" in done.stderr:
        pytest.skip("no package index can be reached")
    assert done.returncode == 0, done.stderr
    return interpreter


def takes_part(interpreter: Path, folder: Path) -> None:
    script = folder / "train.py"
    script.write_text(SCRIPT.read_text())
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run(state: Path, market: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [interpreter, script, state, market],
            cwd=folder, env=environment, capture_output=True, text=True, timeout=240, check=False,
        )  # fmt: skip

    paid_in_a_market(folder, run)


@pytest.fixture(scope="module")
def newest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return installed(tmp_path_factory.mktemp("newest") / "env")


def test_a_base_install_is_small(newest: Path) -> None:
    listed = subprocess.run(
        [newest, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    libraries = Path(listed.stdout.strip())
    sizes = {
        part.name: sum(file.lstat().st_size for file in part.rglob("*") if file.is_file())
        for part in libraries.iterdir()
        if part.name.partition("-")[0] not in ("pip", "setuptools")
    }
    assert sum(sizes.values()) <= MOST_BYTES, sorted(sizes.items(), key=lambda item: -item[1])[:10]
    assert not {"torch", "scipy", "sklearn", "sqlalchemy"} & sizes.keys()
    ours = {"coordinator", "fedpeer", "mechanism", "participant"}
    assert not {"protos", "wire", "learning", "experiments", "tests", "benchmarks"} & sizes.keys()
    assert ours <= sizes.keys()


def test_the_sdk_is_imported_quickly(newest: Path) -> None:
    """On a machine that takes long for NumPy and gRPC alone, the SDK may take its part more."""

    def least(program: str) -> float:
        command = [newest, "-c", f"{program}; import time; print(time.process_time())"]
        return min(
            float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
            for _ in range(7)
        )

    bound = max(MOST_SECONDS, 3 * least("import numpy, grpc"))
    assert least("from fedpeer import Participant") < bound


def test_the_newest_versions_take_part(newest: Path, tmp_path: Path) -> None:
    takes_part(newest, tmp_path)


def test_the_lowest_versions_take_part(tmp_path: Path) -> None:
    takes_part(installed(tmp_path / "env", *lowest()), tmp_path)


#: Seconds of the processor that a small project's own pytest may take, with three markets in it.
MOST_TEST_SECONDS = 20


def test_somebodys_own_project_runs_a_market_in_its_tests(tmp_path: Path) -> None:
    project = tmp_path / "scans"
    project.mkdir()
    (project / "pyproject.toml").write_text(
        '[project]\nname = "scans"\nversion = "1"\ndependencies = ["fedpeer[testing]"]\n'
    )
    for name, text in files(ROOT / "docs" / "testing.md").items():
        (project / name).write_text(text)
    interpreter = installed(tmp_path / "env", source=f"{ROOT}[testing]")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [interpreter, "-m", "pytest", "-q"],
        cwd=project, env=environment, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert "3 passed" in done.stdout, done.stdout
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < MOST_TEST_SECONDS
    listed = subprocess.run(
        [interpreter, "-m", "pip", "list"], capture_output=True, text=True, check=True
    ).stdout
    assert not re.search(r"(?m)^(torch|scikit-learn|scipy) ", listed)


@pytest.mark.parametrize("version", ["3.12", "3.13", "3.14"])
def test_another_python_takes_part(tmp_path: Path, version: str) -> None:
    for candidate in interpreters(version):
        found = subprocess.run([candidate, "--version"], capture_output=True, text=True, check=False)
        if found.returncode == 0 and found.stdout.startswith(f"Python {version}."):
            takes_part(installed(tmp_path / "env", python=str(candidate)), tmp_path)
            return
    pytest.skip(f"no Python {version} here")


def interpreters(version: str) -> list[Path]:
    """Where a version of Python may lie: on the path, or among those of pyenv."""
    on_path = [Path(folder) / f"python{version}" for folder in os.get_exec_path()]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    return [path for path in on_path if os.access(path, os.X_OK)] + sorted(
        pyenv.glob(f"{version}.*/bin/python")
    )
