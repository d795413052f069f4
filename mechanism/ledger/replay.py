"""Replay: a ledger's entries in order, everything that they claim recomputed from what stands before them.

Of each task:

    terms         well-formed, their parts whole, budget covers the maximal bill, one reservation a round, together the
                  budget
    states        only the steps of `mechanism.lifecycle`, each with what it rests on, times never going back
    statements    signed by an enrolled, unrevoked key; about these terms; claims in EFFORT, one a participant, open
                  counts of the claimed degree; models one a participant and round, in time or marked late
    key history   claims, models and payments carry the digest of every enrolment and revocation before them
    selection     everyone who claimed; whose key was revoked since may be left out
    evidence      there, unless the rule pays without; about every model in time, this round's start, the D_c of the
                  terms, and the logged order of commitments
    verdicts      what `mechanism.evidence.assess` gives on it; of who sent nothing, that; without evidence, as claimed
    seeds         each the preimage of the one before, the first of the terms' commitment
    shares        each model's draw share, late or not, is its round's value of the chain that the claim committed to
    settlements   `settle_round` on the verdicts gives the same peer draws and payments, byte for byte
    aggregations  one a settled round; the model that the next begins from
    disputes      opened counts are those behind the claim, once, after a settlement; awards are what `review` gives
    end           what is not settled is refunded, only where the task is cancelled; stakes are released

What a coordinator writes in one transaction must stand together: an opening, a selection, a settlement, an end.
Most of it is computed, and compared byte for byte.

State is kept for open tasks, accounts and participants; a closed task leaves its name. So memory does not grow with
the number of entries.
"""

import base64
import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_der_public_key

from mechanism.canonical import canonical_bytes, parse_canonical
from mechanism.degree import noniid_degree
from mechanism.dispute import check_opening, disputes_possible, review
from mechanism.errors import MechanismError
from mechanism.evidence import EvidenceModel, Measurement, assess
from mechanism.ledger import entries as events
from mechanism.ledger.accounts import Book, Transfer, stake
from mechanism.ledger.entry import Entry
from mechanism.ledger.errors import LedgerError
from mechanism.ledger.key_history import NO_KEYS, extended, fingerprint
from mechanism.ledger.note import VerificationKey
from mechanism.lifecycle import State, check_quorum, check_step, needs_evidence
from mechanism.peers import Draw, check_round_seed, share_fits
from mechanism.settlement import PLAIN_DECIMAL, Assessment, Settlement, least_budget_micro
from mechanism.statements import ClaimStatement, ModelStatement, Statement
from mechanism.terms import MAX_PARTICIPANTS, MAX_ROUNDS, Terms, identifier
from mechanism.unmeasured import as_claimed, missing

_ECDSA = ec.ECDSA(hashes.SHA256())

#: When a transition says that it was. One form alone, so that times compare as texts.
_TIME = re.compile("[0-9]{4}-[0-9]{2}-[0-9]{2}T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]Z")

_DIGEST = re.compile("[0-9a-f]{64}")

#: States that are entered at the end of a transaction which no state begins, and what stands in it before.
_RESTS_ON: Mapping[State, str] = {State.SELECTED: "a selection", State.SCORED: "verdicts"}


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
    commitment: bytes
    nonce: bytes
    draw_head: bytes
    #: The last draw share that was checked, and its round: what the next one is checked against, in few steps.
    share: bytes
    share_round: int = 0


class _Model(NamedTuple):
    """A model in time."""

    digest: bytes
    samples: int
    sequence: int
    share: bytes


@dataclass(slots=True)
class _Disputable:
    """What a dispute of one participant about one settled round rests on."""

    subject: Assessment
    peers: list[Assessment]
    paid_micro: int


@dataclass(slots=True)
class _Round:
    """What has been logged of one round.

    Attributes:
        start: digest of the model that it begins from.
        models: those in time; failures: what participants said, by name.
        verdicts: once they are computed; result: the model that the next round begins from.
    """

    number: int
    start: bytes
    models: dict[str, _Model] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    verdicts: dict[str, Assessment] = field(default_factory=dict)
    result: bytes = b""


@dataclass(slots=True)
class _Task:
    """An open task.

    Attributes:
        round: the current one; number 0 before the first.
        floors: of every round so far, the latest commitment among the models in time of the rounds before.
        parts: of a selection or of evidence that is not complete.
        delivered: (round, participant) of every model, late ones included.
        sequences: places of commitments that are taken.
        unresolved: rounds whose reservation is neither settled nor refunded.
        disputes: who has opened its counts; kept: what they rest on, by round.
        shadows: digests of shadow sets, and the model that they were trained from.
    """

    terms: Terms
    seed: bytes
    round: _Round
    floors: list[int] = field(default_factory=lambda: [0])
    parts: list[Entry] = field(default_factory=list)
    state: State | None = None
    at: str = ""
    claims: dict[str, _Claim] = field(default_factory=dict)
    selected: list[str] = field(default_factory=list)
    chosen: set[str] = field(default_factory=set)
    submissions: set[str] = field(default_factory=set)
    delivered: set[tuple[int, str]] = field(default_factory=set)
    sequences: set[int] = field(default_factory=set)
    unresolved: set[int] = field(default_factory=set)
    disputes: set[str] = field(default_factory=set)
    kept: dict[int, dict[str, _Disputable]] = field(default_factory=dict)
    shadows: dict[str, bytes] = field(default_factory=dict)

    @property
    def id(self) -> str:
        return self.terms.task_id

    @property
    def private(self) -> list[str]:
        """The selected who committed to their label counts."""
        return [name for name in self.selected if self.claims[name].commitment]


@dataclass(slots=True)
class _Transaction:
    """Entries that a coordinator writes together, begun and not yet complete.

    Attributes:
        what: "opening", "selection", "settlement" or "end".
        expected: computed entries that come next.
        then: ids of which one comes after them.
    """

    task_id: str
    what: str
    expected: deque[Entry]
    then: tuple[str, ...]

    @property
    def next(self) -> str:
        return self.expected[0].id if self.expected else self.then[0]


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


@dataclass(frozen=True, slots=True)
class _Revoked:
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
        #: Parts of terms that are not whole yet; they are published in one transaction.
        self._publishing: list[Entry] = []
        self._keys: dict[str, dict[str, ec.EllipticCurvePublicKey]] = {}
        self._known_keys: set[str] = set()
        #: Whose each key is that was ever enrolled, by fingerprint: a key has one name.
        self._owners: dict[str, str] = {}
        self._open: _Transaction | None = None
        self._log_keys: list[str] = []
        #: Digest of the key history.
        self.key_history = NO_KEYS
        #: By fingerprint.
        self._revoked: dict[str, _Revoked] = {}
        self._handlers: Mapping[str, Callable[[Entry, Mapping[str, Any]], None]] = {
            "terms": self._terms,
            "enrolment": self._enrolment,
            "revocation": self._revocation,
            events.LOG_KEY: self._log_key,
            "claim": self._claim,
            "selection": self._selection,
            "transition": self._transition,
            "model": self._model,
            "failure": self._failure,
            "evidence": self._evidence,
            "verdict": self._verdict,
            "seed": self._seed,
            "aggregation": self._aggregation,
            "dispute": self._dispute,
            "awards": self._ending,
            "refund": self._ending,
            "stake_release": self._ending,
        }

    def feed(self, data: bytes) -> Taken:
        """Takes the next entry.

        Raises:
            ReplayError: it is malformed or does not follow from those before it.
        """
        index, entry_id = self.counts.entries, "unreadable"
        try:
            entry = self._computed(data)
            if entry is None:
                # Not checked to be canonical: every handler compares the bytes with those that it makes itself.
                entry = Entry.parse(data, canonical=False)
                entry_id = entry.id
                self._handle(entry)
            for transfer in entry.transfers:
                self.book.apply(transfer)
        except MechanismError as error:
            raise ReplayError(index, entry_id, str(error)) from None
        except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            reason = f"its body is malformed ({type(error).__name__}: {error})"
            raise ReplayError(index, entry_id, reason) from None
        self.counts.entries += 1
        return Taken(entry.id, entry.transfers)

    def open_tasks(self) -> dict[str, str]:
        """Tasks that have not ended, and their states."""
        return {name: str(task.state or "") for name, task in sorted(self._tasks.items())}

    def finish(self) -> None:
        """Raises ReplayError where the entries end inside what is written in one transaction."""
        if self._open is not None:
            what, name, missed = self._open.what, self._open.task_id, self._open.next
            reason = f"the {what} of {name} ends early: {missed} is missing"
            raise ReplayError(self.counts.entries, missed, reason)

    def _computed(self, data: bytes) -> Entry | None:
        """The next entry, where `data` are the bytes that what stands before it gives: no need to read them."""
        if self._open is None or not self._open.expected or self._open.expected[0].data != data:
            return None
        entry = self._open.expected.popleft()
        self._count(entry)
        return entry

    def _handle(self, entry: Entry) -> None:
        if self._open is not None:
            if self._open.expected:
                fault = _fault(entry, self._open.expected[0])
                raise _Wrong(f"in the {self._open.what} of {self._open.task_id}: {fault}")
            if entry.id not in self._open.then:
                raise _Wrong(
                    f"it interrupts the {self._open.what} of {self._open.task_id}; expected {self._open.next} here"
                )
        handler = self._handlers.get(entry.kind)
        if handler is None:
            raise _Wrong(f"the kind {entry.kind!r:.60} is unknown, or out of place here")
        handler(entry, entry.body)

    def _count(self, entry: Entry) -> None:
        counts, body = self.counts, entry.body
        if entry.kind == "verdict":
            counts.verdicts += 1
        elif entry.kind == "payment":
            counts.payments += 1
            counts.paid_micro += int(str(body["paid_micro"]))
        elif entry.kind == "award":
            counts.paid_micro += int(str(body["award_micro"]))

    def _begin(self, task: _Task, what: str, expected: Iterable[Entry], *then: str) -> None:
        self._open = _Transaction(task.id, what, deque(expected), then)

    def _begin_with(
        self, entry: Entry, task: _Task, what: str, expected: Sequence[Entry], *then: str
    ) -> None:
        """The same where `entry` is to be the first of those that are computed."""
        self._begin(task, what, expected, *then)
        self._handle_computed(entry)

    def _handle_computed(self, entry: Entry) -> None:
        assert self._open is not None
        if self._computed(entry.data) is None:
            self._handle(entry)

    # Participants

    def _enrolment(self, entry: Entry, body: Mapping[str, Any]) -> None:
        key = _public_key(body["public_key"])
        name = identifier("participant_id", body["participant_id"])
        _same(entry, events.enrolment(name, key))
        mark = fingerprint(events.public_key_bytes(key))
        if (revoked := self._revoked.get(mark)) is not None:
            raise _Wrong(f"this key was revoked before, as {revoked.owner}'s in entry {revoked.entry}")
        if entry.id in self._known_keys:
            raise _Wrong("this key was enrolled before")
        if (owner := self._owners.setdefault(mark, name)) != name:
            raise _Wrong(f"this key is enrolled as {owner}'s")
        self._known_keys.add(entry.id)
        self._extend_keys(entry)
        self._keys.setdefault(name, {})[mark] = key

    def _revocation(self, entry: Entry, body: Mapping[str, Any]) -> None:
        name, mark = body["participant_id"], body["fingerprint"]
        key = self._keys.get(name, {}).pop(mark, None)
        if key is None:
            raise _Wrong(f"{name} has no key {mark} to revoke")
        _same(entry, events.revocation(name, key, _text("reason", body["reason"])))
        self._extend_keys(entry)
        self._revoked[mark] = _Revoked(name, key, self.counts.entries)

    def _log_key(self, entry: Entry, body: Mapping[str, Any]) -> None:
        """Whether the heads are signed accordingly is for `verify` to see."""
        previous, following = (VerificationKey.parse(body[name]) for name in ("previous", "verification_key"))
        known = self._log_keys or [str(previous)]
        _same(entry, events.log_key(len(known), previous, following))
        if str(previous) != known[-1]:
            raise _Wrong(f"the log's key before this entry is {known[-1]}, not {previous}")
        if str(following) in known:
            raise _Wrong(f"the log had the key {following} before")
        self._log_keys = [*known, str(following)]

    def _extend_keys(self, entry: Entry) -> None:
        self.key_history = extended(self.key_history, self.counts.entries, entry.data)

    def _check_signature(self, name: str, message: bytes, signature: bytes) -> None:
        keys = self._keys.get(name, {})
        if keys and not self._check_statements:
            return
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
        if "terms" not in body:
            self._terms_part(entry, body)
            return
        terms = Terms.from_record(body["terms"])
        _same(entry, events.published(terms)[0])
        self._publish(terms)

    def _terms_part(self, entry: Entry, body: Mapping[str, Any]) -> None:
        """A part of terms that outgrow an entry; all of them are in the same transaction."""
        task_id, part, parts, pieces = body["task_id"], body["part"], body["parts"], self._publishing
        record = {key: body[key] for key in ("task_id", "part", "parts", "sha256", "data")}
        _same(entry, Entry(f"{task_id}/terms/{part}", "terms", record))
        first = pieces[0].body if pieces else body
        of_one = all(body[key] == first[key] for key in ("task_id", "parts", "sha256"))
        if not of_one or part != len(pieces) + 1 or not part <= parts <= events.MAX_TERMS_PARTS:
            raise _Wrong(f"part {part} of {parts} of the terms is out of place")
        pieces.append(entry)
        if part < parts:
            self._open = _Transaction(task_id, "opening", deque(), (f"{task_id}/terms/{part + 1}",))
            return
        terms = Terms.parse(events.joined([str(p.body["data"]) for p in pieces], body["sha256"]))
        _same_parts(pieces, events.published(terms))
        pieces.clear()
        self._publish(terms)

    def _publish(self, terms: Terms) -> None:
        name, rounds = terms.task_id, range(1, terms.schedule.rounds + 1)
        if name in self._tasks or name in self._ended:
            raise _Wrong(f"the task {name} has terms already")
        if terms.schedule.rounds > MAX_ROUNDS or terms.schedule.capacity > MAX_PARTICIPANTS:
            raise _Wrong(
                f"{terms.schedule.rounds} rounds of {terms.schedule.capacity} participants; a task has at most "
                f"{MAX_ROUNDS} of {MAX_PARTICIPANTS}"
            )
        least = least_budget_micro(terms)
        if terms.budget_micro < least:
            raise _Wrong(
                f"the budget of {terms.budget_micro} is below {least}: the maximal bill, and 1 for each round"
            )
        task = _Task(terms, terms.seed_commitment, _Round(0, terms.initial_model))
        task.unresolved.update(rounds)
        self._tasks[name] = task
        self.counts.tasks += 1
        self._begin(
            task, "opening", [events.reservation(terms, r) for r in rounds], _state_id(task, State.OPEN)
        )

    def _transition(self, entry: Entry, body: Mapping[str, Any]) -> None:
        task = self._task(body["task_id"])
        number, at, reason = body["round"], _text("at", body["at"]), _text("reason", body["reason"])
        if type(number) is not int:
            raise _Wrong(f"round is {number!r:.60}; expected an integer")
        _same(entry, events.transition(task.id, number, body["state"], at, reason))
        state = State(body["state"])
        check_step(task.terms.schedule, task.state, task.round.number, state, number, reason)
        if at and not _is_time(at):
            raise _Wrong(f"at is {at!r:.60}; expected a time such as 2026-11-27T22:30:00Z")
        if at and at < task.at:
            raise _Wrong(f"{state} is entered at {at}, before what came before it, at {task.at}")
        if self._open is None and state in _RESTS_ON:
            raise _Wrong(f"{state} is entered without {_RESTS_ON[state]}")
        if self._open is None and state.final and (left := self._left(task)):
            raise _Wrong(f"{state} is entered before the task has ended: {left[0].id} is missing")
        self._open = None
        task.state, task.at = state, at or task.at
        if state is State.SCORED:
            self._begin(task, "settlement", [], f"{task.id}/round/{number}/seed")
        elif state is State.TRAINING:
            last = task.round
            task.floors.append(max([task.floors[-1], *(sent.sequence for sent in last.models.values())]))
            task.round = _Round(number, last.result or last.start)
        elif state.final:
            del self._tasks[task.id]
            self._ended.add(task.id)

    # Statements

    def _claim(self, entry: Entry, body: Mapping[str, Any]) -> None:
        statement = ClaimStatement.from_record(body["statement"])
        task = self._task(statement.task_id)
        signature = bytes.fromhex(body["signature"])
        _same(entry, events.claim(statement, signature, self.key_history))
        name = statement.participant_id
        if task.state is not State.EFFORT:
            raise _Wrong(f"a claim in {task.state}; claims are taken in EFFORT")
        if name in task.claims:
            raise _Wrong(f"{name} has claimed before")
        if len(task.claims) >= task.terms.schedule.capacity:
            raise _Wrong(f"all {task.terms.schedule.capacity} places of the task are taken")
        if statement.counts is not None:
            degree = noniid_degree(statement.counts, task.terms.reference)
            if degree != statement.degree:
                raise _Wrong(f"{name} claims {statement.degree} with open counts, which give {degree}")
        self._check_statement(task, statement)
        self._check_signature(name, statement.canonical, signature)
        task.claims[name] = _Claim(
            degree=statement.degree,
            commitment=statement.counts_commitment,
            nonce=statement.nonce,
            draw_head=statement.draw_head,
            share=statement.draw_head,
        )

    def _model(self, entry: Entry, body: Mapping[str, Any]) -> None:
        statement = ModelStatement.from_record(body["statement"])
        task = self._task(statement.task_id)
        signature, sequence, late = bytes.fromhex(body["signature"]), body["sequence"], body["late"]
        if type(late) is not bool or type(sequence) is not int:
            raise _Wrong("late is no boolean, or sequence no integer")
        _same(entry, events.model(statement, signature, sequence, late, self.key_history))
        name, number, most = statement.participant_id, statement.round, task.terms.contract.max_bytes
        if name not in task.chosen:
            raise _Wrong(f"{name} was not selected to train")
        if statement.nonce != task.claims[name].nonce:
            raise _Wrong(f"the nonce is not the one of {name}'s claim in this task")
        if statement.model_bytes > most:
            raise _Wrong(f"the model has {statement.model_bytes} bytes; the contract allows {most}")
        if number > task.round.number:
            raise _Wrong(f"a model of round {number} in round {task.round.number}")
        if (number, name) in task.delivered:
            raise _Wrong(f"{name} has a model in round {number} already")
        if sequence in task.sequences or sequence <= task.floors[number]:
            raise _Wrong(
                f"the sequence {sequence} is taken, or not above {task.floors[number]}, "
                "the last before the round began"
            )
        self._check_statement(task, statement)
        self._check_signature(name, statement.canonical, signature)
        self._check_share(task, name, number, statement.draw_share)
        task.delivered.add((number, name))
        task.sequences.add(sequence)
        if not late:
            if task.state is not State.TRAINING or number != task.round.number:
                raise _Wrong("a model outside its round's training that is not marked late")
            task.round.models[name] = _Model(
                statement.model_sha256, statement.samples, sequence, statement.draw_share
            )

    def _check_share(self, task: _Task, name: str, round_: int, share: bytes) -> None:
        """That a model has its round's share of the chain that its claim commits to."""
        claim = task.claims[name]
        # A late model's is counted from the head, to which its way is the shorter one.
        newer = round_ > claim.share_round
        known, steps = (claim.share, round_ - claim.share_round) if newer else (claim.draw_head, round_)
        if not share_fits(share, steps, known):
            raise _Wrong(
                f"the draw share {share.hex()} of {name} in round {round_} is not of the chain whose head "
                f"{claim.draw_head.hex()} its claim has"
            )
        if newer:
            claim.share, claim.share_round = share, round_

    def _check_statement(self, task: _Task, statement: Statement) -> None:
        if statement.terms_digest != task.terms.digest:
            raise _Wrong("the statement is about other terms than the task's")
        self._take_submission(task, statement.participant_id, statement.submission_id)

    def _take_submission(self, task: _Task, name: str, submission_id: str) -> None:
        submission = f"{name}/{submission_id}"
        if submission in task.submissions:
            raise _Wrong(f"the submission id {submission} was used before")
        task.submissions.add(submission)

    def _failure(self, entry: Entry, body: Mapping[str, Any]) -> None:
        task, name, reason = self._task(body["task_id"]), body["participant_id"], body["reason"]
        submission = identifier("submission_id", body["submission_id"])
        _same(entry, events.failure(task.id, task.round.number, name, submission, _text("reason", reason)))
        if task.state is not State.TRAINING:
            raise _Wrong(f"a failure in {task.state}; failures are taken in TRAINING")
        if name not in task.chosen:
            raise _Wrong(f"{name} was not selected, so it has nothing to fail at")
        self._check_standing(name)
        if name in task.round.failures:
            raise _Wrong(f"{name} has reported a failure in this round already")
        self._take_submission(task, name, submission)
        task.round.failures[name] = reason

    def _selection(self, entry: Entry, body: Mapping[str, Any]) -> None:
        task = self._task(body["task_id"])
        if task.state is not State.EFFORT:
            raise _Wrong(f"a selection in {task.state}; expected in EFFORT")
        if self._incomplete(entry, body, task, "selection", f"{task.id}/selection"):
            return
        everyone, schedule = sorted(task.claims), task.terms.schedule
        standing = [name for name in everyone if self._keys.get(name)]
        made = events.selection_entries(task.id, standing)
        chosen = standing if [e.data for e in task.parts] == [e.data for e in made] else everyone
        _same_parts(task.parts, events.selection_entries(task.id, chosen))
        if len(chosen) < schedule.quorum:
            raise _Wrong(f"{len(chosen)} are selected, fewer than the quorum of {schedule.quorum}")
        task.parts.clear()
        task.selected, task.chosen = chosen, set(chosen)
        self._begin(task, "selection", [], _state_id(task, State.SELECTED))

    def _incomplete(self, entry: Entry, body: Mapping[str, Any], task: _Task, what: str, prefix: str) -> bool:
        """Whether an entry is not the last of its parts; then the next one must follow."""
        task.parts.append(entry)
        part = body["part"]
        if type(part) is not int or part != len(task.parts) or part > body["parts"]:
            raise _Wrong(f"part {part!r:.60} of a {entry.kind} is out of place")
        if part == body["parts"]:
            return False
        self._begin(task, what, [], f"{prefix}/{part + 1}")
        return True

    # Evidence, verdicts, settlement

    def _evidence(self, entry: Entry, body: Mapping[str, Any]) -> None:
        task = self._task(body["task_id"])
        if not needs_evidence(task.terms.rule.name):
            raise _Wrong(f"evidence under the rule {task.terms.rule.name}, which pays without")
        if task.state is not State.TRAINING:
            raise _Wrong(f"evidence in {task.state}; expected in TRAINING, before its verdicts")
        prefix = f"{task.id}/round/{task.round.number}/evidence"
        if self._incomplete(entry, body, task, "settlement", prefix):
            return
        record = parse_canonical(
            events.joined([str(one.body["data"]) for one in task.parts], str(body["sha256"]))
        )
        _same_parts(task.parts, events.evidence_entries(task.id, task.round.number, record))
        task.parts.clear()
        found = self._assessed(record, task)
        self.counts.degrees += sum(assessment.scored for assessment in found.values())
        self._judge(task, found)

    def _assessed(self, record: Mapping[str, Any], task: _Task) -> dict[str, Assessment]:
        """The verdicts that a round's evidence gives, once it is seen to be about this round's statements."""
        model = EvidenceModel.from_record(record["model"])
        measurements = [Measurement.from_record(item) for item in record["measurements"]]
        measurements.sort(key=lambda m: m.participant_id)
        if canonical_bytes(
            {"model": model.record(), "measurements": [m.record() for m in measurements]}
        ) != canonical_bytes(record):
            raise _Wrong("the evidence has fields that its form does not know, or is out of order")
        current = task.round
        if any(
            type(v) is not int
            for v in (model.round, *(n for m in measurements for n in (m.order, m.samples)))
        ):
            raise _Wrong("a round, an order or a number of samples of the evidence is no integer")
        if model.round != current.number:
            raise _Wrong(f"the evidence is of round {model.round}")
        if model.degree.reference != task.terms.reference:
            raise _Wrong("the evidence is against another reference distribution than the terms'")
        if model.validation_sha256 != task.terms.validation_commitment.hex():
            raise _Wrong("the evidence was measured on another validation set than the terms commit to")
        if model.start_sha256 != current.start.hex():
            raise _Wrong("the evidence is about another model than the one that the round began from")
        if not _DIGEST.fullmatch(model.shadows_sha256):
            raise _Wrong("the digest of the evidence's shadow models is none")
        if task.shadows.setdefault(model.shadows_sha256, current.start) != current.start:
            raise _Wrong("the evidence rests on the shadow models of a round that began from another model")
        names = [m.participant_id for m in measurements]
        if names != sorted(current.models):
            differing = ", ".join(sorted(set(names) ^ current.models.keys())) or "one is measured twice"
            raise _Wrong(f"the evidence and the models in time are not of the same participants: {differing}")
        for m in measurements:
            sent = current.models[m.participant_id]
            stated = sent.digest.hex(), task.claims[m.participant_id].degree, sent.samples
            if (m.model_sha256, m.claimed_degree, m.samples) != stated:
                raise _Wrong(
                    f"the evidence on {m.participant_id} is about another model, claim or sample count "
                    "than it signed"
                )
            if m.order != sent.sequence:
                raise _Wrong(
                    f"the evidence gives the model of {m.participant_id} the place {m.order} in the order of "
                    f"commitments; its entry says {sent.sequence}"
                )
        return {assessment.participant_id: assessment for assessment in assess(model, measurements)}

    def _verdict(self, entry: Entry, body: Mapping[str, Any]) -> None:
        """The first verdict of a round whose rule pays without evidence; all others are expected."""
        task = self._task(body["task_id"])
        if task.state is not State.TRAINING:
            raise _Wrong(f"a verdict in {task.state}; expected in TRAINING")
        if needs_evidence(task.terms.rule.name):
            raise _Wrong(
                f"a verdict without evidence; under the rule {task.terms.rule.name} every model in time is measured"
            )
        self._judge(
            task,
            {
                name: as_claimed(name, sent.digest, task.claims[name].degree)
                for name, sent in task.round.models.items()
            },
        )
        self._handle_computed(entry)

    def _judge(self, task: _Task, found: Mapping[str, Assessment]) -> None:
        """The verdicts on everyone selected come next."""
        current = task.round
        check_quorum(task.terms.schedule, len(current.models))
        current.verdicts = {
            name: found.get(name) or missing(name, task.claims[name].degree, current.failures.get(name))
            for name in task.selected
        }
        expected = [events.verdict(task.id, current.number, a) for a in current.verdicts.values()]
        self._begin(task, "settlement", expected, _state_id(task, State.SCORED))

    def _seed(self, entry: Entry, body: Mapping[str, Any]) -> None:
        task = self._task(body["task_id"])
        if task.state is not State.SCORED:
            raise _Wrong(f"a seed in {task.state}; expected in SCORED")
        number, seed = task.round.number, bytes.fromhex(body["seed"])
        check_round_seed(seed, task.seed)
        stakes = {name: self.book.holds(stake(task.id, name)) for name in task.selected}
        judged, private = list(task.round.verdicts.values()), task.private
        disputable = disputes_possible(task.terms, private)
        draw = Draw(seed, {name: sent.share for name, sent in task.round.models.items()})
        settlement, expected = events.settlement_entries(
            task.terms, number, draw, judged, stakes, disputable, self.key_history
        )
        if disputable and events.kept_micro(task.terms, number, settlement):
            task.kept[number] = _disputable(settlement, task.round.verdicts, private)
        task.seed = seed
        task.unresolved.discard(number)
        self.counts.settlements += 1
        self._begin_with(entry, task, "settlement", expected, f"{task.id}/round/{number}/aggregate")

    def _aggregation(self, entry: Entry, body: Mapping[str, Any]) -> None:
        task = self._task(body["task_id"])
        if self._open is None:
            raise _Wrong("an aggregation outside a settlement")
        current, digest = task.round, bytes.fromhex(body["model_sha256"])
        _same(entry, events.aggregation(task.id, current.number, digest, _figures(body["figures"])))
        if len(digest) != 32:
            raise _Wrong("the global model's digest has a wrong length")
        if digest != current.start and not any(a.scored for a in current.verdicts.values()):
            raise _Wrong("the global model has changed in a round in which no model was scored")
        current.result = digest
        self._begin(task, "settlement", [], _state_id(task, State.SETTLED))

    # Disputes and end

    def _dispute(self, entry: Entry, body: Mapping[str, Any]) -> None:
        task, name = self._task(body["task_id"]), body["participant_id"]
        salt = bytes.fromhex(body["salt"])
        _same(entry, events.dispute(task.id, name, body["counts"], salt))
        if name not in task.private or name in task.disputes:
            raise _Wrong(f"{name} has no private counts to open, or has opened them before")
        self._check_standing(name)
        if not disputes_possible(task.terms, [name]):
            raise _Wrong("a dispute where the terms allow none")
        if len(task.unresolved) == task.terms.schedule.rounds:
            raise _Wrong("a dispute before a settlement")
        claim = task.claims[name]
        check_opening(task.terms, claim.commitment, claim.degree, body["counts"], salt)
        task.disputes.add(name)

    def _ending(self, entry: Entry, body: Mapping[str, Any]) -> None:
        """The first entry of what ends a task; all others are expected."""
        task = self._task(body["task_id"])
        states = [_state_id(task, state) for state in (State.CLOSED, State.CANCELLED)]
        self._begin_with(entry, task, "end", self._left(task), *states)

    def _left(self, task: _Task) -> list[Entry]:
        """What must stand before the task's last transition."""
        awards: list[Entry] = []
        for number, kept in sorted(task.kept.items()):
            lines = {
                name: review(task.terms, about.subject, about.peers, about.paid_micro).award_micro
                for name, about in kept.items()
                if name in task.disputes
            }
            awards += events.award_entries(task.terms, number, lines)
        stakes = {name: self.book.holds(stake(task.id, name)) for name in task.claims}
        number = task.round.number
        return events.ending_entries(task.id, number, State.CLOSED, task.unresolved, stakes, awards=awards)[
            :-1
        ]

    def _task(self, name: str) -> _Task:
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


def _state_id(task: _Task, state: State) -> str:
    """Id of the transition to `state` in the current round."""
    return events.transition_id(task.id, task.round.number, state)


def _figures(record: Any) -> Mapping[str, str]:
    """Accuracy and loss of a global model, or none of them."""
    if record and (record.keys() != {"accuracy", "loss"} or not all(type(v) is str for v in record.values())):
        raise _Wrong("the figures of a global model are accuracy and loss, decimal strings, or none")
    if record:
        accuracy = record["accuracy"]
        if not PLAIN_DECIMAL.fullmatch(accuracy) or not 0 <= Decimal(accuracy) <= 1:
            raise _Wrong(f"the accuracy is {accuracy:.60}; expected a decimal in [0, 1]")
    return dict(record)


def _is_time(text: str) -> bool:
    try:
        return _TIME.fullmatch(text) is not None and datetime.fromisoformat(text) is not None
    except ValueError:
        return False


def _text(field_: str, value: Any) -> str:
    if type(value) is not str:
        raise _Wrong(f"{field_} is {value!r:.60}; expected a string")
    return value


def _same(entry: Entry, expected: Entry) -> None:
    """Raises unless both have the same bytes; names the first difference."""
    if fault := _fault(entry, expected):
        raise _Wrong(fault)


def _same_parts(found: Sequence[Entry], expected: Sequence[Entry]) -> None:
    """The same of what was cut into parts."""
    if len(found) != len(expected):
        raise _Wrong(f"{len(found)} parts; what they say together makes {len(expected)}")
    for one, other in zip(found, expected, strict=True):
        _same(one, other)


def _fault(entry: Entry, expected: Entry) -> str:
    """The first difference; empty where both have the same bytes."""
    if entry.data == expected.data:
        return ""
    if entry.id != expected.id or entry.kind != expected.kind:
        return f"expected the {expected.kind} {expected.id} here"
    found, wanted = parse_canonical(entry.data), parse_canonical(expected.data)
    return _difference("", found, wanted) or "it is not the entry that the logged inputs give"


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
