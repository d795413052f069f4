"""What an operator sees of this participant's past, with every reason; in no payment."""

from fedpeer.protocol.codec import decode
from fedpeer.v1 import market_pb2
from mechanism.reputation import Reputation, ReputationEvent
from participant.effects import Steps
from participant.steps import MarketSteps


def own_reputation(participant_id: str, market: MarketSteps) -> Steps[Reputation]:
    """The coordinator's answer; `fedpeer ledger reputation` computes the same from a copy of the ledger."""
    found: market_pb2.Reputation = yield from market.reputation()
    reasons = tuple(
        (decode(ReputationEvent, each, at=each.at.ToSeconds()), each.weight) for each in found.reasons
    )
    return Reputation(participant_id, found.value, reasons)
