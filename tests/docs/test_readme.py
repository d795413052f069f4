"""The README's first screen: its program takes part in a market as it stands, and is paid."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np

from tests.packaging.market import paid_in_a_market

ROOT = Path(__file__).resolve().parents[2]


def test_the_readmes_program_runs_as_it_stands_and_is_paid(tmp_path: Path) -> None:
    (program,) = re.findall(r"(?ms)^```python\n(.*?)^```$", (ROOT / "README.md").read_text())
    assert (
        '"localhost:7443"' in program
    )  # the default of the tutorial's coordinator; the test's port is another
    generator = np.random.default_rng(0)
    x = generator.normal(size=(100, 3)).astype(np.float32)
    np.savez(tmp_path / "scans.npz", x=x, y=(x.sum(axis=1) > 0).astype(np.int64))

    def run(state: Path, market: str) -> "subprocess.CompletedProcess[str]":
        assert state == tmp_path / "state"
        return subprocess.run(
            [sys.executable, "-c", program.replace("localhost:7443", market)],
            cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False,
        )  # fmt: skip

    paid_in_a_market(
        tmp_path, run, weights={"w": np.zeros(3, np.float32)}, reference=["1/2", "1/2"], counts=[50, 50]
    )
