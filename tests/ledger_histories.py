"""A coordinator on paper that writes whatever its caller says, through the code that makes entries.

`Log` is the log with its accounts, `History` one task in it. Given the truth, they write what the service would. Given
a lie, they compute everything that follows from it as an operator with the log's key would: later settlements, stakes,
tree and heads are those of the lie.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from fractions import Fraction
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec

from mechanism.audit import ENDS, FAILED, UNAPPEALED, Audit
from mechanism.audit_verdict import AuditVerdict, judge
from mechanism.degree_map import DegreeMap
from mechanism.dispute import disputes_possible, review
from mechanism.evidence import EvidenceModel, Measurement, assess
from mechanism.ledger import entries
from mechanism.ledger.accounts import Book, held, payable, stake
from mechanism.ledger.audit_entries import (
    AuditFindings,
    appeal,
    audit_end,
    held_entries,
    question_micro,
    remeasurement,
)
from mechanism.ledger.entry import Entry
from mechanism.ledger.merkle import leaf_hash
from mechanism.lifecycle import State
from mechanism.peers import Draw, Meetings, draw_head, draw_share, round_seed
from mechanism.price import Price
from mechanism.server_step import Aggregation, FedAdam, FedAvg, FedAvgM, FedYogi
from mechanism.settlement import Assessment, RoundSettlement
from mechanism.statements import (
    AuditStatement,
    ClaimOpening,
    ClaimStatement,
    ModelOpening,
    ModelStatement,
    RemeasurementStatement,
    commit_counts,
    measured_after,
    sign_statement,
)
from mechanism.terms import Terms
from mechanism.unmeasured import as_claimed, missing
from tests import ledger_samples as samples
from tests.ledger_samples import private_key

SALT = bytes(range(32))

#: Everybody is audited; who has 0.1 more after re-training has failed.
AUDIT = Audit(
    auditor=entries.public_key_bytes(private_key("auditor").public_key()),
    probability=Fraction(1),
    rate=Fraction(1, 10),
    held_back=Decimal("0.25"),
    seconds=3_600,
    appeal_seconds=600,
)
DIFFERENCES = (10_000, -20_000, 60_000, 5_000, -1_000, 30_000, 0, 2_000, -45_000, 12_000)


class Log:
    """Entries, and what the accounts hold after them."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.keys = samples.NO_KEYS
        self.book = Book()
        self.seconds = 0
        self.runs: dict[int, dict[str, int]] = {}

    def write(self, *recorded: Entry) -> None:
        """Each with the digest of the key history that belongs in it."""
        for entry in samples.stamped(recorded, self.keys, len(self.entries)):
            for transfer in entry.transfers:
                self.book.apply(transfer)
            self.keys = samples.keys_after([entry], self.keys, len(self.entries))
            self.entries.append(entry)

    def enrol(self, name: str, key: ec.EllipticCurvePrivateKey | None = None) -> None:
        self.write(entries.enrolment(name, (key or private_key(name)).public_key()))

    def revoke(self, name: str) -> None:
        self.write(entries.revocation(name, private_key(name).public_key(), "laptop stolen"))

    def deposit(self, learner: str, micro: int, reference: str = "bank-1") -> None:
        self.write(entries.deposit(learner, reference, micro, self.now()))

    def free(self, name: str) -> int:
        """What a participant is owed and no run has reserved."""
        return self.book.balance(payable(name)).free

    def pay_out(self, number: int, price: Price, who: Iterable[str]) -> None:
        """A run of what they are owed."""
        made = entries.payout_entries(number, self.now(), price, {name: self.free(name) for name in who})
        self.runs[number] = {
            str(e.body["participant_id"]): int(str(e.body["micro"])) for e in made if e.kind == "payout_line"
        }
        self.write(*made)

    def end_run(self, number: int, outcome: str = entries.CONFIRMED, reason: str = "") -> None:
        self.write(*entries.payout_end_entries(number, self.now(), outcome, reason, self.runs[number]))

    def return_payment(self, number: int, name: str) -> None:
        micro = self.runs[number][name]
        self.write(entries.payout_return(number, name, self.now(), "the account is closed", micro))

    def now(self) -> str:
        """A second later at each call."""
        self.wait(1)
        return entries.timestamp(samples.BEGUN + self.seconds)

    def wait(self, seconds: int) -> None:
        self.seconds += seconds


@dataclass(frozen=True)
class Shape:
    """What a sound task is like.

    Attributes:
        refuted: round to who shows more than it claimed.
        absent: round to who sends nothing, and what it says why.
        gone: rounds that are closed before their time, since those who are awaited are absent.
        late: (round, name) of models that come after their round.
        private: who claims 0.02 less than it shows, and opens its counts after the last round; where there is nobody,
            the terms allow no disputes.
        unscored: rounds in which nobody is scored.
        copied: round to who sends whose model again; echoed: round to who sends the round's start back.
        cancelled: state and round in which the task is cancelled.
        aggregation: how the next start follows.
        peers: drawn for each.
        organisations: whose mark a claim carries; identities: of one that the terms allow.
        audit: section of the terms.
        audits: round and name to what happens in turn, "passed" alone where nothing is said: "passed" or "failed" of an
            audit, "appeal", or how it ends (`mechanism.audit.ENDS`); none: it stays pending.
        auditor: whether the terms name one without audits; measured: how often it measures the ended task again, where
            they name one at all.
        pseudonyms: whether the terms ask for them: then all who claim have one, of an owner `clinic-<name>`.
        retention: seconds for which submitted models are kept, and then deleted; None: nothing is promised.
        price, funder: as in the terms. A funder deposits the budget before the opening.
    """

    task_id: str = "task"
    people: int = 4
    rounds: int = 2
    rule: str = "verified"
    stake_micro: int = 300_000
    refuted: Mapping[int, str] = field(default_factory=dict)
    absent: Mapping[int, Mapping[str, str | None]] = field(default_factory=dict)
    gone: frozenset[int] = frozenset()
    late: frozenset[tuple[int, str]] = frozenset()
    private: frozenset[str] = frozenset()
    unscored: frozenset[int] = frozenset()
    copied: Mapping[int, tuple[str, str]] = field(default_factory=dict)
    echoed: Mapping[int, str] = field(default_factory=dict)
    cancelled: tuple[State, int] | None = None
    aggregation: Aggregation = field(default_factory=FedAvg)
    peers: int = 1
    organisations: Mapping[str, bytes] = field(default_factory=dict)
    identities: int = 1
    audit: Audit | None = None
    audits: Mapping[tuple[int, str], Sequence[str]] = field(default_factory=dict)
    auditor: bool = False
    measured: int = 0
    pseudonyms: bool = False
    retention: int | None = None
    price: Price | None = None
    funder: str = ""


@dataclass(frozen=True)
class Chosen(Draw):
    """A draw of which somebody says what comes out.

    Attributes:
        chosen: peers by participant; everybody else's are drawn.
    """

    chosen: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def peers(self, participant_id: str, *given: Any, **more: Any) -> tuple[str, ...]:
        said = self.chosen.get(participant_id)
        return super().peers(participant_id, *given, **more) if said is None else tuple(said)


class History:
    """One task. Methods write; their arguments are the truth by default."""

    def __init__(self, log: Log, shape: Shape) -> None:
        plain = samples.terms(
            shape.task_id, shape.rounds, shape.people, stake_micro=shape.stake_micro, rule=shape.rule
        )
        schedule = replace(
            plain.schedule,
            dispute_seconds=60 if shape.private else 0,
            identities_per_organisation=shape.identities,
            retention_seconds=shape.retention,
        )
        self.log, self.shape = log, shape
        self.terms: Terms = replace(
            plain,
            schedule=schedule,
            aggregation=shape.aggregation,
            rule=replace(plain.rule, peers=shape.peers),
            price=shape.price,
            funder=shape.funder,
            audit=shape.audit,
            auditor=AUDIT.auditor if shape.auditor else b"",
            pseudonyms=shape.pseudonyms,
        )
        self.question: dict[tuple[int, str], int] = {}
        self.starts: dict[int, bytes] = {}
        self.shown: dict[tuple[int, str], int] = {}
        self.convicted: set[str] = set()
        self.degree_map: DegreeMap | None = None
        self.people = samples.names(shape.people)
        self.selected: list[str] = list(self.people)
        self.claimed: dict[str, Fraction] = {}
        self.round = 0
        self.closed = 0
        self.sequence = 0
        self.models: dict[int, dict[str, tuple[ModelStatement, int]]] = {}
        self.trained_on: dict[tuple[int, str], int] = {}
        self.said: dict[str, str] = {}
        self.start = self.terms.initial_model
        self.server_state: bytes | None = None
        self.result = self.start
        self.judged: list[Assessment] = []
        self.kept: dict[int, tuple[RoundSettlement, list[Assessment]]] = {}
        self.meetings = Meetings()
        self.disputed: list[str] = []
        self.unresolved = set(range(1, shape.rounds + 1))

    @property
    def id(self) -> str:
        return self.terms.task_id

    # Steps of a task

    def open(self) -> None:
        if self.terms.funder:
            self.log.deposit(self.terms.funder, self.terms.budget_micro, f"for-{self.id}")
        self.log.write(*entries.terms_entries(self.terms))
        self.enter(State.OPEN)

    def enter(self, state: State, reason: str = "", at: str | None = None, round_: int | None = None) -> None:
        number = self.round if round_ is None else round_
        self.log.write(
            entries.transition(self.id, number, state, self.log.now() if at is None else at, reason)
        )

    def name(self, name: str, owner: str = "") -> None:
        """Makes a pseudonym of an enrolled name."""
        named = entries.pseudonym_id(self.id, name)
        self.log.write(entries.pseudonym(self.id, name, owner or f"clinic-{name}", samples.salt(named)))

    def claim(self, name: str, **changes: Any) -> None:
        """Changes to the statement, and to what it commits to: `effort` and `degree`, or the `opening` itself."""
        shown = samples.degree(name) - (Fraction(2, 100) if name in self.shape.private else 0)
        opening = changes.pop("opening", None) or ClaimOpening(
            changes.pop("effort", Decimal("0.5")),
            changes.pop("degree", shown),
            samples.salt(f"{self.id}/claim/{name}"),
        )
        values: dict[str, Any] = {
            "submission_id": f"claim-{name}",
            "task_id": self.id,
            "terms_digest": self.terms.digest,
            "participant_id": name,
            "commitment": opening.digest,
            "counts_commitment": commit_counts(self.counts(name), SALT),
            "draw_head": draw_head(samples.share_secret(self.terms, name), self.terms.schedule.rounds),
            "nonce": self.nonce(name),
            "samples_root": b"" if self.terms.audit is None else self.root(name),
        }
        key = changes.pop("key", None) or private_key(name)
        statement = ClaimStatement(**{**values, **changes})
        self.claimed[name] = opening.degree
        mark = self.shape.organisations.get(name, b"")
        self.log.write(entries.claim(statement, sign_statement(statement, key), opening, organisation=mark))

    def root(self, name: str) -> bytes:
        """That a participant's claim commits to."""
        return hashlib.sha256(f"samples {name}".encode()).digest()

    def counts(self, name: str) -> tuple[int, int]:
        """Those behind a claim."""
        shown = samples.degree(name) - (Fraction(2, 100) if name in self.shape.private else 0)
        return 50 + int(shown * 100), 50 - int(shown * 100)

    def share(self, name: str, round_: int) -> bytes:
        """A participant's draw share; of a round that the task does not have, nothing that fits."""
        rounds = self.terms.schedule.rounds
        known = 1 <= round_ <= rounds
        return draw_share(samples.share_secret(self.terms, name), rounds, round_) if known else bytes(32)

    def nonce(self, name: str) -> bytes:
        return hashlib.sha256(f"{self.id}/{name}".encode()).digest()[:16]

    def select(self, who: Sequence[str] | None = None) -> None:
        self.selected = list(self.selected if who is None else who)
        if len(self.selected) < self.terms.schedule.capacity:
            self.log.wait(self.terms.schedule.effort_seconds)
        self.log.write(*entries.selection_entries(self.id, self.selected))
        self.enter(State.SELECTED)

    def train(self) -> None:
        """Opens the next round."""
        self.round += 1
        self.start = self.result
        self.models[self.round], self.said = {}, {}
        self.enter(State.TRAINING)

    def model(
        self,
        name: str,
        round_: int | None = None,
        late: bool = False,
        sequence: int | None = None,
        **changes: Any,
    ) -> None:
        """Changes to the statement, and to the `samples` that it commits to."""
        number = self.round if round_ is None else round_
        trained_on = changes.pop("samples", 10)
        opening = ModelOpening(trained_on, samples.salt(f"{self.id}/{number}/model/{name}"))
        values: dict[str, Any] = {
            "submission_id": f"model-{number}-{name}",
            "task_id": self.id,
            "terms_digest": self.terms.digest,
            "participant_id": name,
            "round": number,
            "model_sha256": samples.model_digest(self.id, number, name),
            "model_bytes": 64,
            "commitment": opening.digest,
            "draw_share": self.share(name, number),
            "nonce": self.nonce(name),
        }
        key = changes.pop("key", None) or private_key(name)
        statement = ModelStatement(**{**values, **changes})
        if sequence is None:
            self.sequence += 1
            sequence = self.sequence
        if not late:
            self.models.setdefault(number, {})[name] = statement, sequence
            self.trained_on[number, name] = trained_on
        self.log.write(entries.model(statement, sign_statement(statement, key), sequence, late, opening))

    def fail(self, name: str, reason: str, round_: int | None = None, submission: str | None = None) -> None:
        number = self.round if round_ is None else round_
        self.said[name] = reason
        self.log.write(
            entries.failure(self.id, number, name, submission or f"failure-{number}-{name}", reason)
        )

    def close(self, absent: Sequence[str] | None = None, at: str | None = None) -> None:
        """Fixes the models of the round, in time where nobody is called absent."""
        awaited = [n for n in self.selected if n not in self.models[self.round] and n not in self.said]
        if absent is None:
            absent = awaited if self.round in self.shape.gone else []
            self.log.wait(self.terms.schedule.round_seconds if awaited and not absent else 0)
        self.closed = self.round
        self.log.write(*entries.closing_entries(self.id, self.round, at or self.log.now(), absent))

    def evidence(self, who: Iterable[str] | None = None, **changes: Any) -> dict[str, Any]:
        """The record of the round's evidence; `changes` to what it says of the start, D_c, shadows and the like."""
        sent = self.models[self.round]
        names = sorted(sent if who is None else who)
        record: Any = samples.evidence(self.terms, self.round, names, self.shape.refuted.get(self.round, ""))
        record["model"]["start_sha256"] = self.start.hex()
        record["model"].update(changes)
        for measured in record["measurements"]:
            name = measured["participant_id"]
            statement, sequence = sent[name]
            measured["claimed_degree"] = str(self.claimed[name])
            measured["order"] = sequence
            measured["samples"] = self.trained_on[self.round, name]
            measured["model_sha256"] = statement.model_sha256.hex()
            measured["improvement"] = -2_000_000 if self.round in self.shape.unscored else 300_000
            if self.terms.rule.name not in ("verified", "paper"):
                measured["scores"] = {self.terms.rule.name: "0.5"}
        first: dict[str, Any] = {}
        for measured in record["measurements"]:  # the same model has the same figures
            known = first.setdefault(measured["model_sha256"], measured)
            measured["features"] = known["features"]
        return dict(record)

    def verdicts(self, record: Mapping[str, Any] | None) -> list[Assessment]:
        """What the evidence says, or, without any, as claimed; of those who sent nothing, that."""
        if record is None:
            found = [
                as_claimed(name, statement.model_sha256, self.claimed[name])
                for name, (statement, _) in self.models[self.round].items()
            ]
        else:
            measured = [Measurement.from_record(item) for item in record["measurements"]]
            found = list(assess(EvidenceModel.from_record(record["model"]), measured))
        known = {a.participant_id for a in found}
        found += [
            missing(name, self.claimed[name], self.said.get(name))
            for name in self.selected
            if name not in known
        ]
        return sorted(found, key=lambda a: a.participant_id)

    def judge(
        self, record: Mapping[str, Any] | None = None, judged: Sequence[Assessment] | None = None
    ) -> None:
        """The closing where that is to come, evidence, verdicts, SCORED."""
        if self.closed < self.round:
            self.close()
        if record is not None and self.terms.audit is not None:
            self.degree_map = EvidenceModel.from_record(record["model"]).degree
            for measured in record["measurements"]:
                shown = self.degree_map.degree_micro(Measurement.from_record(measured).features)
                self.shown[self.round, measured["participant_id"]] = shown
        self.judged = list(self.verdicts(record) if judged is None else judged)
        self.log.write(*samples.judgement(self.terms, self.round, self.judged, record))
        self.enter(State.SCORED)

    def measured(self, **changes: Any) -> dict[str, Any] | None:
        """The evidence that the rule asks for."""
        return None if self.terms.rule.name == "paper" else self.evidence(**changes)

    def pay(
        self,
        seed: bytes | None = None,
        disputable: bool | None = None,
        chosen: Mapping[str, Sequence[str]] | None = None,
        meetings: Meetings | None = None,
    ) -> None:
        """Seed, peers, settlement, payments.

        Args:
            chosen: peers that were not drawn; meetings: others than there were.
        """
        kept = disputes_possible(self.terms) if disputable is None else disputable
        seed = seed or round_seed(samples.chain_secret(self.id), self.terms.schedule.rounds, self.round)
        sent = {name: statement.draw_share for name, (statement, _) in self.models[self.round].items()}
        received = [a.participant_id for a in self.judged if a.model_sha256]
        shares = {name: sent.get(name) or self.share(name, self.round) for name in received}
        draw, met = Chosen(seed, shares, chosen or {}), self.meetings if meetings is None else meetings
        settlement, made = entries.settlement_entries(
            self.terms, self.round, draw, self.judged, self.stakes(), kept, meetings=met
        )
        self.meetings.add((line.participant_id, line.peers) for line in settlement.payments)
        if kept and entries.kept_micro(self.terms, self.round, settlement):
            self.kept[self.round] = settlement, self.judged
        self.log.write(*made)
        self.unresolved.discard(self.round)
        self.starts[self.round] = self.start
        if self.terms.audit is not None:
            for line in settlement.payments:
                if line.audited:
                    key = self.round, line.participant_id
                    self.question[key] = question_micro(self.terms.audit, line)

    def aggregate(
        self,
        digest: bytes | None = None,
        figures: Mapping[str, str] | None = None,
        state: bytes | None = b"",
    ) -> None:
        scored = any(a.scored for a in self.judged)
        if state == b"":
            state = self.server_state
            if scored and self.terms.aggregation.moments:
                state = hashlib.sha256(f"{self.id}/{self.round}/state".encode()).digest()
        self.server_state = state
        if digest is None:
            digest = samples.global_model(self.terms, self.round) if scored else self.start
        self.result = digest
        said = {"accuracy": "0.9", "loss": "0.31"} if figures is None else figures
        self.log.write(entries.aggregation(self.id, self.round, digest, said, state))

    def settle(
        self, record: Mapping[str, Any] | None = None, judged: Sequence[Assessment] | None = None
    ) -> None:
        """A round's whole settlement."""
        self.judge(record, judged)
        self.pay()
        self.aggregate()
        self.enter(State.SETTLED)

    def dispute(self, name: str, counts: Sequence[int] | None = None, at: str | None = None) -> None:
        self.disputed.append(name)
        self.log.write(
            entries.dispute(self.id, name, at or self.log.now(), counts or self.counts(name), SALT)
        )

    def end(self, state: State = State.CLOSED, reason: str = "", **changes: Any) -> None:
        values: dict[str, Any] = {
            "unresolved": self.unresolved,
            "stakes": self.stakes(),
            "awards": [e for number in sorted(self.kept) for e in self.awards(number)],
            "audits": self.held(),
            "convicted": self.convicted,
            "at": self.log.now(),
        }
        self.log.write(
            *entries.ending_entries(self.id, self.round, state, reason=reason, **{**values, **changes})
        )

    def awards(self, number: int, disputed: Sequence[str] | None = None) -> list[Entry]:
        settlement, judged = self.kept[number]
        found = {a.participant_id: a for a in judged}
        amounts = {
            line.participant_id: review(
                self.terms, found[line.participant_id], [found[p] for p in line.peers], line.paid_micro
            ).award_micro
            for line in settlement.payments
            if line.participant_id in (self.disputed if disputed is None else disputed)
        }
        return entries.award_entries(self.terms, number, amounts)

    def stakes(self) -> dict[str, int]:
        return {name: self.log.book.holds(stake(self.id, name)) for name in self.people}

    # Audits

    def findings(
        self, round_: int, name: str, number: int = 1, passes: bool = True, **changes: Any
    ) -> AuditFindings:
        """What an auditor finds: samples as claimed, and weights that show as much, or 0.1 more."""
        values: dict[str, Any] = {
            "task_id": self.id,
            "terms_digest": self.terms.digest,
            "participant_id": name,
            "round": round_,
            "number": number,
            "start_sha256": self.starts[round_],
            "samples_root": self.root(name),
            "samples": 10,
            "distinct": 9,
            "near": 2,
            "degree": self.claimed[name],
            "accepted": True,
            "remark": "",
            "model_sha256": hashlib.sha256(f"again {round_}/{name}/{number}".encode()).digest(),
        }
        key = changes.pop("key", None) or private_key("auditor")
        differences = changes.pop("differences", DIFFERENCES)
        again = samples.degree(name) + (0 if passes else Fraction(1, 10))
        shown = changes.pop("features", samples.features(again))
        statement = AuditStatement(**{**values, **changes})
        if not statement.model_sha256:
            shown = ()
        return AuditFindings(statement, sign_statement(statement, key), shown, tuple(differences))

    def verdict_of(self, found: AuditFindings) -> AuditVerdict:
        said, audit, shown = found.statement, self.terms.audit, self.degree_map
        assert audit is not None
        assert shown is not None
        name = said.participant_id
        again = shown.degree_micro(found.features) if found.features else None
        return judge(
            audit, said, self.root(name), self.claimed[name], self.shown[said.round, name], again,
            found.differences,
        )  # fmt: skip

    def audit(self, found: AuditFindings, at: str | None = None, verdict: AuditVerdict | None = None) -> None:
        """An audit and its verdict."""
        said, judged = found.statement, verdict or self.verdict_of(found)
        question = self.question[said.round, said.participant_id]
        self.log.write(samples.audited(at or self.log.now(), found, judged, question))
        if judged.outcome == FAILED and said.number == 2:
            self.convicted.add(said.participant_id)

    def appeal(self, round_: int, name: str, at: str | None = None) -> None:
        self.log.write(appeal(self.id, round_, name, "the seed was unlucky", at or self.log.now()))

    def end_audit(self, round_: int, name: str, why: str, at: str | None = None) -> None:
        audit = self.terms.audit
        assert audit is not None
        self.log.wait(audit.appeal_seconds if why == UNAPPEALED else audit.seconds)
        question = self.question[round_, name]
        self.log.write(audit_end(self.terms, round_, name, why, question, at or self.log.now()))
        if why == UNAPPEALED:
            self.convicted.add(name)

    def held(self) -> list[Entry]:
        if self.terms.audit is None:
            return []
        helds = {name: self.log.book.holds(held(self.id, name)) for name in self.people}
        return held_entries(self.terms, helds, self.stakes(), self.convicted)

    def audit_round(self) -> None:
        """All audits of the current round, as the shape says; times that are over come last."""
        ends = []
        for round_, name in sorted(key for key in self.question if key[0] == self.round):
            number = 1
            for step in self.shape.audits.get((round_, name), ("passed",)):
                if step == "appeal":
                    self.appeal(round_, name)
                    number = 2
                elif step in ENDS:
                    ends.append((step != UNAPPEALED, round_, name, step))
                else:
                    self.audit(self.findings(round_, name, number, passes=step == "passed"))
        for _, round_, name, step in sorted(ends):
            self.end_audit(round_, name, step)

    # Whole parts of a sound task

    def begin(self) -> None:
        """Up to the selection."""
        self.open()
        if not self.cancels(State.OPEN, 0):
            if self.shape.pseudonyms:
                self.name(self.people[0])  # before claims are taken
            self.enter(State.EFFORT)
            for name in self.people:
                if self.shape.pseudonyms and name != self.people[0]:
                    self.name(name)
                self.claim(name)
            if not self.cancels(State.EFFORT, 0):
                self.select()
                self.cancels(State.SELECTED, 0)

    def deliver(self) -> None:
        """The models of the current round, failures, and late models of the one before."""
        for number, name in sorted(self.shape.late):
            if number == self.round - 1:
                self.model(name, number, late=True)
        absent = self.shape.absent.get(self.round, {})
        for name in self.selected:
            if name not in absent:
                self.model(name, model_sha256=self.sends(name))
            elif (reason := absent[name]) is not None:
                self.fail(name, reason)

    def sends(self, name: str) -> bytes:
        """Digest of the model that a participant sends in the current round."""
        if self.shape.echoed.get(self.round) == name:
            return self.start
        copier, original = self.shape.copied.get(self.round, ("", ""))
        return samples.model_digest(self.id, self.round, original if name == copier else name)

    def rounds(self, first: int, last: int) -> None:
        for number in range(first, last + 1):
            self.train()
            self.deliver()
            if self.cancels(State.TRAINING, number):
                return
            self.settle(self.measured())
            self.audit_round()
            if self.cancels(State.SETTLED, number):
                return

    def cancels(self, state: State, number: int) -> bool:
        if self.shape.cancelled != (state, number):
            return False
        self.end(State.CANCELLED, "the learner withdrew")
        return True

    def finish(self) -> None:
        for name in sorted(self.shape.private):
            self.dispute(name)
        self.log.wait(self.terms.schedule.dispute_seconds)
        self.end()

    def measure(
        self, *, key: str = "auditor", at: str | None = None, outcome: str = "", **changes: Any
    ) -> None:
        """The auditor measures the ended task again, and finds the same; `changes` to its statement."""
        kinds = ("evidence", "verdict", "aggregation")
        mine = [e for e in self.log.entries if e.kind in kinds and e.body["task_id"] == self.id]
        measured = bytes(32)
        for entry in mine:
            measured = measured_after(measured, leaf_hash(entry.data))
        outcomes: list[Any] = [entry.body["outcome"] for entry in mine if entry.kind == "verdict"]
        rounds = sum(entry.kind == "aggregation" for entry in mine)
        values: dict[str, Any] = {
            "task_id": self.id,
            "terms_digest": self.terms.digest,
            "number": 1 + sum(e.id.startswith(f"{self.id}/remeasurement/") for e in self.log.entries),
            "measured": measured,
            "rounds": rounds,
            "submissions": sum(bool(each["model_sha256"]) for each in outcomes),
            "identical": rounds,
            "merged": rounds,
            **dict.fromkeys(("degree_micro", "weight_micro", "multiplier_micro", "turned"), 0),
            "tolerance_micro": 10_000,
            "computed_on": "cpu x86_64 AVX2, numpy 2.0, torch 2.5",
            "remark": "",
        }
        said = RemeasurementStatement(**{**values, **changes})
        entry = remeasurement(said, sign_statement(said, private_key(key)), at or self.log.now())
        if outcome:
            entry = Entry(entry.id, entry.kind, {**entry.body, "outcome": outcome})
        self.log.write(entry)

    def delete(self, at: str | None = None) -> None:
        """Submitted models are deleted, as soon as the terms promise it."""
        self.log.wait((self.shape.retention or 0) - 1)
        self.log.write(entries.deletion(self.id, self.log.now() if at is None else at))

    def play(self) -> None:
        """All of it."""
        self.begin()
        stop = self.shape.cancelled
        if stop is None or stop[0] in (State.TRAINING, State.SETTLED):
            self.rounds(1, self.shape.rounds)
        if stop is None:
            self.finish()
        for number in range(self.shape.measured):
            if number:  # on another processor
                self.measure(identical=0, degree_micro=20_000 * number, turned=number - 1)
            else:
                self.measure()
        if self.shape.retention is not None:
            self.delete()


def started(shape: Shape = Shape()) -> History:
    """A log with everyone enrolled, and nothing of the task."""
    log = Log()
    for name in samples.names(shape.people):
        log.enrol(name)
    return History(log, shape)


def played(shape: Shape = Shape()) -> History:
    """A log of one sound task."""
    history = started(shape)
    history.play()
    return history


#: Sound tasks of all shapes.
SHAPES: Mapping[str, Shape] = {
    "a plain task": Shape(),
    "one round": Shape(rounds=1),
    "three rounds of six": Shape(rounds=3, people=6),
    "everybody met, and again": Shape(rounds=5, people=6, peers=2),
    "met around those who were not scored": Shape(
        rounds=6, people=6, peers=2, absent={1: {"p001": None, "p005": None}, 2: {"p001": "no disk"}},
        unscored=frozenset({3}), copied={4: ("p002", "p000")}, echoed={5: "p004"},
    ),
    "all peers": Shape(rounds=3, people=6, peers=5),
    "scores, whose peers are drawn anew": Shape(rounds=3, people=6, peers=2, rule="leave_one_out"),
    "the paper's rule": Shape(rule="paper"),
    "scores": Shape(rule="leave_one_out"),
    "no stake": Shape(stake_micro=0),
    "a refuted claim": Shape(refuted={2: "p001"}),
    "somebody absent": Shape(absent={1: {"p003": None}, 2: {"p002": "out of memory"}}),
    "absent and paid as claimed": Shape(rule="paper", absent={2: {"p000": "no disk"}}),
    "somebody gone": Shape(absent={1: {"p003": None}, 2: {"p002": "no disk"}}, gone=frozenset({1})),
    "a late model": Shape(absent={1: {"p003": None}}, late=frozenset({(1, "p003")})),
    "a late model after a failure": Shape(absent={1: {"p003": "no disk"}}, late=frozenset({(1, "p003")})),
    "a dispute": Shape(private=frozenset({"p003"})),
    "two disputes": Shape(private=frozenset({"p001", "p003"}), rounds=3),
    "a server's momentum": Shape(rounds=3, aggregation=FedAvgM()),
    "a server's Adam, nobody scored at first": Shape(rounds=3, unscored=frozenset({1}), aggregation=FedAdam()),
    "a server's Yogi, nobody scored later": Shape(rounds=3, unscored=frozenset({2}), aggregation=FedYogi()),
    "nobody scored": Shape(unscored=frozenset({1})),
    "nobody ever scored": Shape(unscored=frozenset({1, 2})),
    "a copy": Shape(copied={1: ("p002", "p001"), 2: ("p000", "p003")}),
    "a copy under the paper's rule": Shape(rule="paper", copied={1: ("p002", "p001")}),
    "an echo": Shape(echoed={1: "p000", 2: "p003"}),
    **{
        f"cancelled in {state}({number})": Shape(cancelled=(state, number))
        for state, number in (
            (State.OPEN, 0), (State.EFFORT, 0), (State.SELECTED, 0), (State.TRAINING, 1), (State.SETTLED, 1),
            (State.TRAINING, 2), (State.SETTLED, 2),
        )
    },
    "two of one organisation, one of another": Shape(
        organisations={"p000": SALT, "p002": SALT, "p001": SALT[::-1]}, identities=2
    ),
    "everybody audited": Shape(audit=AUDIT, rounds=3),
    "some audited": Shape(audit=replace(AUDIT, probability=Fraction(1, 3)), rounds=4, people=6),
    "audits that fail": Shape(
        audit=AUDIT, rounds=3, funder="trust",
        audits={
            (1, "p000"): ("failed", "unappealed"), (1, "p001"): ("failed", "appeal", "passed"),
            (1, "p002"): ("unvisited",), (2, "p001"): ("failed", "appeal", "failed"),
            (2, "p003"): ("failed", "appeal", "unanswered"), (3, "p000"): ("failed", "unappealed"),
        },
    ),
    "audits that nobody makes, and pay that goes back": Shape(
        audit=replace(AUDIT, unaudited="refunded", held_back=Decimal(0)), refuted={2: "p001"},
        audits={(1, "p000"): ("unvisited",), (2, "p001"): ("unvisited",)},
    ),
    "audits without appeals": Shape(
        audit=replace(AUDIT, appeal_seconds=0), audits={(1, "p000"): ("failed", "unappealed")}
    ),
    "cancelled while audits are pending": Shape(
        audit=AUDIT, cancelled=(State.TRAINING, 2),
        audits={
            (1, "p000"): (), (1, "p001"): (), (1, "p002"): ("failed", "appeal"),
            (1, "p003"): ("failed", "unappealed"),
        },
    ),
    "a learner's own money": Shape(funder="trust", refuted={2: "p001"}, price=Price(Decimal("0.75"), "EUR", 2)),
    "a learner's own money, a dispute": Shape(funder="trust", private=frozenset({"p003"})),
    "a learner's own money, cancelled": Shape(funder="trust", cancelled=(State.SETTLED, 1)),
    "models that are deleted": Shape(retention=86_400, private=frozenset({"p003"})),
    "models that are deleted at once": Shape(rule="paper", retention=0),
    "models that are deleted, cancelled": Shape(retention=60, cancelled=(State.TRAINING, 2)),
    "measured again": Shape(auditor=True, measured=1),
    "measured again by who audits, three times, and deleted": Shape(
        audit=AUDIT, absent={1: {"p003": None}}, measured=3, retention=60
    ),
    "measured again, cancelled": Shape(auditor=True, measured=2, cancelled=(State.TRAINING, 2)),
    "under pseudonyms": Shape(pseudonyms=True, private=frozenset({"p003"})),
    "under pseudonyms, of organisations": Shape(
        pseudonyms=True, organisations={"p000": SALT, "p001": SALT}, identities=2, rounds=1
    ),
    "an auditor who does not come": Shape(auditor=True, rule="leave_one_out"),
    "a dispute, then cancelled": Shape(private=frozenset({"p003"}), cancelled=(State.SETTLED, 1)),
}  # fmt: skip
