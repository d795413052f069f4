"""The raw client, synchronous: each call of fedpeer.v1, repeated until it is answered, and nothing else.

The third and lowest level of the SDK. It signs nothing and keeps no journal; `participant.sync` does. Whoever makes
claims and models itself also makes their chain of draw shares and keeps it till the task ends (docs/protocol.md).
"""

from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from fedpeer.v1 import enrolment_pb2, ledger_pb2, market_pb2
from participant.backoff import Backoff
from participant.endpoint import Endpoint
from participant.steps import (
    GET_BALANCE,
    GET_CONSISTENCY,
    GET_INCLUSION,
    MarketSteps,
)
from participant.transport import SyncTransport


class Client:
    """A connection to a coordinator. Messages in, messages out, as market.proto and ledger.proto have them.

    Args:
        endpoint: the market port (with credentials) or the public port (for `enroll` and the ledger).
        backoff: how calls are repeated.

    Raises:
        RefusedError, TransportError: from every call.
    """

    def __init__(self, endpoint: Endpoint, backoff: Backoff | None = None) -> None:
        self.steps = MarketSteps(backoff)
        self.transport = SyncTransport(endpoint)

    def close(self) -> None:
        self.transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def tasks(self) -> list[market_pb2.Task]:
        """All tasks that the coordinator offers or has offered."""
        return self.transport.run(self.steps.tasks())

    def task(self, task_id: str) -> market_pb2.Task:
        return self.transport.run(self.steps.task(task_id))

    def watch(self, task_id: str, cursor: int = 0) -> Iterator[market_pb2.Event]:
        """Events after `cursor`, each once and in order, over any number of reconnections, until the task ends."""
        return self.transport.iterate(self.steps.watch(task_id, cursor))

    def submit_effort(self, claim: market_pb2.Signed) -> market_pb2.Receipt:
        """Sends a signed claim."""
        return self.transport.run(self.steps.submit_effort(claim))

    def fetch_model(self, task_id: str, round: int, sha256: bytes, path: Path) -> None:  # noqa: A002 - the field's word
        """The model that a round starts from, to `path`; resumes, and checks the digest."""
        self.transport.run(self.steps.fetch_model(task_id, round, sha256, path))

    def submit_model(self, model: market_pb2.Signed, path: Path) -> market_pb2.Receipt:
        """Sends the file of a signed model statement; resumes where the coordinator has it."""
        return self.transport.run(self.steps.submit_model(model, path))

    def report_failure(self, request: market_pb2.ReportFailureRequest) -> market_pb2.Receipt:
        return self.transport.run(self.steps.report_failure(request))

    def receipt(self, task_id: str, submission_id: str) -> market_pb2.Receipt:
        return self.transport.run(self.steps.receipt(task_id, submission_id))

    def settlement(self, task_id: str, round: int) -> market_pb2.Settlement:  # noqa: A002 - the field's word
        return self.transport.run(self.steps.settlement(task_id, round))

    def enroll(self, request: enrolment_pb2.EnrollRequest) -> enrolment_pb2.EnrollResponse:
        return self.transport.run(self.steps.enroll(request))

    def checkpoint(self) -> ledger_pb2.Checkpoint:
        return self.transport.run(self.steps.checkpoint())

    def entries(self, first: int = 0, count: int = 0) -> Iterator[bytes]:
        """Canonical JSON of the ledger's entries from `first` on; 0: all."""
        return self.transport.iterate(self.steps.entries(first, count))

    def inclusion_proof(self, index: int, size: int) -> ledger_pb2.InclusionProof:
        request = ledger_pb2.GetInclusionProofRequest(index=index, size=size)
        return self.transport.run(self.steps.call(GET_INCLUSION, request))

    def consistency_proof(self, first: int, second: int) -> ledger_pb2.ConsistencyProof:
        request = ledger_pb2.GetConsistencyProofRequest(first=first, second=second)
        return self.transport.run(self.steps.call(GET_CONSISTENCY, request))

    def balance(self, account: str) -> ledger_pb2.Balance:
        return self.transport.run(self.steps.call(GET_BALANCE, ledger_pb2.GetBalanceRequest(account=account)))
