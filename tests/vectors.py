"""Public test vectors, which stand beside the project and not in it."""

import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent / "shared" / "vectors"


def folder() -> Path:
    """Where the vectors are; skips the test where they are absent."""
    if not ROOT.is_dir():
        pytest.skip(f"the public vectors are absent ({ROOT})")
    return ROOT


def load(name: str) -> Any:
    return json.loads((folder() / name).read_text())
