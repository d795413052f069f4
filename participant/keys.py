"""Every key that the log holds for this participant's name, compared with the keys that are its own.

Only the operator says who is enrolled. One that enrols a second key under a participant's name can claim and send
models in that name, and the ledger verifies. So the SDK looks when a task is joined and at each receipt: it asks for
the enrolments and revocations that it does not know yet, and compares the digest over all of them with the one in its
own claim, model or payment, which the receipt proves. A key that is left out changes the digest.

A key counts as own once it was made in, or used from, the state folder (`own_keys.txt` there), or was said to be by
`fedpeer participant keys --own`.
"""

import logging
import warnings
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedpeer.v1 import ledger_pb2, market_pb2
from mechanism.canonical import canonical_digest
from mechanism.ledger.entry import Entry
from mechanism.ledger.errors import LedgerError
from mechanism.ledger.key_history import NO_KEYS, HeldKey, extended, held_keys, key_event
from mechanism.ledger.log_keys import LogKeys
from mechanism.ledger.tlog_proof import TlogProof
from participant.effects import Steps
from participant.errors import ForeignKeyError, ForeignKeyWarning, InvalidSubmissionError
from participant.identity import IdentityFolder
from participant.journal import KEY_PROBLEMS, Journal, KeyRow, key_problems
from participant.log_keys import following_keys, pin_log_key, pinned_log_keys
from participant.steps import MarketSteps

_log = logging.getLogger("participant")

#: Kinds of the entries that carry the digest.
_RECEIPTS = ("claim", "model", "payment")


@dataclass(frozen=True)
class KeyReport:
    """The keys of a participant's name.

    Attributes:
        keys: all that the log holds or held, in the order of their enrolment.
        own: fingerprints of those that are this participant's.
        proven: how many enrolments and revocations, of anybody, a receipt of one's own has shown to be all of them.
        problems: what must not be, as sentences; empty where all is well.
        notices: what was ended before this state folder began: keys of an earlier enrolment, most likely.
    """

    participant_id: str
    keys: tuple[HeldKey, ...]
    own: frozenset[str]
    proven: int
    problems: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()

    def record(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "id": self.participant_id,
            "keys": [{**key.record(), "own": key.fingerprint in self.own} for key in self.keys],
            "proven": self.proven,
            "problems": list(self.problems),
            "notices": list(self.notices),
        }


@dataclass(frozen=True)
class _History:
    """A key history as it was read, and what was wrong with it."""

    rows: tuple[KeyRow, ...]
    proof: str
    problem: str


def read_history(
    market: MarketSteps,
    participant_id: str,
    first: int = 0,
    digest: bytes = NO_KEYS,
    index: int | None = None,
) -> Steps[_History]:
    """The enrolments and revocations after the `first` that are known, whose digest is `digest`.

    Args:
        index: an entry that is to be proven with them.
    """
    rows: list[KeyRow] = []
    proof, last, problem = "", -1, ""
    try:
        while True:
            known = first + len(rows)
            request = ledger_pb2.GetKeysRequest(first=known, index=None if rows else index)
            answer = yield from market.keys(request)
            proof = proof or answer.proof
            if len(answer.indices) != len(answer.entries):
                raise LedgerError("the coordinator's answer about keys is malformed")
            for place, data in zip(answer.indices, answer.entries, strict=True):
                try:
                    event = key_event(place, data)
                except LedgerError as error:
                    raise LedgerError(f"the coordinator sends something that is not a key: {error}") from None
                if place <= last:
                    raise LedgerError("the coordinator's keys are out of order")
                digest, last = extended(digest, place, data), place
                mine = event.participant_id == participant_id
                rows.append(KeyRow(first + len(rows), place, digest, data if mine else None))
            if first + len(rows) >= answer.count:
                break
            if not answer.entries:
                raise LedgerError("the coordinator stops in the middle of its keys")
    except InvalidSubmissionError as error:
        problem = f"the coordinator's log is shorter than it was when last seen: {error}"
    except LedgerError as error:
        problem = str(error)
    return _History(tuple(rows), proof, problem)


def report_of_keys(
    participant_id: str, rows: Sequence[KeyRow], folder: IdentityFolder, proven: int, problem: str
) -> KeyReport:
    """What rows with this participant's entries say.

    Args:
        folder: knows the own keys, and the one in use.
        problem: what is wrong with the rows; empty where nothing is.
    """
    own, current = folder.own_keys(), folder.current_key()
    events = [key_event(row.entry_index, row.entry) for row in rows if row.entry is not None]
    held = held_keys(events).get(participant_id, [])
    mine = [key for key in held if key.sha256 in own]
    began = min((key.enrolled_at for key in mine), default=None)
    problems, notices = [problem] if problem else [], []
    for key in held:
        where = f"the key {key.fingerprint} by entry {key.enrolled_at}"
        if key.sha256 == current and key.revoked_at is not None:
            problems.append(
                f"the operator revoked the key of {participant_id} by entry {key.revoked_at} ({key.reason}); ask why, "
                "and for a new invitation"
            )
        if key.sha256 in own:
            continue
        if key.revoked_at is not None and began is not None and key.revoked_at < began:
            notices.append(
                f"{where} was enrolled for {participant_id} and revoked before this folder's own keys"
            )
            continue
        standing = "" if key.revoked_at is None else f", revoked by entry {key.revoked_at}"
        problems.append(
            f"the log holds a key for {participant_id} that is not its own: {where}{standing}. Its holder can "
            f"claim and send models as {participant_id}. Ask the operator who enrolled it, and to revoke it; where it "
            f"is yours, say so: fedpeer participant keys --own {key.fingerprint}"
        )
    return KeyReport(
        participant_id,
        tuple(held),
        frozenset(key.fingerprint for key in mine),
        proven,
        tuple(problems),
        tuple(notices),
    )


@dataclass(eq=False, repr=False)
class KeyWatch:
    """Looks at the keys of one participant's name, and says loudly what must not be.

    Attributes:
        policy: "warn", "refuse" (no claims while there is a problem) or "stop" (nothing at all).
    """

    market: MarketSteps
    journal: Journal
    folder: IdentityFolder
    participant_id: str
    policy: str
    _reported: set[str] = field(default_factory=set, init=False)

    def joining(self) -> Steps[None]:
        """Looks when a task is joined, with the last receipt that there is."""
        return self._looked(last_receipt(self.journal))

    def claiming(self) -> Steps[None]:
        """Looks before a claim.

        Raises:
            ForeignKeyError: there is a problem, unless the policy is "warn".
        """
        return self._looked(last_receipt(self.journal), tolerant=("warn",), said="nothing was claimed: ")

    def received(self, receipt: market_pb2.Receipt) -> Steps[None]:
        """Looks once a claim or a model has its receipt, which stands whatever is found."""
        return self._looked(receipt)

    def paid(self, proof: str) -> Steps[None]:
        """Looks once a payment has its receipt."""
        return self._looked(None, proof)

    def _looked(
        self,
        receipt: market_pb2.Receipt | None,
        proof: str = "",
        tolerant: Collection[str] = ("warn", "refuse"),
        said: str = "",
    ) -> Steps[None]:
        report = yield from self.look(receipt, proof)
        if report.problems and self.policy not in tolerant:
            raise ForeignKeyError(said + _together(report.problems))

    def look(self, receipt: market_pb2.Receipt | None, proof: str = "") -> Steps[KeyReport]:
        """Asks for what is new, compares, notes and tells it.

        Args:
            receipt: of an own claim or model, to be proven with it.
            proof: a payment's receipt.
        """
        journal = self.journal
        first, digest = journal.key_history()
        index = None if receipt is None else receipt.ledger_index
        history = yield from read_history(self.market, self.participant_id, first, digest, index)
        journal.add_keys(history.rows)
        problem = history.problem
        if not problem and (history.proof or proof):
            try:
                problem = yield from self._checked(history.proof or proof, receipt)
            except LedgerError as error:
                problem = f"the coordinator does not prove the receipt of {self.participant_id}: {error}"
        if problem:  # the next look begins at the start: one lie must not spoil what is said afterwards
            journal.forget_keys()
        rows = history.rows if problem else journal.own_key_rows()
        report = report_of_keys(self.participant_id, rows, self.folder, journal.proven_keys(), problem)
        self._tell(report)
        return report

    def _checked(self, text: str, receipt: market_pb2.Receipt | None) -> Steps[str]:
        proof = TlogProof.parse(text)
        before = self.journal.keys_before(proof.index)
        try:
            self._keys().verify(proof)
        except LedgerError:  # the log's key may have changed
            yield from pin_log_key(self.market, self.journal)
        problem = checked(self.participant_id, text, receipt, self._keys, before)
        if not problem:
            self.journal.prove_keys(before[0])
        return problem

    def _keys(self) -> LogKeys:
        keys = pinned_log_keys(self.journal)
        if keys is None:
            raise LedgerError("the log's key is not known")
        return keys

    def _tell(self, report: KeyReport) -> None:
        if key_problems(self.journal) != report.problems:
            self.journal.set_meta(KEY_PROBLEMS, "\n".join(report.problems))
        for notice in report.notices:
            if notice not in self._reported:
                self._reported.add(notice)
                _log.warning("%s", notice)
        for problem in report.problems:
            _log.error("%s", problem)
            if problem not in self._reported:
                self._reported.add(problem)
                warnings.warn(problem, ForeignKeyWarning, stacklevel=2)


def keys_of(
    market: MarketSteps, journal: Journal | None, folder: IdentityFolder, participant_id: str
) -> Steps[KeyReport]:
    """As `KeyWatch.look`, while a service runs: everything is asked for, and nothing is noted.

    Args:
        journal: for the last receipt and the log's key; None where there is none yet.
    """
    receipt = None if journal is None else last_receipt(journal)
    index = None if receipt is None else receipt.ledger_index
    history = yield from read_history(market, participant_id, index=index)
    problem, proven = history.problem, 0
    if not problem and journal is not None and receipt is not None:
        checkpoint = yield from market.checkpoint()
        before = [row for row in history.rows if row.entry_index < receipt.ledger_index]
        proven = len(before)
        problem = checked(
            participant_id,
            history.proof,
            receipt,
            lambda: following_keys(journal, checkpoint),
            (proven, before[-1].digest if before else NO_KEYS),
        )
    return report_of_keys(participant_id, history.rows, folder, 0 if problem else proven, problem)


def checked(
    participant_id: str,
    text: str,
    receipt: market_pb2.Receipt | None,
    keys: Callable[[], LogKeys],
    before: tuple[int, bytes],
) -> str:
    """What is wrong with a receipt's proof and the digest in it; empty where all of it holds.

    Args:
        receipt: what the coordinator said of the claim or model; None for a payment.
        keys: gives the log's.
        before: how many enrolments and revocations are known before the entry, and the digest over them.
    """
    try:
        proof = TlogProof.parse(text)
        keys().verify(proof)
        entry = Entry.parse(proof.entry)
    except LedgerError as error:
        return f"the coordinator does not prove the receipt of {participant_id}: {error}"
    index, statement = proof.index, entry.body.get("statement")
    about: Any = statement if isinstance(statement, dict) else entry.body
    if entry.kind not in _RECEIPTS or about.get("participant_id") != participant_id:
        return f"the coordinator proves entry {index} ({entry.id}), which is none of {participant_id}'s"
    if receipt is not None and (
        index != receipt.ledger_index
        or canonical_digest(about) != receipt.digest
        or bool(entry.body.get("late")) != receipt.late
    ):
        return f"the log's entry {index} ({entry.id}) is not what the receipt of {receipt.submission_id} says"
    number, digest = before
    if entry.body.get("keys") != digest.hex():
        return (
            f"the coordinator hides keys: entry {index} of the log, which is {participant_id}'s own, says that there "
            f"were other enrolments and revocations before it than the {number} that were shown"
        )
    return ""


def last_receipt(journal: Journal) -> market_pb2.Receipt | None:
    """The receipt of this participant's claim or model that stands last in the log."""
    found: market_pb2.Receipt | None = None
    for task in journal.tasks():
        for submission in journal.submissions(task.task_id):
            if submission.receipt is None or submission.kind == "failure":
                continue
            receipt = market_pb2.Receipt.FromString(submission.receipt)
            if found is None or receipt.ledger_index > found.ledger_index:
                found = receipt
    return found


def _together(problems: Sequence[str]) -> str:
    return " ".join(problem if problem.endswith(".") else f"{problem}." for problem in problems)
