"""Participants of the SDK and a real coordinator, over mutual TLS on loopback."""

import asyncio
import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coordinator import server
from fedpeer.protocol.certificates import make_authority
from mechanism.canonical import canonical_digest
from participant import (
    Activity,
    AsyncParticipant,
    Backoff,
    BestResponse,
    ConfigurationError,
    CountsChangedError,
    NotEnrolledError,
    NotFoundError,
    Participant,
    ServerNameError,
    SessionTakenOverError,
    SubmittedError,
    TaskReport,
    TLSError,
    UnreachableError,
    WeightsError,
    WrongStateError,
)
from participant.earnings import check_earnings
from participant.endpoint import Endpoint
from participant.journal import Journal
from participant.sync import Client
from tests.integration.serving import WEIGHTS, Served, Shift, served, stepped

NAMES = ("ada", "ben", "cho")
COUNTS = {"ada": [25, 25, 25, 25], "ben": [40, 20, 20, 20], "cho": [70, 10, 10, 10]}


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path / "coordinator") as running:
        yield running


def all_run(
    participants: dict[str, Participant], task_id: str | None = "task", **options: Any
) -> dict[str, TaskReport]:
    """Every participant runs the task in a thread of its own."""
    reports: dict[str, Any] = {}

    def run(name: str) -> None:
        try:
            task = Shift(COUNTS[name], step=1.0 + NAMES.index(name))
            reports[name] = participants[name].run(task, task_id, **options)
        except BaseException as error:
            reports[name] = error

    threads = [threading.Thread(target=run, args=(name,)) for name in participants]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    for report in reports.values():
        if isinstance(report, BaseException):
            raise report
    return reports


def test_a_whole_task_pays_everyone(coordinator: Served, tmp_path: Path) -> None:
    coordinator.open()
    participants = {name: coordinator.participant(name, tmp_path) for name in NAMES}
    seen: list[Activity] = []
    reports = all_run(participants, effort=0.5, on_progress=seen.append)
    for name, report in reports.items():
        assert report.state == "CLOSED"
        assert report.claim is not None
        assert [line.receipt is not None for line in report.rounds] == [True, True]
        assert all(line.settlement is not None for line in report.rounds)
        assert report.paid_micro > 0
        assert report.rounds[0].metrics == {"step": 1.0 + NAMES.index(name)}
    # The better the data the better the pay, by the rule on claimed degrees.
    assert reports["ada"].claimed_degree == 0
    kinds = [activity.kind for activity in seen if activity.round in (0, 1)]
    assert {"joined", "decided", "claimed", "training", "progress", "submitted", "settled", "ended"} <= {
        *kinds
    }
    for name, participant in participants.items():
        participant.close()
        journal = Journal(tmp_path / name / "journal.db", writer=False)
        earned = check_earnings(journal, name)
        journal.close()
        assert [line.proof_error for line in earned] == ["", ""]
        assert sum(line.settlement.paid_micro for line in earned) == reports[name].paid_micro


def test_a_task_that_has_ended_is_not_begun_again(coordinator: Served, tmp_path: Path) -> None:
    coordinator.open(schedule={"rounds": 1})
    participants = {name: coordinator.participant(name, tmp_path) for name in NAMES}
    reports = all_run(participants, effort=0.0)
    task = Shift(COUNTS["ada"])
    assert participants["ada"].run(task, "task", effort=0.0) == reports["ada"]
    assert not task.trained
    assert list(participants["ada"].join("task").rounds()) == []
    # The raw stream ends too, from whatever cursor.
    events = list(participants["ada"].client.watch("task"))
    assert list(participants["ada"].client.watch("task", events[-1].cursor)) == []
    for participant in participants.values():
        participant.close()


def test_a_receipt_that_was_touched_does_not_hold(coordinator: Served, tmp_path: Path) -> None:
    coordinator.open(schedule={"rounds": 1})
    participants = {name: coordinator.participant(name, tmp_path) for name in NAMES}
    all_run(participants, effort=0.0)
    for participant in participants.values():
        participant.close()
    journal = Journal(tmp_path / "ada" / "journal.db")
    [(round_, message)] = journal.settlements("task")
    for change in ("paid_micro", "round", "ledger_index"):
        from fedpeer.v1 import market_pb2

        altered = market_pb2.Settlement.FromString(message)
        setattr(altered, change, getattr(altered, change) + 1)
        journal.add_settlement("task", round_, altered.SerializeToString())
        assert check_earnings(journal, "ada")[0].proof_error
    altered = market_pb2.Settlement.FromString(message)
    altered.proof = altered.proof.replace("index", "indes", 1)
    journal.add_settlement("task", round_, altered.SerializeToString())
    assert "does not hold" in check_earnings(journal, "ada")[0].proof_error
    journal.close()


def test_ones_own_loop(coordinator: Served, tmp_path: Path) -> None:
    coordinator.open()
    participants = {name: coordinator.participant(name, tmp_path) for name in NAMES}
    others = threading.Thread(target=all_run, args=({n: participants[n] for n in NAMES[1:]},))
    others.start()
    joined = participants["ada"].join("task")
    joined.claim(effort=0.25, counts=[25, 25, 25, 25])
    numbers = []
    for round_ in joined.rounds():
        weights = round_.weights()
        assert weights.keys() == WEIGHTS.keys()
        with pytest.raises(WeightsError, match="shape"):
            round_.submit({**weights, "bias": np.zeros(3, np.float32)}, samples=10)
        moved = {n: a + 1 if a.dtype == np.float32 else a for n, a in weights.items()}
        receipt = round_.submit(moved, samples=10)
        assert receipt.kind == "model"
        assert not receipt.late
        numbers.append(round_.number)
    others.join(60)
    assert numbers == [1, 2]
    assert joined.settlement(2).paid_micro > 0
    with pytest.raises(CountsChangedError):
        joined.claim(effort=0.25, counts=[24, 25, 25, 25])
    for participant in participants.values():
        participant.close()


async def test_asyncio_has_the_same_shape(coordinator: Served, tmp_path: Path) -> None:
    coordinator.open()
    states = {name: coordinator.enrol(name, tmp_path / name) for name in NAMES}

    async def one(name: str) -> TaskReport:
        async with AsyncParticipant(states[name], coordinator.market) as me:
            if name != "ada":
                return await me.run(Shift(COUNTS[name]), "task", effort=0.5)
            joined = await me.join("task")
            await joined.claim(0.5, COUNTS[name])
            async for round_ in joined.rounds():
                weights = stepped(await round_.weights())
                await round_.submit(weights, samples=100)
            return joined.report()

    reports = await asyncio.gather(*(one(name) for name in NAMES))
    for report in reports:
        assert report.state == "CLOSED"
        assert [line.receipt is not None for line in report.rounds] == [True, True]


def test_the_coordinator_restarts_between_two_rounds(coordinator: Served, tmp_path: Path) -> None:
    """A participant that is training does not notice more than a pause."""
    coordinator.open()
    participants = {name: coordinator.participant(name, tmp_path) for name in NAMES}

    class Restarting(Shift):
        def train(self, weights, round):  # type: ignore[no-untyped-def]  # noqa: A002 - as Task.train
            if round.number == 1:
                coordinator.stop()
                coordinator.start()
            return super().train(weights, round)

    others = threading.Thread(target=all_run, args=({n: participants[n] for n in NAMES[1:]},))
    others.start()
    report = participants["ada"].run(Restarting(COUNTS["ada"]), "task", effort=0.0)
    others.join(60)
    assert [line.receipt is not None for line in report.rounds] == [True, True]
    assert report.state == "CLOSED"
    for participant in participants.values():
        participant.close()


def test_a_participant_that_restarts_claims_once(coordinator: Served, tmp_path: Path) -> None:
    coordinator.open()
    participants = {name: coordinator.participant(name, tmp_path) for name in NAMES}
    first = participants["ada"].join("task").claim(0.5, COUNTS["ada"])
    participants["ada"].close()
    participants["ada"] = Participant(tmp_path / "ada", coordinator.market)
    again = participants["ada"].join("task").claim(0.5, COUNTS["ada"])
    assert again == first
    # Even without its journal: the ids are the same, and so is the answer.
    participants["ada"].close()
    (tmp_path / "ada" / "journal.db").unlink()
    participants["ada"] = Participant(tmp_path / "ada", coordinator.market)
    assert participants["ada"].join("task").claim(0.5, COUNTS["ada"]) == first
    for participant in participants.values():
        participant.close()


def test_a_second_process_takes_over_and_the_first_ends(coordinator: Served, tmp_path: Path) -> None:
    coordinator.open(schedule={"rounds": 1})
    participants = {name: coordinator.participant(name, tmp_path) for name in NAMES}
    watching, ended = threading.Event(), []

    def watch_first() -> None:
        try:
            for event in participants["ada"].client.watch("task"):
                assert event.cursor
                watching.set()
        except BaseException as error:
            ended.append(error)

    first = threading.Thread(target=watch_first)
    first.start()
    assert watching.wait(30)
    copied = tmp_path / "elsewhere"
    copied.mkdir()
    for name in ("key.pem", "certificate.pem", "authority.pem"):
        shutil.copy(tmp_path / "ada" / name, copied / name)
    with Participant(copied, coordinator.market) as second:
        reports = all_run({**participants, "ada": second})
        # Had the first come back, the second would have been driven out before the task's end.
        assert reports["ada"].state == "CLOSED"
        assert reports["ada"].paid_micro > 0
    first.join(30)
    [error] = ended
    assert isinstance(error, SessionTakenOverError)
    assert "Another process has connected as 'ada'" in str(error)
    assert "Do not connect again from here" in str(error)
    for participant in participants.values():
        participant.close()


def test_connections_that_end_of_old_age_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    brief = {"grpc.max_connection_age_ms": 300, "grpc.max_connection_age_grace_ms": 100}
    usual = server._options
    monkeypatch.setattr(
        server, "_options", lambda port, **given: list({**dict(usual(port, **given)), **brief}.items())
    )
    with served(tmp_path / "coordinator") as coordinator:
        coordinator.open()
        participants = {name: coordinator.participant(name, tmp_path) for name in NAMES}
        reports = all_run(participants)
        assert {report.state for report in reports.values()} == {"CLOSED"}
        assert all(report.paid_micro > 0 for report in reports.values())
        for participant in participants.values():
            participant.close()


def test_without_an_id_the_open_task_is_taken(coordinator: Served, tmp_path: Path) -> None:
    with coordinator.participant("ada", tmp_path) as ada:
        assert ada.find_task() is None
        coordinator.open("first")
        coordinator.open("second")
        assert ada.find_task() == "first"
        assert ada.find_task(excluded=["first"]) == "second"
        ada.join("second").claim(0.0, COUNTS["ada"])
        assert ada.find_task() == "second", "what was begun comes first"
        participants = {"ada": ada, **{name: coordinator.participant(name, tmp_path) for name in NAMES[1:]}}
        for participant in (participants["ben"], participants["cho"]):
            participant.join("second").claim(0.0, COUNTS[participant.participant_id])
        reports = all_run(participants, task_id=None)
        assert {report.task_id for report in reports.values()} == {"second"}
        assert "second: CLOSED" in str(reports["ada"])
        assert "round 2: 1." in str(reports["ada"])
        for participant in (participants["ben"], participants["cho"]):
            participant.close()


def test_the_log_commits_to_claim_and_counts_and_says_neither(coordinator: Served, tmp_path: Path) -> None:
    coordinator.open()
    with coordinator.participant("ada", tmp_path) as ada:
        ada.join("task").claim(0.5, COUNTS["ada"])
        entries = [json.loads(entry) for entry in ada.client.entries()]
        own = ada.openings("task")
    [claim] = [entry for entry in entries if entry["kind"] == "claim"]
    said = claim["body"]["statement"]
    assert not {"degree", "effort", "counts"} & said.keys()
    assert said["commitment"] == canonical_digest(own.by_id[claim["id"]]).hex()
    assert own.by_id[claim["id"]]["effort"] == "0.5"
    assert own.participant == "ada"
    assert len(said["counts_commitment"]) == 64


def test_without_tls_where_both_sides_ask_for_it(tmp_path: Path) -> None:
    with served(tmp_path / "coordinator", insecure=True) as plain:
        plain.open(schedule={"rounds": 1})
        participants = {name: plain.participant(name, tmp_path) for name in NAMES}
        reports = all_run(participants, effort=0.0)
        assert all(report.paid_micro > 0 for report in reports.values())
        for participant in participants.values():
            participant.close()
        with (
            Participant(tmp_path / "ada", plain.market, backoff=TestRefusals.QUICK) as ada,
            pytest.raises(TLSError, match="both sides use TLS"),
        ):
            ada.join("task")


def test_explain_says_what_each_effort_earns(coordinator: Served, tmp_path: Path) -> None:
    coordinator.open()
    with coordinator.participant("cho", tmp_path) as cho:
        explanation = cho.explain(Shift(COUNTS["cho"]), "task", BestResponse())
        assert cho._journal.tasks() == [], "nothing is agreed to"
        assert explanation.decision.answer is not None
        best = explanation.decision.answer
        assert all(point.utility <= best.utility + 1e-9 for point in explanation.points)
        text = str(explanation)
        assert "0.4500" in text
        assert "utility" in text


class TestRefusals:
    """Each wrong thing ends in a sentence of its own, and changes nothing."""

    QUICK = Backoff(first_contact=0.2, patience=0.2)

    def test_an_invitation_counts_once(self, coordinator: Served, tmp_path: Path) -> None:
        token = coordinator.invite("ada")
        arguments: dict[str, Any] = {
            "participant_id": "ada",
            "public": coordinator.public,
            "token": token,
            "authority": coordinator.authority,
        }
        Participant.enroll(tmp_path / "a", **arguments)
        Participant.enroll(tmp_path / "a", **arguments)  # the same key: the same certificate again
        with pytest.raises(NotEnrolledError, match="new invitation"):
            Participant.enroll(tmp_path / "b", **arguments)
        assert not (tmp_path / "b" / "certificate.pem").exists()

    def test_a_wrong_authority(self, coordinator: Served, tmp_path: Path) -> None:
        from datetime import UTC, datetime

        other = make_authority("somebody", datetime.now(UTC)).certificate_pem
        with pytest.raises(TLSError, match="not signed by the authority"):
            Participant.enroll(
                tmp_path / "a",
                participant_id="ada",
                public=coordinator.public,
                token="x",
                authority=other,
                backoff=self.QUICK,
            )

    def test_a_foreign_certificate(self, coordinator: Served, tmp_path: Path) -> None:
        with served(tmp_path / "other") as other:
            state = other.enrol("ada", tmp_path / "ada")
        (state / "authority.pem").write_bytes(coordinator.authority)
        with (
            Participant(state, coordinator.market, backoff=self.QUICK) as ada,
            pytest.raises(TLSError, match="does not accept the certificate of ada"),
        ):
            ada.join("task")

    def test_a_coordinator_under_another_name(self, coordinator: Served, tmp_path: Path) -> None:
        state = coordinator.enrol("ada", tmp_path / "ada")
        coordinator.folder.issue_server(["elsewhere.example"])
        coordinator.stop()
        coordinator.start()
        with (
            Participant(state, coordinator.market, backoff=self.QUICK) as ada,
            pytest.raises(ServerNameError, match=r"not for '127\.0\.0\.1'"),
        ):
            ada.join("task")

    def test_nobody_at_the_address(self, coordinator: Served, tmp_path: Path) -> None:
        state = coordinator.enrol("ada", tmp_path / "ada")
        with (
            Participant(state, "127.0.0.1:9", backoff=self.QUICK) as ada,
            pytest.raises(UnreachableError, match="firewall"),
        ):
            ada.join("task")

    def test_the_public_port_in_place_of_the_market(self, coordinator: Served, tmp_path: Path) -> None:
        state = coordinator.enrol("ada", tmp_path / "ada")
        with (
            Participant(state, coordinator.public, backoff=self.QUICK) as ada,
            pytest.raises(ConfigurationError, match="two"),
        ):
            ada.join("task")

    def test_an_unknown_task(self, coordinator: Served, tmp_path: Path) -> None:
        with (
            coordinator.participant("ada", tmp_path) as ada,
            pytest.raises(NotFoundError, match="List the tasks"),
        ):
            ada.join("dogs")

    def test_a_task_that_is_full(self, coordinator: Served, tmp_path: Path) -> None:
        coordinator.open()
        for name in NAMES:
            with coordinator.participant(name, tmp_path) as one:
                one.join("task").claim(0.5, COUNTS[name])
        with coordinator.participant("dan", tmp_path) as dan:
            with pytest.raises(WrongStateError):
                dan.join("task").claim(0.5, [1, 1, 1, 1])
            assert not dan.claimed("task")
            assert dan.find_task() is None, "a refused claim is nothing that was begun"

    def test_a_revoked_participant(self, coordinator: Served, tmp_path: Path) -> None:
        coordinator.open()
        with coordinator.participant("ada", tmp_path) as ada:
            coordinator.operator(lambda operator: operator.revoke("ada", "test"))
            with pytest.raises(NotEnrolledError, match="new invitation"):
                ada.join("task")

    def test_a_folder_in_use(self, coordinator: Served, tmp_path: Path) -> None:
        from participant import JournalError

        with (
            coordinator.participant("ada", tmp_path),
            pytest.raises(JournalError, match="in use by another process"),
        ):
            Participant(tmp_path / "ada", coordinator.market)


def test_a_certificate_is_renewed_with_the_same_key(coordinator: Served, tmp_path: Path) -> None:
    from datetime import timedelta

    with coordinator.participant("ada", tmp_path) as ada:
        before = ada.credentials
        assert not ada.renew()
        assert ada.renew(before.expires - timedelta(days=1))
        assert ada.credentials.certificate.serial_number != before.certificate.serial_number
        assert ada.credentials.key_pem == before.key_pem
        assert ada.client.tasks() == []
    with Participant(tmp_path / "ada", coordinator.market) as again:
        assert again.credentials.certificate_pem == ada.credentials.certificate_pem


def test_the_raw_client_reads_the_ledger_without_an_account(coordinator: Served, tmp_path: Path) -> None:
    coordinator.open()
    with Client(Endpoint(coordinator.public, coordinator.authority)) as client:
        size = int(client.checkpoint().note.splitlines()[1])
        entries = list(client.entries(0, size))
        assert len(entries) == size > 0
        assert list(client.entries(1, 2)) == entries[1:3]
        proof = client.inclusion_proof(0, size)
        assert proof.size == size
        assert client.balance("treasury").ledger_size >= size


def test_a_rejected_or_retrained_model_can_be_submitted_again(coordinator: Served, tmp_path: Path) -> None:
    """Until the coordinator holds one, the participant may change its mind; after that the first one stands."""
    coordinator.open(schedule={"rounds": 1}, contract={"max_norm": "100"})
    participants = {name: coordinator.participant(name, tmp_path) for name in NAMES}
    others = {name: participants[name] for name in NAMES[1:]}
    thread = threading.Thread(target=all_run, args=(others,), kwargs={"effort": 0.0})
    thread.start()
    joined = participants["ada"].join("task")
    joined.claim(0.0, COUNTS["ada"])
    for round_ in joined.rounds():
        weights = {
            n: a + np.float32(0.5) if a.dtype == np.float32 else a for n, a in round_.weights().items()
        }
        with pytest.raises(WeightsError, match="norm"):
            round_.submit({**weights, "bias": np.full(4, 1e6, np.float32)}, samples=1)
        # A model that was signed but never arrived is replaced by the one that is there now.
        engagement = joined._engagement
        from participant.model_store import write_weights

        path = engagement.trained_path(round_.number)
        write_weights(path, {**weights, "bias": np.ones(4, np.float32)}, joined.terms.contract)
        engagement._prepare_model(round_.number, 5)
        receipt = round_.submit(weights, samples=7)
        assert round_.submit(weights, samples=7) == receipt
        with pytest.raises(SubmittedError, match="has a model already, with other weights"):
            round_.submit({**weights, "bias": np.ones(4, np.float32)}, samples=7)
    thread.join(60)
    [line] = joined.report().rounds
    assert line.receipt == receipt
    for participant in participants.values():
        participant.close()
