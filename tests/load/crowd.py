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
from tempfile import TemporaryDirectory
from typing import Any

from fedpeer.protocol.certificates import load_certificate, new_key, signing_request
from fedpeer.v1 import enrolment_pb2, market_pb2
from mechanism.peers import draw_head
from mechanism.statements import ClaimOpening, ClaimStatement, commit_counts
from mechanism.terms import Terms
from participant.client import AsyncClient
from participant.endpoint import Endpoint
from participant.identity import Credentials
from tests.integration.market import SALT, kept, model_like, model_statement, share_secret, signed

#: Enrolments of this process that run at once, over one connection: fewer than it has streams. And handshakes of its
#: members' own connections.
ENROLLING = 6


class Member:
    """One participant, kept as small as it can be: it calls by the raw client of the SDK, which tries again."""

    def __init__(
        self, name: str, token: str, addresses: dict[str, str], authority: bytes, folder: Path
    ) -> None:
        self.name = name
        self.key = new_key()
        self._token = token
        self._addresses = addresses
        self._authority = authority
        self._folder = folder
        self.claimed = 0.0
        self.submitted: list[float] = []

    async def enrol(self, public: AsyncClient) -> None:
        response = await public.enroll(
            enrolment_pb2.EnrollRequest(
                participant_id=self.name,
                token=self._token,
                certificate_signing_request=signing_request(self.name, self.key),
            )
        )
        credentials = Credentials(
            self.name,
            self.key,
            load_certificate(response.certificate),
            response.certificate,
            self._authority,
        )
        self._client = AsyncClient(Endpoint(self._addresses["market"], self._authority, credentials))

    async def take_part(self, rounds: int, content: bytes, connecting: asyncio.Semaphore) -> None:
        client = self._client
        async with connecting:
            task = await client.task("task")
        async for event in client.watch("task"):
            if event.state == market_pb2.TASK_STATE_EFFORT:
                await self._claim(task)
            elif event.state == market_pb2.TASK_STATE_TRAINING:
                await self._deliver(task, event, content)
        assert len(self.submitted) == rounds
        await client.close()

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
        await self._client.submit_effort(signed(statement, self.key))
        self.claimed = time.perf_counter() - began

    async def _deliver(self, task: market_pb2.Task, event: market_pb2.Event, content: bytes) -> None:
        path = self._folder / self.name
        await self._client.fetch_model("task", event.round, event.round_opened.model_sha256, path)
        statement = model_statement(task, self.name, content, event.round)
        path.write_bytes(content)
        began = time.perf_counter()
        receipt = await self._client.submit_model(signed(statement, self.key), path, resume=False)
        self.submitted.append(time.perf_counter() - began)
        path.unlink()
        assert not receipt.late


async def run(state: Path, first: int, tokens: list[str], rounds: int) -> dict[str, Any]:
    addresses = json.loads((state / "serving.json").read_text())
    authority = (state / "authority.pem").read_bytes()
    began = time.perf_counter()
    enrolling = asyncio.Semaphore(ENROLLING)
    with TemporaryDirectory() as folder:
        members = [
            Member(f"p{first + i:05d}", token, addresses, authority, Path(folder))
            for i, token in enumerate(tokens)
        ]
        async with AsyncClient(Endpoint(addresses["public"], authority)) as public:

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
