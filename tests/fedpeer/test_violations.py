"""What is wrong in a settings file is said in the file's own words, and nothing is cast in silence."""

from pathlib import Path

import pytest
from pydantic import BaseModel

from coordinator.config import ServiceConfig, TaskConfig, WorkerConfig, read_config
from coordinator.errors import ConfigError
from fedpeer.violations import without_password

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
        (ServiceConfig, '[s3]\nbucket = "A"', "s3.bucket is 'A'; expected a bucket's name: 3 to 63 of a-z"),
        (ServiceConfig, '[s3]\nprefix = "/a"', "s3.prefix is '/a'; expected what names begin with"),
        (ServiceConfig, '[s3]\nendpoint = "host"', "s3.endpoint is 'host'; expected the store's URL, https://HOST or"),
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


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("https://store:9000/", "https://store:9000/"),
        ("https://key:pass@store/", "https://***@store/"),
        ("https://key:p/a@s:s@store:1", "https://***@store:1"),
        ("https://key@store", "https://***@store"),
        ("key:pass@store:9000", "***@store:9000"),
        ("https://store/a?token=pass#x", "https://store/a?***"),
        ("https://key:pa?ss@store", "https://***"),
        ("https://store/?token=pass&to=a@b", "https://***"),
        ("Market_A", "Market_A"),
        ("a@b", "a@b"),
        ("what?", "what?"),
    ],
)
def test_an_address_is_repeated_without_what_may_be_a_password(
    tmp_path: Path, address: str, shown: str
) -> None:
    assert without_password(address) == shown
    path = tmp_path / "coordinator.toml"
    path.write_text(f'[s3]\nbucket = "models"\nendpoint = "{address}/"\n[notices.here]\nurl = "{address}"\n')
    with pytest.raises(ConfigError) as refused:
        read_config(path, ServiceConfig)
    said = str(refused.value)
    assert f"s3.endpoint is '{without_password(address + '/')}'; expected the store's URL" in said
    assert "pass" not in said.replace("a password", "").replace(str(path), "")
