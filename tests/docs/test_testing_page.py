"""The page on testing: its tests are run as somebody's project has them."""

import os
import subprocess
import sys
from pathlib import Path

from tests.docs.test_extensions_page import files

ROOT = Path(__file__).resolve().parents[2]


def test_the_three_tests_of_a_hospital_pass(tmp_path: Path) -> None:
    for name, text in files(ROOT / "docs" / "testing.md").items():
        (tmp_path / name).write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "fedpeer.pytest_plugin", "-p", "no:cacheprovider"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
    assert "3 passed" in done.stdout, done.stdout
