"""What is wrong in a settings file is said in the file's own words, and nothing is cast in silence."""

from pathlib import Path

import pytest
from pydantic import BaseModel

from coordinator.config import ServiceConfig, TaskConfig, WorkerConfig, read_config
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


@pytest.mark.parametrize(
    ("kind", "text", "said"),
    [
        (ServiceConfig, '[workers]\nexecutor = "dask"', 'executor is \'dask\'; expected "local", or "dask://HOST:PORT"'),
        (ServiceConfig, '[workers]\ndevice = "gpu"', 'device is \'gpu\'; expected "cuda", "cuda:1", "cpu", or nothing'),
        (ServiceConfig, '[s3]\nbucket = "A"', "s3.bucket: expected a bucket's name: 3 to 63 of a-z"),
        (ServiceConfig, '[s3]\nprefix = "/a"', "s3.prefix: expected what names begin with"),
        (ServiceConfig, '[s3]\nendpoint = "host"', "s3.endpoint: expected the store's URL, https://HOST or"),
        (ServiceConfig, '[s3]\nregion = "a/b"', "s3.region is 'a/b'; expected letters, digits and hyphens"),
        (ServiceConfig, '[notices."a b"]\nsecret = ""', "is not shown); expected a name of letters, digits"),
        (WorkerConfig, 'scheduler = "host:1"\nmodels = "m"', "scheduler is 'host:1'; expected \"dask://HOST:PORT\""),
    ],
)  # fmt: skip
def test_the_form_of_a_text_is_said_in_words(
    tmp_path: Path, kind: type[BaseModel], text: str, said: str
) -> None:
    path = tmp_path / "settings.toml"
    path.write_text(f'name = "-"\n{text}\n' if kind is ServiceConfig else text)
    with pytest.raises(ConfigError) as refused:
        read_config(path, kind)
    lines = str(refused.value).splitlines()
    assert any(said in line for line in lines)
    assert not any(sign in line for line in lines for sign in "^$[\\")
    if kind is ServiceConfig:
        assert "name is '-'; expected letters, digits, ., _, - and /, a letter or digit first" in lines[0]
