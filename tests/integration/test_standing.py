"""What a participant may have written is decided inside the transaction that writes it: a revocation comes from another
process, and here the service has not heard of it.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import grpc
import numpy as np
import pytest

from coordinator.clock import ManualClock
from coordinator.operator import Operator
from coordinator.server import Coordinator
from fedpeer.audit.sources import open_source
from fedpeer.protocol.certificates import new_key, signing_request
from fedpeer.protocol.errors import Code, refusal_of
from fedpeer.protocol.limits import MIN_FRAME_BYTES
from fedpeer.protocol.model_file import encode_model
from fedpeer.v1 import enrolment_pb2, enrolment_pb2_grpc, market_pb2
from mechanism.canonical import canonical_digest
from mechanism.ledger.entry import Entry
from tests.backends import DURABLE, scratch_url
from tests.integration.market import (
    CONFIG,
    Client,
    close,
    enrol,
    frames,
    in_training,
    invite,
    make_folder,
    model_like,
    open_task,
    refused,
    revoke,
    running,
    signed,
    task_config,
    verified,
)

NAMES = ("ada", "ben", "cho")


@asynccontextmanager
async def market(path: Path, backend: str, **changes: object) -> AsyncIterator[Coordinator]:
    """A coordinator with a task, whose ledger verifies at the end."""
    with scratch_url(backend, path) as database:
        folder = make_folder(path / "state", CONFIG + f"[storage]\ndatabase = {database!r}\n")
        open_task(folder, task_config(path, **changes))
        async with running(folder) as coordinator:
            yield coordinator
        verified(folder)


def revoke_unheard(coordinator: Coordinator, name: str) -> None:
    """As `fedpeer coordinator revoke`, whose notification does not reach the service."""
    operator = Operator(coordinator.folder)
    operator._silent = True
    try:
        operator.revoke(name, "test")
    finally:
        operator.close()


def entries_of(coordinator: Coordinator, name: str) -> list[str]:
    """Kinds of the entries that speak of a participant's own acts, in order."""
    with ExitStack() as resources:
        source = open_source(coordinator.folder.database_url(coordinator.config), resources)
        found = [Entry.parse(data) for data in source.entries()]
    about = [(e.kind, e.body.get("statement", e.body)) for e in found]
    return [kind for kind, body in about if isinstance(body, dict) and body.get("participant_id") == name]


async def renew(client: Client) -> Client:
    """The client with another certificate, for a key of its own."""
    key = new_key()
    request = signing_request(client.name, key)
    answer = await enrolment_pb2_grpc.EnrolmentStub(client.channel).Enroll(
        enrolment_pb2.EnrollRequest(participant_id=client.name, certificate_signing_request=request)
    )
    return Client(client.name, key, answer.certificate, answer.authority, client.address)


WRITES: dict[str, Callable[[Client], Awaitable[object]]] = {
    "failure": lambda client: client.fail(1),
    "upload": lambda client: client.submit(model_like(1), 1),
    "dispute": lambda client: client.market.OpenDispute(
        market_pb2.OpenDisputeRequest(task_id="task", counts=[1] * 4, salt=bytes(32))
    ),
    "renewal": renew,
}


@pytest.mark.parametrize("backend", DURABLE)
async def test_a_revoked_participant_writes_nothing_though_the_service_has_not_heard(
    tmp_path: Path, backend: str
) -> None:
    names = tuple(f"p{number}" for number in range(len(WRITES)))
    schedule = {"capacity": len(names)}
    async with market(tmp_path, backend, schedule=schedule) as coordinator:
        members = await in_training(coordinator, names)
        for client, (kind, write) in zip(members, WRITES.items(), strict=True):
            await client.task()  # let in before
            await asyncio.to_thread(revoke_unheard, coordinator, client.name)
            refusal = await refused(write(client), Code.CERTIFICATE_REVOKED)
            assert "revoked" in refusal.message, kind
            assert entries_of(coordinator, client.name) == ["enrolment", "claim", "revocation"], kind
        await close(members)


@pytest.mark.parametrize("backend", DURABLE)
async def test_a_claim_after_the_revocation_is_refused(tmp_path: Path, backend: str) -> None:
    async with market(tmp_path, backend) as coordinator:
        ada = await enrol(coordinator, "ada")
        await ada.until("EFFORT")
        statement = await ada.claim_statement()
        await asyncio.to_thread(revoke_unheard, coordinator, "ada")
        await refused(ada.claim(), Code.CERTIFICATE_REVOKED)
        assert statement.participant_id == "ada"
        assert entries_of(coordinator, "ada") == ["enrolment", "revocation"]
        await ada.close()


class Upload:
    """An upload that is held after its first frame."""

    def __init__(self, client: Client, content: bytes) -> None:
        self._client, self._content = client, content
        self._going_on = asyncio.Event()
        self.begun = asyncio.Event()

    async def send(self) -> market_pb2.Receipt:
        client = self._client
        statement = await client.model_statement(self._content, 1)
        header = market_pb2.ModelHeader(model=signed(statement, client.key))

        async def messages() -> AsyncIterator[market_pb2.SubmitModelRequest]:
            yield market_pb2.SubmitModelRequest(header=header)
            first, *others = frames(self._content, size=64)
            yield first
            self.begun.set()
            await self._going_on.wait()
            for frame in others:
                yield frame

        return await client.market.SubmitModel(messages())

    def go_on(self) -> None:
        self._going_on.set()


@pytest.mark.parametrize("heard", [True, False])
async def test_an_upload_begun_before_the_revocation_gets_no_receipt(tmp_path: Path, heard: bool) -> None:
    async with market(tmp_path, "sqlite") as coordinator:
        members = await in_training(coordinator, NAMES)
        upload = Upload(members[0], model_like(1))
        sending = asyncio.ensure_future(upload.send())
        await upload.begun.wait()
        while not coordinator._work.uploads.places.streams:
            await asyncio.sleep(0.01)
        if heard:  # it ends at once, whether or not the participant goes on
            await asyncio.to_thread(revoke, coordinator.folder, "ada")
        else:
            await asyncio.to_thread(revoke_unheard, coordinator, "ada")
            upload.go_on()
        await refused(sending, Code.CERTIFICATE_REVOKED)
        upload.go_on()
        assert entries_of(coordinator, "ada") == ["enrolment", "claim", "revocation"]
        while coordinator._work.uploads.places.streams:
            await asyncio.sleep(0.01)
        await close(members)


async def test_a_model_that_was_recorded_before_the_revocation_is_paid(tmp_path: Path) -> None:
    async with market(tmp_path, "sqlite", schedule={"rounds": 1}) as coordinator:
        members = await in_training(coordinator, NAMES)
        await members[0].submit(model_like(0), 1)
        await asyncio.to_thread(revoke, coordinator.folder, "ada")
        for number in (1, 2):
            await members[number].submit(model_like(number), 1)
        await members[1].until("CLOSED")
        assert "payment" in entries_of(coordinator, "ada")
        await close(members)


async def test_every_open_stream_ends_with_the_standing_of_its_caller(tmp_path: Path) -> None:
    async with market(tmp_path, "sqlite") as coordinator:
        members = await in_training(coordinator, NAMES)
        ada = members[0]
        watch = ada.market.Watch(market_pb2.WatchRequest(task_id="task"))
        quiet = aiter(watch)
        for _ in range(4):  # all that there is; then nothing happens
            await anext(quiet)
        silent = Upload(ada, model_like(1))
        sending = asyncio.ensure_future(silent.send())
        await silent.begun.wait()
        # The service hears of it by the refusal of a call, and then ends all streams.
        await asyncio.to_thread(revoke_unheard, coordinator, "ada")
        await refused(ada.fail(1), Code.CERTIFICATE_REVOKED)
        await refused(anext(quiet), Code.CERTIFICATE_REVOKED)
        await refused(sending, Code.CERTIFICATE_REVOKED)
        silent.go_on()
        # Others go on.
        assert (await members[1].submit(model_like(1), 1)).ledger_index > 0
        await close(members)


async def test_a_fetch_that_is_read_slowly_ends_after_what_was_sent(tmp_path: Path) -> None:
    """The caller reads nothing while it is revoked; what it then gets is an end, not the rest of the model."""
    size = 64 << 20
    (tmp_path / "initial.safetensors").write_bytes(encode_model({"w": np.zeros(size // 4, np.float32)}))
    async with market(tmp_path, "sqlite") as coordinator:
        members = await in_training(coordinator, NAMES)
        fetch = members[0].market.FetchModel(
            market_pb2.FetchModelRequest(task_id="task", round=1, max_frame_bytes=MIN_FRAME_BYTES)
        )
        arriving = aiter(fetch)
        taken = len((await anext(arriving)).data)
        await asyncio.to_thread(revoke, coordinator.folder, "ada")

        async def rest() -> None:
            nonlocal taken
            async for frame in arriving:
                taken += len(frame.data)

        await refused(rest(), Code.CERTIFICATE_REVOKED)
        assert taken < size / 2
        await close(members)


@pytest.mark.parametrize("backend", DURABLE)
async def test_who_renews_in_a_loop_does_not_come_back(tmp_path: Path, backend: str) -> None:
    async with market(tmp_path, backend) as coordinator:
        last = await enrol(coordinator, "eve")
        stop = asyncio.Event()
        every = [last]

        async def loop() -> None:
            while not stop.is_set():
                try:
                    every.append(await renew(every[-1]))
                except grpc.RpcError as error:
                    found = refusal_of(error)
                    assert found is not None
                    assert found.code is Code.CERTIFICATE_REVOKED, found

        renewing = asyncio.ensure_future(loop())
        while len(every) < 3:
            await asyncio.sleep(0.01)
        await asyncio.to_thread(revoke, coordinator.folder, "eve")
        enrolled = len(every)
        for _ in range(3):
            await refused(renew(every[-1]), Code.CERTIFICATE_REVOKED)
        stop.set()
        await renewing
        assert len(every) == enrolled
        kinds = entries_of(coordinator, "eve")
        assert kinds == ["enrolment"] * enrolled + ["revocation"] * enrolled, (
            "all that it ever had are revoked"
        )
        # None of them is enrolled again, under its own name or another; a new one is, by invitation.
        for client in (every[0], every[-1]):
            for name in ("eve", "mallory"):
                with pytest.raises(grpc.RpcError, match="This key was revoked"):
                    await enrol(coordinator, name, client.key)
        back = await enrol(coordinator, "eve")
        assert (await back.task()).nonce
        await close([*every, back])


async def test_who_was_revoked_before_the_selection_is_not_selected(tmp_path: Path) -> None:
    async with market(tmp_path, "sqlite", schedule={"capacity": 4, "effort_seconds": 2}) as coordinator:
        members = [await enrol(coordinator, name) for name in (*NAMES, "eve")]
        await members[0].until("EFFORT")
        await members[3].claim()
        await asyncio.to_thread(revoke, coordinator.folder, "eve")
        for client in members[:3]:
            await client.claim()
        selected = await members[0].until("SELECTED")
        assert (selected.selected.count, selected.selected.chosen) == (3, True)
        assert selected.selected.participants_sha256 == canonical_digest(list(NAMES))
        page = await members[0].market.ListSelected(market_pb2.ListSelectedRequest(task_id="task"))
        assert (list(page.participants), page.more) == (list(NAMES), False)
        rest = market_pb2.ListSelectedRequest(task_id="task", after="ben")
        assert list((await members[0].market.ListSelected(rest)).participants) == ["cho"]
        await close(members)


async def test_a_withdrawn_invitation_is_withdrawn_by_every_clock(tmp_path: Path) -> None:
    async with market(tmp_path, "sqlite") as coordinator:
        token = await asyncio.to_thread(invite, coordinator.folder, "late")
        operator = Operator(coordinator.folder)
        operator._transact._clock = ManualClock(time.time() + 3600)  # of another machine, say
        await asyncio.to_thread(operator.revoke, "late", "")
        operator.close()
        authority = (coordinator.folder.path / "authority.pem").read_bytes()
        async with grpc.aio.secure_channel(
            coordinator.public_address, grpc.ssl_channel_credentials(authority)
        ) as channel:
            request = enrolment_pb2.EnrollRequest(
                participant_id="late",
                token=token,
                certificate_signing_request=signing_request("late", new_key()),
            )
            await refused(enrolment_pb2_grpc.EnrolmentStub(channel).Enroll(request), Code.INVITATION_INVALID)
