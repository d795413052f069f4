"""The house's own rules: imports go one way, and light packages stay light."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

#: The floors, from the ground up: a package imports its own modules and what stands on a floor below. Two names on one
#: floor never import each other. `participant.adapters` stands above `participant`.
FLOORS = (
    (
        "mechanism",
        "fedpeer.v1",
        "fedpeer.exit_codes",
        "fedpeer.extras",
        "fedpeer.extensions",
        "fedpeer.streams",
        "fedpeer.allocator",
        "fedpeer.violations",
    ),
    ("fedpeer.terminal", "fedpeer.text_files"),
    ("fedpeer.protocol", "fedpeer.learning"),
    ("fedpeer.evidence",),
    ("fedpeer.audit",),
    ("coordinator", "participant"),
    ("fedpeer",),  # the face itself
    ("fedpeer.experiments", "fedpeer.testing"),
    ("fedpeer.cli", "fedpeer.console", "fedpeer.pytest_plugin"),
    ("fedpeer.demo",),
    ("fedpeer.__main__",),
)
#: The floors within the coordinator: values, storage, rules, transactions, work, services, the server, its commands.
COORDINATOR = (
    ("acceptance", "aggregation", "clock", "derivation", "errors", "local_ports", "metrics",
     "quotas", "shared_frames", "spool", "states", "workload"),
    ("config", "control_socket", "scraping", "shadow_workers", "staging", "storage", "supervision", "upload_places"),
    ("bucket", "retention", "sending"),
    ("banking", "blobs", "console_process", "fetching", "folder", "identity", "learner_data", "live", "listening",
     "tracing"),
    ("packing",),
    ("remote_workers",),
    ("worker_folders",),
    ("admission", "backup", "boundary", "certificates", "opening", "receiving", "scoring"),
    ("calibration", "dry_round", "remeasuring", "transaction"),
    ("commits",),
    ("audits", "history", "notices", "payouts", "reputation", "settlements", "revocations"),
    ("forgetting",),
    ("operator", "runner"),
    ("alarms", "command_output", "market", "task_text"),
    ("services",),
    ("server",),
    ("fronts",),
    ("cli", "worker_cli"),
)  # fmt: skip
FLOOR = {name: floor for floor, names in enumerate(FLOORS) for name in names}
TOPS = {"mechanism", "coordinator", "participant", "fedpeer"}


def modules() -> dict[str, Path]:
    """Every installed module of ours by its dotted name, generated ones left out."""
    found = {}
    for top in sorted(TOPS):
        for path in (ROOT / top).rglob("*.py"):
            if not path.name.endswith(("_pb2.py", "_pb2_grpc.py")):
                parts = path.relative_to(ROOT).with_suffix("").parts
                found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(module: Path) -> set[str]:
    """Dotted names that a module imports anywhere in it, lazily too, but not for annotations alone."""
    names: set[str] = set()
    tree = ast.parse(module.read_text())
    annotations = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if node in annotations:
            continue
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def imported_packages(module: Path) -> set[str]:
    """Top-level names that a module imports anywhere in it."""
    return {name.partition(".")[0] for name in imported(module)}


def place(name: str) -> str:
    """The name on a floor that a dotted name belongs to: the longest that it begins with."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        if (prefix := ".".join(parts[:length])) in FLOOR:
            return prefix
    raise AssertionError(f"{name} stands on no floor")


def test_imports_go_down() -> None:
    found = modules()
    assert len(found) > 100
    for name, path in found.items():
        here = place(name)
        for other in imported(path):
            if other.partition(".")[0] not in TOPS:
                continue
            there = place(other)
            lower = FLOOR[there] < FLOOR[here]
            assert there == here or lower, f"{name} imports {other}, which stands on no floor below"


def test_imports_go_down_within_the_coordinator() -> None:
    floors = {name: floor for floor, names in enumerate(COORDINATOR) for name in names}
    for name, path in modules().items():
        if not name.startswith("coordinator."):
            continue
        here = name.split(".")[1]
        assert here in floors, f"coordinator.{here} stands on no floor; give it one"
        for other in imported(path):
            if other.startswith("coordinator.") and (there := other.split(".")[1]) != here:
                assert floors[there] < floors[here], f"{name} imports {other}, which stands on no floor below"


def test_only_adapters_use_the_learning_package() -> None:
    """And commands, which may read a copy of the ledger."""
    for name, path in modules().items():
        if name.startswith("participant") and not name.startswith(
            ("participant.adapters", "participant.cli")
        ):
            used = {
                other for other in imported(path) if other.startswith(("fedpeer.learning", "fedpeer.audit"))
            }
            assert not used, f"{name} imports {', '.join(sorted(used))}"


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


@pytest.mark.parametrize("package", ["participant", "fedpeer.protocol", "mechanism", "fedpeer"])
def test_a_light_package_pulls_in_no_heavy_one(package: str) -> None:
    program = f"import sys, {package}; print([m for m in ('torch', 'scipy', 'sklearn') if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.strip() == "[]"
