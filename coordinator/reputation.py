"""Reputations, from the ledger's entries on one participant: looked up by their ids, not searched for."""

from coordinator.transaction import Transaction
from mechanism.ledger import entries
from mechanism.ledger.audit_entries import audit_id
from mechanism.ledger.reputation import ReputationEvents
from mechanism.lifecycle import State
from mechanism.reputation import WINDOW_DAYS, Reputation, reputation


def reputation_of(t: Transaction, participant_id: str) -> Reputation:
    """As `mechanism.reputation` has it of the whole ledger."""
    ids: list[str] = []
    for task_id, round_ in t.market.settled_rounds_of(participant_id, t.now - (WINDOW_DAYS + 1) * 86_400):
        ids.append(entries.verdict_id(task_id, round_, participant_id))
        ids.append(entries.transition_id(task_id, round_, State.SETTLED))
        ids += [audit_id(task_id, round_, participant_id, number) for number in (1, 2)]
        ids.append(f"{task_id}/round/{round_}/audit/{participant_id}/end")
    events = ReputationEvents()
    for place in sorted(t.ledger_store.find(ids).values()):
        events.feed(t.entry(place))
    return reputation(participant_id, events.of(participant_id), t.now)
