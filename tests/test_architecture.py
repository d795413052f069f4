"""The house's own rules: imports go one way, and light packages stay light."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

#: What each package may import of ours. `participant.adapters` alone may also use `learning`.
ALLOWED = {
    "protos": {"protos"},
    "mechanism": {"mechanism"},
    "wire": {"wire", "mechanism", "protos"},
    "learning": {"learning", "mechanism"},
    "coordinator": {"coordinator", "mechanism", "wire", "protos", "learning"},
    "participant": {"participant", "mechanism", "wire", "protos"},
}
OURS = {*ALLOWED, "experiments", "fedpeer", "benchmarks", "tests"}
ADAPTERS = ROOT / "participant" / "adapters"


def imported_packages(module: Path) -> set[str]:
    """Top-level names that a module imports anywhere in it, lazily too."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module.split(".")[0])
    return names


@pytest.mark.parametrize("package", sorted(ALLOWED))
def test_imports_go_one_way(package: str) -> None:
    modules = [m for m in (ROOT / package).rglob("*.py") if not m.name.endswith(("_pb2.py", "_pb2_grpc.py"))]
    assert modules
    for module in modules:
        allowed = ALLOWED[package] | ({"learning"} if module.is_relative_to(ADAPTERS) else set())
        forbidden = (imported_packages(module) & OURS) - allowed
        assert not forbidden, f"{module.relative_to(ROOT)} imports {', '.join(sorted(forbidden))}"


#: Pure: no clock, no global random state, no files or sockets, no transport, no learning framework.
IMPURE = {
    "grpc",
    "torch",
    "torchvision",
    "time",
    "random",
    "secrets",
    "socket",
    "sqlite3",
    "sqlalchemy",
    "os",
    "asyncio",
}


def test_the_mechanism_is_pure() -> None:
    for module in (ROOT / "mechanism").rglob("*.py"):
        impure = imported_packages(module) & IMPURE
        assert not impure, f"{module.relative_to(ROOT)} imports {', '.join(sorted(impure))}"


@pytest.mark.parametrize("package", ["participant", "wire", "mechanism"])
def test_a_light_package_pulls_in_no_heavy_one(package: str) -> None:
    program = f"import sys, {package}; print([m for m in ('torch', 'scipy', 'sklearn') if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.strip() == "[]"
