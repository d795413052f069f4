"""Revocations that a restored log has forgotten, taken over from a copy of the log that was made later.

A participant that was revoked after a backup is in good standing again once that is restored. A copy of the log that
goes further (an export, a mirror's) still names it. The copy must verify under a key that this log has or had, and
begin as this log does. Of what it says after the point where the two part, only the revocations are taken over: from
there the restored log goes another way.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile, zip_longest

from coordinator.errors import FolderError
from coordinator.transaction import Transaction
from mechanism.ledger.entry import Entry
from mechanism.ledger.log_keys import key_change
from mechanism.ledger.note import VerificationKey
from mechanism.ledger.verify import LedgerSource, verify_ledger


@dataclass(frozen=True)
class CarriedOver:
    """What was carried over from a later copy of the log.

    Attributes:
        revoked: participants whose keys were revoked here, by id.
        invite_again: those of them who had enrolled again, with a key that this log has never seen.
        shared: entries that the two logs have in common.
        beyond: entries of the copy after those.
    """

    revoked: tuple[str, ...]
    invite_again: tuple[str, ...]
    shared: int
    beyond: int


def earlier_keys(t: Transaction) -> list[VerificationKey]:
    """The keys that the log has had before its present one, the latest first."""
    changes = [key_change(proof.index, proof.entry) for proof in t.ledger_store.key_changes()]
    return [change.previous for change in reversed(changes) if change is not None]


def check_copy(source: LedgerSource, keys: Sequence[VerificationKey]) -> None:
    """That a copy of the log holds under one of the log's own keys; its own may have changed since the logs parted.

    Raises:
        FolderError: it does not.
    """
    reports = (verify_ledger(source, key) for key in keys)
    failed = list(takewhile(lambda report: not report.verified, reports))
    if len(failed) == len(keys):
        problem = failed[0].problems[0]
        raise FolderError(
            f"{source.name} does not verify as a copy of this log ({problem.place}: {problem.message}); no "
            "revocation was carried over. Take an export of the log that this coordinator wrote"
        )


@dataclass(frozen=True)
class Unrecorded:
    """What a later copy of the log says and this log does not: its keys and revocations, in their order."""

    keys: Mapping[str, Entry]
    revocations: tuple[Entry, ...]
    standing: Mapping[str, bool]
    shared: int
    beyond: int


def unrecorded(t: Transaction, source: LedgerSource) -> Unrecorded:
    """Compares this log with a copy that has been checked.

    Raises:
        FolderError: it begins as another log does.
    """
    shared, beyond = 0, 0
    keys: dict[str, Entry] = {}
    revocations: list[Entry] = []
    standing: dict[str, bool] = {}
    size = t.ledger.size()
    for ours, theirs in zip_longest(t.ledger_store.entries(0, size), source.entries()):
        if theirs is None:
            break
        if not beyond and ours == theirs:
            shared += 1
            continue
        beyond += 1
        entry = Entry.parse(theirs)
        name = str(entry.body.get("participant_id", ""))
        if entry.kind == "enrolment":
            keys[entry.id] = entry
            standing[name] = True
        elif entry.kind == "revocation":
            revocations.append(entry)
            standing[name] = False
    if beyond and not shared and size:
        raise FolderError(f"{source.name} is the copy of another log: not even its first entry is this one's")
    return Unrecorded(keys, tuple(revocations), standing, shared, beyond)


def carry_over(t: Transaction, found: Unrecorded) -> CarriedOver:
    """Records the revocations that this log has not. Safe to repeat: what is recorded here stays as it is."""
    revoked = {str(e.body["participant_id"]): None for e in found.revocations if _revoke(t, e, found.keys)}
    again = tuple(name for name in revoked if found.standing[name])
    return CarriedOver(tuple(revoked), again, found.shared, found.beyond)


def _revoke(t: Transaction, entry: Entry, keys: Mapping[str, Entry]) -> bool:
    """Revokes a key here, and the participant of its name; False where that has been done before."""
    if t.ledger_store.find([entry.id]):
        return False
    name = str(entry.body["participant_id"])
    t.revoke(name, str(entry.body["reason"]))  # invitations too, and whatever key has the name now
    if not t.ledger_store.find([entry.id]) and not t.ledger_store.revoked_keys(
        str(entry.body["fingerprint"])
    ):
        key = f"participant/{name}/key/{entry.body['fingerprint']}"
        if not t.ledger_store.find([key]):
            # Never enrolled here. Now it is, for the length of a transaction, so that it can never be.
            t.ledger.append([keys[key]])
        t.ledger.append([entry])
    return True
