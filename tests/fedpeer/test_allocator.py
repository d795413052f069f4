"""In processes of their own, since malloc's limits are a process's."""

import os
import subprocess
import sys

import pytest

#: Page faults of twenty blocks of 20 MB, written and freed one after the other.
FAULTS = """
import resource
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        bytearray(20_000_000)[::4096] = b"x" * len(range(0, 20_000_000, 4096))
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
"""
PAGES = 20_000_000 // 4096


def run(code: str, **more: str) -> int:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    done = subprocess.run(
        [sys.executable, "-c", FAULTS + code],
        env={**environment, **more},
        check=True,
        capture_output=True,
        text=True,
    )
    return int(done.stdout)


@pytest.fixture(scope="module", autouse=True)
def _glibc() -> None:
    if run("from fedpeer.allocator import keep_pages; print(int(keep_pages()))") == 0:
        pytest.skip("malloc of this system has no such limits")


def test_a_freed_block_is_used_again() -> None:
    assert run("from fedpeer.allocator import keep_pages; keep_pages(); faults(); print(faults())") < PAGES


def test_a_process_that_is_started_keeps_its_pages_too() -> None:
    child = "import subprocess, sys; print(subprocess.check_output([sys.executable, '-c', CODE], text=True))"
    code = f"CODE = {FAULTS + 'faults(); print(faults())'!r}; {child}"
    assert run("from fedpeer.allocator import keep_pages; keep_pages(); " + code) < PAGES


def test_what_the_user_has_set_is_left_alone() -> None:
    code = "from fedpeer.allocator import keep_pages; keep_pages(); "
    kept = run(
        code + "import os; print(os.environ['MALLOC_TRIM_THRESHOLD_'])", MALLOC_TRIM_THRESHOLD_="131072"
    )
    assert kept == 131072
    tuned = run(
        code + "import os; print(sum(name.startswith('MALLOC_') for name in os.environ))",
        GLIBC_TUNABLES="glibc.malloc.arena_max=8",
    )
    assert tuned == 0
