"""A database's URL: which forms are taken, and that its password is in no sentence, whatever is wrong."""

import sys
from pathlib import Path

import pytest
from sqlalchemy.engine import make_url

from coordinator.config import ServiceConfig, parse_config
from coordinator.errors import ConfigError
from coordinator.storage.schema import migrate
from fedpeer.__main__ import main
from fedpeer.audit.sources import named
from fedpeer.audit.sql.database import Database, parse_url, shown
from fedpeer.audit.sql.errors import DatabaseUnreachable, StorageError
from tests.coordinator.test_folder import CONFIG

#: The password is hush in every form, whole or in parts.
FORMS = {
    "plain": "postgresql://ann:hush@127.0.0.1:1/market",
    "percent-encoded": "postgresql+psycopg://ann:h%75sh%40hush@127.0.0.1:1/market",
    "a parameter": "postgresql+psycopg://ann@127.0.0.1:1/market?password=hush",
    "a parameter without a host": "postgresql+psycopg:///market?host=127.0.0.1&port=1&password=hush&user=ann",
    "two passwords": "postgresql+psycopg://ann:hush@127.0.0.1:1/market?password=hush",
    "a service": "postgresql+psycopg://?service=nowhere&password=hush",
    "several hosts": "postgresql+psycopg://ann:hush@/market?host=127.0.0.1:1&host=127.0.0.1:2",
    "the key's password": "postgresql+psycopg://ann@127.0.0.1:1/market?sslpassword=hush&sslkey=/nowhere",
    "a bad option": "postgresql+psycopg://ann:hush@127.0.0.1:1/market?no_such_option=hush",
    "a bad mode": "postgresql+psycopg://ann:hush@127.0.0.1:1/market?sslmode=nonsense",
    "an @ in it": "postgresql://ann:x@hush@127.0.0.1/market",
    "an @ and a slash": "postgresql://ann:x@hush/hush@127.0.0.1/market",
    "an @ and a question mark": "postgresql://ann:x@hush?hush@127.0.0.1/market",
    "no host": "postgresql://ann:hush/market",
    "a port that is none": "postgresql://ann:hush@host:hush/market",
    "a bracket": "postgresql://ann:hush@[::1/market",
    "no scheme": "ann:hush@host/market",
    "a wrong scheme": "mysql://ann:hush@host/market",
    "an unknown driver": "postgresql+asyncpg://ann:hush@host/market",
    "an old name": "postgres://ann:hush@127.0.0.1:1/market",
    "spaces": " postgresql://ann:hush@127.0.0.1:1/market",
    "SQLite with parameters": "sqlite:///file:market.db?uri=true&key=hush",
    "SQLite with a host": "sqlite://ann:hush@host/market.db",
}


@pytest.mark.parametrize("form", FORMS)
def test_a_password_is_in_no_sentence(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    url = FORMS[form]
    monkeypatch.setenv("PGCONNECT_TIMEOUT", "2")

    def run(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["fedpeer", *arguments])
        try:
            code = main()
        except SystemExit as ended:
            code = int(ended.code or 0)
        said = "".join(capsys.readouterr())
        assert code in (1, 2), said
        assert "Traceback" not in said
        return said

    monkeypatch.setenv("FEDPEER_DATABASE", url)
    assert "hush" not in run("coordinator", "init", str(tmp_path / "state"))
    monkeypatch.delenv("FEDPEER_DATABASE")
    assert "hush" not in run("coordinator", "init", str(tmp_path / "state"), "--database", url)
    (tmp_path / "coordinator.toml").write_text(f"{CONFIG}[storage]\ndatabase = {url!r}\n")
    (tmp_path / "ledger.key").write_text("x")
    for command in ("status", "tasks", "serve", "backup"):
        target = [str(tmp_path / "backup.tar")] if command == "backup" else []
        assert "hush" not in run("coordinator", command, *target, "--state", str(tmp_path))
    if "://" in url:  # else it is the name of a file
        for command in ("verify", "show"):
            assert "hush" not in run("ledger", command, url)
        assert "hush" not in run("ledger", "verify", url, "--json")
        assert "hush" not in named(url)


def test_a_password_in_the_wrong_place_of_the_configuration_is_not_repeated() -> None:
    for wrong in (
        "storage = 'postgresql://ann:hush@host/market'",
        "[storage]\ndatabase = ['postgresql://ann:hush@host/market']",
        "[storage]\ndatabase = 'postgresql://ann:hush@host/market",
        "[storage]\nretention_days = 'hush'",
        "[server]\nmarket = ['postgresql://ann:hush@host/market']",
        "[storage.database]\nurl = 'postgresql://ann:hush@host/market'",
    ):
        with pytest.raises(ConfigError) as refused:
            parse_config(f'name = "test"\n{wrong}\n', ServiceConfig, Path("coordinator.toml"))
        assert "hush" not in str(refused.value)


def test_what_is_shown_says_which_database_is_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PGHOST", raising=False)
    for url, words in (
        ("postgresql://ann:hush@db.example:5433/market", "postgresql+psycopg://db.example:5433/market"),
        ("postgresql:///market?host=a&host=b&password=hush", "postgresql+psycopg://a,b/market"),
        ("postgresql://?service=market&password=hush", "postgresql+psycopg:/// of the service market"),
        ("postgresql:///market?host=/run/pg", "postgresql+psycopg:///market?host=/run/pg"),
        ("postgresql:///market", "postgresql+psycopg:///market (host: the local socket)"),
        ("sqlite:////srv/market.db", "sqlite:////srv/market.db"),
    ):
        assert shown(parse_url(url)) == words
        assert Database(url).display == words


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:///file:market.db?uri=true",
        "sqlite:///market.db?mode=ro",
        "sqlite:///market.db?nolock=1",
        "sqlite+aiosqlite:///market.db",
        "sqlite+pysqlcipher://:key@/market.db",
        "sqlite://host/market.db",
    ],
)
def test_a_sqlite_url_of_another_form_is_refused(url: str) -> None:
    with pytest.raises(DatabaseUnreachable):
        Database(url)
    with pytest.raises(DatabaseUnreachable):
        Database(make_url(url))


def test_a_new_database_is_for_its_owner_alone(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'market.db'}")
    migrate(database)
    assert {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {
        "market.db": 0o600,
        "market.db-wal": 0o600,
        "market.db-shm": 0o600,
    }
    database.close()


def test_a_database_with_two_names_is_not_written(tmp_path: Path) -> None:
    first, second = tmp_path / "first.db", tmp_path / "second.db"
    database = Database(f"sqlite:///{first}")
    migrate(database)
    database.close()
    second.hardlink_to(first)
    for path in (first, second):
        with pytest.raises(StorageError, match="has 2 names"):
            migrate(Database(f"sqlite:///{path}"))
    read_only = Database(f"sqlite:///{second}", read_only=True)
    read_only.check_schema()
    read_only.close()


@pytest.mark.parametrize(
    ("url", "said"),
    [
        (
            "postgresql://ann@127.0.0.1:1/market?no_such_option=hush",
            "has a parameter behind its .* such as sslmode",
        ),
        (
            "postgresql://ann@127.0.0.1:1/market",
            "cannot be reached: .*; check its server, and the host, name",
        ),
    ],
)
def test_what_an_operator_looks_at_is_said(url: str, said: str) -> None:
    with pytest.raises(DatabaseUnreachable, match=said):
        Database(url).tables()
