"""Many participants in one process, for the load test: python -m tests.load.crowd STATE FIRST COUNT ROUNDS.

Reads one invitation token a line from standard input. Each participant enrols, claims, and delivers a small model in
each round over a connection of its own. Prints one JSON object: latencies in seconds.
"""

import asyncio
import json
import sys
import time
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import grpc

from fedpeer.protocol.certificates import new_key, private_key_pem, signing_request
from fedpeer.v1 import enrolment_pb2, enrolment_pb2_grpc, market_pb2, market_pb2_grpc
from mechanism.peers import draw_head
from mechanism.statements import ClaimOpening, ClaimStatement, commit_counts
from mechanism.terms import Terms
from tests.integration.market import (
    SALT,
    frames,
    kept,
    model_like,
    model_statement,
    share_secret,
    signed,
    stream,
)

#: Enrolments of this process that run at once, over one connection: fewer than it has streams. And handshakes of its
#: members' own connections.
ENROLLING = 6


#: A busy server still counts calls that are over for their clients, and refuses one too many before it looks at it; and
#: it cancels those whose message it has not come to read in time. Participants try both again.
AGAIN = json.dumps(
    {
        "methodConfig": [
            {
                "name": [{}],
                "retryPolicy": {
                    "maxAttempts": 5,
                    "initialBackoff": "0.5s",
                    "maxBackoff": "5s",
                    "backoffMultiplier": 2,
                    "retryableStatusCodes": ["UNAVAILABLE", "CANCELLED"],
                },
            }
        ]
    }
)


class Member:
    """One participant, kept as small as it can be."""

    def __init__(self, name: str, token: str, addresses: dict[str, str], authority: bytes) -> None:
        self.name = name
        self.key = new_key()
        self._token = token
        self._addresses = addresses
        self._authority = authority
        self.claimed = 0.0
        self.submitted: list[float] = []

    async def enrol(self, public: grpc.aio.Channel) -> None:
        response = await enrolment_pb2_grpc.EnrolmentStub(public).Enroll(
            enrolment_pb2.EnrollRequest(
                participant_id=self.name,
                token=self._token,
                certificate_signing_request=signing_request(self.name, self.key),
            )
        )
        credentials = grpc.ssl_channel_credentials(
            self._authority, private_key_pem(self.key), response.certificate
        )
        # Without its own pool of connections every channel of this process would share one.
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.service_config", AGAIN)]
        self._channel = grpc.aio.secure_channel(self._addresses["market"], credentials, options)
        self._market = market_pb2_grpc.MarketStub(self._channel)

    async def take_part(self, rounds: int, content: bytes, connecting: asyncio.Semaphore) -> None:
        async with connecting:
            task = await self._market.GetTask(market_pb2.GetTaskRequest(task_id="task"))
        async for event in self._market.Watch(market_pb2.WatchRequest(task_id="task")):
            if event.state == market_pb2.TASK_STATE_EFFORT:
                await self._claim(task)
            elif event.state == market_pb2.TASK_STATE_TRAINING:
                await self._deliver(task, event.round, content)
            elif event.state == market_pb2.TASK_STATE_CLOSED:
                break
        assert len(self.submitted) == rounds
        await self._channel.close()

    async def _claim(self, task: market_pb2.Task) -> None:
        terms = Terms.parse(task.terms)
        opening = kept(ClaimOpening(Decimal("0.5"), Fraction(0), SALT))
        statement = ClaimStatement(
            submission_id="claim",
            task_id="task",
            terms_digest=terms.digest,
            participant_id=self.name,
            commitment=opening.digest,
            counts_commitment=commit_counts((5, 5, 5, 5), SALT),
            draw_head=draw_head(share_secret(self.name), terms.schedule.rounds),
            nonce=task.nonce,
        )
        began = time.perf_counter()
        await self._market.SubmitEffort(signed(statement, self.key))
        self.claimed = time.perf_counter() - began

    async def _deliver(self, task: market_pb2.Task, round_: int, content: bytes) -> None:
        request = market_pb2.FetchModelRequest(task_id="task", round=round_)
        async for _ in self._market.FetchModel(request):
            pass
        statement = model_statement(task, self.name, content, round_)
        header = market_pb2.ModelHeader(model=signed(statement, self.key))
        messages = [market_pb2.SubmitModelRequest(header=header), *frames(content)]
        began = time.perf_counter()
        receipt = await self._market.SubmitModel(stream(messages))
        self.submitted.append(time.perf_counter() - began)
        assert not receipt.late


async def run(state: Path, first: int, tokens: list[str], rounds: int) -> dict[str, Any]:
    addresses = json.loads((state / "serving.json").read_text())
    authority = (state / "authority.pem").read_bytes()
    members = [Member(f"p{first + i:05d}", token, addresses, authority) for i, token in enumerate(tokens)]
    began = time.perf_counter()
    enrolling = asyncio.Semaphore(ENROLLING)
    async with grpc.aio.secure_channel(
        addresses["public"],
        grpc.ssl_channel_credentials(authority),
        [("grpc.service_config", AGAIN)],
    ) as public:

        async def enrol(member: Member) -> None:
            async with enrolling:
                await member.enrol(public)

        await asyncio.gather(*(enrol(member) for member in members))
    enrolled = time.perf_counter() - began
    await asyncio.gather(
        *(member.take_part(rounds, model_like(first + i), enrolling) for i, member in enumerate(members))
    )
    return {
        "enrol_seconds": enrolled,
        "seconds": time.perf_counter() - began,
        "claims": [member.claimed for member in members],
        "models": [seconds for member in members for seconds in member.submitted],
    }


if __name__ == "__main__":
    _, state_, first_, rounds_ = sys.argv
    result = asyncio.run(run(Path(state_), int(first_), sys.stdin.read().split(), int(rounds_)))
    print(json.dumps(result))  # noqa: T201 - the result of this program
