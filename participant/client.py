"""The raw client: each call of fedpeer.v1, repeated until it is answered, and nothing else.

The third and lowest level of the SDK. It signs nothing and keeps no journal; `participant.membership` does. A
program that makes claims and models without it also makes their chain of draw shares, and keeps it till the task ends
(docs/protocol.md).
"""

from typing import Any

from participant.aio_transport import AsyncTransport
from participant.backoff import Backoff
from participant.calls import AwaitedConnection, BlockingConnection, call, each
from participant.endpoint import Endpoint
from participant.steps import MarketSteps
from participant.transport import SyncTransport


class ClientCalls:
    """A connection to a coordinator. Messages in, messages out, as market.proto and ledger.proto have them.

    Args:
        endpoint: the market port (with credentials) or the public port (for `enroll` and the ledger).
        backoff: how calls are repeated.

    Raises:
        RefusedError, TransportError: from every call.
    """

    _transport_kind: type[Any]

    def __init__(self, endpoint: Endpoint, backoff: Backoff | None = None) -> None:
        self.steps = MarketSteps(backoff)
        self.transport = self._transport_kind(endpoint)

    tasks = call(MarketSteps.tasks, "steps")
    task = call(MarketSteps.task, "steps")
    selected = call(MarketSteps.selected, "steps")
    watch = each(MarketSteps.watch, "steps")
    submit_effort = call(MarketSteps.submit_effort, "steps")
    fetch_model = call(MarketSteps.fetch_model, "steps")
    submit_model = call(MarketSteps.submit_model, "steps")
    report_failure = call(MarketSteps.report_failure, "steps")
    report_progress = call(MarketSteps.report_progress, "steps")
    receipt = call(MarketSteps.receipt, "steps")
    settlement = call(MarketSteps.settlement, "steps")
    enroll = call(MarketSteps.enroll, "steps")
    checkpoint = call(MarketSteps.checkpoint, "steps")
    entries = each(MarketSteps.entries, "steps")
    inclusion_proof = call(MarketSteps.inclusion_proof, "steps")
    consistency_proof = call(MarketSteps.consistency_proof, "steps")
    balance = call(MarketSteps.balance, "steps")


class Client(ClientCalls, BlockingConnection):
    __doc__ = ClientCalls.__doc__
    _transport_kind = SyncTransport


class AsyncClient(ClientCalls, AwaitedConnection):
    __doc__ = ClientCalls.__doc__
    _transport_kind = AsyncTransport
