"""What the entries so far have made: tasks, keys, accounts, and the transaction that is not complete."""

import re
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from fractions import Fraction
from math import inf
from typing import Any, NamedTuple

from cryptography.hazmat.primitives.asymmetric import ec

from mechanism.canonical import canonical_digest
from mechanism.degree_map import DegreeMap
from mechanism.ledger import entries as events
from mechanism.ledger.accounts import Book
from mechanism.ledger.entry import Entry
from mechanism.ledger.key_history import NO_KEYS
from mechanism.ledger.merkle import leaf_hash
from mechanism.ledger.openings import KINDS, subject_of
from mechanism.ledger.replay.comparing import Wrong, same
from mechanism.lifecycle import State
from mechanism.peers import Meetings
from mechanism.price import Price
from mechanism.settlement import Assessment, Outcome
from mechanism.statements import RemeasurementStatement, measured_after
from mechanism.terms import Terms

#: A time, in the one form that it has.
_TIME = re.compile("[0-9]{4}-[0-9]{2}-[0-9]{2}T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]Z")


@dataclass(slots=True)
class Claim:
    """An effort claim.

    Attributes:
        degree: as claimed; None where the claim is not opened.
        samples_root: commitment to the samples; empty where the terms have no audits.
        share, share_round: the last draw share that was checked, and its round: what the next one is checked
            against, in few steps.
    """

    degree: Fraction | None
    counts_commitment: bytes
    nonce: bytes
    draw_head: bytes
    share: bytes
    share_round: int = 0
    samples_root: bytes = b""


class Model(NamedTuple):
    """A model in time; `samples` is None where they are not opened."""

    digest: bytes
    samples: int | None
    sequence: int
    share: bytes


class Computed(NamedTuple):
    """What opened evidence gives of one model.

    Attributes:
        whole: all measurements of the round are opened; else what it has in common with others is not known.
    """

    assessment: Assessment
    whole: bool


@dataclass(slots=True)
class Disputable:
    """What a dispute of one participant about one settled round rests on; without `subject` it is not opened."""

    subject: Assessment | None
    peers: list[Outcome]
    paid_micro: int


@dataclass(slots=True)
class Awarding:
    """The awards of one round.

    Attributes:
        left_micro: of their total, not awarded yet.
        waiting: who may still have one, in id order, with what their disputes rest on.
    """

    number: int
    left_micro: int
    waiting: dict[str, Disputable]


@dataclass(slots=True)
class Audited:
    """A submission whose audit is pending.

    Attributes:
        start: digest of the model that its round began from.
        degree: the round's map from features to the degree, and submitted_micro what it gives of the submission; None
            where they are not opened.
        verified_micro: at most so much is that degree, by the verdict.
        question_micro: of the round's pay, what is in question.
        stage: "open", "failed" or "appealed": what is awaited is an audit, an appeal, or the audit after one.
        since: when its time began; None before the round is settled.
    """

    start: bytes
    degree: DegreeMap | None
    submitted_micro: int | None
    verified_micro: int
    question_micro: int
    stage: str = "open"
    since: int | None = None


@dataclass(slots=True)
class Remeasurement:
    """What an auditor may measure again of a task, and what was said of that.

    Attributes:
        terms, auditor: digest of the terms, and the auditor's key.
        digest: of the entries (`mechanism.statements.measured_after`).
        rounds, submissions: settled rounds, and models in time in them.
        statements: how many there are; at: time of the task's end, or of the last of them.
    """

    terms: bytes
    auditor: bytes
    digest: bytes = bytes(32)
    rounds: int = 0
    submissions: int = 0
    statements: int = 0
    at: int = 0

    def take(self, entry: Entry) -> None:
        """One more entry of the task's evidence."""
        self.digest = measured_after(self.digest, leaf_hash(entry.data))


@dataclass(slots=True)
class RoundState:
    """What has been logged of one round.

    Attributes:
        start: digest of the model that it begins from.
        models: those in time; failures: what participants said, by name.
        closed: whether both are complete.
        evidence: whether its entry is there; computed: what its openings give, as far as they are at hand.
        degree: the opened evidence's map from features to the degree; shown: the degrees that it gives of submissions,
            millionths. Kept where the terms have audits.
        verdicts: those so far; assessments: those of them that are opened.
        result: the model that the next round begins from.
    """

    number: int
    start: bytes
    models: dict[str, Model] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    closed: bool = False
    evidence: bool = False
    computed: dict[str, Computed] = field(default_factory=dict)
    degree: DegreeMap | None = None
    shown: dict[str, int] = field(default_factory=dict)
    verdicts: dict[str, Outcome] = field(default_factory=dict)
    assessments: dict[str, Assessment] = field(default_factory=dict)
    result: bytes = b""


@dataclass(slots=True)
class TaskState:
    """An open task.

    Attributes:
        seed: the last one that was revealed; at first the terms' commitment.
        round: the current one; number 0 before the first.
        starts: digests of the models that the rounds before it began from, in order.
        floors: of every round so far, the latest commitment among the models in time of the rounds before.
        shadows: that were trained for the rounds so far.
        parts: of a selection or a closing that is not complete.
        at: when it entered its state, or closed its round; seconds since the epoch.
        delivered: (round, participant) of every model, late ones included.
        sequences: places of commitments that are taken.
        unresolved: rounds whose reservation is neither settled nor refunded.
        server_state: digest of the state of the server's optimiser; None where it has none, or none yet.
        disputes: those who have opened their counts; kept: what they rest on, by round, until their awards begin.
        awarding: the round whose awards are being read, where one is.
        meetings: who has been scored against whom.
        organisations: claims of each, by its mark in this task.
        audits: those that are pending, by round and participant; convicted: who has failed one for good.
        measured: where the terms name who may measure the task again.
        owners: whose pseudonyms are, as far as that is opened, by owner.
    """

    terms: Terms
    seed: bytes
    round: RoundState
    measured: Remeasurement | None = None
    owners: dict[str, str] = field(default_factory=dict)
    starts: list[bytes] = field(default_factory=list)
    floors: list[int] = field(default_factory=lambda: [0])
    shadows: int = 0
    parts: list[Entry] = field(default_factory=list)
    state: State | None = None
    at: float = -inf
    claims: dict[str, Claim] = field(default_factory=dict)
    selected: list[str] = field(default_factory=list)
    chosen: set[str] = field(default_factory=set)
    submissions: set[str] = field(default_factory=set)
    delivered: set[tuple[int, str]] = field(default_factory=set)
    sequences: set[int] = field(default_factory=set)
    unresolved: set[int] = field(default_factory=set)
    server_state: bytes | None = None
    disputes: set[str] = field(default_factory=set)
    kept: dict[int, dict[str, Disputable]] = field(default_factory=dict)
    awarding: Awarding | None = None
    meetings: Meetings = field(default_factory=Meetings)
    organisations: Counter[bytes] = field(default_factory=Counter)
    audits: dict[tuple[int, str], Audited] = field(default_factory=dict)
    convicted: set[str] = field(default_factory=set)

    @property
    def id(self) -> str:
        return self.terms.task_id

    @property
    def collecting(self) -> bool:
        """Whether models of the current round are in time, and failures are taken."""
        return self.state is State.TRAINING and not self.round.closed

    def waited(self, at: str) -> float:
        """Seconds from `self.at` to `at`; raises Wrong where they are negative."""
        waited = moment(at) - self.at
        if waited < 0:
            raise Wrong(f"at is {at}, before what came before it, at {events.timestamp(self.at)}")
        return waited

    def state_id(self, state: State) -> str:
        """Id of the transition to `state` in the current round."""
        return events.transition_id(self.id, self.round.number, state)


@dataclass(slots=True)
class PayoutState:
    """A payout run.

    Attributes:
        at: when it began, or ended; seconds since the epoch.
        parts: of its list, while that is not complete.
        lines: micro-credits by participant; once it is confirmed, of those whose payment did not come back.
    """

    number: int
    at: int
    parts: list[Entry] = field(default_factory=list)
    lines: dict[str, int] = field(default_factory=dict)

    @property
    def id(self) -> str:
        return f"payout/{self.number}"


@dataclass(slots=True)
class PendingTransaction:
    """Entries that a coordinator writes together, begun and not yet complete.

    Attributes:
        what: "opening", "selection", "closing", "settlement", "end", "run" or "end of the run".
        expected: computed entries that come next.
        then: ids of which one comes after them; none: it is complete with them.
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
    """What was checked.

    Attributes:
        commitments: how many entries commit to an opening, by kind; opened: of how many it was at hand, and is right.
        degrees: verified degrees that the opened evidence gives; reviews: awards of disputes, of which `reviewed` were
            computed again.
    """

    entries: int = 0
    tasks: int = 0
    statements: int = 0
    verdicts: int = 0
    degrees: int = 0
    settlements: int = 0
    payments: int = 0
    paid_micro: int = 0
    reviews: int = 0
    reviewed: int = 0
    commitments: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))
    opened: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))

    @property
    def unchecked(self) -> dict[str, int]:
        """Entries whose openings were not at hand, by kind, where there are any."""
        left = {kind: self.commitments[kind] - self.opened[kind] for kind in KINDS}
        return {kind: count for kind, count in left.items() if count}


@dataclass(frozen=True, slots=True)
class RevokedKey:
    """A revoked key: whose it was, and the entry that revoked it."""

    owner: str
    key: ec.EllipticCurvePublicKey
    entry: int


@dataclass(slots=True)
class World:
    """Everything.

    Attributes:
        check_signatures: whether the signatures of statements are checked.
        openings: those that are at hand, by entry id; the ones that are met are taken out.
        reader: the participant whose they are; None: they are meant to be all. own: the ids of entries with an opening
            that are about it, or about nobody alone, by task, each with whether its opening is at hand.
        tasks: those that have not ended; ended: the names of the others.
        retained: of ended tasks that promise to delete what was submitted, and have not, from when on they may; seconds
            since the epoch.
        measured: of ended tasks that an auditor may measure again; remeasured: what it has said last of those that it
            has.
        pseudonyms: names that take part in one task alone, with that task.
        pieces: parts of terms that are not whole yet; they are published in one transaction.
        transaction: the one that is not complete.
        keys: those that count, by participant and fingerprint; enrolled: ids of all enrolments.
        owners: whose each key is that was ever enrolled, by fingerprint: a key has one name.
        revoked: by fingerprint.
        key_history: its digest.
        log_keys: those that sign the heads, oldest first; empty before the first change.
        seeds: every commitment and every revealed seed of all tasks.
        shadows: digests of shadow sets, and the model that they were trained from.
        price: of a credit, once terms have said it.
        funded: ids of all deposits and withdrawals.
        runs: how many payout runs there were; run: the one that has not ended; confirmed: those that were paid.
    """

    check_signatures: bool = True
    openings: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    reader: str | None = None
    own: dict[str, dict[str, bool]] = field(default_factory=dict)
    book: Book = field(default_factory=Book)
    counts: Counts = field(default_factory=Counts)
    tasks: dict[str, TaskState] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)
    retained: dict[str, int] = field(default_factory=dict)
    measured: dict[str, Remeasurement] = field(default_factory=dict)
    remeasured: dict[str, RemeasurementStatement] = field(default_factory=dict)
    pseudonyms: dict[str, str] = field(default_factory=dict)
    pieces: list[Entry] = field(default_factory=list)
    transaction: PendingTransaction | None = None
    keys: dict[str, dict[str, ec.EllipticCurvePublicKey]] = field(default_factory=dict)
    enrolled: set[str] = field(default_factory=set)
    owners: dict[str, str] = field(default_factory=dict)
    revoked: dict[str, RevokedKey] = field(default_factory=dict)
    key_history: bytes = NO_KEYS
    log_keys: list[str] = field(default_factory=list)
    seeds: set[bytes] = field(default_factory=set)
    shadows: dict[str, bytes] = field(default_factory=dict)
    price: Price | None = None
    funded: set[str] = field(default_factory=set)
    runs: int = 0
    run: PayoutState | None = None
    confirmed: dict[int, PayoutState] = field(default_factory=dict)

    def task(self, name: str) -> TaskState:
        """The open task of that name."""
        task = self.tasks.get(name)
        if task is None:
            ended = "has ended" if name in self.ended else "has no terms"
            raise Wrong(f"the task {name!r:.80} {ended}")
        return task

    def begin(self, task_id: str, what: str, expected: Iterable[Entry], *then: str) -> None:
        """What comes next: `expected` in order, and after them the entry with one of the ids `then`."""
        self.transaction = PendingTransaction(task_id, what, deque(expected), then)

    def begin_with(
        self, entry: Entry, task_id: str, what: str, expected: Sequence[Entry], *then: str
    ) -> None:
        """The same where `entry` is to be the first of `expected`."""
        if not expected:
            raise Wrong(f"nothing comes before {then[0]} in the {what} of {task_id}")
        same(entry, expected[0], f"in the {what} of {task_id}: ")
        self.count(entry)
        self.begin(task_id, what, expected[1:], *then)

    def part(self, entry: Entry, task: TaskState | PayoutState, what: str, prefix: str) -> bool:
        """Takes one of the parts of a selection, a closing, evidence or a run.

        Returns:
            whether it is the last; else the next one must follow.
        """
        task.parts.append(entry)
        body: Mapping[str, Any] = entry.body
        part, parts = body["part"], body["parts"]
        if part != len(task.parts) or part > parts:
            raise Wrong(f"part {part!r:.60} of a {entry.kind} is out of place")
        if part < parts:
            self.begin(task.id, what, [], f"{prefix}/{part + 1}")
        return bool(part == parts)

    def opened(self, entry: Entry, commitment: bytes) -> Mapping[str, Any] | None:
        """The opening of an entry, once it is seen to be the one that the entry commits to; None where it is not at
        hand."""
        self.counts.commitments[entry.kind] += 1
        opening = self.openings.pop(entry.id, None)
        if self.reader is not None:
            task_id, _, whose = subject_of(entry.id)
            if whose in (self.reader, ""):
                self.own.setdefault(task_id, {})[entry.id] = opening is not None
            elif opening is not None:
                raise Wrong(
                    f"its opening is about {whose}; the openings are said to be those of {self.reader}"
                )
        if opening is None:
            return None
        if canonical_digest(opening) != commitment:
            raise Wrong(f"its opening is not the one that it commits to by {commitment.hex()}")
        self.counts.opened[entry.kind] += 1
        return opening

    def count(self, entry: Entry) -> None:
        """Counts a computed entry."""
        if entry.kind == "payment":
            self.counts.payments += 1
            self.counts.paid_micro += int(str(entry.body["paid_micro"]))


def moment(at: str) -> int:
    """The seconds since the epoch of a time as entries have it."""
    try:
        if _TIME.fullmatch(at):
            return int(datetime.fromisoformat(at).timestamp())
    except ValueError:
        pass  # no such day
    raise Wrong(f"at is {at!r:.60}; expected a time such as 2026-11-27T22:30:00Z")
