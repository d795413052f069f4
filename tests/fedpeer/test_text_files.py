"""Settings and PEM as editors write them, and files that no setting needs: read, or one sentence."""

from pathlib import Path
from typing import Any

import pytest

from coordinator.config import TaskConfig
from coordinator.config import read_config as read_task
from coordinator.errors import ConfigError
from fedpeer.protocol.certificates import (
    CertificateError,
    load_certificates,
    load_private_key,
    new_key,
    private_key_pem,
)
from fedpeer.text_files import TextFileError, parse_toml
from participant.config import read_config
from participant.errors import ConfigurationError
from participant.trainer_process import ProcessTrainer, TaskSpec

CONFIG = 'id = "ada"\n[coordinator]\nmarket = "localhost:1"\n[[task]]\nfactory = "a:b"\n[task.options]\n'

BAD: dict[str, tuple[bytes, str]] = {
    "utf-16": (CONFIG.encode("utf-16"), "UTF-16 text; save it as UTF-8"),
    "utf-16 without a mark": (CONFIG.encode("utf-16-le"), "zero bytes"),
    "utf-32": (CONFIG.encode("utf-32"), "UTF-32 text"),
    "latin-1": (CONFIG.replace("ada", "ad\xe9").encode("latin-1"), "not UTF-8 text"),
    "an integer of 5,000 digits": (f"{CONFIG}x = {'9' * 5000}".encode(), "out of range"),
    "a hexadecimal integer of 5,000 digits": (f"{CONFIG}x = 0x{'f' * 5000}".encode(), "64 bits"),
    "an integer of 65 bits": (f"{CONFIG}x = {2**64}".encode(), r"options\.x is an integer of more than"),
    "50,000 dotted keys": (
        f"{CONFIG}{'.'.join(['a'] * 50_000)} = 1".encode(),
        "line 7 has a key of more than",
    ),
    "50,000 quoted keys": ((CONFIG + '"a".' * 50_000 + "a = 1").encode(), "more than 32 parts"),
    "a table of 50,000 names": (f"{CONFIG}[{'.'.join(['a'] * 50_000)}]".encode(), "more than 32 parts"),
    "50,000 brackets": (f"{CONFIG}x = {'[' * 50_000}".encode(), "in each other"),
    "300 tables in each other": (f"{CONFIG}x = {'{a=' * 300}1{'}' * 300}".encode(), "in each other"),
    "no such day": (f"{CONFIG}x = 2025-02-30".encode(), "not valid TOML"),
    "five megabytes": (b"#" * 5_000_000, "more than 4194304 bytes"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_settings_file_that_cannot_be_used_is_one_sentence(kind: str, tmp_path: Path) -> None:
    content, words = BAD[kind]
    path = tmp_path / "settings.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=words) as participants:
        read_config(path)
    with pytest.raises(ConfigError, match=words) as operators:
        read_task(path, TaskConfig)
    for raised in (participants, operators):
        assert str(path) in str(raised.value)
        assert len(str(raised.value)) < 400


def test_a_byte_order_mark_is_no_part_of_the_settings(tmp_path: Path) -> None:
    path = tmp_path / "participant.toml"
    path.write_bytes(b"\xef\xbb\xbf" + CONFIG.encode())
    assert read_config(path).id == "ada"


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("since = 2020-01-01", r"task\.0\.options\.since is a date \(2020-01-01\)"),
        ("since = 2020-01-01T07:32:00Z", r"options\.since is a datetime"),
        ("at = [1, { when = 07:32:00 }]", r"options\.at\.1\.when is a time"),
    ],
)
def test_a_date_among_the_options_is_refused_with_its_key(tmp_path: Path, option: str, words: str) -> None:
    path = tmp_path / "participant.toml"
    path.write_text(CONFIG + option)
    with pytest.raises(ConfigurationError, match=words):
        read_config(path)


@pytest.mark.parametrize("options", [{"path": Path("x")}, {"ids": {1, 2}}, {"by": {1: 2}}])
def test_options_that_no_process_can_be_sent_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="options"):
        ProcessTrainer(TaskSpec("a:b", options))


def test_a_long_list_and_long_texts_are_no_long_keys() -> None:
    document = parse_toml(f'x = [{", ".join(["0.1"] * 1000)}]\ny = "{"A" * 100_000}"\n')
    assert len(document["x"]) == 1000
    with pytest.raises(TextFileError):
        parse_toml("x = ")


def test_pem_may_begin_with_a_byte_order_mark() -> None:
    key = new_key()
    pem = private_key_pem(key)
    assert load_private_key(b"\xef\xbb\xbf" + pem).private_numbers() == key.private_numbers()
    with pytest.raises(CertificateError, match="UTF-16 text"):
        load_private_key(pem.decode().encode("utf-16"))
    with pytest.raises(CertificateError, match="zero bytes"):
        load_certificates(pem.decode().encode("utf-16-le"))
