"""Faults that pass, on a real server and on real participants' own machines: no round that was trained is lost."""

import asyncio
import errno
import os
import sqlite3
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import structlog

import coordinator.shared_frames
import coordinator.spool
import participant.engagement
import participant.model_store
import participant.persistence
import participant.steps
from coordinator.blobs import BlobStore
from coordinator.spool import Spool, SpooledUpload
from fedpeer.protocol.errors import Code
from fedpeer.protocol.model_file import encode_model
from participant import AsyncParticipant, Backoff, TaskReport
from participant.errors import CoordinatorFaultError, RefusedError
from participant.journal import Journal
from participant.service import Service
from participant.steps import DOUBT_SECONDS
from tests.faulty_database import each_statement_once, faulty_journals
from tests.integration.serving import Shift, served
from tests.integration.test_background import COUNTS, NAMES, check, enrolled, take_part
from tests.integration.test_service import config, shift
from tests.participant.simulated_market import SimulatedMarket, start_weights
from tests.participant.test_steps_under_faults import check_complete, engage
from tests.participant.test_steps_under_faults import take_part as alone

NUMBERS = (errno.EIO, errno.EMFILE, errno.ENOSPC)

#: Where the coordinator touches its disk for an upload or a fetch.
SERVED: dict[str, tuple[Any, str]] = {
    "free space": (coordinator.spool.shutil, "disk_usage"),
    "size": (Spool, "size"),
    "open": (SpooledUpload, "__init__"),
    "write": (SpooledUpload, "append"),
    "flush": (SpooledUpload, "flush"),
    "adopt": (BlobStore, "adopt"),
    "fetch": (coordinator.shared_frames, "_read"),
}

#: Where a participant touches its own.
OWN: dict[str, tuple[Any, str]] = {
    "fetched": (participant.steps._Sink, "__init__"),
    "digest": (participant.engagement, "file_digest"),
    "read": (participant.model_store, "open_model"),
    "written": (participant.model_store, "_write"),
    "sent": (participant.steps, "frames"),
}


class Failing:
    """Functions that fail a few times, then do what they did."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, times: int) -> None:
        self._monkeypatch = monkeypatch
        self._times = times
        self.left: dict[str, int] = {}

    def at(self, points: dict[str, tuple[Any, str]], error: Callable[[], BaseException]) -> None:
        for name, (owner, attribute) in points.items():
            self.left[name] = self._times
            self._monkeypatch.setattr(owner, attribute, self._made(name, getattr(owner, attribute), error))

    def _made(self, name: str, function: Any, error: Callable[[], BaseException]) -> Any:
        def failing(*arguments: Any, **options: Any) -> Any:
            if self.left[name] > 0:
                self.left[name] -= 1
                raise error()
            return function(*arguments, **options)

        return failing

    def check_met(self) -> None:
        assert set(self.left.values()) == {0}, self.left


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(participant.persistence, "Backoff", lambda: Backoff(first=0.01, ceiling=0.1))
    with structlog.testing.capture_logs():
        yield


def os_error(number: int) -> Callable[[], OSError]:
    return lambda: OSError(number, os.strerror(number), "a file")


@pytest.mark.parametrize("number", NUMBERS, ids=[errno.errorcode[n] for n in NUMBERS])
def test_no_round_is_lost_to_a_disk_of_the_coordinator_that_fails_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    with enrolled(tmp_path) as (market, members):
        market.open("task")
        failing = Failing(monkeypatch, times=4)
        failing.at(SERVED, os_error(number))
        check(take_part(members, "task"), rounds=2)
        failing.check_met()


@pytest.mark.parametrize(
    "error", [lambda: MemoryError(), lambda: RuntimeError("can't start new thread"), lambda: ValueError("a bug")],
    ids=["memory", "threads", "a bug"],
)  # fmt: skip
def test_no_round_is_lost_to_a_coordinator_that_is_short_or_stumbles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Callable[[], BaseException]
) -> None:
    with enrolled(tmp_path) as (market, members):
        market.open("task", schedule={"rounds": 1})
        failing = Failing(monkeypatch, times=4)
        failing.at({name: SERVED[name] for name in ("write", "adopt", "fetch")}, error)
        check(take_part(members, "task"), rounds=1)
        failing.check_met()


async def test_no_round_of_the_asyncio_client_is_lost_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def begin() -> Any:
        context = served(tmp_path / "coordinator")
        market = context.__enter__()
        states = {name: market.enrol(name, tmp_path / name) for name in NAMES}
        market.open("task")
        return context, market, states

    context, market, states = await asyncio.to_thread(begin)
    failing = Failing(monkeypatch, times=4)
    failing.at(SERVED, os_error(errno.EIO))
    failing.at(OWN, os_error(errno.EMFILE))

    async def one(name: str) -> TaskReport:
        backoff = Backoff(first=0.01, ceiling=0.1, patience=120.0)
        async with AsyncParticipant(states[name], market.market, backoff=backoff) as member:
            return await member.run(Shift(COUNTS[name]), "task", effort=0.0)

    reports = await asyncio.gather(*map(one, NAMES))
    check(dict(zip(NAMES, reports, strict=True)), rounds=2)
    failing.check_met()
    await asyncio.to_thread(context.__exit__, None, None, None)


@pytest.mark.parametrize("number", NUMBERS, ids=[errno.errorcode[n] for n in NUMBERS])
def test_no_round_is_lost_to_the_participants_own_disk_that_fails_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    with faulty_journals(monkeypatch) as journals, enrolled(tmp_path) as (market, members):
        monkeypatch.setattr("participant.journal._PAUSES", (0.01, 0.01, 0.01))
        market.open("task")
        failing = Failing(monkeypatch, times=2)
        failing.at(OWN, os_error(number))
        with journals.when(each_statement_once()):
            check(take_part(members, "task"), rounds=2)
        failing.check_met()
        assert len(journals.failed) > 10


def test_a_renewal_goes_on_after_a_disk_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The service's thread that renews ends with nothing that may pass, nor with what nobody foresaw."""
    with served(tmp_path / "coordinator") as market:
        state = market.enrol("ada", tmp_path / "ada")
        service = Service(config(market, state, shift("task")), lambda activity: None)
        errors: list[Exception] = [
            OSError(errno.EIO, "EIO"),
            sqlite3.OperationalError("disk I/O"),
            KeyError("x"),
        ]
        monkeypatch.setattr("participant.service.RETRY_SECONDS", 0.01)
        monkeypatch.setattr("participant.service.RENEWAL_SECONDS", 0.01)

        def renew() -> bool:
            if errors:
                raise errors.pop(0)
            service._stopping.set()
            return False

        monkeypatch.setattr(service._participant, "renew", renew)
        service._keep_certified()
        assert errors == []
        service._participant.close()


@pytest.mark.parametrize(
    "code", [Code.INTERNAL, Code.OVERLOADED, Code.STORAGE_UNAVAILABLE, Code.STORAGE_FULL]
)
def test_a_model_is_sent_again_after_a_refusal_that_may_pass(tmp_path: Path, code: Code) -> None:
    market = SimulatedMarket(refusals=[code] * 6)
    check_complete(market, alone(market, tmp_path))


def test_what_may_be_a_bug_is_given_up_after_a_while(tmp_path: Path) -> None:
    market = SimulatedMarket(refusals=[Code.INTERNAL] * 10**4)
    journal = Journal(tmp_path / "journal.db")
    engagement = engage(market, tmp_path, journal)
    market.run(engagement.claim(Decimal("0.5"), [30, 10]))
    trained = engagement.trained_path(1)
    trained.parent.mkdir()
    trained.write_bytes(encode_model(start_weights()))
    began = market.clock
    with pytest.raises(CoordinatorFaultError):
        market.run(engagement.submit(1, 10))
    assert DOUBT_SECONDS <= market.clock - began < 2 * DOUBT_SECONDS
    record = journal.submission(market.terms.task_id, "model", 1)
    assert record is not None
    assert record.status == "prepared", "the next start sends it again"
    journal.close()


def test_what_passes_too_late_is_sent_by_the_next_start(tmp_path: Path) -> None:
    market = SimulatedMarket(rounds=1, refusals=[Code.STORAGE_FULL] * 10**4)
    with pytest.raises(RefusedError) as caught:
        alone(market, tmp_path)
    assert caught.value.code is Code.STORAGE_FULL
    market.refusals.clear()
    check_complete(market, alone(market, tmp_path))
