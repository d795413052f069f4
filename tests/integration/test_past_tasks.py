"""Tasks that end while a participant, or its journal, is away: what they paid is fetched afterwards."""

import json
import shutil
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedpeer.v1 import market_pb2
from participant import Activity, AsyncParticipant, Participant
from participant.earnings import check_earnings
from participant.journal import Journal
from participant.service import Service
from tests.integration.serving import Served, Shift, served
from tests.integration.test_participant_command import configured, fedpeer, start
from tests.integration.test_service import config, shift

EVEN = [5, 5, 5, 5]


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path / "coordinator") as running:
        yield running


def balance(participant: Participant, name: str) -> int:
    """What the ledger owes `name`, micro-credits."""
    found = participant.client.balance(f"payable:{name}")
    return found.credits_posted_micro - found.debits_posted_micro


class Others:
    """Two more participants; their last model waits for `finish`."""

    def __init__(self, coordinator: Served, folder: Path, task_id: str = "task") -> None:
        self.participants = [coordinator.participant(name, folder) for name in ("ben", "cho")]
        self._gate = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(participant, task_id), daemon=True)
            for participant in self.participants
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, participant: Participant, task_id: str) -> None:
        gate = self._gate

        class Waiting(Shift):
            def train(self, weights, round):  # type: ignore[no-untyped-def]  # noqa: A002 - as Task.train
                assert gate.wait(120)
                return super().train(weights, round)

        participant.run(Waiting(EVEN), task_id, effort=0.0)

    def finish(self) -> None:
        self._gate.set()
        for thread in self._threads:
            thread.join(120)
            assert not thread.is_alive()


def submit_and_leave(participant: Participant, task_id: str = "task") -> None:
    """Claims, sends the model of round 1, and is gone."""
    joined = participant.join(task_id)
    joined.claim(0.0, EVEN)
    next(joined.rounds()).train(Shift(EVEN))
    participant.close()


def played_without(coordinator: Served, folder: Path) -> Path:
    """A task of one round that ended while ada was away after its model; returns ada's state folder."""
    coordinator.open(schedule={"rounds": 1})
    others = Others(coordinator, folder)
    submit_and_leave(coordinator.participant("ada", folder))
    others.finish()
    for participant in others.participants:
        participant.close()
    return folder / "ada"


@pytest.mark.slow  # the same without a process of its own is below
def test_a_killed_process_learns_its_last_payment_without_an_id(coordinator: Served, tmp_path: Path) -> None:
    coordinator.open(schedule={"rounds": 1})
    others = Others(coordinator, tmp_path)
    folder = configured(
        coordinator, tmp_path / "ada", "ada", "tests.integration.serving:Shift", "counts = [5, 5, 5, 5]"
    )
    file = folder / "participant.toml"
    file.write_text(file.read_text().replace('[[task]]\nid = "task"', "[[task]]"))
    process = start(folder, "--once")
    assert process.stderr is not None
    assert any('"submitted"' in line for line in process.stderr)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    others.finish()

    again = start(folder, "--once")
    _, log = again.communicate()
    assert again.returncode == 0, log
    logged = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    assert [line["kind"] for line in logged if "kind" in line] == ["settled", "ended"]
    [task] = json.loads(fedpeer(folder, "status", "--json").stdout)["tasks"]
    assert (task["state"], task["rounds"][0]["submitted"]) == ("CLOSED", True)
    earned = fedpeer(folder, "earnings", "--json")
    assert earned.returncode == 0, earned.stdout
    paid = json.loads(earned.stdout)["paid_micro"]
    assert paid > 0
    assert paid == balance(others.participants[0], "ada")
    for participant in others.participants:
        participant.close()


def run_service(coordinator: Served, state: Path) -> tuple[list[Any], list[Activity]]:
    seen: list[Activity] = []
    reports = Service(config(coordinator, state, shift(None)), seen.append).run(once=True)
    return reports, seen


def earned_at(state: Path) -> list[Any]:
    journal = Journal(state / "journal.db", writer=False)
    try:
        return check_earnings(journal, "ada")
    finally:
        journal.close()


def test_a_lost_journal_is_filled_from_the_tasks_that_the_coordinator_lists(
    coordinator: Served, tmp_path: Path
) -> None:
    state = played_without(coordinator, tmp_path)
    for file in state.glob("journal.*"):
        file.unlink()
    [report], seen = run_service(coordinator, state)
    assert [activity.kind for activity in seen] == ["settled", "ended"]
    assert report.state == "CLOSED"
    assert report.claim is not None
    assert report.rounds[0].receipt is not None
    assert not report.rounds[0].missed
    [line] = earned_at(state)
    assert line.proof_error == ""
    assert line.proven_micro == report.paid_micro > 0


def test_the_process_that_was_taken_over_learns_what_the_other_one_earned(
    coordinator: Served, tmp_path: Path
) -> None:
    coordinator.open(schedule={"rounds": 1})
    others = Others(coordinator, tmp_path)
    first = coordinator.participant("ada", tmp_path)
    first.join("task").claim(0.0, EVEN)
    first.close()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for name in ("key.pem", "certificate.pem", "authority.pem"):
        shutil.copy(tmp_path / "ada" / name, elsewhere / name)
    submit_and_leave(Participant(elsewhere, coordinator.market))
    others.finish()
    for participant in others.participants:
        participant.close()
    [report], seen = run_service(coordinator, tmp_path / "ada")
    assert [activity.kind for activity in seen] == ["settled", "ended"]
    assert report.rounds[0].receipt is not None, "the other process's, under the same id"
    assert report.paid_micro > 0


def test_a_named_task_that_has_ended_is_settled_without_its_data(coordinator: Served, tmp_path: Path) -> None:
    state = played_without(coordinator, tmp_path)
    for file in state.glob("journal.*"):
        file.unlink()

    class Gone(Shift):
        def prepare(self, terms: Any) -> None:
            raise OSError("the data are on another disk by now")

    with Participant(state, coordinator.market) as ada:
        report = ada.run(Gone(EVEN), "task")
        assert report.paid_micro > 0
        assert ada.past_tasks() == []


async def test_without_an_id_run_ends_with_the_task_that_was_begun(
    coordinator: Served, tmp_path: Path
) -> None:
    state = played_without(coordinator, tmp_path)
    async with AsyncParticipant(state, coordinator.market) as ada:
        assert [past.begun for past in await ada.past_tasks()] == [True]
        report = await ada.run(Shift(EVEN))
        assert report.paid_micro > 0
        assert await ada.past_tasks() == []


def test_a_task_that_was_cancelled_meanwhile_is_noted(coordinator: Served, tmp_path: Path) -> None:
    coordinator.open()
    ada = coordinator.participant("ada", tmp_path)
    ada.join("task").claim(0.0, EVEN)
    ada.close()
    coordinator.operator(lambda operator: operator.cancel("task", "the grant has ended"))
    with coordinator.participant("ben", tmp_path) as ben:
        list(ben.client.watch("task"))  # until the coordinator has carried it out
    [report], seen = run_service(coordinator, tmp_path / "ada")
    assert report.state == "CANCELLED"
    assert "the grant has ended" in report.note
    assert [activity.kind for activity in seen] == ["ended"]


def test_a_damaged_settlement_is_left_out_and_fetched_again(coordinator: Served, tmp_path: Path) -> None:
    state = played_without(coordinator, tmp_path)
    [report], _ = run_service(coordinator, state)
    journal = Journal(state / "journal.db")
    [(_, message)] = journal.settlements("task")
    altered = market_pb2.Settlement.FromString(message)
    altered.paid_micro *= 2
    for stored in (b"\xff" + message[1:], b"", altered.SerializeToString()):
        journal.add_settlement("task", 1, stored)
        [line] = check_earnings(journal, "ada")
        assert line.proof_error.startswith("the receipt does not hold: ")
        assert line.proven_micro == 0
        assert line.record()["receipt"] == line.proof_error
    journal.close()
    with Participant(state, coordinator.market) as ada:
        assert [past.task_id for past in ada.past_tasks()] == ["task"]
        caught_up = ada.catch_up("task")
    # By the latest head, which may be another one than the first receipt's.
    settlements = [
        [replace(r.settlement, proof="") for r in t.rounds if r.settlement] for t in (report, caught_up)
    ]
    assert settlements[0] == settlements[1]
    [line] = earned_at(state)
    assert line.proven_micro == report.paid_micro


def test_a_flipped_bit_anywhere_in_a_settlement_is_survived(coordinator: Served, tmp_path: Path) -> None:
    state = played_without(coordinator, tmp_path)
    run_service(coordinator, state)
    journal = Journal(state / "journal.db")
    [(_, message)] = journal.settlements("task")
    proven = check_earnings(journal, "ada")[0].proven_micro
    for position in range(0, len(message), 3):
        flipped = bytearray(message)
        flipped[position] ^= 1 << (position % 8)
        journal.add_settlement("task", 1, bytes(flipped))
        [line] = check_earnings(journal, "ada")
        assert line.proven_micro in (0, proven), position
        assert (line.proven_micro == 0) == line.proof_error.startswith("the receipt does not hold"), position
    journal.close()


def test_another_rounds_settlement_does_not_count_twice(coordinator: Served, tmp_path: Path) -> None:
    coordinator.open()
    participants = {name: coordinator.participant(name, tmp_path) for name in ("ada", "ben", "cho")}
    threads = [
        threading.Thread(target=participant.run, args=(Shift(EVEN), "task"), kwargs={"effort": 0.0})
        for participant in participants.values()
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    for participant in participants.values():
        participant.close()
    journal = Journal(tmp_path / "ada" / "journal.db")
    second = dict(journal.settlements("task"))[2]
    journal.add_settlement("task", 1, second)
    first, other = check_earnings(journal, "ada")
    assert first.proof_error.startswith("the receipt does not hold")
    assert other.proof_error == ""
    relabelled = market_pb2.Settlement.FromString(second)
    relabelled.round = 1
    journal.add_settlement("task", 1, relabelled.SerializeToString())
    first, other = check_earnings(journal, "ada")
    assert "the ledger says something else about round" in first.proof_error
    journal.close()
