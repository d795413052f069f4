"""Malformed messages: every one ends with a status of ours, changes nothing, and leaves memory as it was.

The short version sends a few thousand, the slow one a hundred thousand (FEDPEER_FUZZ_MESSAGES). The seed is printed
when it fails.
"""

import asyncio
import os
import random
import resource
import struct
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from fedpeer.protocol.errors import Code, refusal_of
from fedpeer.v1 import enrolment_pb2, ledger_pb2, market_pb2
from tests.integration.market import (
    CONFIG,
    Client,
    answered,
    enrol,
    frames,
    make_folder,
    model_like,
    open_task,
    running,
    signed,
    signed_as,
    task_config,
)

#: The codes that a client may receive; any other means that something broke inside.
ALLOWED = set(Code) - {Code.INTERNAL}

#: Growth of the process that is not a leak: caches, arenas, the client's own messages. Bytes.
MEMORY_ALLOWANCE = 200 << 20


def raw(data: bytes) -> bytes:
    return data


async def send(client: Client, method: str, messages: list[bytes], *, streaming: bool) -> None:
    """Sends raw bytes as a request; fails unless the answer is a response or one of our refusals."""
    try:
        await answered(lambda: asyncio.wait_for(exchange(client, method, messages, streaming=streaming), 60))
    except grpc.RpcError as error:
        found = refusal_of(error)
        if found is None or found.code not in ALLOWED:
            pytest.fail(f"{method} {messages!r:.2000}: {error}")


async def exchange(client: Client, method: str, messages: list[bytes], *, streaming: bool) -> None:
    if streaming:

        async def stream() -> AsyncIterator[bytes]:
            for message in messages:
                yield message

        await client.channel.stream_unary(method, raw, raw)(stream())
    elif method.endswith(("Watch", "FetchModel", "GetEntries")):
        await first_response(client.channel.unary_stream(method, raw, raw)(messages[0]))
    else:
        await client.channel.unary_unary(method, raw, raw)(messages[0])


async def first_response(call: Any) -> None:
    """The first response; a Watch that waits for an event that is to come is as good."""
    try:
        async with asyncio.timeout(0.2):
            await anext(aiter(call), None)
    except TimeoutError:
        pass
    finally:
        call.cancel()


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def mutations(dice: random.Random, valid: bytes) -> bytes:
    """One way of spoiling a serialised message."""
    data = bytearray(valid)

    def flipped() -> bytes:
        for _ in range(dice.randrange(1, 5)):
            if data:
                data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
        return bytes(data)

    def cut() -> bytes:
        return bytes(data[: dice.randrange(len(data) + 1)])

    def doubled() -> bytes:
        return bytes(data) + bytes(data)

    def noise() -> bytes:
        return dice.randbytes(dice.randrange(200))

    def lying_length() -> bytes:
        return bytes(data) + varint(dice.randrange(1, 20) << 3 | 2) + varint(dice.getrandbits(40)) + b"x"

    def nested() -> bytes:
        return varint(dice.randrange(1, 20) << 3 | 3) * 10_000

    def huge_number() -> bytes:
        return bytes(data) + varint(dice.randrange(1, 20) << 3) + varint(2**64 - 1)

    def long_text() -> bytes:
        size = dice.choice([300, 5_000, 400_000])
        return bytes(data) + varint(dice.randrange(1, 10) << 3 | 2) + varint(size) + b"9" * size

    ways: list[Callable[[], bytes]] = [
        flipped, flipped, cut, doubled, noise, lying_length, nested, huge_number, long_text,
    ]  # fmt: skip
    return dice.choice(ways)()


def spoiled_model(dice: random.Random, content: bytes) -> bytes:
    """A safetensors file whose header lies, or whose numbers are none."""
    size = struct.unpack("<Q", content[:8])[0]
    header, body = content[8 : 8 + size], content[8 + size :]
    way = dice.randrange(7)
    if way == 0:
        return (
            struct.pack("<Q", dice.choice([0, 1, 2**63, 2**64 - 1, len(content), size + 1])) + header + body
        )
    if way == 1:
        header = b'{"a":' * 10_000
    elif way == 2:
        header = header.replace(b"F32", dice.choice([b"F99", b"F64", b"I64", b"BF16"]))
    elif way == 3:
        header = header.replace(
            b"[4", dice.choice([b"[-4", b"[4e9", b"[1,1,1,1,4", b"[99999999999999999999"])
        )
    elif way == 4:
        header = header.replace(b'"bias"', b'"' + b"n" * dice.choice([1, 300, 10_000]) + b'"')
    elif way == 5:
        body = bytes(body[:-4]) + struct.pack("<f", dice.choice([float("nan"), float("inf"), 3e38]))
    else:
        spot = dice.randrange(len(header))
        header = header[:spot] + dice.randbytes(1) + header[spot + 1 :]
    return struct.pack("<Q", len(header)) + header + body


async def spoiled_upload(dice: random.Random, client: Client, number: int) -> list[bytes]:
    """Header and frames, one thing wrong: a message, their order, an offset, a length, the file itself."""
    content = spoiled_model(dice, model_like(number % 50)) if dice.random() < 0.6 else model_like(number % 50)
    task_nonce = await client.task()
    statement = await client.model_statement(
        content, 1, submission_id=f"fuzz-{number % 7}", nonce=task_nonce.nonce
    )
    header = market_pb2.ModelHeader(model=signed(statement, client.key))
    messages = [
        market_pb2.SubmitModelRequest(header=header),
        *frames(content, size=dice.choice([40, 1 << 16])),
    ]
    way = dice.randrange(6)
    if way == 0:
        dice.shuffle(messages)
    elif way == 1:
        messages.pop(dice.randrange(len(messages)))
    elif way == 2:
        messages.insert(dice.randrange(len(messages)), dice.choice(messages))
    elif way == 3:
        messages[-1].frame.offset = dice.getrandbits(60)
    elif way == 4:
        lied = signed_as(statement, client.key, model_bytes=dice.choice([0, 1, 2**62, len(content) - 1]))
        messages[0].header.model.CopyFrom(lied)
    encoded = [message.SerializeToString() for message in messages]
    if way == 5:
        spot = dice.randrange(len(encoded))
        encoded[spot] = mutations(dice, encoded[spot])
    elif way in (1, 2, 3) and len(content) == len(model_like(0)):
        encoded.append(b"\xff\xff")
    return encoded


async def valid_requests(client: Client) -> dict[str, bytes]:
    unsigned = signed(await client.claim_statement(), client.key)
    unsigned.signature = unsigned.signature[:-1]
    request = {"task_id": "task", "submission_id": "s"}
    return {
        "Market/ListTasks": b"",
        "Market/GetTask": market_pb2.GetTaskRequest(task_id="task").SerializeToString(),
        "Market/Watch": market_pb2.WatchRequest(task_id="task", cursor=1).SerializeToString(),
        "Market/SubmitEffort": unsigned.SerializeToString(),
        "Market/FetchModel": market_pb2.FetchModelRequest(task_id="task", round=1).SerializeToString(),
        "Market/GetUpload": market_pb2.GetUploadRequest(**request).SerializeToString(),
        "Market/ReportFailure": market_pb2.ReportFailureRequest(
            task_id="task", submission_id="s", participant_id="bob", round=1, reason="none"
        ).SerializeToString(),
        "Market/ReportProgress": market_pb2.ReportProgressRequest(
            task_id="task", round=1, done_millionths=5
        ).SerializeToString(),
        "Market/GetReceipt": market_pb2.GetReceiptRequest(**request).SerializeToString(),
        "Market/GetOpenings": market_pb2.GetOpeningsRequest(task_id="task").SerializeToString(),
        "Market/GetSettlement": market_pb2.GetSettlementRequest(task_id="task", round=1).SerializeToString(),
        "Ledger/GetEntries": ledger_pb2.GetEntriesRequest(first=1, count=2).SerializeToString(),
        "Ledger/GetInclusionProof": ledger_pb2.GetInclusionProofRequest(index=1, size=3).SerializeToString(),
        "Ledger/GetConsistencyProof": ledger_pb2.GetConsistencyProofRequest(
            first=1, second=3
        ).SerializeToString(),
        "Ledger/GetBalance": ledger_pb2.GetBalanceRequest(account="treasury").SerializeToString(),
        "Enrolment/Enroll": enrolment_pb2.EnrollRequest(
            participant_id=client.name, certificate_signing_request=b"-----BEGIN"
        ).SerializeToString(),
    }


async def fuzz(tmp_path: Path, count: int, seed: int) -> None:
    dice = random.Random(seed)
    folder = make_folder(tmp_path / "state", CONFIG + "requests_per_second = 1000000\n")
    # No deadline may pass meanwhile: a hundred thousand messages take half an hour.
    open_task(folder, task_config(tmp_path, schedule={"round_seconds": 86_400}))
    async with running(folder) as coordinator:
        members = [await enrol(coordinator, name) for name in ("ann", "bob", "cyd")]
        ann = members[0]
        await ann.until("EFFORT")
        for client in members:
            await client.claim()
        await ann.until("TRAINING")
        requests = await valid_requests(ann)
        size = (await ann.ledger.GetBalance(ledger_pb2.GetBalanceRequest(account="treasury"))).ledger_size
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
        for number in range(count):
            if number % 4 == 0:
                messages = await spoiled_upload(dice, ann, number)
                await send(ann, "/fedpeer.v1.Market/SubmitModel", messages, streaming=True)
            else:
                method = dice.choice(list(requests))
                spoiled = mutations(dice, requests[method])
                await send(ann, f"/fedpeer.v1.{method}", [spoiled], streaming=False)
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10) - before
        assert grown < MEMORY_ALLOWANCE, f"grew by {grown >> 20} MiB"
        # A mutation can leave a submission of ann's whole; nothing else may have changed.
        after = (await ann.ledger.GetBalance(ledger_pb2.GetBalanceRequest(account="treasury"))).ledger_size
        receipts = [s for s in (await ann.task()).submissions if s.startswith("fuzz")]
        assert after - size == len(receipts) <= 1
        assert (await ann.task()).state == market_pb2.TASK_STATE_TRAINING
        # The others still get their work done.
        if not receipts:
            await ann.submit(model_like(0), 1, submission_id="fuzz-0-good")
        for client in members[1:]:
            await client.submit(model_like(1), 1)
        await ann.until("SETTLED")
        held = sum(path.stat().st_size for path in folder.spool.rglob("*") if path.is_file())
        assert held == 0
        for client in members:
            await client.close()


async def test_malformed_messages_change_nothing(tmp_path: Path) -> None:
    await fuzz(tmp_path, 1_500, seed=3)


@pytest.mark.slow
@pytest.mark.timeout(3600)
async def test_a_hundred_thousand_malformed_messages(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")  # noqa: T201 - shown when the test fails
    await fuzz(tmp_path, int(os.environ.get("FEDPEER_FUZZ_MESSAGES", "100000")), seed)
