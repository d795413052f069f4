"""What a ledger says of a participant's past, for `mechanism.reputation`."""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from mechanism.audit import FAILED, UNAPPEALED
from mechanism.ledger.entry import Entry
from mechanism.ledger.replay.world import moment
from mechanism.reputation import ReputationEvent


class ReputationEvents:
    """Events from a ledger's entries, which are fed in order; others than those that tell something are passed over.

    The entries must have been verified.
    """

    #: Kinds of entries that tell something.
    KINDS = frozenset({"verdict", "transition", "audit", "audit_end"})

    def __init__(self) -> None:
        self._judged: defaultdict[tuple[str, int], list[tuple[str, bool, str]]] = defaultdict(list)
        self._events: defaultdict[str, list[ReputationEvent]] = defaultdict(list)

    def feed(self, entry: Entry) -> None:
        """The next entry."""
        body: Any = entry.body
        match entry.kind:
            case "verdict":
                name, kept, why = _judged(body["outcome"])
                self._judged[body["task_id"], body["round"]].append((name, kept, why))
            case "transition" if body["state"] == "SETTLED":
                task_id, round_ = body["task_id"], body["round"]
                for name, kept, why in self._judged.pop((task_id, round_), ()):
                    self._add(name, task_id, round_, body["at"], kept, why)
            case "audit":
                failed = body["outcome"] == FAILED
                if not failed or body["number"] == 2:
                    said = "Its audit has failed, for good." if failed else "Its audit has passed."
                    name, task_id = body["participant_id"], body["task_id"]
                    self._add(name, task_id, body["round"], body["at"], not failed, said)
            case "audit_end" if body["why"] == UNAPPEALED:
                said = "Its audit has failed, and it did not appeal."
                self._add(body["participant_id"], body["task_id"], body["round"], body["at"], False, said)

    def of(self, participant_id: str) -> list[ReputationEvent]:
        """Those of one participant, in the order of the ledger."""
        return list(self._events.get(participant_id, ()))

    def everyone(self) -> list[str]:
        """Who has any, in order."""
        return sorted(self._events)

    def _add(self, name: str, task_id: str, round_: int, at: str, kept: bool, why: str) -> None:
        self._events[name].append(ReputationEvent(task_id, round_, moment(at), kept, why))


def _judged(outcome: Mapping[str, Any]) -> tuple[str, bool, str]:
    """Of whom a verdict is, whether the participant has kept what it said, and why."""
    name = outcome["participant_id"]
    if outcome["verified_micro"] is None:
        failed = [str(screen) for screen, passed in outcome["verdicts"] if not passed]
        if "delivered" in failed:
            return name, False, "No model came in time."
        return name, False, f"Its model was not scored; it failed {', '.join(failed)}."
    if outcome["refuted"]:
        return name, False, "Its claim was refuted."
    return name, True, "Its model came in time and was scored."
