"""The log's key, kept at first sight, and its later ones, each announced under the one before it."""

import json

from fedpeer.v1 import ledger_pb2
from mechanism.ledger.errors import LedgerError
from mechanism.ledger.log_keys import LogKeys, log_keys
from mechanism.ledger.note import VerificationKey
from mechanism.ledger.tlog_proof import TlogProof
from participant.effects import Steps
from participant.errors import StateError
from participant.journal import LOG_KEY, LOG_KEY_CHANGES, Journal
from participant.steps import MarketSteps


def pinned_log_keys(journal: Journal) -> LogKeys | None:
    """The log's keys as far as the journal knows them; None before the first contact.

    Raises:
        LedgerError: what the journal keeps is damaged.
    """
    first = journal.meta(LOG_KEY)
    if first is None:
        return None
    changes = json.loads(journal.meta(LOG_KEY_CHANGES) or "[]")
    return LogKeys(VerificationKey.parse(first)).followed(map(TlogProof.parse, changes))


def following_keys(journal: Journal, checkpoint: ledger_pb2.Checkpoint) -> LogKeys:
    """The log's keys from the pinned one to the one that a checkpoint names; nothing is noted.

    Raises:
        LedgerError: they do not lead there.
    """
    current = VerificationKey.parse(checkpoint.verification_key)
    pinned = journal.meta(LOG_KEY)
    trusted = current if pinned is None else VerificationKey.parse(pinned)
    return log_keys(trusted, current, map(TlogProof.parse, checkpoint.key_changes))


def pin_log_key(market: MarketSteps, journal: Journal) -> Steps[None]:
    """Keeps the log's key at first sight, so that receipts can be checked offline. Another one is accepted only where
    it is announced in the log, under a head that the key before it has signed.

    Raises:
        StateError: it is another log, or its key was changed without that.
    """
    checkpoint = yield from market.checkpoint()
    pinned, changes = journal.meta(LOG_KEY), list(checkpoint.key_changes)
    if pinned is None:
        journal.set_meta(LOG_KEY, checkpoint.verification_key)
        return
    if pinned == checkpoint.verification_key:
        return
    try:
        following_keys(journal, checkpoint)
    except LedgerError as error:
        raise StateError(
            f"the coordinator's log has the key {checkpoint.verification_key}, it had {pinned} before, which does not "
            f"announce it ({error}): this is another log, and receipts of the old one are worth nothing there. Ask the "
            "operator what happened"
        ) from None
    if (known := json.dumps(changes)) != journal.meta(LOG_KEY_CHANGES):
        journal.set_meta(LOG_KEY_CHANGES, known)
