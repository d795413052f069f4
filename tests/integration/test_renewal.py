"""A certificate that nears its end while the service runs: it is renewed, the new one is used, no round is lost."""

import functools
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

import coordinator.identity
from coordinator.clock import SystemClock
from fedpeer.protocol.certificates import issue_participant_certificate
from fedpeer.protocol.limits import CLOCK_SKEW
from participant import AsyncParticipant, NotEnrolledError, Participant, Task, TrainingRound, Weights
from participant.identity import IdentityFolder
from participant.service import Service
from tests.integration.serving import Served, served
from tests.integration.test_service import config, peers


class AheadClock(SystemClock):
    """The coordinator's clock, which can be put forward."""

    ahead = 0.0

    def now(self) -> float:
        return super().now() + self.ahead


@pytest.fixture
def clock() -> AheadClock:
    return AheadClock()


@pytest.fixture
def coordinator_(tmp_path: Path, clock: AheadClock) -> Iterator[Served]:
    with served(tmp_path / "coordinator", clock=clock) as running:
        yield running


def enrol_briefly(
    coordinator_: Served, monkeypatch: pytest.MonkeyPatch, state: Path, lifetime: timedelta
) -> Path:
    """Enrols a participant with a certificate of `lifetime`; later ones are as long as usual."""
    short = functools.partial(issue_participant_certificate, lifetime=lifetime)
    with monkeypatch.context() as patch:
        patch.setattr(coordinator.identity, "issue_participant_certificate", short)
        return coordinator_.enrol("ada", state)


#: Of a life that began `CLOCK_SKEW` before it was issued, a third is left a few seconds after the enrolment.
BRIEF = CLOCK_SKEW / 2 + timedelta(seconds=4)


class Patient(Task):
    """Trains its first round until its participant has another certificate, then lets the first one expire."""

    def __init__(self, state: str) -> None:
        self.folder = IdentityFolder(state)
        self.first = self.folder.credentials()

    def label_counts(self) -> list[int]:
        return [5, 5, 5, 5]

    def train(self, weights: Weights, round: TrainingRound) -> Weights:  # noqa: A002 - as Task.train
        pause = threading.Event()
        while self.folder.credentials().certificate_pem == self.first.certificate_pem:
            pause.wait(0.05)
        AheadClock.ahead = 2 * BRIEF.total_seconds()
        return {n: a + 1 if a.dtype == np.float32 else a for n, a in weights.items()}


def test_a_running_service_renews_its_certificate_and_loses_no_round(
    coordinator_: Served, clock: AheadClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AheadClock, "ahead", 0.0)
    coordinator_.open("task", schedule={"round_seconds": 36_000, "effort_seconds": 36_000})
    threads = peers(coordinator_, tmp_path, "task")
    state = enrol_briefly(coordinator_, monkeypatch, tmp_path / "ada", BRIEF)
    first = IdentityFolder(state).credentials()
    section = {
        "id": "task",
        "factory": "tests.integration.test_renewal:Patient",
        "options": {"state": str(state)},
    }
    [report] = Service(config(coordinator_, state, section), lambda activity: None).run()
    for thread in threads:
        thread.join(60)
    assert report.state == "CLOSED"
    assert [line.receipt is not None for line in report.rounds] == [True, True]
    renewed = IdentityFolder(state).credentials()
    assert renewed.key_pem == first.key_pem
    assert renewed.expires - first.expires > timedelta(days=80)
    # The coordinator takes the first one for expired since round 1, so both models came under the second.
    assert clock.now() > first.expires.timestamp()
    IdentityFolder(state).write("certificate.pem", first.certificate_pem)
    with Participant(state, coordinator_.market) as ada, pytest.raises(NotEnrolledError, match="expired"):
        ada.client.tasks()


async def test_the_asyncio_client_renews_too(
    coordinator_: Served, clock: AheadClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = enrol_briefly(coordinator_, monkeypatch, tmp_path / "ada", BRIEF)
    async with AsyncParticipant(state, coordinator_.market) as ada:
        first = ada.credentials
        assert not await ada.renew(first.renewal_due - timedelta(seconds=1))
        assert await ada.renew(first.renewal_due)
        clock.ahead = 2 * BRIEF.total_seconds()
        assert await ada.client.tasks() == []
        assert ada.credentials.expires > first.expires
