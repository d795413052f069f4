"""`fedpeer ledger` as a user calls it: output, exit codes, and one sentence for each mistake."""

import csv
import io
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from sqlalchemy import text
from typer.testing import CliRunner, Result

from coordinator.services.ledger_servicer import LedgerServicer
from coordinator.storage.schema import migrate
from fedpeer.audit.cli import app
from fedpeer.audit.export import export_json_lines
from fedpeer.audit.input_files import NothingThereError
from fedpeer.audit.sources import open_source
from fedpeer.audit.sql.database import Database
from fedpeer.audit.sql.errors import DatabaseFull, DatabaseLocked, DatabaseReadOnly, DatabaseUnreachable
from fedpeer.audit.sql.ledger_store import SignedLog, SqlLedgerStore
from fedpeer.v1 import ledger_pb2, ledger_pb2_grpc
from mechanism.ledger import entries
from mechanism.ledger.appending import Ledger
from mechanism.ledger.entry import Entry
from mechanism.ledger.errors import LedgerError
from mechanism.ledger.note import COSIGNATURE_V1, Checkpoint, Note, SigningKey, VerificationKey
from mechanism.ledger.openings import Openings
from mechanism.ledger.verify import verify_ledger
from tests import ledger_samples as samples
from tests.backends import scratch_url
from tests.ledger_histories import SHAPES, played
from tests.memory_source import KEY, MemorySource, own

VKEY = str(KEY.verification_key)
STEPS = list(samples.transactions(samples.terms(rounds=2, capacity=4), samples.names(4), {2: "p001"}))
PAID = sum(int(str(e.body["paid_micro"])) for step in STEPS for e in step if e.kind == "payment")


def settle(url: str, steps: int = len(STEPS)) -> str:
    """Records the first transactions of a task; returns the latest head."""
    database = Database(url)
    migrate(database)
    log = SignedLog(database, KEY)
    for step in STEPS[:steps]:
        with database.begin() as connection:
            Ledger(SqlLedgerStore(connection)).append(step)
        log.sign_head()
    note = log.sign_head()
    database.close()
    return note


def call(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A settled task: l.db, tiles/, l.jsonl."""
    made = tmp_path_factory.mktemp("ledger")
    settle(f"sqlite:///{made / 'l.db'}")
    for form, name in (("tiles", "tiles"), ("jsonl", "l.jsonl")):
        assert call("export", made / "l.db", "--format", form, "--out", made / name).exit_code == 0
    return made


SOURCES = ("l.db", "tiles", "l.jsonl")


@pytest.mark.parametrize("source", SOURCES)
def test_verify_says_what_it_checked(folder: Path, source: str) -> None:
    done = call("verify", folder / source, "--key", VKEY)
    assert done.exit_code == 0, done.output
    assert f"8 payments of {PAID} micro-credits" in done.output
    record = json.loads(call("verify", folder / source, "--json").stdout)
    assert record["verified"] is True
    assert record["key_pinned"] is False
    assert record["level"] == "public"
    assert record["checked"]["degrees"] == 0
    assert record["unchecked"] == {"claim": 4, "model": 8, "evidence": 2, "verdict": 8}
    assert (
        record["balances"]["escrow:task"]["debits_posted"]
        == PAID + record["balances"]["rounding"]["credits_posted"]
    )


def test_each_level_says_what_it_saw_and_what_it_did_not(folder: Path, tmp_path: Path) -> None:
    everything = Openings(None, samples.openings_of(entry for step in STEPS for entry in step))
    mine = own(everything, "p002")
    for given, name in ((everything, "all.jsonl"), (mine, "mine.jsonl")):
        (tmp_path / name).write_bytes(b"".join(line + b"\n" for line in given.lines()))
    done = call("verify", folder / "l.jsonl")
    assert (
        "checked as public: 0 openings checked; unchecked: claimed degrees (4), numbers of samples (8)"
        in done.output
    )
    done = call("verify", folder / "l.jsonl", "--openings", tmp_path / "mine.jsonl")
    assert done.exit_code == 0, done.output
    assert "checked as participant p002: 7 openings checked; unchecked: claimed degrees (3)" in done.output
    assert ", 2 degrees recomputed from evidence" in done.output
    done = call("verify", folder / "l.jsonl", "--openings", tmp_path / "all.jsonl")
    assert done.exit_code == 0, done.output
    assert "checked as auditor: 22 openings checked, nothing left unchecked" in done.output
    assert "NEWER" not in done.output
    newer = Openings(None, {**everything.by_id, "other/round/1/evidence": {"salt": ""}})
    (tmp_path / "all.jsonl").write_bytes(b"".join(line + b"\n" for line in newer.lines()))
    done = call("verify", folder / "l.jsonl", "--openings", tmp_path / "all.jsonl")
    assert done.exit_code == 0, done.output
    assert "NEWER openings than this copy: 1 of task other (not in this copy)." in done.output
    done = call("verify", folder / "l.jsonl", "--openings", tmp_path)
    assert "the openings are of all, p002" in mistake(done)


def test_what_an_auditor_says_of_a_task_is_shown_with_its_tolerance(tmp_path: Path) -> None:
    history = played(SHAPES["measured again"])
    history.measure(identical=1, degree_micro=7_000)
    export_json_lines(MemorySource(history.log.entries), tmp_path / "l.jsonl")
    done = call("verify", tmp_path / "l.jsonl")
    assert (
        "task task was measured again by its auditor: confirmed; of 2 rounds 1 the same bit for bit, 2 next models "
        "the same, at most 0.007000 apart with a tolerance of 0.010000, 0 of 8 submissions with a test turned"
    ) in done.output
    said = json.loads(call("verify", tmp_path / "l.jsonl", "--json").output)["remeasured"]["task"]
    assert (said["outcome"], said["tolerance_micro"], said["number"]) == ("confirmed", 10_000, 2)


def test_an_opening_that_is_not_the_committed_one_is_named(folder: Path, tmp_path: Path) -> None:
    name, kept = "task/round/1/verdict/p002", samples.openings_of(entry for step in STEPS for entry in step)
    path = tmp_path / "openings.jsonl"

    def verified(openings: dict[str, Any]) -> str:
        path.write_bytes(b"".join(line + b"\n" for line in Openings(None, openings).lines()))
        done = call("verify", folder / "l.jsonl", "--openings", path)
        assert done.exit_code == 1
        return done.output

    assert f"({name}): its opening is not the one that it commits to" in verified(
        {**kept, name: {**kept[name], "salt": "00" * 32}}
    )
    stranger = "task/round/3/verdict/p002"
    assert f"opening of {stranger}: the ledger has no entry" in verified({**kept, stranger: kept[name]})
    path.write_bytes(path.read_bytes() * 2)
    done = call("verify", folder / "l.jsonl", "--openings", path)
    assert f"{path} is no file of openings, or a damaged one: line 25 of the openings has other" in mistake(
        done
    )


def test_openings_are_those_of_whom_they_say(folder: Path, tmp_path: Path) -> None:
    kept, path = samples.openings_of(entry for step in STEPS for entry in step), tmp_path / "openings.jsonl"
    everything = Openings(None, kept)

    def verified(whose: str | None, openings: Openings) -> Result:
        lines = replace(openings, participant=whose).lines()
        path.write_bytes(b"".join(line + b"\n" for line in lines))
        return call("verify", folder / "l.jsonl", "--openings", path)

    assert verified("p002", own(everything, "p002")).exit_code == 0
    done = verified("p001", own(everything, "p002"))
    assert done.exit_code == 1
    assert "its opening is about p002; the openings are said to be those of p001" in done.output
    nobody = "openings: they are said to be those of nobody, who never enrolled in this ledger"
    assert sentence(verified("nobody", Openings())) == nobody
    done = sentence(verified(None, Openings()))
    assert done == "openings: they are said to be all, and there are none; 22 entries commit to one"


def test_openings_of_ones_own_that_are_missing_are_named(folder: Path, tmp_path: Path) -> None:
    kept = samples.openings_of(entry for step in STEPS for entry in step)
    mine, path = own(Openings(None, kept), "p002"), tmp_path / "openings.jsonl"
    for ids, words in (
        ([], None),
        (["task/round/2/verdict/p002"], "MISSING of your own openings: task/round/2/verdict/p002. What"),
        (list(mine.by_id), " and 2 more. What"),
    ):
        left = replace(mine, by_id={name: opening for name, opening in mine.by_id.items() if name not in ids})
        path.write_bytes(b"".join(line + b"\n" for line in left.lines()))
        done = call("verify", folder / "l.jsonl", "--openings", path)
        assert done.exit_code == 0
        assert words in done.output if words else "MISSING" not in done.output
        found = json.loads(call("verify", folder / "l.jsonl", "--openings", path, "--json").output)["missing"]
        assert found == ({"task": ids} if ids else {})


def test_a_folder_that_holds_the_ledger_beside_other_things_verifies(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "tiles", tmp_path / "ledger")
    (tmp_path / "result.json").write_text("{}")
    assert call("verify", tmp_path).exit_code == 0
    bundle = next((tmp_path / "ledger" / "tile" / "entries").rglob("*.p/*"))
    bundle.write_bytes(bundle.read_bytes().replace(b"paid_micro", b"paid_macro", 1))
    done = call("verify", tmp_path)
    assert done.exit_code == 1
    assert "NOT verified" in done.output


def test_verify_from_an_older_head_and_not_from_a_foreign_one(folder: Path, tmp_path: Path) -> None:
    with ExitStack() as resources:
        heads = list(open_source(str(folder / "l.db"), resources).heads())
    known = tmp_path / "known"
    for note in heads:
        known.write_text(note)
        assert call("verify", folder / "tiles", "--from", known).exit_code == 0
    shorter = tmp_path / "shorter.db"
    settle(f"sqlite:///{shorter}", steps=2)
    done = call("verify", shorter, "--from", known)
    assert done.exit_code == 3
    assert "OLDER: it ends after" in done.output
    record = json.loads(call("verify", shorter, "--from", known, "--json").stdout)
    assert (record["verified"], record["known"]) == (True, "older")


def forked(path: Path, change: Callable[[Entry], Entry]) -> Path:
    """The first two transactions of the task, one entry of them rewritten and all signed anew."""
    database = Database(f"sqlite:///{path}")
    migrate(database)
    log = SignedLog(database, KEY)
    with database.begin() as connection:
        Ledger(SqlLedgerStore(connection)).append([change(entry) for step in STEPS[:2] for entry in step])
    log.sign_head()
    database.close()
    return path


def test_a_receipt_tells_an_older_ledger_from_one_that_contradicts_it(folder: Path, tmp_path: Path) -> None:
    index = next(i for i, e in enumerate(e for step in STEPS for e in step) if e.kind == "model")
    receipt = tmp_path / "model.tlog-proof"
    assert call("prove", folder / "l.db", index, "--out", receipt).exit_code == 0
    assert call("verify", folder / "tiles", "--from", receipt).exit_code == 0
    assert "it extends the head" in call("verify", folder / "l.db", "--from", receipt).output
    settle(f"sqlite:///{tmp_path / 'older.db'}", steps=2)
    done = call("verify", tmp_path / "older.db", "--from", receipt)
    assert (done.exit_code, "OLDER" in done.output) == (3, True)
    settle(f"sqlite:///{tmp_path / 'oldest.db'}", steps=1)  # it ends before the entry itself
    assert call("verify", tmp_path / "oldest.db", "--from", receipt).exit_code == 3

    def late(entry: Entry) -> Entry:
        if entry.kind != "model" or "p000" not in entry.id:
            return entry
        return Entry(entry.id, entry.kind, {**entry.body, "late": True})

    done = call("verify", forked(tmp_path / "late.db", late), "--from", receipt)
    assert done.exit_code == 1
    assert (
        "the receipt says that task/round/1/model/p000/model-1-p000 came in time; the ledger says late"
        in done.output
    )
    record = json.loads(call("verify", tmp_path / "late.db", "--from", receipt, "--json").stdout)
    assert record["known"] == "contradicted"


def test_a_receipt_names_what_a_ledger_has_in_its_place(folder: Path, tmp_path: Path) -> None:
    receipt = tmp_path / "r.tlog-proof"
    assert call("prove", folder / "l.db", 1, "--out", receipt).exit_code == 0
    key = samples.private_key("p002").public_key()

    def other(entry: Entry) -> Entry:
        return entries.enrolment("p009", key) if entry.body.get("participant_id") == "p001" else entry

    done = call("verify", forked(tmp_path / "other.db", other), "--from", receipt)
    assert done.exit_code == 1
    assert "the receipt proves the entry participant/p001/key/" in done.output
    again = json.loads(call("show", folder / "l.db", "--first", 1, "--count", 1, "--json").stdout)["entry"]

    def rewritten(entry: Entry) -> Entry:
        return (
            Entry(entry.id, entry.kind, {**entry.body, "public_key": "AAAA"})
            if entry.id == again["id"]
            else entry
        )

    done = call("verify", forked(tmp_path / "rewritten.db", rewritten), "--from", receipt)
    assert "they differ in public_key" in done.output
    receipt.write_text(receipt.read_text().replace("index 1", "index 2"))
    done = call("verify", folder / "l.db", "--from", receipt)
    assert (done.exit_code, "known checkpoint" in done.output) == (1, True)


def test_a_ledger_made_on_one_machine_verifies_on_another_to_the_same_integers(folder: Path) -> None:
    """Another process, with another hash seed and locale, reads the exported folder alone."""
    program = (
        "import sys; from contextlib import ExitStack; from fedpeer.audit.sources import open_source;"
        "from mechanism.ledger.verify import verify_ledger; import json;"
        "print(json.dumps(verify_ledger(open_source(sys.argv[1], ExitStack())).record()))"
    )
    records = []
    for seed, locale in (("1", "C"), ("2", "C.UTF-8")):
        done = subprocess.run(
            [sys.executable, "-c", program, str(folder / "tiles")],
            capture_output=True,
            check=True,
            env={"PYTHONHASHSEED": seed, "LC_ALL": locale, "PYTHONPATH": ":".join(sys.path)},
        )
        records.append(json.loads(done.stdout))
    assert records[0] == records[1]
    assert records[0]["verified"]
    assert records[0]["balances"] == json.loads(call("verify", folder / "l.db", "--json").stdout)["balances"]


@pytest.mark.parametrize("source", SOURCES)
def test_a_receipt_of_every_entry_checks_offline(folder: Path, source: str, tmp_path: Path) -> None:
    receipt = tmp_path / "r.tlog-proof"
    for index in (0, 7, 40):
        assert call("prove", folder / source, index, "--out", receipt).exit_code == 0
        done = call("check", receipt, "--key", VKEY, "--json")
        assert done.exit_code == 0
        assert json.loads(done.stdout)["index"] == index
    other = str(SigningKey("example.com/fedpeer", 1, bytes(32)).verification_key)
    assert call("check", receipt, "--key", other).exit_code == 1
    receipt.write_text(receipt.read_text().replace("index 40", "index 41"))
    assert call("check", receipt, "--key", VKEY).exit_code == 1
    assert call("check", receipt).exit_code == 2


def test_an_account_without_a_posting_is_answered_with_the_one_that_was_meant(folder: Path) -> None:
    for wrong in ("p000", "p000:payable", "payabel:p000"):
        refused = call("balance", folder / "l.db", wrong).exception
        assert isinstance(refused, LedgerError)
        assert "payable:p000" in str(refused), wrong
    assert "there are escrow, payable" in str(call("balance", folder / "l.db", "xyz:qqq").exception)


def test_show_says_that_there_is_more_and_how_to_go_on(folder: Path) -> None:
    first = call("show", folder / "l.db", "--count", 2, "--json")
    assert len(first.stdout.splitlines()) == 2
    assert "--first 2" in first.stderr
    size = len(call("show", folder / "l.db", "--count", 10_000, "--json").stdout.splitlines())
    assert "There are more" not in call("show", folder / "l.db", "--count", size).stderr
    kinds = call("show", folder / "l.db", "--kind", "payment", "--count", 1, "--json")
    following = int(kinds.stderr.partition("--first ")[2].partition(",")[0])
    shown = json.loads(call("show", folder / "l.db", "--first", following, "--count", 1, "--json").stdout)
    assert shown["entry"]["kind"] == "payment"


@pytest.mark.parametrize("form", [(), ("--json",)])
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--kind", "foo"), "no entry of kind foo; kinds: "),
        (("--task", "nope"), "no entry of task nope; tasks: task."),
        (("--kind", "foo", "--task", "nope"), "of kind foo and task nope; kinds: "),
        (("--kind", "enrolment", "--task", "task"), "both are there, but of different entries"),
        (("--first", 10_000), "The ledger has no entry from entry 10000 on."),
        (("--first", 10_000, "--kind", "payment"), "The ledger has no entry from entry 10000 on."),
    ],
)
def test_show_says_what_there_is_where_it_finds_nothing(
    folder: Path, arguments: tuple[object, ...], said: str, form: tuple[str, ...]
) -> None:
    done = call("show", folder / "l.db", *arguments, *form)
    assert done.exit_code == 1
    assert done.stdout == ""
    assert said in done.stderr
    assert ("payment" in done.stderr) == ("kinds:" in said)


def test_keys_of_a_name_that_has_none_say_which_name_comes_near(folder: Path) -> None:
    done = call("keys", "p0000", folder / "l.db")
    assert done.exit_code == 1
    assert "no key for p0000; did you mean p00" in done.stderr
    none = call("keys", "zzz", folder / "l.db", "--json")
    assert none.exit_code == 1
    assert json.loads(none.stdout)["keys"] == []
    assert "it holds keys of " in none.stderr


def test_show_and_balance_print_what_is_there(folder: Path) -> None:
    shown = call("show", folder / "l.db", "--kind", "payment", "--json").stdout.splitlines()
    assert len(shown) == 8
    assert "payment" in call("show", folder / "tiles", "--kind", "payment", "--count", 1).output
    one = json.loads(call("balance", folder / "l.db", "payable:p000", "--json").stdout)
    assert one["payable:p000"]["holds"] > 0
    whole = json.loads(call("balance", folder / "l.jsonl", "--json").stdout)
    assert sum(account["holds"] for account in whole.values()) == 0
    assert "escrow:task" in call("balance", folder / "tiles").output


def test_csv_and_hledger_hold_every_transfer(folder: Path, tmp_path: Path) -> None:
    assert call("export", folder / "l.db", "--format", "csv", "--out", tmp_path / "l.csv").exit_code == 0
    rows = list(csv.DictReader(io.StringIO((tmp_path / "l.csv").read_text())))
    assert (
        sum(int(row["micro"]) for row in rows if row["kind"] == "payment" and row["debit"] == "escrow:task")
        == PAID
    )
    assert (
        call("export", folder / "l.db", "--format", "hledger", "--out", tmp_path / "l.journal").exit_code == 0
    )
    journal = (tmp_path / "l.journal").read_text()
    held: dict[str, int] = {}
    for line in journal.splitlines():
        if line.startswith("    "):
            account, _, amount = line.split()
            held[account] = held.get(account, 0) + int(amount.replace(".", ""))
    assert held["escrow:task"] == 0
    assert sum(held.values()) == 0
    whole = json.loads(call("balance", folder / "l.db", "--json").stdout)
    assert held == {name: account["holds"] for name, account in whole.items()}
    if shutil.which("hledger"):
        subprocess.run(["hledger", "-f", tmp_path / "l.journal", "check"], check=True)


def test_a_witness_cosigns_what_extends_and_refuses_a_fork(folder: Path, tmp_path: Path) -> None:
    state, growing = tmp_path / "witness", tmp_path / "growing.db"
    settle(f"sqlite:///{growing}", steps=2)
    first = json.loads(call("witness", growing, "--state", state, "--json").stdout)
    settle(f"sqlite:///{growing}")
    done = call("witness", growing, "--state", state, "--key", VKEY, "--json")
    second = json.loads(done.stdout)
    assert done.exit_code == 0
    assert second["old"] == first["size"] < second["size"]
    witness = VerificationKey.parse(second["witness"])
    assert witness.kind == COSIGNATURE_V1
    assert Note.parse(second["checkpoint"]).cosigned_by(witness) is not None
    shorter = tmp_path / "shorter.db"
    settle(f"sqlite:///{shorter}", steps=2)
    refused = call("witness", shorter, "--state", state)
    assert refused.exit_code == 1
    assert "not cosigned" in refused.output
    fork = tmp_path / "fork.db"
    database = Database(f"sqlite:///{fork}")
    migrate(database)
    other = samples.terms(rounds=3, capacity=5)
    for step in samples.transactions(other, samples.names(5)):
        with database.begin() as connection:
            Ledger(SqlLedgerStore(connection)).append(step)
    SignedLog(database, KEY).sign_head()
    database.close()
    assert call("verify", fork).exit_code == 0
    forked = call("witness", fork, "--state", state, "--json")
    assert forked.exit_code == 1
    assert "another root" in json.loads(forked.stdout)["problem"]
    assert "cosigned" in call("witness", growing, "--state", state, "--json").stdout
    assert (state / "witness.key").stat().st_mode & 0o077 == 0
    stranger = str(SigningKey("example.com/fedpeer", 1, bytes(32)).verification_key)
    assert call("witness", growing, "--state", state, "--key", stranger).exit_code == 1


# A coordinator's address


class Direct:
    """The service's transactions, without the service."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._log = SignedLog(database, KEY)

    async def sign_head(self) -> str:
        return self._log.sign_head()

    async def published(self) -> tuple[str, str, list[str]]:
        self._log.sign_head()
        note, key, changes = self._log.published()
        return note, key, [str(proof) for proof in changes]

    async def read(self, step: object) -> object:
        from coordinator.transaction import Transaction

        with self._database.read() as connection:
            return step(Transaction(connection, 0.0))  # type: ignore[operator]


@pytest.fixture
async def address(folder: Path) -> object:
    database = Database(f"sqlite:///{folder / 'l.db'}")
    server = grpc.aio.server()
    ledger_pb2_grpc.add_LedgerServicer_to_server(LedgerServicer(Direct(database)), server)  # type: ignore[arg-type]
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield f"127.0.0.1:{port}"
    await server.stop(0)
    database.close()


async def test_a_coordinators_address_is_verified_proved_and_witnessed(address: str, tmp_path: Path) -> None:
    import asyncio

    def outsider() -> None:
        assert call("verify", address, "--insecure", "--key", VKEY).exit_code == 0
        assert call("prove", address, 40, "--insecure", "--out", tmp_path / "r").exit_code == 0
        assert call("check", tmp_path / "r", "--key", VKEY).exit_code == 0
        assert (
            call("export", address, "--insecure", "--format", "tiles", "--out", tmp_path / "t").exit_code == 0
        )
        assert call("verify", tmp_path / "t").exit_code == 0
        state = tmp_path / "witness"
        shorter = tmp_path / "s.db"
        settle(f"sqlite:///{shorter}", steps=3)
        assert call("witness", shorter, "--state", state).exit_code == 0
        assert call("witness", address, "--insecure", "--state", state).exit_code == 0

    with ThreadPoolExecutor(1) as pool:
        await asyncio.get_running_loop().run_in_executor(pool, outsider)


async def test_entries_are_fetched_in_pages(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import asyncio

    monkeypatch.setattr("fedpeer.audit.sources._PAGE_ENTRIES", 7)
    result = await asyncio.to_thread(call, "verify", address, "--insecure", "--key", VKEY, "--json")
    assert result.exit_code == 0
    assert json.loads(result.output)["size"] > 3 * 7


async def test_a_coordinator_that_stops_sending_is_given_up(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import asyncio

    class Silent(LedgerServicer):
        async def GetEntries(  # noqa: N802  the service's name
            self, request: ledger_pb2.GetEntriesRequest, context: object
        ) -> AsyncIterator[ledger_pb2.Entries]:
            await asyncio.Event().wait()
            yield ledger_pb2.Entries()

    monkeypatch.setattr("fedpeer.audit.sources._PAGE_SECONDS", 0.2)
    database = Database(f"sqlite:///{folder / 'l.db'}")
    server = grpc.aio.server()
    ledger_pb2_grpc.add_LedgerServicer_to_server(Silent(Direct(database)), server)  # type: ignore[arg-type]
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    result = await asyncio.to_thread(call, "verify", f"127.0.0.1:{port}", "--insecure")
    await server.stop(0)
    database.close()
    assert "does not answer" in sentence(result)


# Where output goes


def test_an_export_replaces_no_file_and_writes_through_what_is_none(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "mine.csv"
    out.write_text("somebody's own")
    refused = call("export", folder / "l.jsonl", "--format", "csv", "--out", out)
    assert isinstance(refused.exception, LedgerError)
    assert "exists already" in str(refused.exception)
    assert out.read_text() == "somebody's own"
    assert call("export", folder / "l.jsonl", "--format", "csv", "--out", "/dev/null").exit_code == 0
    assert Path("/dev/null").is_char_device()
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as pool:
        read = pool.submit(pipe.read_text)
        assert call("export", folder / "l.jsonl", "--format", "csv", "--out", pipe).exit_code == 0
        assert read.result().startswith("index,entry,kind")
    assert pipe.is_fifo()


def test_a_receipt_goes_where_a_link_points(folder: Path, tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("old")
    link.symlink_to(target)
    assert call("prove", folder / "l.jsonl", 3, "--out", link).exit_code == 0
    assert link.is_symlink()
    assert call("check", target, "--key", VKEY).exit_code == 0


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="needs /dev/full")
@pytest.mark.parametrize("arguments", [("show",), ("balance",), ("verify",), ("export", "--format", "jsonl")])
def test_standard_output_on_a_full_disk_is_one_sentence(folder: Path, arguments: tuple[str, ...]) -> None:
    command, *options = arguments
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "fedpeer", "ledger", command, str(folder / "l.jsonl"), *options],
            stdout=full, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
    assert done.returncode == 2
    assert "No space left" in done.stderr
    assert len(done.stderr.splitlines()) == 1


# Mistakes


@pytest.mark.parametrize("arguments", [("show",), ("export", "--format", "csv", "--out", "out.csv")])
def test_a_name_that_no_file_can_have_is_one_sentence(arguments: tuple[str, ...], tmp_path: Path) -> None:
    command, *options = arguments
    done = subprocess.run(
        [sys.executable, "-m", "fedpeer", "ledger", command, "a" * 300, *options],
        capture_output=True, text=True, cwd=tmp_path,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("fedpeer: there is no ledger at 'aaa")
    assert done.stderr.count("\n") == 1


def test_a_witness_leaves_nothing_for_a_wrong_source(tmp_path: Path) -> None:
    assert mistake(call("witness", tmp_path / "nothing", "--state", tmp_path / "w"))
    assert not (tmp_path / "w").exists()
    (tmp_path / "file").write_text("")
    result = call("witness", tmp_path / "nothing", "--state", tmp_path / "file")
    assert "Traceback" not in result.output


def test_a_witness_state_that_is_a_file_is_named(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = call("witness", folder / "l.jsonl", "--state", tmp_path / "file")
    assert result.exit_code == 1
    assert "is a file" in result.output


def test_a_ledger_without_its_one_row_is_damaged(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"
    with sqlite3.connect(folder / "l.db") as original, sqlite3.connect(copy) as target:
        original.backup(target)
    connection = sqlite3.connect(copy)
    connection.execute("DELETE FROM ledger_log")
    connection.commit()
    connection.close()
    assert "lost its row" in sentence(call("verify", copy))


def test_emptied_heads_are_missed(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "tiles"
    shutil.copytree(folder / "tiles", copy)
    (copy / "heads").write_bytes(b"")
    assert "heads is empty" in sentence(call("verify", copy))


@pytest.mark.parametrize("source", ["", "localhost:0", "localhost:99999"])
def test_sources_that_cannot_be_are_refused(source: str) -> None:
    assert "expected" in mistake(call("verify", source))


def mistake(result: Result) -> str:
    """What the command refuses before it looks at any ledger; the program ends with 2 then."""
    assert isinstance(result.exception, NothingThereError | DatabaseUnreachable), result.output
    assert not result.output
    return str(result.exception)


@pytest.mark.parametrize(
    "arguments",
    [
        ("verify", "l.jsonl", "--key", "nowhere"),
        ("verify", "l.jsonl", "--key", ""),
        ("verify", "l.jsonl", "--from", "nowhere"),
        ("verify", "l.jsonl", "--openings", "nowhere"),
        ("verify", "nowhere"),
        ("check", "nowhere", "--key", VKEY),
        ("witness", "nowhere", "--state", "w"),
    ],
)
def test_a_mistake_in_a_command_is_told_from_a_ledger_that_does_not_hold(
    folder: Path, arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    done = subprocess.run(
        [sys.executable, "-m", "fedpeer", "ledger", *arguments], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("fedpeer: ")
    assert done.stderr.count("\n") == 1


def sentence(result: Result) -> str:
    """The one line that a failed verification prints after its headline."""
    assert result.exit_code == 1
    headline, *rest = result.output.strip().splitlines()
    assert headline == "NOT verified"
    assert len(rest) == 1, result.output
    assert "Traceback" not in result.output
    return rest[0]


def test_what_is_no_ledger_is_named_in_one_sentence(folder: Path, tmp_path: Path) -> None:
    assert "no ledger at" in mistake(call("verify", tmp_path / "missing"))
    assert "holds no ledger" in mistake(call("verify", tmp_path))
    for name, content in (("empty", b""), ("text", b"hello\n"), ("binary", bytes(range(256)))):
        (tmp_path / name).write_bytes(content)
        assert sentence(call("verify", tmp_path / name)).startswith("source: ")
    truncated = tmp_path / "t.jsonl"
    truncated.write_bytes((folder / "l.jsonl").read_bytes()[:-500])
    assert "truncated" in sentence(call("verify", truncated))
    version = tmp_path / "v.jsonl"
    version.write_bytes(
        (folder / "l.jsonl").read_bytes().replace(b"fedpeer-ledger/1", b"fedpeer-ledger/9", 1)
    )
    assert "fedpeer-ledger/9" in sentence(call("verify", version))
    other = tmp_path / "other.db"
    connection = sqlite3.connect(other)
    connection.execute("CREATE TABLE t (x)")
    connection.close()
    assert "without fedpeer's tables" in sentence(call("verify", other))
    cut = tmp_path / "cut.db"
    cut.write_bytes((folder / "l.db").read_bytes()[:5000])
    assert sentence(call("verify", cut)).startswith("source: ")
    assert "not a usable database URL" in mistake(call("verify", "mysql://nowhere/x"))
    assert "does not answer" in mistake(call("verify", "127.0.0.1:1", "--insecure"))
    stranger = str(SigningKey("example.com/fedpeer", 1, bytes(32)).verification_key)
    assert "the trusted key is" in sentence(call("verify", folder / "tiles", "--key", stranger))


def test_a_database_of_another_schema_is_named(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"
    with sqlite3.connect(folder / "l.db") as source, sqlite3.connect(copy) as target:
        source.backup(target)
        target.execute("UPDATE alembic_version SET version_num = '9999'")
    target.close()
    assert "use a newer fedpeer" in sentence(call("verify", copy))


def test_an_unreachable_postgresql_is_one_sentence() -> None:
    pytest.importorskip("psycopg")
    assert "cannot be reached" in mistake(call("verify", "postgresql://nobody@127.0.0.1:1/none"))


def test_an_export_that_fails_leaves_nothing(folder: Path, tmp_path: Path) -> None:
    done = call("export", folder / "l.db", "--format", "jsonl", "--out", tmp_path / "no" / "l.jsonl")
    assert isinstance(done.exception, LedgerError)
    broken = tmp_path / "broken.jsonl"
    broken.write_bytes((folder / "l.jsonl").read_bytes().replace(b'"v":1', b'"v":1 ', 1))
    for form in ("csv", "tiles"):
        target = tmp_path / f"out.{form}"
        result = call("export", broken, "--format", form, "--out", target)
        if form == "csv":
            assert isinstance(result.exception, LedgerError)
            assert not target.exists()
    assert not list(tmp_path.glob("*.partial"))
    taken = call("export", folder / "l.db", "--format", "tiles", "--out", folder)
    assert "exists already" in str(taken.exception)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    opened = Database(f"sqlite:///{tmp_path / 'l.db'}", lock_timeout_s=0.1)
    migrate(opened)
    yield opened
    opened.close()


def append(database: Database, steps: int = 1) -> None:
    with database.begin() as connection:
        for step in STEPS[:steps]:
            Ledger(SqlLedgerStore(connection)).append(step)


def test_a_locked_database_is_one_sentence(database: Database, tmp_path: Path) -> None:
    with database.begin():
        other = Database(database.url, lock_timeout_s=0.1)
        with pytest.raises(DatabaseLocked, match="try again later"):
            append(other)
        other.close()
    append(database)


def test_a_full_database_is_one_sentence_and_nothing_is_half_written(database: Database) -> None:
    append(database, 1)
    with database.read() as connection:
        size = SqlLedgerStore(connection).size()

    def settle_on_a_full_disk() -> None:
        with database.begin() as connection:
            pages = connection.execute(text("PRAGMA page_count")).scalar_one()
            connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")
            for step in STEPS[1:]:
                Ledger(SqlLedgerStore(connection)).append(step)

    with pytest.raises(DatabaseFull, match="no space left"):
        settle_on_a_full_disk()
    with database.read() as connection:
        store = SqlLedgerStore(connection)
        assert store.size() == size
        connection.exec_driver_sql("PRAGMA max_page_count = 1000000")
    append(database, len(STEPS))
    SignedLog(database, KEY).sign_head()
    with ExitStack() as resources:
        assert verify_ledger(open_source(str(database.url), resources)).verified


def test_a_read_only_database_is_one_sentence(database: Database) -> None:
    append(database)
    reader = Database(database.url, read_only=True)
    with pytest.raises(DatabaseReadOnly, match="right to write"):
        append(reader, 2)
    reader.close()


def test_a_read_only_postgresql_is_one_sentence(tmp_path: Path) -> None:
    with scratch_url("postgresql", tmp_path) as url:
        settle(url)
        database = Database(url)
        with pytest.raises(DatabaseReadOnly, match="accepts no writes"), database.read() as connection:
            Ledger(SqlLedgerStore(connection)).append(samples.training(samples.terms("other"), 1, []))
        database.close()
        assert call("verify", url).exit_code == 0


def test_a_folder_that_cannot_be_made_is_one_sentence() -> None:
    database = Database("sqlite:////nonexistent/folder/l.db")
    with pytest.raises(DatabaseUnreachable, match="cannot be opened"):
        migrate(database)


def test_the_head_in_a_checkpoint_file_is_that_of_the_source(folder: Path) -> None:
    head = Checkpoint.open((folder / "tiles" / "checkpoint").read_text(), KEY.verification_key)
    assert head.size == sum(len(step) for step in STEPS)
