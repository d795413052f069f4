"""Replacing what everything is signed with: the server's certificate, the authority, the log's key."""

import contextlib
import json
import os
import re
import signal
import sqlite3
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from coordinator.cli import app
from coordinator.errors import FolderError
from coordinator.folder import StateFolder, initialise
from coordinator.operator import Operator
from fedpeer.audit.cli import app as ledger
from fedpeer.audit.sources import open_source
from fedpeer.audit.sql.errors import HeadRefused
from fedpeer.protocol.certificates import (
    Identity,
    issue_server_certificate,
    load_certificates,
    make_authority,
    new_key,
)
from mechanism.ledger.note import Checkpoint, SigningKey, VerificationKey
from mechanism.ledger.verify import Report, verify_ledger
from participant import NotEnrolledError, Participant, StateError, TransportError
from participant.backoff import Backoff
from participant.earnings import check_earnings
from participant.identity import IdentityFolder
from participant.log_keys import pinned_log_keys
from tests import commands
from tests.integration.serving import Served, served, stepped

RUNNER = CliRunner()

CONFIG = """
name = "test"
[server]
market = "127.0.0.1:0"
public = "127.0.0.1:0"
metrics = "127.0.0.1:0"
hosts = ["localhost", "127.0.0.1"]
"""


def run(folder: Path, *words: str) -> Result:
    return RUNNER.invoke(app, [*words, "--state", str(folder)])


def succeed(folder: Path, *words: str) -> Any:
    result = run(folder, *words, "--json")
    assert result.exit_code == 0, (result.output, result.exception)
    return json.loads(result.stdout.splitlines()[-1])  # after the log of a service in this process


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path / "coordinator") as running:
        yield running


@contextmanager
def process(folder: Path) -> Iterator[tuple["subprocess.Popen[str]", dict[str, str]]]:
    """A coordinator in a process of its own, and its addresses; its log goes to a file."""
    command = [sys.executable, "-m", "fedpeer", "coordinator", "serve", "--state", str(folder), "--json"]
    with (folder / "log").open("w") as log:
        serving = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        assert serving.stdout is not None
        line = serving.stdout.readline()
        assert line, (folder / "log").read_text()
        yield serving, json.loads(line)["addresses"]
    finally:
        serving.terminate()
        serving.wait(60)
        assert serving.stdout is not None
        serving.stdout.close()


def served_certificate(address: str) -> str:
    host, _, port = address.rpartition(":")
    return ssl.get_server_certificate((host, int(port))).strip()


def wait_for(reached: Callable[[], bool]) -> None:
    """Waits for a state that another process reaches."""
    end = time.monotonic() + 120
    while not reached():
        assert time.monotonic() < end
        time.sleep(0.02)


def swap(folder: Path, identity: Identity) -> None:
    """What an operator does by hand: both files at once."""
    (folder / "server.key").write_bytes(identity.key_pem)
    (folder / "server.pem").write_bytes(identity.certificate_pem)


# The server's certificate


def wrong_certificates(folder: StateFolder) -> dict[str, tuple[Identity, str]]:
    now, authority, hosts = datetime.now(UTC), folder.authority(), ["localhost", "127.0.0.1"]
    good = issue_server_certificate(authority, hosts, now)
    day = timedelta(days=1)
    return {
        "another key": (Identity(new_key(), good.certificate), "the key does not belong to the certificate"),
        "expired": (issue_server_certificate(authority, hosts, now - 9 * day, day), "expired on"),
        "not yet": (issue_server_certificate(authority, hosts, now + 9 * day), "valid only from"),
        "other names": (issue_server_certificate(authority, ["elsewhere.example"], now), "must be for localhost"),
        "another authority": (
            issue_server_certificate(make_authority("elsewhere", now), hosts, now), "not issued by the authority",
        ),
        "an authority": (authority, "so it is not a server's"),
    }  # fmt: skip


WRONG = ["another key", "expired", "not yet", "other names", "another authority", "an authority"]


@pytest.mark.parametrize("kind", WRONG)
def test_a_certificate_that_cannot_be_served_is_named_at_the_start(tmp_path: Path, kind: str) -> None:
    folder = initialise(tmp_path / "state", CONFIG, "test", ["localhost", "127.0.0.1"])
    identity, words = wrong_certificates(folder)[kind]
    swap(folder.path, identity)
    done = commands.fedpeer("coordinator", "serve", "--state", str(folder.path))
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert "cannot be bound" not in done.stderr
    # The command repairs it, whatever it was.
    assert succeed(folder.path, "certificate", "renew")["hosts"] == ["localhost", "127.0.0.1"]
    assert folder.checked_server(["localhost"], datetime.now(UTC))


def test_unreadable_files_are_named_at_the_start(tmp_path: Path) -> None:
    folder = initialise(tmp_path / "state", CONFIG, "test", ["localhost", "127.0.0.1"])
    for name in ("server.pem", "server.key", "authority.pem", "authority.key"):
        content = (folder.path / name).read_bytes()
        (folder.path / name).write_text("nonsense")
        with pytest.raises(FolderError, match=f"{name}: not a readable"):
            Operator(folder).certificates()
        (folder.path / name).unlink()
        with pytest.raises(FolderError, match=f"{name} is missing"):
            Operator(folder).certificates()
        (folder.path / name).write_bytes(content)
    Operator(folder).certificates()


def test_a_running_service_takes_a_renewed_certificate_over_and_keeps_the_old_one_where_it_cannot(
    tmp_path: Path,
) -> None:
    folder = initialise(tmp_path / "state", CONFIG, "test", ["localhost", "127.0.0.1"])
    with process(folder.path) as (serving, addresses):
        before = served_certificate(addresses["public"])
        for kind, (identity, words) in wrong_certificates(folder).items():
            swap(folder.path, identity)
            serving.send_signal(signal.SIGHUP)
            wait_for(lambda words=words: words in (folder.path / "log").read_text())  # type: ignore[misc]
            assert served_certificate(addresses["public"]) == before, kind
            assert words in json.dumps(succeed(folder.path, "status")["certificates"])
        assert "certificates read again" not in (folder.path / "log").read_text()
        succeed(folder.path, "certificate", "renew")  # in force when the command returns
        renewed = served_certificate(addresses["public"])
        assert renewed == (folder.path / "server.pem").read_text().strip() != before
        by_hand = issue_server_certificate(folder.authority(), ["localhost", "127.0.0.1"], datetime.now(UTC))
        swap(folder.path, by_hand)
        serving.send_signal(signal.SIGHUP)
        wait_for(lambda: served_certificate(addresses["public"]) != renewed)
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        text = direct.open(f"http://{addresses['metrics']}/metrics").read().decode()
        end = by_hand.certificate.not_valid_after_utc.timestamp()
        found = dict(re.findall(r'fedpeer_certificate_expiry_seconds\{certificate="(\w+)"\} (\S+)', text))
        assert float(found["server"]) == end
        assert found.keys() == {"server", "authority"}


def test_the_end_of_a_certificate_is_announced_in_good_time(tmp_path: Path) -> None:
    folder = initialise(tmp_path / "state", CONFIG, "test", ["localhost", "127.0.0.1"])
    assert "warnings" not in succeed(folder.path, "status")["certificates"]
    soon = issue_server_certificate(
        folder.authority(), ["localhost", "127.0.0.1"], datetime.now(UTC), timedelta(days=29)
    )
    swap(folder.path, soon)
    [warning] = succeed(folder.path, "status")["certificates"]["warnings"]
    assert "the server certificate expires on" in warning
    assert "certificate renew" in warning
    assert "WARNING: the server certificate expires on" in run(folder.path, "status").stderr
    with process(folder.path):
        pass
    assert "the server certificate expires on" in (folder.path / "log").read_text()


def test_a_certificate_for_other_names_is_issued_on_request(tmp_path: Path) -> None:
    folder = initialise(tmp_path / "state", "name = 'test'", "test", ["localhost"])
    assert succeed(folder.path, "certificate", "renew")["hosts"] == ["localhost"]
    assert succeed(folder.path, "certificate", "renew", "--host", "a.example")["hosts"] == ["a.example"]
    assert run(folder.path, "certificate", "renew", "--host", "not a name").exit_code != 0
    assert succeed(folder.path, "certificate", "renew")["hosts"] == ["a.example"]


# All or nothing


@pytest.mark.parametrize("change", ["certificate", "authority", "end"])
def test_a_change_that_is_killed_is_done_or_not_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """At every point where the process may die: before, between and after the files."""

    class Killed(BaseException):
        pass

    real = os.replace
    outcomes = set()
    for point in range(8):
        folder = initialise(tmp_path / f"{change}{point}", CONFIG, "test", ["localhost", "127.0.0.1"])
        if change == "end":
            folder.begin_authority("test")
        act = {
            "certificate": folder.issue_server,
            "authority": lambda f=folder: f.begin_authority("test"),
            "end": folder.end_authority,
        }[change]
        before = {path.name: path.read_bytes() for path in folder.path.glob("*.[pk]e[my]")}
        left = point

        def dying(self: Path, target: Path) -> Path:
            nonlocal left
            if left == 0:
                raise Killed
            left -= 1
            real(self, target)
            return target

        with monkeypatch.context() as patch:
            patch.setattr(Path, "replace", dying)
            with contextlib.suppress(Killed):
                act()  # type: ignore[operator]
        again = StateFolder(folder.path)
        again.checked_server(["localhost"], datetime.now(UTC))
        again.authority()
        again.older_authority()
        after = {path.name: path.read_bytes() for path in folder.path.glob("*.[pk]e[my]")}
        changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
        outcomes.add(frozenset(changed))
        assert not (folder.path / "keys.pending").exists()
    whole = {
        "certificate": {"server.key", "server.pem"},
        "authority": {"authority.key", "authority.pem", "authority.old.key"},
        "end": {"server.key", "server.pem", "authority.pem", "authority.old.key"},
    }[change]
    assert outcomes == {frozenset(), frozenset(whole)}


@pytest.mark.parametrize("point", ["prepared", "announced"])
def test_a_change_of_the_logs_key_that_is_killed_is_done_or_not_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    class Killed(BaseException):
        pass

    def die(*_: Any) -> None:
        raise Killed

    folder = initialise(tmp_path / "state", CONFIG, "test", ["localhost"])
    operator = Operator(folder)
    operator.invite("ada")
    old = operator.verification_key
    with monkeypatch.context() as patch:
        if point == "prepared":
            patch.setattr("fedpeer.audit.sql.ledger_store.SignedLog.change_key", die)
        else:
            patch.setattr(StateFolder, "changed_signing_key", die)
        with pytest.raises(Killed):
            operator.change_log_key()
    operator.close()
    again = Operator(StateFolder(folder.path))
    assert (again.verification_key == old) is (point == "prepared")
    again.invite("bob")
    again._act(lambda t: t.ledger.append([]))
    report = verified_folder(folder, old)
    assert report.key == str(again.verification_key)
    assert again.change_log_key()[0] == again.verification_key or True
    again.close()
    assert len(verified_folder(folder, old).keys) == (2 if point == "prepared" else 3)


def verified_folder(folder: StateFolder, key: VerificationKey | None = None) -> Report:
    with ExitStack() as resources:
        report = verify_ledger(open_source(folder.database_url(folder.config()), resources), key)
    assert report.verified, report.problems
    return report


# The authority


def test_participants_go_through_a_change_of_authority(coordinator: Served, tmp_path: Path) -> None:
    impatient = Backoff(patience=1, first_contact=1)
    path = coordinator.folder.path
    with coordinator.participant("ada", tmp_path) as ada, coordinator.participant("bob", tmp_path) as bob:
        first = load_certificates(ada.credentials.authority_pem)
        assert not ada.renew()
        began = succeed(path, "authority", "rotate")
        assert began["waiting"] == ["ada", "bob"]
        assert began["service"] == "confirmed"
        assert run(path, "authority", "rotate").exit_code == 1  # one after the other
        # Both authorities' certificates count, and everybody reaches the server.
        assert ada.client.tasks() == bob.client.tasks() == []
        with coordinator.participant("cyd", tmp_path) as cyd:
            assert len(load_certificates(cyd.credentials.authority_pem)) == 2
            assert cyd.client.tasks() == []
        assert ada.renew()
        assert not ada.renew()
        both = load_certificates(ada.credentials.authority_pem)
        assert both[1:] == first
        assert both[0] != first[0]
        assert ada.client.tasks() == []
        # Nobody is left out unasked.
        refused = run(path, "authority", "end")
        assert refused.exit_code == 1
        assert "bob" in str(refused.exception)
        assert "ada" not in str(refused.exception).replace("bob", "")
        server = (path / "server.pem").read_bytes()
        assert succeed(path, "authority", "end", "--leave-behind")["left_behind"] == ["bob"]
        assert (path / "server.pem").read_bytes() != server
        assert not (path / "authority.old.key").exists()
        assert ada.client.tasks() == []
        # At once, on an open connection too.
        with pytest.raises(NotEnrolledError, match="authority that has ended"):
            bob.client.tasks()
        assert ada.renew()  # the old authority is forgotten here as well
        assert load_certificates(ada.credentials.authority_pem) == both[:1]
    assert run(path, "authority", "end").exit_code == 1
    with Participant(tmp_path / "ada", coordinator.market) as ada:
        assert ada.client.tasks() == []
    with (
        Participant(tmp_path / "bob", coordinator.market, backoff=impatient) as bob,
        pytest.raises(TransportError),
    ):
        bob.client.tasks()
    # Invited again, with the authority as it is now.
    IdentityFolder(tmp_path / "bob").write("authority.pem", coordinator.authority)
    coordinator.enrol("bob", tmp_path / "bob")
    with Participant(tmp_path / "bob", coordinator.market) as bob:
        assert bob.client.tasks() == []


def test_the_servers_certificate_is_renewed_by_the_old_authority_while_both_count(
    coordinator: Served, tmp_path: Path
) -> None:
    with coordinator.participant("ada", tmp_path):
        pass
    succeed(coordinator.folder.path, "authority", "rotate")
    succeed(coordinator.folder.path, "certificate", "renew")
    with Participant(tmp_path / "ada", coordinator.market) as ada:  # which knows the old one alone
        assert ada.client.tasks() == []


# The log's key


def test_a_log_whose_key_was_changed_is_followed_by_everyone(coordinator: Served, tmp_path: Path) -> None:
    path = coordinator.folder.path
    database = str(path / "coordinator.db")
    state = tmp_path / "witness"
    old = str(coordinator.operator(lambda operator: operator.verification_key))
    coordinator.open("task", schedule={"rounds": 2})
    with ExitStack() as stack:
        people = [stack.enter_context(coordinator.participant(n, tmp_path)) for n in ("ada", "bob", "cyd")]
        joined = [person.join("task") for person in people]
        for one in joined:
            one.claim(0.5, [3, 3, 3, 3])
        assert RUNNER.invoke(ledger, ["witness", database, "--state", str(state)]).exit_code == 0
        known = coordinator.operator(lambda operator: operator._log.sign_head())
        (tmp_path / "known").write_text(known)
        rounds = [one.rounds() for one in joined]
        for one in rounds:
            round_ = next(one)
            round_.submit(stepped(round_.weights()), 10)
        changed = succeed(path, "log-key", "rotate")
        new = changed["ledger_key"]
        assert changed["old"] == old != new
        for one in rounds:
            round_ = next(one)
            round_.submit(stepped(round_.weights()), 10)
        for one in rounds:
            assert list(one) == []
        for person, one in zip(people, joined, strict=True):
            assert one.report().key_problems == ()
            keys = pinned_log_keys(person._journal)
            assert keys is not None
            assert [str(key) for key in keys.all] == [old, new]
            earned = check_earnings(person._journal, person.participant_id)
            assert [line.proof_error for line in earned] == ["", ""]
            signers = {Checkpoint.parse_text(tlog(line.settlement.proof)).size for line in earned}  # type: ignore[union-attr]
            assert len(signers) >= 1
    for source in (database, coordinator.public):
        options = [] if source == database else ["--ca", str(path / "authority.pem")]
        for key in (old, new):
            done = RUNNER.invoke(ledger, ["verify", source, "--key", key, "--json", *options])
            assert done.exit_code == 0, done.output
            assert json.loads(done.stdout)["keys"] == [old, new]
        stranger = str(SigningKey.generate("test").verification_key)
        done = RUNNER.invoke(ledger, ["verify", source, "--key", stranger, *options])
        assert done.exit_code == 1
        assert "the trusted key is" in done.output
        done = RUNNER.invoke(
            ledger, ["verify", source, "--key", old, "--from", str(tmp_path / "known"), *options]
        )
        assert done.exit_code == 0, done.output
    for form, name in (("tiles", "tiles"), ("jsonl", "ledger.jsonl")):
        target = tmp_path / name
        exported = RUNNER.invoke(ledger, ["export", database, "--format", form, "--out", str(target)])
        assert exported.exit_code == 0, exported.output
        for key in (old, new):
            assert RUNNER.invoke(ledger, ["verify", str(target), "--key", key]).exit_code == 0
        receipt = tmp_path / f"{name}.tlog-proof"
        assert RUNNER.invoke(ledger, ["prove", str(target), "3", "--out", str(receipt)]).exit_code == 0
        assert RUNNER.invoke(ledger, ["check", str(receipt), "--key", new]).exit_code == 0
        assert RUNNER.invoke(ledger, ["check", str(receipt), "--key", old]).exit_code == 1
        followed = RUNNER.invoke(ledger, ["check", str(receipt), "--key", old, "--ledger", str(target)])
        assert followed.exit_code == 0, followed.output
    seen = RUNNER.invoke(ledger, ["witness", database, "--state", str(state), "--json"])
    assert seen.exit_code == 0, seen.output
    assert json.loads(seen.stdout)["old"] < json.loads(seen.stdout)["size"]
    assert RUNNER.invoke(ledger, ["witness", database, "--state", str(state), "--key", new]).exit_code == 0
    for person in ("ada", "bob"):
        with Participant(tmp_path / person, coordinator.market) as again:
            assert again.keys().problems == ()


def tlog(proof: str) -> str:
    return proof.partition("\n\n")[2].partition("\n\n")[0] + "\n"


def test_a_key_that_is_not_announced_is_refused(coordinator: Served, tmp_path: Path) -> None:
    """Somebody with the database, and without the old key, signs by one of its own."""
    path = coordinator.folder.path
    state = tmp_path / "witness"
    with coordinator.participant("ada", tmp_path) as ada:
        ada.keys()
    assert (
        RUNNER.invoke(ledger, ["witness", str(path / "coordinator.db"), "--state", str(state)]).exit_code == 0
    )
    old = str(coordinator.operator(lambda operator: operator.verification_key))
    coordinator.stop()
    other = SigningKey.generate("test")
    (path / "ledger.key").write_text(other.secret_text())
    with pytest.raises(HeadRefused, match="own signing key"):
        Operator(coordinator.folder)
    connection = sqlite3.connect(path / "coordinator.db")
    connection.execute("UPDATE ledger_log SET verification_key = ?", [str(other.verification_key)])
    for (name,) in connection.execute(
        "SELECT name FROM sqlite_master WHERE type = 'trigger' AND tbl_name = 'ledger_checkpoints'"
    ).fetchall():
        connection.execute(f"DROP TRIGGER {name}")
    connection.execute("DELETE FROM ledger_checkpoints")
    connection.commit()
    connection.close()
    coordinator.start()
    with (
        Participant(tmp_path / "ada", coordinator.market) as ada,
        pytest.raises(StateError, match="another log"),
    ):
        ada.keys()
    for source, options in (
        (str(path / "coordinator.db"), []),
        (coordinator.public, ["--ca", str(path / "authority.pem")]),
    ):
        assert RUNNER.invoke(ledger, ["verify", source, "--key", old, *options]).exit_code == 1
    refused = RUNNER.invoke(ledger, ["witness", str(path / "coordinator.db"), "--state", str(state)])
    assert refused.exit_code == 1
    assert "does not announce it" in refused.output
