"""A coordinator in this process and participants that speak the raw protocol: what the tests of the service use."""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager, closing
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import grpc
import numpy as np
import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from coordinator.clock import Clock
from coordinator.config import TaskConfig
from coordinator.folder import StateFolder, initialise
from coordinator.opening import prepare_task
from coordinator.operator import Operator
from coordinator.server import Coordinator
from fedpeer.audit.export import export_json_lines
from fedpeer.audit.sources import open_source
from fedpeer.protocol.certificates import PrivateKey, new_key, private_key_pem, signing_request
from fedpeer.protocol.codec import encode_signed
from fedpeer.protocol.errors import Code, Refusal, refusal_of
from fedpeer.protocol.limits import FRAME_BYTES
from fedpeer.protocol.model_file import encode_model
from fedpeer.testing import terms as local_terms
from fedpeer.v1 import enrolment_pb2, enrolment_pb2_grpc, ledger_pb2_grpc, market_pb2, market_pb2_grpc
from mechanism.degree import noniid_degree
from mechanism.ledger.verify import Report, verify_ledger
from mechanism.peers import draw_head, draw_share
from mechanism.statements import (
    ClaimOpening,
    ClaimStatement,
    ModelOpening,
    ModelStatement,
    Statement,
    StatementOpening,
    commit_counts,
    sign_statement,
)
from mechanism.terms import Terms
from tests.conformance import second_verifier

#: A model without an architecture: tests of the market need none.
WEIGHTS = {"bias": np.zeros(4, np.float32), "weight": np.ones((4, 3), np.float32)}

#: Seconds that a state is waited for: shadows of a round took 40 on a machine with a dozen others' work on each core.
PATIENCE = 180

CONFIG = """
name = "test"
[server]
market = "127.0.0.1:0"
public = "127.0.0.1:0"
metrics = ""
"""


def make_folder(path: Path, config: str = CONFIG) -> StateFolder:
    return initialise(path, config, "test", ["localhost", "127.0.0.1"])


def task_config(folder: Path, task_id: str = "task", **changes: Any) -> TaskConfig:
    """A task on claimed degrees with a model of sixteen numbers; `changes` by section."""
    initial = folder / "initial.safetensors"
    if not initial.exists():
        initial.write_bytes(encode_model(WEIGHTS))
    changes["schedule"] = {
        "capacity": 3,
        "effort_seconds": 60,
        "round_seconds": 60,
        **changes.get("schedule", {}),
    }
    usual = {"id": task_id, "reference": ["1/4"] * 4, "initial_model": initial.name}
    return local_terms.task_config(folder, **{**usual, **changes})


def open_task(folder: StateFolder, config: TaskConfig) -> None:
    operator = Operator(folder)
    try:
        operator.open(prepare_task(config, 1_000.0))
    finally:
        operator.close()


def invite(folder: StateFolder, name: str) -> str:
    operator = Operator(folder)
    try:
        return operator.invite(name).token
    finally:
        operator.close()


def revoke(folder: StateFolder, name: str) -> None:
    operator = Operator(folder)
    try:
        operator.revoke(name, "test")
    finally:
        operator.close()


@asynccontextmanager
async def running(folder: StateFolder, clock: Clock | None = None) -> AsyncIterator[Coordinator]:
    coordinator = Coordinator(folder, clock=clock)
    await coordinator.start()
    try:
        yield coordinator
    finally:
        await coordinator.stop(0)


def verified(folder: StateFolder) -> Report:
    """The report on the folder's ledger, which must hold: leaves, tree, heads, balances, draws, every payment.

    The second verifier must say so too of what is exported.
    """
    with ExitStack() as resources:
        source = open_source(folder.database_url(folder.config()), resources)
        openings = resources.enter_context(closing(Operator(folder))).openings()
        assert verify_ledger(source).verified
        report = verify_ledger(source, openings=openings)
        assert report.verified, report.problems
        assert not report.counts.unchecked
        exported = Path(resources.enter_context(TemporaryDirectory())) / "ledger.jsonl"
        export_json_lines(source, exported)
        opened = exported.with_name("openings.jsonl")
        # What no head covers yet is not exported, and so is not opened.
        ids = {json.loads(line).get("id") for line in exported.read_text().splitlines()}
        covered = {name: opening for name, opening in openings.by_id.items() if name in ids}
        opened.write_bytes(b"".join(line + b"\n" for line in replace(openings, by_id=covered).lines()))
        second = second_verifier.verify(exported, report.key, opened)
    assert not second.problems, second.problems[:3]
    if not report.unsigned:
        held = {name: balance.holds for name, balance in report.balances.items() if balance.holds}
        other = {name: holds for name, holds in second.balances.items() if holds}
        assert other == held, (other, held)
    return report


SALT = bytes(range(32))

Opening = TypeVar("Opening", ClaimOpening, ModelOpening)
T = TypeVar("T")

#: What the statements of tests commit to, by its digest.
_OPENINGS: dict[bytes, StatementOpening] = {}


@dataclass
class Client:
    """A participant that says exactly what the test says."""

    name: str
    key: PrivateKey
    certificate: bytes
    authority: bytes
    address: str
    #: The task that calls are about.
    task_id: str = "task"
    #: Of gRPC, for its channel.
    options: tuple[tuple[str, Any], ...] = ()
    _channel: grpc.aio.Channel | None = field(default=None, repr=False)

    @property
    def channel(self) -> grpc.aio.Channel:
        if self._channel is None:
            credentials = grpc.ssl_channel_credentials(
                self.authority, private_key_pem(self.key), self.certificate
            )
            # Without a pool of its own, channels of one process can share a connection.
            options = [("grpc.use_local_subchannel_pool", 1), *self.options]
            self._channel = grpc.aio.secure_channel(self.address, credentials, options)
        return self._channel

    @property
    def market(self) -> Any:
        return market_pb2_grpc.MarketStub(self.channel)

    @property
    def ledger(self) -> Any:
        return ledger_pb2_grpc.LedgerStub(self.channel)

    async def close(self) -> None:
        if self._channel is not None:
            await self._channel.close()
            self._channel = None

    async def task(self) -> market_pb2.Task:
        return await self.market.GetTask(market_pb2.GetTaskRequest(task_id=self.task_id))

    async def claim_statement(self, **changes: Any) -> ClaimStatement:
        task = await self.task()
        terms = Terms.parse(task.terms)
        counts = changes.pop("counts", (3, 3, 3, 3))
        degree = changes.pop("degree", None)
        if degree is None:
            degree = noniid_degree(counts, terms.reference)
        opening = kept(ClaimOpening(changes.pop("effort", Decimal("0.5")), degree, SALT))
        statement = ClaimStatement(
            submission_id=f"claim-{self.name}",
            task_id=self.task_id,
            terms_digest=terms.digest,
            participant_id=self.name,
            commitment=opening.digest,
            counts_commitment=commit_counts(counts, SALT),
            draw_head=draw_head(share_secret(self.name), terms.schedule.rounds),
            nonce=task.nonce,
        )
        return replace(statement, **changes)

    async def claim(self, **changes: Any) -> market_pb2.Receipt:
        statement = await self.claim_statement(**changes)
        return await self.market.SubmitEffort(signed(statement, self.key))

    async def model_statement(self, content: bytes, round_: int, **changes: Any) -> ModelStatement:
        samples = changes.pop("samples", 50)
        return replace(model_statement(await self.task(), self.name, content, round_, samples), **changes)

    async def submit(
        self, content: bytes, round_: int, *, offset: int = 0, **changes: Any
    ) -> market_pb2.Receipt:
        statement = await self.model_statement(content, round_, **changes)
        header = market_pb2.ModelHeader(model=signed(statement, self.key), offset=offset)
        return await self.upload([market_pb2.SubmitModelRequest(header=header), *frames(content, offset)])

    async def upload(self, messages: Sequence[market_pb2.SubmitModelRequest]) -> market_pb2.Receipt:
        """Sends an upload's messages, whatever they are; again where the client lost the answer."""
        return await answered(lambda: self.market.SubmitModel(stream(messages)))

    async def fail(self, round_: int, reason: str = "no data") -> market_pb2.Receipt:
        return await self.market.ReportFailure(
            market_pb2.ReportFailureRequest(
                submission_id=f"failure-{round_}-{self.name}",
                task_id=self.task_id,
                participant_id=self.name,
                round=round_,
                reason=reason,
            )
        )

    async def until(self, *states: str, round_: int = 0) -> market_pb2.Event:
        """The first event of one of the states, in `round_` or later."""
        wanted = {market_pb2.TaskState.Value(f"TASK_STATE_{state}") for state in states}
        watch = self.market.Watch(market_pb2.WatchRequest(task_id=self.task_id))
        try:
            async with asyncio.timeout(PATIENCE):
                async for event in watch:
                    if event.state in wanted and event.round >= round_:
                        return event
        finally:
            watch.cancel()
        raise AssertionError(f"the task ended before {states}")


async def in_training(coordinator: Any, names: tuple[str, ...], task_id: str = "task") -> list[Client]:
    """Participants that have claimed in a task, whose first round has opened."""
    members = [await enrol(coordinator, name) for name in names]
    for client in members:
        client.task_id = task_id
    await members[0].until("EFFORT")
    for client in members:
        await client.claim()
    await members[0].until("TRAINING")
    return members


async def delivered(coordinator: Any, names: tuple[str, ...]) -> list[Client]:
    """As `in_training`, with all models of the first round in."""
    members = await in_training(coordinator, names)
    for number, client in enumerate(members):
        await client.submit(model_like(number), 1)
    return members


async def close(members: list[Client]) -> None:
    for client in members:
        await client.close()


def share_secret(name: str) -> bytes:
    """The end of a participant's chain of draw shares, the same in every task and process of a test."""
    return hashlib.sha256(f"share {name}".encode()).digest()


def kept(opening: Opening) -> Opening:
    """An opening that `signed` finds for a statement that commits to it."""
    _OPENINGS[opening.digest] = opening
    return opening


def signed(statement: Statement, key: PrivateKey) -> market_pb2.Signed:
    """The statement, signed, with what it commits to."""
    return encode_signed(statement, sign_statement(statement, key), _OPENINGS[statement.commitment])


def model_statement(
    task: market_pb2.Task, name: str, content: bytes, round_: int, samples: int = 50
) -> ModelStatement:
    """What the participant `name` says of its model for a round of `task`."""
    terms = Terms.parse(task.terms)
    return ModelStatement(
        submission_id=f"model-{round_}-{name}",
        task_id=terms.task_id,
        terms_digest=terms.digest,
        participant_id=name,
        round=round_,
        model_sha256=hashlib.sha256(content).digest(),
        model_bytes=len(content),
        commitment=kept(ModelOpening(samples, SALT)).digest,
        draw_share=share_of(name, terms.schedule.rounds, round_),
        nonce=task.nonce,
    )


def signed_as(statement: Statement, key: PrivateKey, **changes: Any) -> market_pb2.Signed:
    """The statement, signed by `key`, with other values in its record: whatever JSON can write down."""
    record = {**statement.record(), **changes}
    data = json.dumps(record, sort_keys=True, separators=(",", ":")).encode()
    return signed_bytes(data, key, _OPENINGS[statement.commitment].canonical)


def signed_bytes(data: bytes, key: PrivateKey, opening: bytes = b"") -> market_pb2.Signed:
    signature = key.sign(data, ec.ECDSA(hashes.SHA256()))
    return market_pb2.Signed(statement=data, signature=signature, opening=opening)


def share_of(name: str, rounds: int, round_: int) -> bytes:
    """A participant's draw share; of a round that the task does not have, nothing that fits."""
    return draw_share(share_secret(name), rounds, round_) if 1 <= round_ <= rounds else bytes(32)


def frames(content: bytes, offset: int = 0, size: int = FRAME_BYTES) -> list[market_pb2.SubmitModelRequest]:
    return [
        market_pb2.SubmitModelRequest(
            frame=market_pb2.ModelFrame(offset=start, data=content[start : start + size])
        )
        for start in range(offset, len(content), size)
    ]


async def stream(
    messages: Sequence[market_pb2.SubmitModelRequest],
) -> AsyncIterator[market_pb2.SubmitModelRequest]:
    for message in messages:
        yield message


#: What gRPC's asynchronous client says, and no server, where the call has ended while it still sends: the write fails
#: before the client has read the status that came.
WRITE_FAILED = "Internal error from Core"

#: How often a request is sent whose answer the client loses so.
ATTEMPTS = 20


async def answered(call: Callable[[], Awaitable[T]]) -> T:
    """The answer to a streamed request, which is sent again where the client has lost it."""
    for _ in range(ATTEMPTS - 1):
        try:
            return await call()
        except grpc.RpcError as error:
            if error.details() != WRITE_FAILED:
                raise
    return await call()


async def enrol(coordinator: Any, name: str, key: PrivateKey | None = None) -> Client:
    """Invites and enrols a participant."""
    key = key or new_key()
    token = await asyncio.to_thread(invite, coordinator.folder, name)
    authority = (coordinator.folder.path / "authority.pem").read_bytes()
    async with grpc.aio.secure_channel(
        coordinator.public_address, grpc.ssl_channel_credentials(authority)
    ) as channel:
        response = await enrolment_pb2_grpc.EnrolmentStub(channel).Enroll(
            enrolment_pb2.EnrollRequest(
                participant_id=name, token=token, certificate_signing_request=signing_request(name, key)
            )
        )
    return Client(name, key, response.certificate, response.authority, coordinator.market_address)


def at(client: Client, other: Any) -> Client:
    """The same participant, connected to another front or machine."""
    return replace(client, address=other.market_address, _channel=None)


async def refusal(call: Any) -> Refusal:
    """What a call is refused with."""
    with pytest.raises(grpc.RpcError) as caught:
        await call
    found = refusal_of(caught.value)
    assert found is not None, caught.value
    assert found.request_id
    return found


async def refused(call: Any, code: Code) -> Refusal:
    found = await refusal(call)
    assert found.code is code, found
    return found


def model_like(seed: int) -> bytes:
    """A model that fits the contract, its numbers drawn from `seed`."""
    generator = np.random.default_rng(seed)
    return encode_model({name: generator.normal(size=w.shape).astype(w.dtype) for name, w in WEIGHTS.items()})
