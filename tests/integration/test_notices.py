"""Notices arrive over real HTTP and SMTP, at least once and in order, whatever the receiver does in between."""

import asyncio
import json
import shutil
import sys
import time
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import structlog
from aiosmtpd.smtp import SMTP
from cloudevents.core.bindings.http import HTTPMessage, from_http_event
from standardwebhooks import Webhook

import coordinator.alarms
import coordinator.notices
import coordinator.sending
from coordinator.clock import ManualClock
from coordinator.config import (
    NOTICES,
    NOTICES_FOR_PARTICIPANTS,
    ServiceConfig,
    TaskConfig,
    config_text,
    parse_config,
)
from coordinator.errors import ConfigError
from coordinator.folder import StateFolder
from coordinator.server import Coordinator
from fedpeer.protocol.errors import Code
from mechanism.ledger.accounts import payable
from tests.integration.market import (
    CONFIG,
    PATIENCE,
    Client,
    close,
    delivered,
    enrol,
    in_training,
    make_folder,
    model_like,
    open_task,
    refused,
    revoke,
    running,
    task_config,
    verified,
)
from tests.integration.test_operations import cancel
from tests.integration.test_service_process import serving

SECRET = "whsec_" + "c2VjcmV0IG9mIGEgcmVjZWl2ZXIgaW4gYSB0ZXN0"
NAMES = ("ann", "bob", "cyd")


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(coordinator.notices, "FIRST_RETRY_SECONDS", 0.01)
    monkeypatch.setattr(coordinator.notices, "RETRY_LIMIT_SECONDS", 0.05)
    monkeypatch.setattr(coordinator.notices, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(coordinator.notices, "ALARM_SECONDS", 0.02)
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    with structlog.testing.capture_logs():
        yield


@dataclass
class Receiver:
    """A web server that does to each request what `script` says next, and answers 204 after its end."""

    script: list[str] = field(default_factory=list)
    url: str = ""
    attempts: list[dict[str, Any]] = field(default_factory=list)
    taken: list[dict[str, Any]] = field(default_factory=list)
    messages: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    _moved: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (line := await reader.readline()).strip():
                assert line.startswith(b"POST /hook?of=market HTTP/1.1")
                headers = {}
                while line := (await reader.readline()).decode().strip():
                    name, _, value = line.partition(": ")
                    headers[name.lower()] = value
                body = await reader.readexactly(int(headers["content-length"]))
                await self._answer(headers, body, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()

    async def _answer(self, headers: dict[str, str], body: bytes, writer: asyncio.StreamWriter) -> None:
        event = json.loads(body)
        action = self.script.pop(0) if self.script else "204"
        self.attempts.append(event)
        self.messages.append((headers, body))
        if action.isdigit() and action.startswith("2"):
            self.taken.append(event)
        self._moved.set()
        if action == "reset":
            writer.transport.abort()
        elif action == "slow":
            await asyncio.Event().wait()
        elif action == "endless":
            self.taken.append(event)
            self._moved.set()
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            while True:
                writer.write(b"1000\r\n" + b"x" * 4096 + b"\r\n")
                await writer.drain()
        else:
            more = f"Location: {self.url}\r\n" if action == "302" else ""
            writer.write(f"HTTP/1.1 {action} So\r\n{more}Content-Length: 0\r\n\r\n".encode())
            await writer.drain()

    async def until(self, *types: str) -> list[dict[str, Any]]:
        """Waits until a notice of each of these types was taken; all that were."""
        async with asyncio.timeout(PATIENCE):
            while not {f"fedpeer.{name}" for name in types} <= {event["type"] for event in self.taken}:
                self._moved.clear()
                await self._moved.wait()
        return self.taken

    def types(self) -> list[str]:
        return [event["type"].removeprefix("fedpeer.") for event in self.taken]


@asynccontextmanager
async def receiving(*script: str) -> AsyncIterator[Receiver]:
    receiver = Receiver(list(script))
    server = await asyncio.start_server(receiver.serve, "127.0.0.1", 0)
    receiver.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/hook?of=market"
    try:
        yield receiver
    finally:
        server.close()
    for headers, body in receiver.messages:  # what others' libraries make of them
        event = json.loads(body)
        assert Webhook(SECRET).verify(body, headers) == event
        parsed = from_http_event(HTTPMessage(headers, body))
        assert (parsed.get_id(), parsed.get_data()) == (headers["webhook-id"], event["data"])


def hooked(path: Path, receiver: Receiver, **more: str) -> StateFolder:
    """A folder whose operator hears of everything at a receiver; `more` of each name is a section's text."""
    sections = {"ops": f'url = "{receiver.url}"\nsecret = "{SECRET}"', **more}
    text = "".join(f"[notices.{name}]\n{section}\n" for name, section in sections.items())
    return make_folder(path, CONFIG + text)


def of_participant(receiver: Receiver, name: str) -> str:
    return f'url = "{receiver.url}"\nsecret = "{SECRET}"\nparticipant = "{name}"'


async def played(service: Coordinator, rounds: int = 1, task: TaskConfig | None = None) -> list[Client]:
    """Plays the task that is open, or `task`, which is opened when all have enrolled."""
    if task is None:
        members = await delivered(service, NAMES)
    else:
        members = [await enrol(service, name) for name in NAMES]
        await asyncio.to_thread(open_task, service.folder, task)
        await members[0].until("EFFORT")
        for client in members:
            await client.claim()
        await members[0].until("TRAINING")
        for number, client in enumerate(members):
            await client.submit(model_like(number), 1)
    for round_ in range(2, rounds + 1):
        await members[0].until("TRAINING", round_=round_)
        for number, client in enumerate(members):
            await client.submit(model_like(number + 10 * round_), round_)
    await members[0].until("CLOSED")
    return members


def counted(service: Coordinator, outcome: str) -> float:
    """Attempts to send the operator's notices that have ended so."""
    labels = {"receiver": "ops", "outcome": outcome}
    return service.metrics.registry.get_sample_value("fedpeer_notices_total", labels) or 0.0


async def until_counted(service: Coordinator, outcome: str, times: int) -> None:
    async with asyncio.timeout(PATIENCE):
        while counted(service, outcome) < times:
            await asyncio.sleep(0.01)


async def test_everything_that_happens_arrives_once_or_more_in_order_with_failures_in_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator.sending, "SECONDS", 1.0)
    script = ["500", "reset", "slow", "429", "302", "204", "503", "endless"]
    async with receiving(*script) as ops, receiving("500") as ann, receiving() as dan:
        folder = hooked(
            tmp_path / "state", ops, ann=of_participant(ann, "ann"), dan=of_participant(dan, "dan")
        )
        async with running(folder) as service:
            await close([await enrol(service, "dan")])
            members = await played(service, 3, task_config(tmp_path, schedule={"rounds": 3}))
            await ops.until("payout.due")
            await ann.until("task.closed")
            await dan.until("task.opened")
            await close(members)
        rounds = ["round.opened", "round.settled"] * 3
        assert ops.types() == ["task.opened", *rounds, "task.closed", "payout.due"]
        assert ann.types() == ["task.opened", *rounds, "task.closed"]
        assert dan.types() == ["task.opened"]  # it has claimed nothing
        assert not ops.script, "not everything was tried"
        ids = [event["id"] for event in ops.taken]
        assert len({*ids}) == len(ids)
        assert [event["id"] for event in ops.attempts[:6]] == ids[:1] * 6
        assert [event["id"] for event in ann.taken] == ids[:-1]
    report = verified(folder)
    settled = [event["data"] for event in ann.taken if event["type"] == "fedpeer.round.settled"]
    assert sum(data["paid_micro"] for data in settled) == report.balances[payable("ann")].holds > 0
    due = ops.taken[-1]["data"]
    assert due["payable_micro"] == sum(report.balances[payable(name)].holds for name in NAMES)
    assert due["text"].endswith("credits are payable to participants of task task.")


async def test_what_was_not_taken_is_sent_after_a_restart_and_what_was_is_not(tmp_path: Path) -> None:
    async with receiving("204", *["500"] * 1000) as ops:
        folder = hooked(tmp_path / "state", ops)
        open_task(folder, task_config(tmp_path, schedule={"rounds": 1}))
        async with running(folder) as service:
            members = await played(service)  # the market goes on whether or not anybody hears of it
            async with asyncio.timeout(PATIENCE):
                while "notices to ops" not in service.troubles():
                    await asyncio.sleep(0.01)
            assert service.troubles()["notices to ops"].startswith("it answered 500; tried ")
            await close(members)
        assert ops.types() == ["task.opened"]
        failed = ops.attempts[-1]["id"]
        ops.script.clear()
        async with running(folder) as service:
            await ops.until("payout.due")
            assert service.troubles() == {}
        assert ops.types() == ["task.opened", "round.opened", "round.settled", "task.closed", "payout.due"]
        assert ops.taken[1]["id"] == failed


async def test_what_a_killed_service_was_sending_comes_again_under_the_same_id(tmp_path: Path) -> None:
    async with receiving("204", "slow") as ops:
        folder = hooked(tmp_path / "state", ops)
        open_task(folder, task_config(tmp_path, schedule={"rounds": 1}))
        with ExitStack() as first:
            process, _ = await asyncio.to_thread(first.enter_context, serving(folder.path))
            await ops.until("task.opened")
            await asyncio.to_thread(cancel, folder, "task")
            async with asyncio.timeout(PATIENCE):
                while len(ops.attempts) < 2:
                    await asyncio.sleep(0.01)
            process.kill()
        interrupted = ops.attempts[-1]
        with ExitStack() as second:
            await asyncio.to_thread(second.enter_context, serving(folder.path))
            await ops.until("task.cancelled")
        assert ops.types() == ["task.opened", "task.cancelled"]
        assert ops.taken[-1] == interrupted


async def test_a_notice_that_is_refused_is_passed_over_and_one_that_is_old_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with receiving(*["400"] * 5) as ops:
        folder = hooked(tmp_path / "state", ops)
        open_task(folder, task_config(tmp_path, schedule={"rounds": 1}))
        async with running(folder) as service:
            members = await played(service)
            await ops.until("payout.due")
            await close(members)
            await until_counted(service, "sent", 4)
            assert counted(service, "given_up") == 1
        assert ops.types() == ["round.opened", "round.settled", "task.closed", "payout.due"]
        monkeypatch.setattr(coordinator.notices, "KEPT_SECONDS", -1.0)
        ops.script[:] = ["503"] * 3
        open_task(folder, task_config(tmp_path, "second"))
        async with running(folder) as service:
            await until_counted(service, "given_up", 1)


async def test_a_participant_hears_why_it_was_refused_once_and_nobody_hears_of_the_revoked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with receiving() as ops, receiving() as ann:
        folder = hooked(tmp_path / "state", ops, ann=of_participant(ann, "ann"))
        open_task(folder, task_config(tmp_path, schedule={"rounds": 2}))
        async with running(folder, ManualClock(time.time())) as service:
            members = await in_training(service, NAMES)
            for _ in range(3):
                refusal = await refused(
                    members[0].submit(b"no model", 1, submission_id="bad"), Code.MODEL_INVALID
                )
            await refused(members[1].submit(b"no model", 1, submission_id="bad"), Code.MODEL_INVALID)
            await ann.until("submission.refused")
            monkeypatch.setattr(coordinator.notices, "_REFUSALS_PER_HOUR", 3)
            for size in range(5):  # five other reasons, of which two more are told of
                await refused(
                    members[0].submit(b"no" * (size + 5), 1, submission_id=f"bad-{size}"), Code.MODEL_INVALID
                )
            for number, client in enumerate(members):
                await client.submit(model_like(number), 1)
            await ann.until("round.settled")
            await asyncio.to_thread(revoke, folder, "ann")
            await asyncio.to_thread(cancel, folder, "task")
            await ops.until("task.cancelled", "payout.due")
            await close(members)
        told, *others = [event for event in ann.taken if event["type"] == "fedpeer.submission.refused"]
        assert len({event["data"]["reason"] for event in (told, *others)}) == 1 + len(others) == 3
        assert told["data"]["code"] == "MODEL_INVALID"
        assert refusal.message == told["data"]["reason"]
        assert told["subject"] == "task"
        assert "task.cancelled" not in ann.types()
        assert ops.taken[-2]["data"]["reason"] == "the data were wrong"
        assert "submission.refused" not in ops.types()


async def test_an_alarm_is_raised_and_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator.alarms, "LASTING_SECONDS", 0.0)
    monkeypatch.setattr(coordinator.alarms, "_RESERVE_BYTES", 1 << 60)  # no disk has so much
    async with receiving() as ops:
        folder = hooked(tmp_path / "state", ops)
        open_task(folder, task_config(tmp_path, schedule={"rounds": 1, "capacity": 4}))
        async with running(folder) as service:
            members = await in_training(service, (*NAMES, "dan"))
            models, aside = folder.models, tmp_path / "aside"
            for number, client in enumerate(members[:-1]):
                await client.submit(model_like(number), 1)
            shutil.move(models, aside)  # a disk that is not mounted
            await members[-1].fail(1)
            found = await ops.until("task.stalled", "disk.low")
            shutil.move(aside, models)
            await members[0].until("CLOSED")
            await ops.until("payout.due")
            async with asyncio.timeout(PATIENCE):
                while not any(event["data"].get("state") == "over" for event in found):
                    await asyncio.sleep(0.01)
            await close(members)
        states = [e["data"]["state"] for e in ops.taken if e["type"] == "fedpeer.task.stalled"]
        assert states == ["raised", "over"]
        [low] = [e["data"] for e in ops.taken if e["type"] == "fedpeer.disk.low"]
        assert "make space" in low["why"]


class Letters:
    """What a mail server does with a letter."""

    def __init__(self) -> None:
        self.refusals = ["451 Try again later"]
        self.taken: list[Any] = []

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:  # noqa: N802 - aiosmtpd's name
        if self.refusals:
            return self.refusals.pop()
        self.taken.append(envelope)
        return "250 OK"


async def test_mails_leave_through_the_operators_server(tmp_path: Path) -> None:
    letters = Letters()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: SMTP(letters, hostname="localhost"), "127.0.0.1", 0)
    config = (
        f'{CONFIG}[mail]\nserver = "127.0.0.1:{server.sockets[0].getsockname()[1]}"\nsecurity = "none"\n'
        'sender = "market@example.org"\n'
        '[notices.team]\nurl = "mailto:ops@example.org"\ntypes = ["payout.due", "task.cancelled"]\n'
    )
    folder = make_folder(tmp_path / "state", config)
    open_task(folder, task_config(tmp_path, schedule={"rounds": 1}))
    async with running(folder) as service:
        members = await played(service)
        async with asyncio.timeout(PATIENCE):
            while not letters.taken:
                await asyncio.sleep(0.01)
        await close(members)
    server.close()
    [envelope] = letters.taken
    text = envelope.content.decode()
    assert (envelope.mail_from, envelope.rcpt_tos) == ("market@example.org", ["ops@example.org"])
    assert "Subject: test: " in text
    assert "credits are payable to participants of task task." in text
    assert "Message-ID: <" in text


SECTION = '[notices.ops]\nurl = "https://example.org/"\n'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (SECTION, "expected a secret"),
        (SECTION + 'secret = "hunter2"', "expected a secret"),
        (SECTION + 'secret = "whsec_aHVudGVyMg=="', "24 to 64 random bytes"),
        (SECTION + f'secret = "{SECRET}"\ntypes = ["task.opend"]', "no notice 'task.opend'"),
        (SECTION + f'secret = "{SECRET}"\nparticipant = "ann"\ntypes = ["disk.low"]', "no notice 'disk.low'"),
        (f'[notices.ops]\nurl = "ftp://u:hunter2@h/"\nsecret = "{SECRET}"', "expected https://HOST/PATH"),
        ('[notices.ops]\nurl = "mailto:ops@example.org"', "expected a section [mail]"),
        ('[mail]\nserver = "example.org"', "expected server as host:port"),
        (SECTION + "key = 1", "unknown key notices.ops.key; known here: participant, secret, types, url"),
        ('[notices.ops]\nurl = 3\nsecret = "hunter2"', "notices.ops.url is not what it should be"),
    ],
)
def test_a_configuration_that_cannot_be_is_refused_and_shows_no_secret(text: str, expected: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        parse_config(f'name = "test"\n{text}', ServiceConfig, Path("coordinator.toml"))
    assert expected in str(refusal.value)
    assert "hunter2" not in str(refusal.value)


def test_the_page_names_every_notice() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "notices.md").read_text()
    for name in {*NOTICES, *NOTICES_FOR_PARTICIPANTS}:
        assert f"`{name}`" in page, name


def test_a_configuration_is_written_as_it_is_read(tmp_path: Path) -> None:
    text = (
        f'name = "test"\n[server]\nmetrics = ""\n{SECTION}secret = "{SECRET}"\n[notices.team]\nurl = "mailto:a@b"\n'
        '[mail]\nserver = "h:25"\nsender = "a@b"\n[oidc]\nissuer = "https://a"\nconsole = "https://b"\n'
        'client_id = "c"\noperators = ["a@b"]\n[oidc.participants]\n"x" = "ann"\n'
    )
    config = parse_config(text, ServiceConfig, tmp_path)
    assert parse_config(config_text(config), ServiceConfig, tmp_path) == config


async def test_the_operator_tries_a_receiver_before_anything_happens(tmp_path: Path) -> None:
    async with receiving("204", "500") as ops:
        folder = hooked(tmp_path / "state", ops)

        async def tried(name: str) -> tuple[int, str]:
            command = (
                sys.executable,
                "-m",
                "fedpeer",
                "coordinator",
                "notice",
                name,
                "--state",
                str(folder.path),
            )
            process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=STDOUT)
            said, _ = await process.communicate()
            return process.returncode or 0, said.decode()

        assert await tried("ops") == (0, "ops has taken it.\n")
        assert await tried("ops") == (3, "ops has not taken it: it answered 500\n")
        code, said = await tried("other")
        assert (code, "it names ops" in said) == (2, True)
    assert ops.types() == ["test"]
