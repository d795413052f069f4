"""Ledgers, files and coordinators that somebody made to hurt those who check them.

Whatever a path or an address leads to, a command ends: in bounded time and memory, with a sentence and exit code
1 or 2.
"""

import csv
import gzip
import io
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from coordinator.storage.schema import migrate
from fedpeer.audit import database_source, sources
from fedpeer.audit.cli import app
from fedpeer.audit.export import export_csv, export_hledger, export_tiles
from fedpeer.audit.sql.database import Database
from fedpeer.audit.sql.errors import StorageError
from fedpeer.audit.sql.ledger_store import SignedLog, SqlLedgerStore
from fedpeer.v1 import ledger_pb2
from mechanism.errors import MechanismError
from mechanism.ledger import verify as verification
from mechanism.ledger.accounts import Post
from mechanism.ledger.appending import Ledger
from mechanism.ledger.entry import Entry
from mechanism.ledger.merkle import EMPTY_ROOT
from mechanism.ledger.note import Checkpoint, SigningKey, sign_checkpoint
from tests import ledger_samples as samples
from tests.memory_source import KEY, MemorySource

pytestmark = pytest.mark.long

VKEY = str(KEY.verification_key)

#: Bytes of address space in which a command must get by, whatever it is given: what it takes to start, and a little.
ROOM = 1 << 30


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A settled task: l.db, tiles/, l.jsonl, a receipt and a key."""
    made = tmp_path_factory.mktemp("ledger")
    database = Database(f"sqlite:///{made / 'l.db'}")
    migrate(database)
    log = SignedLog(database, KEY)
    for step in samples.transactions(samples.terms(rounds=1, capacity=3), samples.names(3)):
        with database.begin() as connection:
            Ledger(SqlLedgerStore(connection)).append(step)
    log.sign_head()
    database.close()
    for form, name in (("tiles", "tiles"), ("jsonl", "l.jsonl")):
        assert run("export", made / "l.db", "--format", form, "--out", made / name)[0] == 0
    assert run("prove", made / "l.db", 3, "--out", made / "receipt")[0] == 0
    (made / "key").write_text(VKEY)
    return made


def run(*words: object) -> tuple[int, str]:
    """Exit code and everything that is said, as `fedpeer` ends; a traceback is a failure of the test."""
    result = CliRunner().invoke(app, [str(word) for word in words])
    if isinstance(result.exception, MechanismError | StorageError):
        return 2, str(result.exception)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def refused(*words: object) -> str:
    """The sentence of a command that says no."""
    code, said = run(*words)
    assert code in (1, 2), said
    assert said.strip()
    assert len(said) < 20_000
    return said


@pytest.fixture
def copy(honest: Path, tmp_path: Path) -> Path:
    shutil.copytree(honest, tmp_path / "copy")
    return tmp_path / "copy"


# Files


def pipe(path: Path) -> None:
    os.mkfifo(path)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def directory(path: Path) -> None:
    path.mkdir()


def loop(path: Path) -> None:
    path.symlink_to(path.name)


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(8 << 40)


def sparse_text(path: Path) -> None:
    """Lines of a few gigabytes without an end."""
    with path.open("wb") as file:
        file.truncate(3 << 30)


def content(data: bytes) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        path.write_bytes(data)

    return write


#: What may stand where a file was.
HOSTILE: dict[str, Callable[[Path], None]] = {
    "pipe": pipe,
    "device": device,
    "directory": directory,
    "loop": loop,
    "sparse": sparse,
    "sparse text": sparse_text,
    "empty": content(b""),
    "nul": content(b"\0" * 500),
    "not utf-8": content(b"\xff\xfe{\x80\n" * 9),
    "deep": content(b"[" * 100_000 + b"\n"),
    "deep object": content(b'{"a":' * 50_000 + b"\n"),
    "huge integer": content(b'{"format":' + b"9" * 60_000 + b"}\n"),
    "key twice": content(b'{"format":"fedpeer-ledger/1","format":"fedpeer-ledger/1","key":"x"}\n'),
    "gzip": content(gzip.compress(b'{"format":"fedpeer-ledger/1"}\n' * 1_000)),
    "lone surrogate": content(b'{"format":"\\ud800","key":"x"}\n'),
    "escapes": content(b"\x1b]0;owned\x07\x1b[2J\n\n\xe2\x80\x94 x AAAA\n"),
}


def tile_files(folder: Path) -> list[str]:
    """One file of each kind of an exported folder."""
    tiles = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
    kinds = {"/".join(name.split("/")[:2]): name for name in tiles}
    return sorted(kinds.values())


@pytest.mark.parametrize("what", HOSTILE)
def test_no_file_of_a_folder_can_be_something_else(copy: Path, what: str) -> None:
    names = tile_files(copy / "tiles")
    assert len(names) == 5  # header, checkpoint, heads, a tile, a bundle
    for name in names:
        path = copy / "tiles" / name
        kept = path.with_name(path.name + ".kept")
        path.rename(kept)
        HOSTILE[what](path)
        assert "\x1b" not in refused("verify", copy / "tiles")
        for command in (("balance", copy / "tiles"), ("prove", copy / "tiles", 3), ("show", copy / "tiles")):
            run(*command)
        path.rmdir() if path.is_dir() else path.unlink()
        kept.rename(path)
    assert run("verify", copy / "tiles")[0] == 0


@pytest.mark.parametrize("what", HOSTILE)
@pytest.mark.parametrize(
    "role", ["source", "key", "from", "receipt", "entry", "witness key", "witness head", "ca"]
)
def test_no_file_that_a_command_reads_can_be_something_else(
    honest: Path, tmp_path: Path, what: str, role: str
) -> None:
    path, state = tmp_path / "hostile", tmp_path / "state"
    if role.startswith("witness"):
        assert run("witness", honest / "l.db", "--state", state)[0] == 0
        path = state / "witness.key" if role == "witness key" else next(state.rglob("checkpoint"))
        path.unlink()
    HOSTILE[what](path)
    words: dict[str, tuple[object, ...]] = {
        "source": ("verify", path),
        "key": ("verify", honest / "tiles", "--key", path),
        "from": ("verify", honest / "tiles", "--from", path),
        "receipt": ("check", path, "--key", VKEY),
        "entry": ("check", honest / "receipt", "--key", VKEY, "--entry", path),
        "witness key": ("witness", honest / "l.db", "--state", state),
        "witness head": ("witness", honest / "l.db", "--state", state),
        "ca": ("verify", "127.0.0.1:9", "--ca", path),
    }
    if role == "ca" and what not in ("pipe", "device", "directory", "loop", "sparse", "sparse text"):
        pytest.skip("what a PEM holds is read by gRPC alone")
    assert "\x1b" not in refused(*words[role])


def test_files_of_gigabytes_take_no_memory(copy: Path) -> None:
    """A process of its own, with little room, reads 3 GiB in no place."""
    large = copy / "large"
    sparse_text(large)
    folder = copy / "tiles"
    commands = [
        ["verify", str(large)],
        ["check", str(large), "--key", VKEY],
        ["verify", str(folder), "--key", str(large)],
        ["verify", str(folder), "--from", str(large)],
    ]
    for name in tile_files(folder):
        other = copy / name.replace("/", "-")
        shutil.copytree(folder, other)
        os.truncate(other / name, 3 << 30)
        commands.append(["verify", str(other)])
    ended, peak = in_little_room(*commands)
    for (code, said), command in zip(ended, commands, strict=True):
        assert code in (1, 2), (command, said)
        assert "expected at most" in said or "longer than" in said, (command, said)
    assert peak < 250 << 20


def in_little_room(*commands: list[str], seconds: float = 240) -> tuple[list[tuple[int, str]], int]:
    """Exit code and output of each command, one after the other in a process that has `ROOM`; and its peak, bytes."""
    program = """
import contextlib, io, json, resource, sys
resource.setrlimit(resource.RLIMIT_DATA, (int(sys.argv[2]),) * 2)
from fedpeer.__main__ import main
ended = []
for command in json.loads(sys.argv[1]):
    sys.argv = ["fedpeer", "ledger", *command]
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            code = main()
        except SystemExit as left:
            code = left.code
    ended.append((code, said.getvalue()))
# Not `ru_maxrss`, which begins with what the test's own process had when it forked.
with open("/proc/self/status") as status:
    peak = next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
print(json.dumps([ended, peak]))
"""
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            program,
            json.dumps(commands),
            str(ROOM),
        ],  # no fork of a process with gRPC's threads
        capture_output=True,
        timeout=seconds,
        check=False,
        env={**os.environ, "PYTHONPATH": ":".join(sys.path)},
    )
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    ended, peak = json.loads(done.stdout)
    return [(code, said) for code, said in ended], peak


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_bytes_in_any_file_of_a_folder_give_a_sentence(honest: Path, tmp_path: Path, data: Any) -> None:
    folder = tmp_path / "fuzzed"
    if not folder.exists():
        shutil.copytree(honest / "tiles", folder)
    name = data.draw(st.sampled_from(tile_files(folder)))
    path = folder / name
    original = path.read_bytes()
    written = data.draw(
        st.one_of(
            st.binary(max_size=300),
            st.builds(
                lambda at, put, cut: original[:at] + put + original[at + cut :],
                st.integers(0, len(original)),
                st.binary(max_size=12),
                st.integers(0, 40),
            ),
        )
    )
    path.write_bytes(written)
    try:
        if written != original:
            refused("verify", folder)
    finally:
        path.write_bytes(original)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_bytes_in_a_file_of_lines_or_a_receipt_give_a_sentence(
    honest: Path, tmp_path: Path, data: Any
) -> None:
    name = data.draw(st.sampled_from(["l.jsonl", "receipt"]))
    original = (honest / name).read_bytes()
    at = data.draw(st.integers(0, len(original)))
    written = (
        original[:at] + data.draw(st.binary(max_size=40)) + original[at + data.draw(st.integers(0, 90)) :]
    )
    path = tmp_path / "fuzzed"
    path.write_bytes(written)
    words = ("verify", path) if name == "l.jsonl" else ("check", path, "--key", VKEY)
    if written != original:
        refused(*words)


def test_what_cannot_be_a_path_is_no_ledger(honest: Path) -> None:
    for source in ("x" * 10_000, "/" + "y/" * 5_000):
        assert "no ledger" in refused("verify", source)
    assert refused("verify", honest / "tiles", "--key", "name+" + "z" * 10_000)


# SQLite


@pytest.fixture(scope="module")
def ruleless(honest: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The honest database with its rules taken off, as the maker of a hostile one begins."""
    path = tmp_path_factory.mktemp("ruleless") / "l.db"
    shutil.copy(honest / "l.db", path)
    with writing(path) as connection:
        rules = connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall()
        for (trigger,) in rules:
            connection.execute(f"DROP TRIGGER {trigger}")
        query = "SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE 'ledger%'"
        for (table,) in connection.execute(query).fetchall():
            connection.execute(f"CREATE TABLE copied AS SELECT * FROM {table}")
            connection.execute(f"DROP TABLE {table}")
            connection.execute(f"ALTER TABLE copied RENAME TO {table}")
    return path


@contextmanager
def writing(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection that waits for no disk."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA synchronous = OFF")
    yield connection
    connection.close()


def altered(ruleless: Path, path: Path, *statements: str) -> Path:
    """A copy at `path` in which statements have run."""
    shutil.copy(ruleless, path)
    with writing(path) as connection:
        for statement in statements:
            connection.execute(statement)
    return path


COLUMNS = [
    ("ledger_log", "size"),
    ("ledger_log", "verification_key"),
    ("ledger_bundles", "count"),
    ("ledger_bundles", "data"),
    ("ledger_ids", "entry_index"),
    ("ledger_tiles", "hashes"),
    ("ledger_tiles", "tile_index"),
    ("ledger_accounts", "credits_posted"),
    ("ledger_transfers", "micro"),
    ("ledger_transfers", "operation"),
    ("ledger_transfers", "debit"),
    ("ledger_totals", "debits_pending"),
    ("ledger_checkpoints", "note"),
]


@pytest.mark.parametrize("value", ["'text'", "NULL", "x'00ff'", "1e308", "''", "9223372036854775807"])
def test_values_of_other_types_in_a_database_give_a_sentence(
    ruleless: Path, tmp_path: Path, value: str
) -> None:
    for table, column in COLUMNS:
        path = altered(ruleless, tmp_path / f"{table}-{column}.db", f"UPDATE {table} SET {column} = {value}")
        for command in (("verify", path), ("balance", path), ("show", path), ("prove", path, 3)):
            run(*command)
        refused("verify", path)


@pytest.mark.parametrize(
    ("statements", "said"),
    [
        (["DROP TABLE ledger_tiles"], "ledger_tiles"),
        (["ALTER TABLE ledger_checkpoints RENAME COLUMN note TO remark"], "note"),
        (["ALTER TABLE ledger_tiles RENAME TO t", "CREATE VIEW ledger_tiles AS SELECT * FROM t"], "view"),
        (
            [
                "DROP TABLE ledger_bundles",
                "CREATE VIEW ledger_bundles AS WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n) "
                "SELECT i AS first_index, 1 AS count, x'0000' AS data FROM n",
            ],
            "view",
        ),
        (["UPDATE ledger_bundles SET data = zeroblob(200000000)"], "bytes"),
        (["UPDATE ledger_checkpoints SET note = printf('%.*c', 100000000, 'x')"], "bytes"),
        (["UPDATE ledger_checkpoints SET note = CAST(x'ff00fe' AS TEXT)"], ""),
        (["DELETE FROM ledger_log"], ""),
        (["DELETE FROM ledger_checkpoints"], "signed head"),
        (["DELETE FROM alembic_version"], "schema"),
        (["DROP TABLE alembic_version"], "schema"),
    ],
)
def test_a_database_of_another_form_is_refused_in_a_sentence(
    ruleless: Path, tmp_path: Path, statements: list[str], said: str
) -> None:
    assert said in refused("verify", altered(ruleless, tmp_path / "l.db", *statements))


@pytest.mark.parametrize(
    "kind", ["encrypted", "cut", "header only", "pages of noise", "a directory", "a pipe"]
)
def test_a_file_that_is_no_database_is_refused_in_a_sentence(honest: Path, tmp_path: Path, kind: str) -> None:
    path, data = tmp_path / "l.db", (honest / "l.db").read_bytes()
    match kind:
        case "encrypted":
            path.write_bytes(os.urandom(len(data)))
        case "cut":
            path.write_bytes(data[: len(data) // 2])
        case "header only":
            path.write_bytes(data[:100])
        case "pages of noise":
            path.write_bytes(data[:4096] + os.urandom(len(data) - 4096))
        case "a directory":
            path.mkdir()
        case "a pipe":
            os.mkfifo(path)
    refused("verify", path)
    refused("verify", f"sqlite:///{path}")


def test_a_locked_database_is_refused_in_a_sentence(
    honest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "l.db"
    shutil.copy(honest / "l.db", path)
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("PRAGMA journal_mode = DELETE")
    holder.execute("BEGIN EXCLUSIVE")
    monkeypatch.setattr(
        database_source, "Database", lambda url, **kind: Database(url, lock_timeout_s=0.1, **kind)
    )
    assert "lock" in refused("verify", path)
    holder.close()


def test_transactions_that_only_a_writer_could_read_are_not_left_out(
    honest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system that accepts no writes, with a log beside the database that was not written back."""
    path = tmp_path / "l.db"
    shutil.copy(honest / "l.db", path)
    writer = sqlite3.connect(path)
    writer.execute("PRAGMA journal_mode = WAL")
    writer.execute("PRAGMA wal_autocheckpoint = 0")
    writer.execute("CREATE TABLE more (x)")
    writer.commit()
    elsewhere = tmp_path / "mounted"
    elsewhere.mkdir()
    for name in ("l.db", "l.db-wal"):
        shutil.copy(tmp_path / name, elsewhere / name)
    writer.close()
    may = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK and may(path, mode))
    assert "l.db-wal" in refused("verify", elsewhere / "l.db")
    (elsewhere / "l.db-wal").unlink()
    assert run("verify", elsewhere / "l.db")[0] == 0


# Coordinators


def claiming(size: int, root: bytes = EMPTY_ROOT) -> ledger_pb2.Checkpoint:
    return ledger_pb2.Checkpoint(
        note=str(sign_checkpoint(Checkpoint(KEY.name, size, root), KEY)), verification_key=VKEY
    )


class Hostile(grpc.GenericRpcHandler):
    """A server that answers each method with whatever bytes it is given."""

    def __init__(self, head: bytes, entries: Callable[[Any], Iterator[bytes]], proof: bytes = b"") -> None:
        self._answers = {"GetCheckpoint": head, "GetInclusionProof": proof, "GetConsistencyProof": proof}
        self._entries = entries

    def service(self, details: Any) -> Any:
        method = details.method.rsplit("/", 1)[1]
        if method == "GetEntries":
            return grpc.unary_stream_rpc_method_handler(
                lambda request, context: self._entries(ledger_pb2.GetEntriesRequest.FromString(request))
            )
        return grpc.unary_unary_rpc_method_handler(lambda request, context: self._answers[method])


@contextmanager
def serving(handler: grpc.GenericRpcHandler) -> Iterator[str]:
    server = grpc.server(ThreadPoolExecutor(64), options=[("grpc.max_send_message_length", -1)])
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(0)


def batch(first: int, entries: list[bytes]) -> bytes:
    return ledger_pb2.Entries(first=first, entries=entries).SerializeToString()


def endless(make: Callable[[int], bytes]) -> Callable[[Any], Iterator[bytes]]:
    def stream(request: Any) -> Iterator[bytes]:
        number = 0
        while True:
            yield make(number)
            number += 1

    return stream


ENTRY = Entry("e", "kind", {"x": 1}).data

#: What a server that claims 2^62 entries may send for them.
STREAMS: dict[str, Callable[[Any], Iterator[bytes]]] = {
    "none": lambda request: iter(()),
    "too few": lambda request: iter([batch(request.first, [ENTRY])]),
    "others": lambda request: iter([batch(request.first + 7, [ENTRY])]),
    "more": lambda request: iter([batch(request.first, [ENTRY] * 1_000)] * 1_000),
    "empty batches": endless(lambda number: batch(0, [])),
    "empty entries": lambda request: iter([batch(request.first, [b""] * 300_000)]),
    "long entries": lambda request: iter([batch(request.first, [b"x" * 600_000])]),
    "long messages": lambda request: iter([batch(request.first, [b"x" * 65_535] * 1_000)]),
    "no message": lambda request: iter([b"\xff" * 1_000]),
    "a flood": lambda request: (batch(request.first + i * 8, [b"x" * 65_535] * 8) for i in range(1 << 40)),
    "small ones": lambda request: (batch(request.first + i * 64, [ENTRY] * 64) for i in range(1 << 40)),
}


def test_coordinators_that_claim_entries_without_end_are_given_up() -> None:
    head = claiming(2**62).SerializeToString()
    with ExitStack() as servers:
        addresses = [servers.enter_context(serving(Hostile(head, stream))) for stream in STREAMS.values()]
        ended, peak = in_little_room(*(["verify", address, "--insecure"] for address in addresses))
    for (code, said), what in zip(ended, STREAMS, strict=True):
        assert code == 1, (what, said)
        assert "NOT verified" in said, (what, said)
    assert peak < 350 << 20


def test_entries_that_come_too_slowly_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_PAGE_SECONDS", 0.5)
    release = threading.Event()

    def dribble(request: Any) -> Iterator[bytes]:
        yield batch(request.first, [ENTRY])
        release.wait(30)

    with serving(Hostile(claiming(2**62).SerializeToString(), dribble)) as address:
        assert "does not answer fast enough" in refused("verify", address, "--insecure")
        release.set()


def test_a_slow_link_that_brings_enough_goes_on(honest: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that is cut off in the middle of a page goes on where it was."""
    monkeypatch.setattr(sources, "_PAGE_SECONDS", 1.0)
    monkeypatch.setattr(sources, "_LEAST_ENTRIES", 5)
    data = [
        bytes(line) for line in (honest / "l.jsonl").read_bytes().splitlines() if line.startswith(b'{"body"')
    ]
    source = MemorySource(data)
    head = ledger_pb2.Checkpoint(note=source.checkpoint(), verification_key=VKEY).SerializeToString()
    release = threading.Event()

    def five(request: Any) -> Iterator[bytes]:
        yield batch(request.first, data[request.first : request.first + 5])
        release.wait(30)

    with serving(Hostile(head, five)) as address:
        with ThreadPoolExecutor(1):
            code, said = run("verify", address, "--insecure", "--key", VKEY)
        release.set()
    assert code == 0, said


@pytest.mark.parametrize(
    "head",
    [
        b"\xff" * 100,
        ledger_pb2.Checkpoint(note="x" * 500_000, verification_key=VKEY).SerializeToString(),
        ledger_pb2.Checkpoint(note="", verification_key="+" * 500_000).SerializeToString(),
        ledger_pb2.Checkpoint(note="x" * 50_000_000, verification_key=VKEY).SerializeToString(),
        b"\x0a\x04\xff\xfe\xfd\xfc",
        claiming(2**63 - 1).SerializeToString(),
    ],
    ids=["noise", "long note", "long key", "long message", "not utf-8", "2^63"],
)
def test_heads_of_any_kind_give_a_sentence(head: bytes, tmp_path: Path) -> None:
    with serving(Hostile(head, STREAMS["none"])) as address:
        refused("verify", address, "--insecure")
        refused("prove", address, 3, "--insecure", "--out", tmp_path / "r")


@pytest.mark.parametrize("case", range(4))
def test_proofs_of_any_kind_give_a_sentence(case: int, tmp_path: Path) -> None:
    hashes = [[b"x" * 32] * 100, [b"short"], [b"x" * 5_000_000], [bytes(32)] * 20_000][case]
    proof = ledger_pb2.InclusionProof(hashes=hashes).SerializeToString()
    with serving(Hostile(claiming(9).SerializeToString(), STREAMS["too few"], proof)) as address:
        refused("prove", address, 3, "--insecure", "--out", tmp_path / "r")
    assert not (tmp_path / "r").exists()


def test_the_words_of_a_refusing_server_cannot_steer_a_terminal() -> None:
    class Refusing(grpc.GenericRpcHandler):
        def service(self, details: Any) -> Any:
            def refuse(request: bytes, context: grpc.ServicerContext) -> bytes:
                context.abort(grpc.StatusCode.INTERNAL, "\x1b[2J\u202e" + "x" * 3_000)

            return grpc.unary_unary_rpc_method_handler(refuse)

    with serving(Refusing()) as address:
        said = refused("verify", address, "--insecure")
    assert "\x1b" not in said
    assert "\u202e" not in said
    assert len(said) < 1_500


def test_reading_ends_some_way_after_the_first_wrong_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "MAX_AFTER_WRONG_BYTES", 10_000)
    read = 0

    class Endless(MemorySource):
        def entries(self, first: int = 0) -> Iterator[bytes]:
            nonlocal read
            while True:
                read += 1
                yield ENTRY

    report = verification.verify_ledger(Endless([]))
    assert not report.verified
    assert "not read" in report.problems[-1].message
    assert read < 2_000


# What is shown and exported

EVIL = 'x\x1b[2J\x07\u202e\u2028"; drop\r\n=1+1'


def evil_source(entry_id: str = "=cmd|'/c_calc';x") -> MemorySource:
    transfers = (Post("treasury", "escrow:t", 5),)
    return MemorySource([Entry(entry_id, f"@{EVIL}", {"at": "2026-01-01\n; x", "task_id": EVIL}, transfers)])


def test_nothing_that_a_log_holds_steers_a_terminal(tmp_path: Path) -> None:
    folder = tmp_path / "evil"
    export_tiles(evil_source(), folder)
    for words in (("show",), ("show", "--json"), ("verify",), ("verify", "--json"), ("balance",)):
        _, said = run(words[0], folder, *words[1:])
        assert all(c.isprintable() or c == "\n" for c in said), words
    assert json.loads(run("show", folder, "--json")[1])["entry"]["kind"] == f"@{EVIL}"


def test_a_log_under_a_name_that_steers_a_terminal_is_refused(tmp_path: Path) -> None:
    key = SigningKey("evil\u202elog\x9b2J", 1, bytes(32))
    folder = tmp_path / "evil"
    folder.mkdir()
    record = {"format": "fedpeer-ledger/1", "key": "evil\u202e+00000000+AAAA"}
    (folder / "ledger.json").write_bytes(
        json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode()
    )
    text = Checkpoint(key.name, 0, EMPTY_ROOT).text()
    (folder / "checkpoint").write_text(f"{text}\n— evil AAAAAAAA\n")
    said = refused("verify", folder)
    assert "\u202e" not in said
    assert "\x9b" not in said


@pytest.mark.parametrize("name", ["=1+1", "+1", "-1", "@x", "'quoted", "plain", "a\\b", "a;b|c"])
def test_csv_cells_are_no_formulas_and_can_be_had_back(tmp_path: Path, name: str) -> None:
    export_csv(evil_source(name), tmp_path / "l.csv")
    text = (tmp_path / "l.csv").read_text()
    assert all(c.isprintable() or c == "\n" for c in text)
    row = next(csv.DictReader(io.StringIO(text)))
    for cell, meant in ((row["entry"], name), (row["kind"], f"@{EVIL}")):
        assert not cell.startswith(("=", "+", "-", "@", "\t", "\r"))
        bare = cell[1:] if cell.startswith("'") else cell
        assert bare.encode("latin-1", "backslashreplace").decode("unicode_escape") == meant


@pytest.mark.parametrize("name", ["a;b", "a|b", "*x", "(1)", "plain", "a\\b"])
def test_an_hledger_journal_means_what_it_says(tmp_path: Path, name: str) -> None:
    export_hledger(evil_source(name), tmp_path / "l.journal")
    text = (tmp_path / "l.journal").read_text()
    assert all(c.isprintable() or c == "\n" for c in text)
    lines = text.splitlines()
    assert lines[3].startswith("1970-01-01 * (0) ")  # what is not a date is none
    described = lines[3].removeprefix("1970-01-01 * (0) ")
    assert ";" not in described
    assert "|" not in described
    assert described.encode("latin-1", "backslashreplace").decode("unicode_escape") == name
    assert len(lines) == 6
