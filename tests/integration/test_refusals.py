"""Bad input: each is refused with its reason and changes nothing."""

import asyncio
import json
import re
import struct
from collections.abc import AsyncIterator, Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from coordinator.server import Coordinator
from fedpeer.protocol.certificates import new_key
from fedpeer.protocol.errors import Code
from fedpeer.protocol.limits import FRAME_BYTES, MAX_STATEMENT_BYTES
from fedpeer.protocol.model_file import encode_model
from fedpeer.v1 import ledger_pb2, market_pb2
from mechanism.canonical import canonical_bytes
from tests.integration.market import (
    WEIGHTS,
    Client,
    enrol,
    frames,
    make_folder,
    model_like,
    open_task,
    refused,
    running,
    signed,
    signed_as,
    signed_bytes,
    task_config,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def coordinator(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Coordinator]:
    async with running(make_folder(tmp_path_factory.mktemp("market") / "state")) as service:
        yield service


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def everyone(coordinator: Coordinator) -> AsyncIterator[list[Client]]:
    members = [await enrol(coordinator, name) for name in ("ann", "bob", "cyd", "dan")]
    yield members
    for client in members:
        await client.close()


@pytest_asyncio.fixture(loop_scope="module")
async def clients(coordinator: Coordinator, everyone: list[Client], tmp_path: Path) -> list[Client]:
    """Three participants in the effort phase of a task of their own; a fourth knows of it."""
    task_id = f"task-{len(coordinator.market.tasks())}"
    await asyncio.to_thread(open_task, coordinator.folder, task_config(tmp_path, task_id))
    for client in everyone:
        client.task_id = task_id
    await everyone[0].until("EFFORT")
    return everyone[:3]


@pytest_asyncio.fixture(loop_scope="module")
async def training(clients: list[Client]) -> list[Client]:
    for client in clients:
        await client.claim()
    await clients[0].until("TRAINING")
    return clients


async def ledger_size(client: Client) -> int:
    note = (await client.ledger.GetCheckpoint(ledger_pb2.GetCheckpointRequest())).note
    return int(note.split("\n")[1])


def files(coordinator: Coordinator, client: Client) -> list[Path]:
    spool = coordinator.folder.spool / client.task_id
    return [path for path in spool.rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("commitment", ""),
        ("commitment", "ab"),
        ("counts_commitment", "ab" * 33),
        ("submission_id", "../../etc/passwd"),
        ("submission_id", ""),
    ],
)
async def test_a_claim_with_a_value_out_of_range(clients: list[Client], field: str, value: str) -> None:
    statement = await clients[0].claim_statement()
    message = signed_as(statement, clients[0].key, **{field: value})
    found = await refused(clients[0].market.SubmitEffort(message), Code.FIELD_INVALID)
    assert found.violations[0].field == field


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("effort", "1.5"),
        ("effort", "NaN"),
        ("effort", "1e999999"),
        ("effort", "9" * 1000),
        ("degree", "2"),
        ("degree", "1/0"),
        ("degree", "-1/2"),
        ("salt", "ab"),
        ("note", "see elsewhere"),
    ],
)
async def test_an_opening_of_a_claim_with_a_value_out_of_range(
    clients: list[Client], field: str, value: str
) -> None:
    message = signed(await clients[0].claim_statement(), clients[0].key)
    message.opening = canonical_bytes({**json.loads(message.opening), field: value})
    found = await refused(clients[0].market.SubmitEffort(message), Code.FIELD_INVALID)
    assert found.violations[0].field == field


async def test_an_opening_that_the_statement_does_not_commit_to(clients: list[Client]) -> None:
    message = signed(await clients[0].claim_statement(), clients[0].key)
    for opening in (
        canonical_bytes({**json.loads(message.opening), "degree": "1/3"}),
        canonical_bytes({**json.loads(message.opening), "salt": "00" * 32}),
    ):
        message.opening = opening
        found = await refused(clients[0].market.SubmitEffort(message), Code.FIELD_INVALID)
        assert found.violations[0].field == "commitment"
    message.opening = b""
    await refused(clients[0].market.SubmitEffort(message), Code.FIELD_INVALID)


async def test_a_claim_under_another_name(clients: list[Client]) -> None:
    await refused(clients[0].claim(participant_id="bob"), Code.WRONG_PARTICIPANT)


async def test_a_claim_signed_by_another_key(clients: list[Client]) -> None:
    statement = await clients[0].claim_statement()
    message = signed(statement, new_key())
    await refused(clients[0].market.SubmitEffort(message), Code.SIGNATURE_INVALID)
    message.signature = b"nonsense"
    await refused(clients[0].market.SubmitEffort(message), Code.SIGNATURE_INVALID)


async def test_a_claim_with_another_nonce_or_for_another_task(clients: list[Client]) -> None:
    await refused(clients[0].claim(nonce=bytes(16)), Code.NONCE_UNKNOWN)
    found = await refused(clients[0].claim(terms_digest=bytes(32)), Code.TERMS_CHANGED)
    assert "00" * 32 in found.message
    await refused(clients[0].claim(task_id="other"), Code.TASK_UNKNOWN)


#: What is not a statement, made of the bytes of one: how, and the field that is named.
NO_STATEMENTS: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "nothing": (lambda data: b"", "statement"),
    "no JSON": (lambda data: data[:-1], "statement"),
    "no UTF-8": (lambda data: data.replace(b"claim", b"cl\xffim"), "statement"),
    "a list": (lambda data: b"[" + data + b"]", "statement"),
    "white space": (lambda data: data.replace(b",", b", "), "statement"),
    "another order": (lambda data: re.sub(rb"{(.*?),(.*)}", rb"{\2,\1}", data), "statement"),
    "an escape": (lambda data: data.replace(b"claim-ann", b"claim\\u002dann"), "statement"),
    "a key twice": (lambda data: data.replace(b'"kind":', b'"kind":"claim","kind":'), "statement"),
    "a fraction": (lambda data: data.replace(b'"claim"', b"3.5"), "kind"),
    "infinity": (lambda data: data.replace(b'"claim"', b"Infinity"), "statement"),
    "a large integer": (lambda data: data.replace(b'"claim"', b"9007199254740992"), "kind"),
    "a huge integer": (lambda data: data.replace(b'"claim"', b"9" * 5000), "statement"),
    "a boolean": (lambda data: data.replace(b'"claim"', b"true"), "kind"),
    "deep nesting": (lambda data: data.replace(b'"claim"', b"[" * 15_000 + b"]" * 15_000), "statement"),
    "too long": (lambda data: data.replace(b"claim-ann", b"a" * MAX_STATEMENT_BYTES), "statement"),
    "a key too many": (lambda data: data.replace(b"{", b'{"a":1,', 1), "a"),
    "a key too few": (lambda data: data.replace(b'"kind":"claim",', b""), "kind"),
    "another kind": (lambda data: data.replace(b'"kind":"claim"', b'"kind":"model"'), "kind"),
    "upper case": (lambda data: re.sub(rb'(?<="nonce":").', b"A", data), "nonce"),
}


@pytest.mark.parametrize("way", NO_STATEMENTS)
async def test_what_is_signed_is_the_canonical_bytes_of_a_statement(clients: list[Client], way: str) -> None:
    spoil, field = NO_STATEMENTS[way]
    statement = await clients[0].claim_statement()
    data = spoil(statement.canonical)
    assert data != statement.canonical
    message = signed_bytes(data, clients[0].key)
    found = await refused(clients[0].market.SubmitEffort(message), Code.FIELD_INVALID)
    assert [violation.field for violation in found.violations] == [field]
    assert not (await clients[0].task()).submissions


async def test_a_header_without_a_model_statement_is_refused(training: list[Client]) -> None:
    ann = training[0]
    claim = await ann.claim_statement()
    for message, field in ((market_pb2.Signed(), "statement"), (signed_as(claim, ann.key), "kind")):
        header = market_pb2.SubmitModelRequest(header=market_pb2.ModelHeader(model=message))
        found = await refused(ann.upload([header, *frames(model_like(0))]), Code.FIELD_INVALID)
        assert found.violations[0].field == field


async def test_a_claim_twice(clients: list[Client]) -> None:
    first = await clients[0].claim()
    assert await clients[0].claim() == first
    await refused(clients[0].claim(effort=Decimal("0.6")), Code.SUBMISSION_CONFLICT)
    await refused(clients[0].claim(submission_id="another"), Code.SUBMISSION_CONFLICT)
    receipt = await clients[0].market.GetReceipt(
        market_pb2.GetReceiptRequest(task_id=clients[0].task_id, submission_id="claim-ann")
    )
    assert receipt == first
    request = market_pb2.GetReceiptRequest(task_id=clients[0].task_id, submission_id="claim-ann")
    await refused(clients[1].market.GetReceipt(request), Code.SUBMISSION_UNKNOWN)


async def test_messages_for_another_state_or_round(clients: list[Client]) -> None:
    ann = clients[0]
    await refused(ann.submit(model_like(0), 1), Code.WRONG_STATE)
    await refused(ann.fail(1), Code.NOT_SELECTED)
    for client in clients:
        await client.claim()
    await ann.until("TRAINING")
    await refused(ann.submit(model_like(0), 2), Code.WRONG_ROUND)
    await refused(ann.fail(2), Code.WRONG_ROUND)
    for round_, code in ((1, Code.NOT_YET), (9, Code.FIELD_INVALID)):
        request = market_pb2.GetSettlementRequest(task_id=ann.task_id, round=round_)
        await refused(ann.market.GetSettlement(request), code)


async def test_who_was_not_selected(everyone: list[Client], training: list[Client]) -> None:
    dan = everyone[3]
    await refused(dan.claim(), Code.WRONG_STATE)
    await refused(dan.submit(model_like(0), 1), Code.NOT_SELECTED)
    request = market_pb2.FetchModelRequest(task_id=training[0].task_id, round=1)
    with pytest.raises(Exception, match="does not train"):
        _ = [frame async for frame in dan.market.FetchModel(request)]


def altered(**changes: Any) -> bytes:
    weights = {**WEIGHTS, **changes}
    return encode_model({name: value for name, value in weights.items() if value is not None})


def header_lies() -> bytes:
    content = bytearray(model_like(0))
    content[:8] = struct.pack("<Q", 2**60)
    return bytes(content)


BAD_MODELS = {
    "a missing tensor": (altered(bias=None), "'bias' is missing"),
    "a wrong name": (altered(bias=None, bios=np.zeros(4, np.float32)), "'bios' is not in the contract"),
    "a wrong shape": (altered(bias=np.zeros(5, np.float32)), "shape [5]"),
    "a wrong type": (altered(bias=np.zeros(4, np.float64)), "F64"),
    "a NaN": (altered(bias=np.full(4, np.nan, np.float32)), "NaN or infinite"),
    "an infinity": (altered(weight=np.full((4, 3), np.inf, np.float32)), "NaN or infinite"),
    "a huge norm": (altered(weight=np.full((4, 3), 1e9, np.float32)), "norm"),
    "no safetensors": (b"\x80\x04K\x01." * 30, "not a safetensors file"),
    "a header that lies": (header_lies(), "not a safetensors file"),
    "a file cut short": (model_like(0)[:-4], "end at byte"),
}


@pytest.mark.parametrize("case", BAD_MODELS)
async def test_a_model_that_does_not_fit(coordinator: Coordinator, training: list[Client], case: str) -> None:
    content, words = BAD_MODELS[case]
    before = await ledger_size(training[0])
    found = await refused(training[0].submit(content, 1), Code.MODEL_INVALID)
    assert words in found.message
    assert found.violations
    assert await ledger_size(training[0]) == before
    assert files(coordinator, training[0]) == []
    # The same participant may still deliver a good one, even under the same id where the content is the same.
    receipt = await training[0].submit(model_like(0), 1, submission_id="better")
    assert not receipt.late


async def test_a_model_with_another_digest(coordinator: Coordinator, training: list[Client]) -> None:
    found = await refused(training[0].submit(model_like(0), 1, model_sha256=bytes(32)), Code.MODEL_INVALID)
    assert "SHA-256" in found.message
    assert files(coordinator, training[0]) == []


async def test_a_model_of_too_many_bytes(coordinator: Coordinator, training: list[Client]) -> None:
    await refused(training[0].submit(bytes(1 << 20), 1), Code.TOO_LARGE)
    content = model_like(0)
    await refused(training[0].submit(content, 1, model_bytes=len(content) - 8), Code.TOO_LARGE)
    assert files(coordinator, training[0]) == []


async def test_frames_out_of_order(training: list[Client]) -> None:
    ann, content = training[0], model_like(0)
    statement = await ann.model_statement(content, 1)
    header = market_pb2.SubmitModelRequest(header=market_pb2.ModelHeader(model=signed(statement, ann.key)))
    pieces = frames(content, size=40)
    for messages in (
        [],
        pieces,
        [header],
        [header, header],
        [header, *pieces[1:]],
        [header, market_pb2.SubmitModelRequest()],
        [header, market_pb2.SubmitModelRequest(frame=market_pb2.ModelFrame(offset=0))],
        [header, pieces[0], pieces[0]],
    ):
        await refused(ann.upload(messages), Code.FRAMES_INVALID)
    beyond = market_pb2.ModelHeader(model=header.header.model, offset=10_000)
    far = market_pb2.SubmitModelRequest(header=beyond)
    found = await refused(ann.upload([far]), Code.FRAMES_INVALID)
    assert found.metadata["offset"] == "40"
    giant = market_pb2.SubmitModelRequest(frame=market_pb2.ModelFrame(offset=0, data=bytes(FRAME_BYTES + 1)))
    await refused(ann.upload([header, giant]), Code.TOO_LARGE)
    assert not (await ann.upload([header, *pieces])).late


async def test_a_model_twice(training: list[Client]) -> None:
    ann = training[0]
    first = await ann.submit(model_like(0), 1)
    assert await ann.submit(model_like(0), 1) == first
    await refused(ann.submit(model_like(1), 1), Code.SUBMISSION_CONFLICT)
    await refused(ann.submit(model_like(1), 1, submission_id="another"), Code.SUBMISSION_CONFLICT)
    status = await ann.market.GetUpload(
        market_pb2.GetUploadRequest(task_id=training[0].task_id, submission_id="model-1-ann")
    )
    assert status.complete


async def test_an_upload_is_resumed_where_it_broke_off(training: list[Client]) -> None:
    ann, content = training[0], model_like(0)
    statement = await ann.model_statement(content, 1)
    header = market_pb2.ModelHeader(model=signed(statement, ann.key))
    pieces = frames(content, size=40)
    await refused(
        ann.upload([market_pb2.SubmitModelRequest(header=header), *pieces[:3]]), Code.FRAMES_INVALID
    )
    request = market_pb2.GetUploadRequest(task_id=training[0].task_id, submission_id=statement.submission_id)
    status = await ann.market.GetUpload(request)
    assert (status.offset, status.complete) == (120, False)
    assert not (await ann.submit(content, 1, offset=120)).late


async def test_uploads_that_are_begun_again_and_again_end(training: list[Client]) -> None:
    for i in range(8):
        await refused(training[0].submit(b"junk" * 20, 1, submission_id=f"junk-{i}"), Code.MODEL_INVALID)
    await refused(training[0].submit(b"junk" * 20, 1, submission_id="junk-8"), Code.QUOTA_EXCEEDED)


async def test_a_failure_with_a_reason_lets_the_others_be_paid_later(training: list[Client]) -> None:
    await refused(training[0].fail(1, "x" * 5000), Code.FIELD_INVALID)
    first = await training[0].fail(1)
    assert await training[0].fail(1) == first
    await refused(training[0].fail(1, "another reason"), Code.SUBMISSION_CONFLICT)
    for client in training[1:]:
        await client.submit(model_like(1), 1)
    event = await training[1].until("CANCELLED")
    assert "2 models" in event.cancelled.reason
    assert "quorum of 3" in event.cancelled.reason
    await refused(training[0].submit(model_like(0), 1), Code.TASK_ENDED)


async def test_a_model_that_comes_late_is_recorded_and_not_scored(
    coordinator: Coordinator, everyone: list[Client], tmp_path: Path
) -> None:
    config = task_config(tmp_path, "late", schedule={"capacity": 4, "rounds": 2})
    await asyncio.to_thread(open_task, coordinator.folder, config)
    for client in everyone:
        client.task_id = "late"
    ann, dan = everyone[0], everyone[3]
    await ann.until("EFFORT")
    for client in everyone:
        await client.claim()
    await ann.until("TRAINING")
    for client in everyone[:3]:
        await client.submit(model_like(1), 1)
    await dan.fail(1)
    await ann.until("TRAINING", round_=2)
    receipt = await dan.submit(model_like(4), 1)
    assert receipt.late
    assert await dan.submit(model_like(4), 1) == receipt
    await refused(dan.submit(model_like(5), 1, submission_id="again"), Code.SUBMISSION_CONFLICT)
    await refused(ann.submit(model_like(4), 1, submission_id="again"), Code.WRONG_ROUND)
    settlement = await dan.market.GetSettlement(market_pb2.GetSettlementRequest(task_id="late", round=1))
    assert settlement.paid_micro == 0
    assert settlement.verdicts[0].screen == "delivered"
    assert "no data" in settlement.verdicts[0].explanation
