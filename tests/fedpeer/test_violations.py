"""What is wrong in a settings file is said in the file's own words, and nothing is cast in silence."""

from pathlib import Path

import pytest

from coordinator.config import TaskConfig, read_config
from coordinator.errors import ConfigError

TASK = """
id = "task"
q = "20"
phi = "8"
upsilon = "1"
reference = ["1/2", "1/2"]
[rule]
name = "paper"
[schedule]
rounds = {rounds}
effort_seconds = 60
round_seconds = 60
"""


@pytest.mark.parametrize("written", ['"3"', "3.0", "true", "[3]"])
def test_a_whole_number_is_written_as_one(tmp_path: Path, written: str) -> None:
    path = tmp_path / "task.toml"
    path.write_text(TASK.format(rounds=written))
    with pytest.raises(ConfigError, match=r"schedule\.rounds is .*; expected a whole number"):
        read_config(path, TaskConfig)
