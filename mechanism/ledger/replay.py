"""Replay: a ledger's entries in order, everything that they claim recomputed from what stands before them.

Of each task:

    terms         well-formed, budget covers the maximal bill, one reservation a round, together the budget
    statements    signed by an enrolled, unrevoked key; about these terms; in time, or marked late
    states        only the transitions of the life cycle, each with what it rests on complete
    verdicts      one for everyone selected; claimed degree and model digest are those of the statements
    degrees       `mechanism.evidence.assess` on the logged evidence gives the same verdicts; without evidence a model
                  counts at the degree that was claimed
    seeds         each the preimage of the one before, the first of the terms' commitment
    disputes      opened counts are those behind the claim, once, after a settlement; awards are what `review` gives
    settlements   `settle_round` on the logged verdicts gives the same peer draws and payments, byte for byte
    accounts      every transfer allowed; escrow and stakes empty at the end

State is kept for open tasks, accounts and participants; a closed task leaves its name. So memory does not grow with
the number of entries.
"""

import base64
import binascii
import hashlib
import re
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_der_public_key

from mechanism.canonical import canonical_bytes, parse_canonical
from mechanism.dispute import check_opening, disputes_possible, review
from mechanism.errors import MechanismError
from mechanism.evidence import EvidenceModel, Measurement, assess
from mechanism.ledger import entries as events
from mechanism.ledger.accounts import Book, Transfer, escrow, stake
from mechanism.ledger.entry import Entry
from mechanism.ledger.errors import LedgerError
from mechanism.ledger.forms import VERDICT_END, ModelForm, model_form, plain_verdict
from mechanism.peers import check_round_seed
from mechanism.settlement import MICRO, Assessment, Settlement, task_budget_micro
from mechanism.statements import ClaimStatement, ModelStatement
from mechanism.terms import Terms

_ECDSA = ec.ECDSA(hashes.SHA256())

#: When a transition says that it was: UTC, with or without a fraction of the second.
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|\+00:00)")

#: The states that may follow a state within a task's life; cancelling may follow any that is not final.
_FOLLOWS: Mapping[str, tuple[str, ...]] = {
    "": ("OPEN",),
    "OPEN": ("EFFORT",),
    "EFFORT": ("SELECTED",),
    "SELECTED": ("TRAINING",),
    "TRAINING": ("SCORED", "SETTLED"),
    "SCORED": ("SETTLED",),
    "SETTLED": ("TRAINING", "CLOSED"),
}


class ReplayError(LedgerError):
    """An entry that does not follow from those before it.

    Attributes:
        index: which one.
        reason: what is wrong with it.
    """

    def __init__(self, index: int, entry_id: str, reason: str) -> None:
        super().__init__(f"entry {index} ({entry_id}): {reason}")
        self.index = index
        self.entry_id = entry_id
        self.reason = reason


class _Wrong(LedgerError):
    """What is wrong with the entry at hand; becomes a ReplayError with its place."""


@dataclass(slots=True)
class _Claim:
    degree: Fraction
    text: str
    micro: int
    commitment: bytes


@dataclass(slots=True)
class _Disputable:
    """What a dispute of one participant about one settled round rests on."""

    subject: Assessment
    peers: list[Assessment]
    paid_micro: int


@dataclass(slots=True)
class _Round:
    """What has been logged of one round."""

    number: int
    models: dict[str, bytes] = field(default_factory=dict)
    verdicts: dict[str, Assessment] = field(default_factory=dict)
    samples: dict[str, int] = field(default_factory=dict)
    evidence: dict[str, Assessment] | None = None
    pieces: list[str] = field(default_factory=list)
    settled: bool = False
    aggregated: bool = False


@dataclass(slots=True)
class _Task:
    """An open task."""

    terms: Terms
    digest: str
    state: str = ""
    reserved: int = 0
    claims: dict[str, _Claim] = field(default_factory=dict)
    submissions: set[str] = field(default_factory=set)
    selected: list[str] = field(default_factory=list)
    chosen: set[str] = field(default_factory=set)
    selection_parts: tuple[int, int] = (0, 0)
    round: _Round = field(default_factory=lambda: _Round(0))
    seed: bytes = b""
    seed_round: int = 0
    expected: deque[Entry] = field(default_factory=deque)
    unresolved: set[int] = field(default_factory=set)
    disputes: set[str] = field(default_factory=set)
    kept: dict[int, dict[str, _Disputable]] = field(default_factory=dict)
    settled: int = 0
    awarding: bool = False


@dataclass(slots=True)
class Counts:
    """What was checked."""

    entries: int = 0
    tasks: int = 0
    statements: int = 0
    verdicts: int = 0
    degrees: int = 0
    settlements: int = 0
    payments: int = 0
    paid_micro: int = 0


class _Revoked(NamedTuple):
    """A revoked key: whose it was, and the entry that revoked it."""

    owner: str
    key: ec.EllipticCurvePublicKey
    entry: int


class Taken(NamedTuple):
    """What an entry that follows is called, and what it posted."""

    id: str
    transfers: tuple[Transfer, ...]


class Replay:
    """Feeds on entries in order.

    Args:
        check_statements: whether to check the participants' signatures, which takes much of the time.
    """

    def __init__(self, check_statements: bool = True) -> None:
        self.book = Book()
        self.counts = Counts()
        self._check_statements = check_statements
        self._tasks: dict[str, _Task] = {}
        self._ended: set[str] = set()
        self._keys: dict[str, dict[str, ec.EllipticCurvePublicKey]] = {}
        self._known_keys: set[str] = set()
        #: By fingerprint.
        self._revoked: dict[str, _Revoked] = {}
        #: The task last in training, and the one last in a settlement: their next entries can be foreseen.
        self._training: _Task | None = None
        self._paying: _Task | None = None
        self._handlers: Mapping[str, Callable[[Entry, Mapping[str, Any]], None]] = {
            "terms": self._terms,
            "reservation": self._reservation,
            "enrolment": self._enrolment,
            "revocation": self._revocation,
            "claim": self._claim,
            "selection": self._selection,
            "transition": self._transition,
            "model": self._model,
            "failure": self._failure,
            "evidence": self._evidence,
            "verdict": self._verdict,
            "aggregation": self._aggregation,
            "seed": self._seed,
            "refund": self._refund,
            "stake_release": self._stake_release,
            "dispute": self._dispute,
            "awards": self._awards,
        }

    def feed(self, data: bytes) -> Taken:
        """Takes the next entry.

        Raises:
            ReplayError: it is malformed or does not follow from those before it.
        """
        index, entry_id = self.counts.entries, "unreadable"
        try:
            taken = self._foreseen(data)
            if taken is not None:
                entry_id = taken.id
            else:
                form = model_form(data)
                if form is not None:
                    entry_id = form.id
                    self._model_in_time(form)
                    taken = Taken(entry_id, ())
                else:
                    # Not checked to be canonical: every handler compares the bytes with those that it makes itself.
                    entry = Entry.parse(data, canonical=False)
                    entry_id = entry.id
                    self._handle(entry)
                    taken = Taken(entry_id, entry.transfers)
            for transfer in taken.transfers:
                self.book.apply(transfer)
        except MechanismError as error:
            raise ReplayError(index, entry_id, str(error)) from None
        except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            reason = f"its body is malformed ({type(error).__name__}: {error})"
            raise ReplayError(index, entry_id, reason) from None
        self.counts.entries += 1
        return taken

    def _foreseen(self, data: bytes) -> Taken | None:
        """The next entry, where `data` are the bytes that what stands before it gives: no need to read them."""
        task = self._paying
        if task is not None and task.expected:
            entry = task.expected[0]
            if entry.data == data:
                self._settled(task, task.expected.popleft())
                return Taken(entry.id, entry.transfers)
        elif self._training is not None and data.endswith(VERDICT_END):
            return self._foreseen_verdict(self._training, data)
        return None

    def _handle(self, entry: Entry) -> None:
        task = self._tasks.get(str(entry.body.get("task_id", "")))
        if task is not None and task.expected:
            self._settling(task, entry)
            return
        handler = self._handlers.get(entry.kind)
        if handler is None:
            raise _Wrong(f"the kind {entry.kind!r:.60} is unknown, or out of place here")
        handler(entry, entry.body)

    def open_tasks(self) -> dict[str, str]:
        """Tasks that have not ended, and their states."""
        return {name: task.state for name, task in sorted(self._tasks.items())}

    def finish(self) -> None:
        """Raises ReplayError where the entries end inside a settlement, which is one transaction."""
        for name, task in sorted(self._tasks.items()):
            if task.expected:
                reason = f"the settlement of {name} ends early: {task.expected[0].id} is missing"
                raise ReplayError(self.counts.entries, task.expected[0].id, reason)
            if task.terms.schedule.rounds != task.reserved:
                missing = f"{name}/round/{task.reserved + 1}/reservation"
                raise ReplayError(self.counts.entries, missing, f"the budget of {name} is not reserved whole")

    # Participants

    def _enrolment(self, entry: Entry, body: Mapping[str, Any]) -> None:
        key = _public_key(body["public_key"])
        name = body["participant_id"]
        _same(entry, events.enrolment(name, key))
        mark = events.fingerprint(events.public_key_bytes(key))
        if (revoked := self._revoked.get(mark)) is not None:
            raise _Wrong(f"this key was revoked before, as {revoked.owner}'s in entry {revoked.entry}")
        self._once(entry.id, "this key was enrolled before")
        self._keys.setdefault(name, {})[mark] = key

    def _revocation(self, entry: Entry, body: Mapping[str, Any]) -> None:
        name, mark = body["participant_id"], body["fingerprint"]
        key = self._keys.get(name, {}).pop(mark, None)
        if key is None:
            raise _Wrong(f"{name} has no key {mark} to revoke")
        _same(entry, events.revocation(name, key, body["reason"]))
        self._revoked[mark] = _Revoked(name, key, self.counts.entries)

    def _once(self, entry_id: str, message: str) -> None:
        if entry_id in self._known_keys:
            raise _Wrong(message)
        self._known_keys.add(entry_id)

    def _check_signature(self, name: str, signed: Callable[[], bytes], signature: bytes) -> None:
        keys = self._keys.get(name, {})
        if keys and not self._check_statements:
            return
        message = signed()
        if any(_signed_by(key, message, signature) for key in keys.values()):
            self.counts.statements += 1
            return
        gone = [revoked for revoked in self._revoked.values() if revoked.owner == name]
        for revoked in gone:
            if _signed_by(revoked.key, message, signature):
                raise _Wrong(
                    f"it is signed by a key of {name} that was revoked before, in entry {revoked.entry}: nothing "
                    "signed by that key counts from there on"
                )
        if keys:
            raise _Wrong(f"the statement is not signed by a key of {name}")
        raise _Wrong(f"{name} has no enrolled key" + (", since all were revoked" if gone else ""))

    def _check_standing(self, name: str) -> None:
        """That what the coordinator says of a participant was said by somebody who then had a key."""
        if not self._keys.get(name):
            raise _Wrong(
                f"{name} has no key at this point that was not revoked, so it cannot have said anything"
            )

    # Terms and states

    def _terms(self, entry: Entry, body: Mapping[str, Any]) -> None:
        terms = Terms.from_record(body["terms"])
        if terms.task_id in self._tasks or terms.task_id in self._ended:
            raise _Wrong(f"the task {terms.task_id} has terms already")
        bill = task_budget_micro(terms)
        if terms.budget_micro < bill:
            raise _Wrong(f"the budget of {terms.budget_micro} is below the maximal bill of {bill}")
        _same(entry, events.published(terms))
        self._tasks[terms.task_id] = _Task(terms, terms.digest.hex(), seed=terms.seed_commitment)
        self.counts.tasks += 1

    def _reservation(self, entry: Entry, body: Mapping[str, Any]) -> None:
        task = self._task(body)
        number = task.reserved + 1
        if task.state or number > task.terms.schedule.rounds:
            raise _Wrong("a reservation after the task was opened, or for a round that it does not have")
        _same(entry, events.reservation(task.terms, number))
        task.reserved = number
        task.unresolved.add(number)

    def _transition(self, entry: Entry, body: Mapping[str, Any]) -> None:
        task = self._task(body)
        state, number, at = body["state"], body["round"], body["at"]
        if at and not _TIME.fullmatch(at):
            raise _Wrong(f"at is {at!r:.60}; expected a time such as 2026-11-27T22:30:00Z")
        _same(entry, events.transition(task.terms.task_id, number, state, at, body["reason"]))
        if task.awarding and state not in ("CLOSED", "CANCELLED"):
            raise _Wrong(f"{state} after the disputes were paid, which ends a task")
        if state == "CANCELLED":
            if task.reserved and not task.state:
                raise _Wrong("a task is cancelled before it was opened")
        elif state not in _FOLLOWS[task.state]:
            raise _Wrong(f"{state} does not follow {task.state or 'the terms'}")
        expected = task.round.number + (1 if state == "TRAINING" else 0)
        if number != expected:
            raise _Wrong(f"the transition is of round {number}; expected round {expected}")
        self._check_complete(task, state)
        task.state = state
        if state == "TRAINING":
            if number > task.terms.schedule.rounds:
                raise _Wrong(f"round {number} is beyond the schedule of {task.terms.schedule.rounds}")
            task.round = _Round(number)
            self._training = task
        elif state in ("CLOSED", "CANCELLED"):
            self._end(task)

    def _check_complete(self, task: _Task, state: str) -> None:
        """Whether what the state rests on stands in the log."""
        current = task.round
        if state == "OPEN" and task.reserved != task.terms.schedule.rounds:
            raise _Wrong(f"only {task.reserved} of {task.terms.schedule.rounds} rounds are reserved for")
        if state == "SELECTED" and (not task.selected or task.selection_parts[0] != task.selection_parts[1]):
            raise _Wrong("the selection is missing or incomplete")
        if state == "SCORED":
            self._check_scored(task)
        if state == "SETTLED" and current.number in task.unresolved:
            raise _Wrong(f"round {current.number} is neither settled nor refunded")
        if state == "TRAINING" and current.number in task.unresolved:
            raise _Wrong(f"round {current.number} is neither settled nor refunded")

    def _check_scored(self, task: _Task) -> None:
        missing = [name for name in task.selected if name not in task.round.verdicts]
        if missing:
            raise _Wrong(f"{missing[0]} was selected and has no verdict in round {task.round.number}")
        if task.round.pieces:
            raise _Wrong("the round's evidence is incomplete")

    def _end(self, task: _Task) -> None:
        name = task.terms.task_id
        if task.unresolved:
            raise _Wrong(f"round {min(task.unresolved)} is neither settled nor refunded at the task's end")
        if task.kept:
            raise _Wrong(f"what round {min(task.kept)} kept back for disputes is not resolved")
        if self.book.holds(escrow(name)):
            raise _Wrong(f"escrow of {name} still holds money at the task's end")
        for participant in task.claims:
            held = self.book.holds(stake(name, participant))
            if held:
                raise _Wrong(f"{held} micro-credits of {participant}'s stake are not released")
        del self._tasks[name]
        self._ended.add(name)
        self._training = self._paying = None

    # Statements

    def _claim(self, entry: Entry, body: Mapping[str, Any]) -> None:
        record = body["statement"]
        task = self._statement_task(record["task_id"])
        statement = ClaimStatement(
            submission_id=record["submission_id"],
            task_id=record["task_id"],
            terms_digest=bytes.fromhex(record["terms"]),
            participant_id=record["participant_id"],
            effort=Decimal(record["effort"]),
            degree=Fraction(record["degree"]),
            counts=None if record["counts"] is None else tuple(record["counts"]),
            counts_commitment=bytes.fromhex(record["counts_commitment"]),
            nonce=bytes.fromhex(record["nonce"]),
        )
        signature = bytes.fromhex(body["signature"])
        _same(entry, events.claim(statement, signature, body["late"]))
        name = statement.participant_id
        self._check_statement(task, name, statement.submission_id, record["terms"])
        self._check_signature(name, lambda: canonical_bytes(record), signature)
        if not body["late"]:
            if task.state not in ("OPEN", "EFFORT") or task.selected:
                raise _Wrong("a claim after claims had closed that is not marked late")
            if name in task.claims:
                raise _Wrong(f"{name} has claimed before")
            degree = statement.degree
            task.claims[name] = _Claim(
                degree, record["degree"], round(degree * MICRO), statement.counts_commitment
            )

    def _model(self, entry: Entry, body: Mapping[str, Any]) -> None:
        record = body["statement"]
        task = self._statement_task(record["task_id"])
        statement = ModelStatement(
            submission_id=record["submission_id"],
            task_id=record["task_id"],
            terms_digest=bytes.fromhex(record["terms"]),
            participant_id=record["participant_id"],
            round=record["round"],
            model_sha256=bytes.fromhex(record["model_sha256"]),
            model_bytes=record["model_bytes"],
            samples=record["samples"],
            nonce=bytes.fromhex(record["nonce"]),
        )
        signature = bytes.fromhex(body["signature"])
        _same(entry, events.model(statement, signature, body["late"]))
        name = statement.participant_id
        self._check_statement(task, name, statement.submission_id, record["terms"])
        self._check_signature(name, lambda: canonical_bytes(record), signature)
        self._check_claimed(task, name)
        if not body["late"]:
            self._received(task, name, statement.round, statement.model_sha256, statement.samples)

    def _model_in_time(self, form: ModelForm) -> None:
        """`_model` of an entry that has its form."""
        task, name = self._statement_task(form.task_id), form.participant_id
        self._check_statement(task, name, form.submission_id, form.terms)
        self._check_signature(name, form.statement.encode, bytes.fromhex(form.signature))
        self._check_claimed(task, name)
        self._received(task, name, int(form.round), bytes.fromhex(form.model_sha256), int(form.samples))

    def _check_claimed(self, task: _Task, name: str) -> None:
        if name not in task.claims:
            raise _Wrong(f"{name} has not claimed, so it cannot send a model")

    def _received(self, task: _Task, name: str, round_: int, digest: bytes, samples: int) -> None:
        """A model that is not late."""
        if task.state != "TRAINING" or round_ != task.round.number or task.round.verdicts:
            raise _Wrong("a model outside its round's training that is not marked late")
        if name not in task.chosen:
            raise _Wrong(f"{name} was not selected to train")
        if name in task.round.models:
            raise _Wrong(f"{name} has a model in this round already")
        task.round.models[name] = digest
        task.round.samples[name] = samples

    def _statement_task(self, task_id: str) -> _Task:
        task = self._named(task_id)
        if task.expected:
            raise _Wrong(f"it interrupts a settlement; expected {task.expected[0].id}")
        return task

    def _check_statement(self, task: _Task, name: str, submission_id: str, terms: str) -> None:
        if terms != task.digest:
            raise _Wrong("the statement is about other terms than the task's")
        submission = f"{name}/{submission_id}"
        if submission in task.submissions:
            raise _Wrong(f"the submission id {submission} was used before")
        task.submissions.add(submission)

    def _failure(self, entry: Entry, body: Mapping[str, Any]) -> None:
        task, name = self._task(body), body["participant_id"]
        if name not in task.claims:
            raise _Wrong(f"{name} has not claimed, so it has nothing to fail at")
        _same(
            entry,
            events.failure(task.terms.task_id, body["round"], name, body["submission_id"], body["reason"]),
        )
        self._check_standing(name)
        submission = f"{name}/{body['submission_id']}"
        if submission in task.submissions:
            raise _Wrong(f"the submission id {submission} was used before")
        task.submissions.add(submission)

    def _selection(self, entry: Entry, body: Mapping[str, Any]) -> None:
        task = self._task(body)
        part, parts, chosen = body["part"], body["parts"], body["participants"]
        record = {"task_id": task.terms.task_id, "part": part, "parts": parts, "participants": chosen}
        _same(entry, Entry(f"{task.terms.task_id}/selection/{part}", "selection", record))
        done, total = task.selection_parts
        if (
            task.state not in ("OPEN", "EFFORT")
            or part != done + 1
            or (done and parts != total)
            or part > parts
        ):
            raise _Wrong(f"part {part} of {parts} of a selection is out of place")
        for name in chosen:
            if name not in task.claims:
                raise _Wrong(f"{name} is selected and has not claimed")
            if task.selected and name <= task.selected[-1]:
                raise _Wrong(f"{name} is out of order in the selection, or in it twice")
            task.selected.append(name)
            task.chosen.add(name)
        task.selection_parts = (part, parts)
        schedule = task.terms.schedule
        if part == parts and not schedule.quorum <= len(task.selected) <= schedule.capacity:
            raise _Wrong(
                f"{len(task.selected)} are selected; the terms ask for {schedule.quorum} to {schedule.capacity}"
            )

    # Evidence and verdicts

    def _evidence(self, entry: Entry, body: Mapping[str, Any]) -> None:
        task = self._task(body)
        current, part, parts = task.round, body["part"], body["parts"]
        if body["round"] != current.number or task.state != "TRAINING" or current.verdicts:
            raise _Wrong("evidence that is not of the round in training, or after its verdicts")
        if current.evidence is not None or part != len(current.pieces) + 1 or not part <= parts:
            raise _Wrong(f"part {part} of {parts} of the evidence is out of place")
        record = {key: body[key] for key in ("task_id", "round", "part", "parts", "sha256", "data")}
        _same(
            entry, Entry(f"{task.terms.task_id}/round/{current.number}/evidence/{part}", "evidence", record)
        )
        current.pieces.append(body["data"])
        if part == parts:
            try:
                data = base64.b64decode("".join(current.pieces), validate=True)
            except binascii.Error:
                raise _Wrong("the evidence is not base64") from None
            if hashlib.sha256(data).hexdigest() != body["sha256"]:
                raise _Wrong("the evidence's digest is not that of its parts")
            current.pieces.clear()
            current.evidence = _assessed(parse_canonical(data), task)

    def _verdict(self, entry: Entry, body: Mapping[str, Any]) -> None:
        task = self._task(body)
        current = task.round
        if body["round"] != current.number or task.state != "TRAINING":
            raise _Wrong("a verdict that is not of the round in training")
        name = body["assessment"]["participant_id"]
        assessment = (current.evidence or {}).get(name)
        if assessment is None:
            assessment = events.assessment_from_record(body["assessment"])
            _check_unsupported(assessment, current, task.claims.get(name))
        self._compare_verdict(entry, events.verdict(task.terms.task_id, current.number, assessment))
        if name not in task.chosen:
            raise _Wrong(f"{name} was not selected, so there is nothing to judge")
        if name in current.verdicts:
            raise _Wrong(f"{name} has a verdict in this round already")
        self._judged(task, assessment)

    def _foreseen_verdict(self, task: _Task, data: bytes) -> Taken | None:
        """The verdict on the next of the selected, where `data` are what the evidence or its claim gives."""
        current = task.round
        place = len(current.verdicts)
        if task.state != "TRAINING" or place >= len(task.selected):
            return None
        name = task.selected[place]
        if name in current.verdicts:
            return None
        task_id, number = task.terms.task_id, current.number
        if current.evidence is not None:
            assessment = current.evidence.get(name)
            if assessment is None:
                return None
            expected = events.verdict(task_id, number, assessment).data
        else:
            digest, claim = current.models.get(name), task.claims[name]
            if digest is None:
                return None
            assessment = Assessment(name, digest, claim.degree, claim.micro)
            expected = plain_verdict(task_id, number, assessment, claim.text)
        if data != expected:
            return None
        self._judged(task, assessment)
        return Taken(events.verdict_id(task_id, number, name), ())

    def _judged(self, task: _Task, assessment: Assessment) -> None:
        name, current = assessment.participant_id, task.round
        claimed = task.claims[name].degree
        if assessment.claimed_degree is not claimed and assessment.claimed_degree != claimed:
            raise _Wrong(
                f"the verdict says that {name} claimed {assessment.claimed_degree}; "
                f"its signed claim says {claimed}"
            )
        if assessment.model_sha256 != current.models.get(name, b""):
            raise _Wrong(f"the verdict is on another model than the one that {name} sent in time")
        self.counts.degrees += assessment.scored
        current.verdicts[name] = assessment
        self.counts.verdicts += 1

    def _compare_verdict(self, entry: Entry, expected: Entry) -> None:
        try:
            _same(entry, expected)
        except _Wrong as error:
            raise _Wrong(f"the evidence gives another verdict: {error}") from None

    def _aggregation(self, entry: Entry, body: Mapping[str, Any]) -> None:
        task = self._task(body)
        if body["round"] != task.round.number or not task.round.number or task.round.aggregated:
            raise _Wrong("an aggregation that is not of the current round, or its second")
        digest = bytes.fromhex(body["model_sha256"])
        if len(digest) != 32:
            raise _Wrong("the global model's digest has a wrong length")
        _same(entry, events.aggregation(task.terms.task_id, task.round.number, digest, body["figures"]))
        task.round.aggregated = True

    def _dispute(self, entry: Entry, body: Mapping[str, Any]) -> None:
        task, name = self._task(body), body["participant_id"]
        salt = bytes.fromhex(body["salt"])
        _same(entry, events.dispute(task.terms.task_id, name, body["counts"], salt))
        self._check_standing(name)
        if name not in self._private(task) or name in task.disputes:
            raise _Wrong(f"{name} has no private counts to open, or has opened them before")
        if not disputes_possible(task.terms, [name]) or not task.settled or task.awarding:
            raise _Wrong("a dispute where the terms allow none, before a settlement, or after its window")
        claim = task.claims[name]
        check_opening(task.terms, claim.commitment, claim.degree, body["counts"], salt)
        task.disputes.add(name)

    def _awards(self, entry: Entry, body: Mapping[str, Any]) -> None:
        task, number = self._task(body), body["round"]
        if not task.kept or number != min(task.kept):
            raise _Wrong(f"round {number} has nothing kept back for disputes, or is out of order")
        awards = {
            name: review(task.terms, about.subject, about.peers, about.paid_micro).award_micro
            for name, about in task.kept.pop(number).items()
            if name in task.disputes
        }
        task.awarding = True
        task.expected.extend(events.award_entries(task.terms, number, awards))
        self._settling(task, entry)
        self.counts.paid_micro += sum(awards.values())

    def _private(self, task: _Task) -> list[str]:
        """The selected who committed to their label counts."""
        return [name for name in task.selected if task.claims[name].commitment]

    # Settlement and end

    def _seed(self, entry: Entry, body: Mapping[str, Any]) -> None:
        task = self._task(body)
        number = task.round.number
        if body["round"] != number or task.state != "SCORED" or task.round.settled:
            raise _Wrong("a seed that is not of the round just scored")
        seed = bytes.fromhex(body["seed"])
        _check_chain(seed, task.seed, number - task.seed_round)
        stakes = {name: self.book.holds(stake(task.terms.task_id, name)) for name in task.selected}
        judged = [task.round.verdicts[name] for name in task.selected]
        private = self._private(task)
        disputable = disputes_possible(task.terms, private)
        settlement, expected = events.settlement_entries(task.terms, number, seed, judged, stakes, disputable)
        task.expected.extend(expected)
        self._paying = task
        if disputable and events.kept_micro(task.terms, number, settlement):
            task.kept[number] = _disputable(settlement, task.round.verdicts, private)
        self._settling(task, entry)
        task.seed, task.seed_round = seed, number
        self.counts.settlements += 1
        self.counts.paid_micro += sum(line.paid_micro for line in settlement.payments)

    def _settling(self, task: _Task, entry: Entry) -> None:
        """The next entry of a settlement must be the one that the logged inputs give."""
        expected = task.expected.popleft()
        _same(entry, expected)
        self._settled(task, expected)

    def _settled(self, task: _Task, entry: Entry) -> None:
        if entry.kind == "payment":
            self.counts.payments += 1
        elif entry.kind == "settlement":
            task.unresolved.discard(task.round.number)
            task.round.settled = True
            task.settled += 1

    def _refund(self, entry: Entry, body: Mapping[str, Any]) -> None:
        task, number = self._task(body), body["round"]
        if number not in task.unresolved or number < task.round.number:
            raise _Wrong(f"round {number} has nothing reserved that could be refunded")
        _same(entry, events.refund(task.terms.task_id, number))
        task.unresolved.discard(number)

    def _stake_release(self, entry: Entry, body: Mapping[str, Any]) -> None:
        task, name = self._task(body), body["participant_id"]
        if task.unresolved or task.kept:
            raise _Wrong("a stake is released while rounds are neither settled nor refunded")
        held = self.book.holds(stake(task.terms.task_id, name))
        _same(entry, events.stake_release(task.terms.task_id, name, held))

    def _task(self, body: Mapping[str, Any]) -> _Task:
        return self._named(body["task_id"])

    def _named(self, name: str) -> _Task:
        task = self._tasks.get(name)
        if task is None:
            ended = "has ended" if name in self._ended else "has no terms"
            raise _Wrong(f"the task {name!r:.80} {ended}")
        return task


def _disputable(
    settlement: Settlement, verdicts: Mapping[str, Assessment], private: list[str]
) -> dict[str, _Disputable]:
    lines = {line.participant_id: line for line in settlement.payments}
    return {
        name: _Disputable(verdicts[name], [verdicts[p] for p in lines[name].peers], lines[name].paid_micro)
        for name in private
    }


def _check_unsupported(assessment: Assessment, current: _Round, claim: _Claim | None) -> None:
    """A verdict that no evidence speaks of: of a model that did not come, or, without evidence, as claimed."""
    name = assessment.participant_id
    if not assessment.scored:
        if name in current.models:
            raise _Wrong(f"{name} sent a model in time and is not scored, without logged evidence against it")
        return
    if current.evidence is not None:
        raise _Wrong(f"{name} is scored, and the round's evidence says nothing of it")
    if claim is None:
        raise _Wrong(f"{name} is scored and has not claimed")
    measured = assessment.lower_micro is not None or assessment.upper_micro is not None
    if assessment.verified_micro != claim.micro or assessment.multiplier_ppm != MICRO or measured:
        raise _Wrong(f"{name} has a degree that is neither claimed nor supported by logged evidence")
    if assessment.refuted:
        raise _Wrong(f"the claim of {name} is refuted without logged evidence")


def _assessed(record: Mapping[str, Any], task: _Task) -> dict[str, Assessment]:
    """The verdicts that a round's evidence gives, once it is seen to be about this round's statements."""
    model = EvidenceModel.from_record(record["model"])
    measurements = [Measurement.from_record(item) for item in record["measurements"]]
    current = task.round
    if model.round != current.number or model.degree.reference != task.terms.reference:
        raise _Wrong(
            "the evidence is of another round, or against another reference distribution than the terms'"
        )
    measured = {m.participant_id: m for m in measurements}
    if measured.keys() != current.models.keys():
        names = ", ".join(sorted(measured.keys() ^ current.models.keys()))
        raise _Wrong(f"the evidence and the models in time are not of the same participants: {names}")
    for name, m in measured.items():
        stated = current.models[name].hex(), task.claims[name].degree, current.samples[name]
        if (m.model_sha256, m.claimed_degree, m.samples) != stated:
            raise _Wrong(
                f"the evidence on {name} is about another model, claim or sample count than it signed"
            )
    return {assessment.participant_id: assessment for assessment in assess(model, measurements)}


def _same(entry: Entry, expected: Entry) -> None:
    """Raises unless both have the same bytes; names the first difference."""
    if entry.data == expected.data:
        return
    if entry.id != expected.id or entry.kind != expected.kind:
        raise _Wrong(f"expected the {expected.kind} {expected.id} here")
    found, wanted = parse_canonical(entry.data), parse_canonical(expected.data)
    raise _Wrong(_difference("", found, wanted) or "it is not the entry that the logged inputs give")


def _difference(path: str, found: Any, wanted: Any) -> str:
    if isinstance(found, dict) and isinstance(wanted, dict):
        for key in sorted(found.keys() | wanted.keys()):
            where = f"{path}.{key}" if path else key
            if key not in wanted:
                return f"{where} does not belong here"
            if key not in found:
                return f"{where} is missing"
            if text := _difference(where, found[key], wanted[key]):
                return text
        return ""
    if isinstance(found, list) and isinstance(wanted, list) and len(found) == len(wanted):
        for number, (left, right) in enumerate(zip(found, wanted, strict=True)):
            if text := _difference(f"{path}[{number}]", left, right):
                return text
        return ""
    if found != wanted or type(found) is not type(wanted):
        return f"{path} is {found!r:.120}; what stands before it gives {wanted!r:.120}"
    return ""


def _check_chain(seed: bytes, previous: bytes, steps: int) -> None:
    """The seed of a round that follows `steps` rounds after the last revealed one."""
    value = seed
    for _ in range(steps - 1):
        value = hashlib.sha256(value).digest()
    check_round_seed(value, previous)


def _signed_by(key: ec.EllipticCurvePublicKey, message: bytes, signature: bytes) -> bool:
    try:
        key.verify(signature, message, _ECDSA)
    except InvalidSignature:
        return False
    return True


def _public_key(text: str) -> ec.EllipticCurvePublicKey:
    try:
        key = load_der_public_key(base64.b64decode(text, validate=True))
    except (ValueError, UnsupportedAlgorithm):
        raise _Wrong("the public key is unreadable") from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise _Wrong("the public key is not ECDSA P-256")
    return key
