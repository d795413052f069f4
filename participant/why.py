"""Why a round paid what it paid: the numbers of the ledger in the rule's formula, computed again.

What one payment rests on stands together in the log: the outcomes of everyone, the draw's key, the peers, the payment.
What one's own outcome rests on is in no log: the assessment, to which the verdict's entry commits, comes with the
settlement. `why` reads those entries, settles the round again by `mechanism.settlement`, and compares it with what the
ledger and the coordinator say. It takes outcomes, draw key and the others' peers as they are logged, and the
participant's own peers of the rounds before as the coordinator said them; `fedpeer ledger verify` recomputes them. A
copy of the ledger does as well as the coordinator (`LedgerCopy`); without either, `stored` is what the journal alone
says.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import ROUND_FLOOR, Decimal
from fractions import Fraction
from itertools import islice
from typing import Any, Protocol

from fedpeer.v1 import market_pb2
from mechanism.canonical import parse_canonical
from mechanism.errors import MechanismError
from mechanism.ledger.entries import (
    assessment_from_record,
    outcome_from_record,
    peers_id,
    timestamp,
    verdict_id,
)
from mechanism.ledger.entry import Entry
from mechanism.ledger.errors import LedgerError
from mechanism.ledger.verify import LedgerSource
from mechanism.peers import Draw, Meetings
from mechanism.price import credits_text
from mechanism.readable import Readable, Table
from mechanism.settlement import (
    AMOUNTS,
    MICRO,
    Assessment,
    Outcome,
    Payment,
    drawn_peers,
    expected_payments,
    gross_payment,
    in_micro,
    outcome_of,
    payment_against,
    peer_candidates,
    peer_payment,
    settle_round,
    weight_micro,
)
from mechanism.terms import Terms
from participant.earnings import Earned, check_task, receipt_error
from participant.effects import Emit, Emits, Steps, transform
from participant.errors import NotFoundError, NotSelectedError, StateError
from participant.journal import Journal
from participant.log_keys import pinned_log_keys
from participant.report import Settlement, settlement_of, stored_settlement

#: Entries that are read at first, backwards from the payment; more where the round has more participants.
_FIRST_ENTRIES = 64

#: The step of a degree whose value is shown: what it would have brought.
NEARER = Decimal("0.01")

#: Rules that score a participant against peers.
_PAIRED = ("verified", "paper")

#: What is measured of a submission, in records by these names.
_MEASURED = (
    "verified_micro",
    "lower_micro",
    "upper_micro",
    "multiplier_ppm",
    "holders_micro",
    "distinct_micro",
)

#: f0(x) in words, by the payment function's name.
_FUNCTIONS = {
    "log": "ln({x})",
    "log1p": "ln(1 + {x})",
    "linear": "{x}",
    "power": "({x})^{exponent}",
}


@dataclass(frozen=True)
class Met:
    """One peer that a participant was scored against.

    Attributes:
        degree: what the peer was scored by, in [0, 1].
        credits: what the round pays where it is the only peer, before penalty and fee.
    """

    participant_id: str
    degree: Fraction
    credits: Decimal


@dataclass(frozen=True, repr=False)
class Why(Readable):
    """Why one round paid what it paid; print it.

        paid = max(0, w * m * mean over the peers of f(Q / (Phi*v^2 + Phi*v'^2 + Upsilon))
                      - lambda*(claim - v)^2 - fee*(1 - w))

    in whole micro-credits, by largest remainder (mechanism.settlement; other rules of the terms have no peers in it).

    Attributes:
        terms: of the task.
        own: the assessment: claimed and measured degree, its interval, m as `multiplier_ppm`, each screen's verdict,
            and what the weight w follows from.
        peers: who it was scored against, in id order; itself where nobody else could be drawn.
        candidates: how many could be drawn.
        expected_micro: what meeting every candidate would pay (`mechanism.settlement.expected_payments`): the mean over
            the draws, unless a penalty is above what some of them bring.
        remainder_micro: the unit that the largest remainder adds, 0 or 1.
        payment: what the round is settled with.
        stake_before_micro: the stake that was held before the round.
        ledger_index: where the payment stands in the ledger.
        problems: where ledger, receipt and the computed amounts differ, as sentences; empty where all agree.
        nearer_micro: how much more the same peers would have brought at a degree and a claim that are smaller by
            `NEARER`, at least 0; 0 where it was not scored, or by a rule without degrees.
    """

    task_id: str
    round: int
    participant_id: str
    terms: Terms = field(repr=False)
    own: Assessment
    peers: tuple[Met, ...]
    candidates: int
    expected_micro: int
    remainder_micro: int
    payment: Payment
    stake_before_micro: int
    ledger_index: int
    problems: tuple[str, ...] = ()
    nearer_micro: int = 0

    @property
    def degree(self) -> Fraction | None:
        """What it was scored by: the measured degree, or the claimed one under the rule `paper`; None: not scored."""
        return _scored_by(self.own)

    @property
    def basis(self) -> str:
        """What the degree that it was scored by is, in words."""
        own = self.own
        if own.verified_micro == own.upper_micro != own.lower_micro:
            return "paid on, the upper end of what was measured"  # too wide for its middle
        return "taken as claimed" if self.terms.rule.name == "paper" else "measured"

    @property
    def waterfall(self) -> tuple[tuple[str, int], ...]:
        """How the payment comes about: what is left after each step, micro-credits, rounded down.

        The most that a round pays; at the participant's own degree beside peers of degree 0, or by its score; against
        the peers that it met; what the screens leave; what the weight leaves, less its fee; less the penalty; with the
        unit of the largest remainder, which is the payment.
        """
        terms, rule = self.terms, self.terms.rule.name
        left = [("the most", in_micro(peer_payment(terms, Fraction(0), Fraction(0)), ROUND_FLOOR))]
        if self.degree is None:
            return (*left, ("not scored", 0), ("paid", self.payment.paid_micro))
        if rule in _PAIRED:
            brought = [peer_payment(terms, self.degree, met.degree) for met in self.peers]
            kept = sum(brought, Decimal(0)) / len(brought)
            left += [
                ("own degree", in_micro(peer_payment(terms, self.degree, Fraction(0)), ROUND_FLOOR)),
                ("peers met", self._before(kept, MICRO)),
                ("screens", self._before(kept, self.own.multiplier_ppm)),
            ]
        else:
            most = peer_payment(terms, Fraction(0), Fraction(0))
            left.append((f"{rule} score", self._before(most * Decimal(self.own.scores[rule]), MICRO)))
        left.append(("weight", self._after_fee))
        if rule == "verified":
            left.append(("penalty", self.payment.paid_micro - self.remainder_micro))
        return (*left, ("paid", self.payment.paid_micro))

    def _before(self, credits_: Decimal, multiplier: int) -> int:
        """So many millionths of an amount, a step before the weight; the payment's own digits where it is the last."""
        if self.weight_micro == MICRO and multiplier == self.own.multiplier_ppm:
            return self.payment.gross_micro
        return in_micro(credits_ * multiplier / MICRO, ROUND_FLOOR)

    @property
    def _after_fee(self) -> int:
        """What the weight leaves, less its fee; to the payment's own digits where it is paid."""
        payment = self.payment
        if not payment.paid_micro:
            return max(0, payment.gross_micro - payment.fee_micro)
        return min(payment.gross_micro, payment.paid_micro - self.remainder_micro + payment.penalty_micro)

    @property
    def weight_micro(self) -> int:
        """w, millionths."""
        return weight_micro(self.terms, self.own)

    @property
    def formula(self) -> str:
        """The rule with this round's numbers in it; the empty text where the model was not scored."""
        terms, own, rule = self.terms, self.own, self.terms.rule
        if self.degree is None:
            return ""
        q, phi, upsilon = (f"{value:f}" for value in (terms.Q, terms.phi, terms.upsilon))
        v, gaps = _number(self.degree), [upsilon]
        if rule.name in _PAIRED:
            gaps = [f"({phi} * {v}^2 + {phi} * {_number(met.degree)}^2 + {upsilon})" for met in self.peers]
        parameters = {name: f"{value:f}" for name, value in vars(terms.payment).items()}
        scale = "" if terms.payment.scale == 1 else f"{terms.payment.scale:f} * "
        function = scale + _FUNCTIONS[terms.payment.name]
        pays = [function.format(x=f"{q} / {gap}", **parameters) for gap in gaps]
        text = pays[0] if len(pays) == 1 else f"({' + '.join(pays)}) / {len(pays)}"
        if rule.name not in _PAIRED:
            text = f"{own.scores[rule.name]} * {text}"
        elif own.multiplier_ppm != MICRO:
            text = f"{Decimal(own.multiplier_ppm) / MICRO} * {text}"
        weight = Decimal(self.weight_micro) / MICRO
        if weight != 1:
            text = f"{weight} * {text}"
        if self.payment.penalty_micro:
            text += f" - {rule.claim_penalty:f} * ({_number(own.claimed_degree)} - {v})^2"
        if self.payment.fee_micro:
            text += f" - {rule.fee:f} * (1 - {weight})"
        return text if self.payment.paid_micro else f"max(0, {text})"

    def record(self) -> dict[str, Any]:
        """As JSON."""
        payment, own = self.payment, self.own
        return {
            "task": self.task_id,
            "round": self.round,
            "id": self.participant_id,
            "rule": self.terms.rule.name,
            "claimed_degree": str(own.claimed_degree),
            "basis": self.basis,
            **{name: getattr(own, name) for name in _MEASURED},
            "weight_micro": self.weight_micro,
            "peers": [
                {"id": met.participant_id, "degree": str(met.degree), "credits": str(met.credits)}
                for met in self.peers
            ],
            "candidates": self.candidates,
            "formula": self.formula,
            "waterfall": [{"step": step, "left_micro": micro} for step, micro in self.waterfall],
            **{name: getattr(payment, name) for name in AMOUNTS},
            "remainder_micro": self.remainder_micro,
            "expected_micro": self.expected_micro,
            "nearer_micro": self.nearer_micro,
            "stake_before_micro": self.stake_before_micro,
            "verdicts": [verdict.record() for verdict in own.verdicts],
            "ledger_index": self.ledger_index,
            "problems": list(self.problems),
        }

    def __str__(self) -> str:
        lines = [self._title]
        lines += [f"  {name:<9} {text}" for name, text in self._lines]
        return "\n".join([*lines, *(f"WARNING: {problem}" for problem in self.problems)])

    def _table(self) -> Table:
        return Table(self._title, ("", ""), self._lines, " ".join(self.problems))

    @property
    def _title(self) -> str:
        paid = credits_text(self.payment.paid_micro)
        return f"{self.task_id}, round {self.round}: {self.participant_id} was paid {paid} credits."

    @property
    def _lines(self) -> list[tuple[str, str]]:
        own, payment, rule = self.own, self.payment, self.terms.rule
        measured = "not scored"
        if own.verified_micro is not None:
            measured = f"{_number(Fraction(own.verified_micro, MICRO))} {self.basis}"
        if own.lower_micro is not None and own.upper_micro is not None:
            low, high = (_number(Fraction(end, MICRO)) for end in (own.lower_micro, own.upper_micro))
            measured += f", interval {low} to {high}"
        lines = [("degree", f"{measured}; claimed {_number(own.claimed_degree)}")]
        if self.degree is not None:
            met = ", ".join(
                f"{met.participant_id} of degree {_number(met.degree)} brings {met.credits:.6f}"
                for met in self.peers
            )
            drawn = f"{met} (drawn among {self.candidates})" if self.candidates else "nobody else was scored"
            luck = payment.paid_micro - self.expected_micro
            expected = f"{credits_text(self.expected_micro)} in the mean over all who could be drawn"
            gave = f"the draw gave {credits_text(abs(luck))} {'more' if luck >= 0 else 'less'}"
            lines += [
                ("peers", drawn),
                ("formula", f"{self.formula} = {credits_text(payment.paid_micro)}"),
                ("expected", f"{expected}; {gave}"),
                (
                    "effort",
                    f"a degree nearer by {NEARER} would have brought {credits_text(self.nearer_micro)} more",
                ),
            ]
        if rule.name != "paper":  # which takes claims as they are
            amount = credits_text(payment.penalty_micro)
            lines += [("penalty", f"{amount} for a claim that is not what was measured")]
            if self.degree is not None:
                lines += [("weight", self._weight)]
        if rule.stake_micro:
            lost = f", {credits_text(payment.stake_lost_micro)} lost" if payment.stake_lost_micro else ""
            before = (
                f"{credits_text(self.stake_before_micro)} of {credits_text(rule.stake_micro)} was held before"
            )
            lines += [
                ("stake", f"{credits_text(payment.withheld_micro)} of the payment held back{lost}; {before}")
            ]
        return [*lines, *(("screen", str(verdict)) for verdict in own.verdicts)]

    @property
    def _weight(self) -> str:
        """The weight and what it follows from, in words."""
        own, weight = self.own, Fraction(self.weight_micro, MICRO)
        if weight == 1:
            return "1: all of what its data bring"
        holders, distinct = Fraction(own.holders_micro, MICRO), Fraction(own.distinct_micro, MICRO)
        have = (
            "no other of the round has"
            if holders == 1
            else f"{_number(holders)} participants of the round have"
        )
        return (
            f"{_number(weight)}: {have} each of its samples, on average; "
            f"its distinct samples are {_number(distinct)} of the recipe's number, and "
            f"{self.terms.rule.whole_from:f} is enough; {credits_text(self.payment.fee_micro)} is the fee for what the "
            "weight lacks"
        )


class PaymentSource(Protocol):
    """What `why` asks: a coordinator, or a copy of its ledger."""

    def settlement(self, task_id: str, round: int, /) -> Steps[market_pb2.Settlement]: ...  # noqa: A002

    def entries(self, first: int, count: int, /) -> Emits[bytes]: ...


class LedgerCopy:
    """A ledger that is read in the place of the coordinator: an export, say.

    Args:
        participant_id: whose payments are settlements here.
    """

    def __init__(self, source: LedgerSource, participant_id: str) -> None:
        self._source, self._participant_id = source, participant_id

    def settlement(self, task_id: str, round_: int) -> Steps[market_pb2.Settlement]:
        """What the ledger says that the round paid, without a receipt."""
        wanted = f"{task_id}/round/{round_}/payment/{self._participant_id}"
        drawn, peers = f'"id":"{peers_id(task_id, round_, 0)[:-1]}'.encode(), list[str]()
        for index, data in enumerate(self._source.entries()):
            if drawn in data:
                draws: Any = Entry.parse(data).body["draws"]
                peers += dict(draws).get(self._participant_id, [])
            if wanted.encode() in data and (entry := Entry.parse(data)).id == wanted:
                paid = _payment(entry)
                return market_pb2.Settlement(
                    task_id=task_id, round=round_, participant_id=self._participant_id, paid_micro=paid.paid_micro,
                    penalty_micro=paid.penalty_micro, stake_lost_micro=paid.stake_lost_micro, ledger_index=index,
                    peers=peers,
                )  # fmt: skip
        raise StateError(
            f"the ledger {self._source.name} has no payment of round {round_} of task {task_id} to "
            f"{self._participant_id}; expected a copy made after that round was settled"
        )
        yield

    def entries(self, first: int, count: int) -> Emits[bytes]:
        found = list(islice(self._source.entries(first), count))
        if len(found) < count:
            raise StateError(
                f"the ledger {self._source.name} ends before entry {first + count}; expected a copy made after the "
                "round was settled"
            )
        for data in found:
            yield Emit(data)


@dataclass(frozen=True, repr=False)
class Stored(Readable):
    """What the journal alone says of a round: neither the peers' degrees nor the formula, which stand in the ledger.

    Attributes:
        earned: the settlement as the coordinator stated it, and whether its receipt holds.
        stored_at: when it was stored, seconds since the epoch.
    """

    participant_id: str
    earned: Earned
    stored_at: int

    def record(self) -> dict[str, Any]:
        """As JSON."""
        return {"id": self.participant_id, **self.earned.record(), "stored_at": timestamp(self.stored_at)}

    def __str__(self) -> str:
        earned, found = self.earned, self.earned.settlement
        lines = [f"{earned}; as stored at {timestamp(self.stored_at)}"]
        if found is not None:
            degrees = [
                "not known" if degree is None else _number(degree)
                for degree in (found.verified_degree, found.claimed_degree)
            ]
            lines += [
                f"  degree    {degrees[0]} measured; claimed {degrees[1]}",
                f"  peers     {', '.join(found.peers) or 'none'}",
                f"  penalty   {credits_text(found.penalty_micro)}",
                f"  stake     {credits_text(found.stake_lost_micro)} lost",
            ]
            lines += [f"  screen    {verdict}" for verdict in found.verdicts]
        return "\n".join(lines)


def stored(task_id: str, round_: int, participant_id: str, journal: Journal) -> Stored | None:
    """What the journal says of a round; None where it keeps no settlement of it."""
    for earned in check_task(journal, task_id, participant_id):
        if earned.round == round_:
            return Stored(participant_id, earned, journal.stored_at(task_id, round_))
    return None


def why(
    task_id: str, round_: int | None, participant_id: str, market: PaymentSource, journal: Journal
) -> Steps[Why]:
    """Why a round paid what it paid.

    Args:
        round_: None: the last one that is settled.

    Raises:
        StateError: nothing of the task is in the journal, or the round's entries cannot be read.
        NotFoundError, NotSelectedError: the round is not settled yet, or nothing was due in it.
    """
    terms, round_ = asked(task_id, round_, participant_id, journal)
    kept = dict(journal.settlements(task_id))
    settlement = yield from _settlement(task_id, round_, kept, market)
    stake, earlier = 0, list[tuple[str, ...]]()
    try:
        for number in range(1, round_):
            try:
                before = yield from _settlement(task_id, number, kept, market)
            except (NotFoundError, NotSelectedError):
                continue  # nothing was due
            earlier.append(before.peers)
            [entry] = yield from _entries(market, before.ledger_index, 1)
            stake += _payment(entry).withheld_micro - _payment(entry).stake_lost_micro
        block = yield from _block(market, task_id, round_, settlement.ledger_index)
        receipt = receipt_error(settlement, participant_id, pinned_log_keys(journal))
        return explained(terms, participant_id, settlement, block, stake, earlier, receipt)
    except (LedgerError, MechanismError, KeyError, TypeError, ValueError) as error:
        raise StateError(
            f"the ledger's entries of round {round_} of task {task_id} are not those of a settled round ({error}); "
            "check the ledger with `fedpeer ledger verify` and ask the coordinator's operator"
        ) from error


def asked(task_id: str, round_: int | None, participant_id: str, journal: Journal) -> tuple[Terms, int]:
    """The terms of the task and the round that `why` is about; asks nobody.

    Raises:
        StateError: as `why`, of what the journal knows.
    """
    record = journal.task(task_id)
    if record is None:
        known = ", ".join(task.task_id for task in journal.tasks())
        raise StateError(
            f"{participant_id} has taken no part in task {task_id!r} from this state folder; it knows "
            f"{known or 'no task yet'}"
        )
    terms = Terms.parse(record.terms)
    rounds, settled = terms.schedule.rounds, [number for number, _ in journal.settlements(task_id)]
    if round_ is not None and not 1 <= round_ <= rounds:
        raise StateError(f"task {task_id} has no round {round_}; expected 1 to {rounds}")
    if round_ is None and not settled:
        raise StateError(
            f"no round of task {task_id} is settled yet, as far as this state folder knows; name a round, and the "
            "coordinator is asked"
        )
    return terms, round_ or max(settled)


def _settlement(
    task_id: str, round_: int, kept: Mapping[int, bytes], market: PaymentSource
) -> Steps[Settlement]:
    found = stored_settlement(task_id, round_, kept[round_]) if round_ in kept else None
    return settlement_of((yield from market.settlement(task_id, round_))) if found is None else found


def _entries(market: PaymentSource, first: int, count: int) -> Steps[list[Entry]]:
    found: list[bytes] = []

    def keep(data: bytes) -> Steps[bool]:
        found.append(data)
        return True
        yield

    yield from transform(market.entries(first, count), keep)
    return [Entry.parse(data) for data in found]


def _block(market: PaymentSource, task_id: str, round_: int, index: int) -> Steps[list[Entry]]:
    """The entries of a round from its first verdict to the payment at `index`."""
    first, count, block, start = index + 1, _FIRST_ENTRIES, list[Entry](), 0
    prefix = verdict_id(task_id, round_, "")
    while first and not start:  # until the entry before the first verdict is there too
        count = min(count, first)
        first -= count
        block = (yield from _entries(market, first, count)) + block
        start = next((i for i, entry in enumerate(block) if entry.id.startswith(prefix)), 0)
        count *= 4
    return block[start:]


def explained(
    terms: Terms,
    participant_id: str,
    settlement: Settlement,
    block: Sequence[Entry],
    stake: int,
    earlier: Iterable[Iterable[str]],
    receipt: str = "",
) -> Why:
    """Settles a round again from its entries, and compares.

    Args:
        settlement: what the coordinator says of the payment.
        block: the ledger's entries from the round's first verdict to the participant's payment.
        stake: micro-credits that were held before the round.
        earlier: the participant's peers of each round before.
        receipt: why the payment's receipt does not hold; empty where it does, or where the ledger itself was read.

    Raises:
        LedgerError, MechanismError, KeyError, TypeError, ValueError: the entries are not those of a settled round.
    """
    bodies: list[tuple[str, Any]] = [(entry.kind, entry.body) for entry in block]
    verdicts = [body for kind, body in bodies if kind == "verdict"]
    outcomes = [outcome_from_record(body["outcome"]) for body in verdicts]
    parts = [body for kind, body in bodies if kind == "peers"]
    drawn = {name: tuple(peers) for part in parts for name, peers in part["draws"]}
    by_id = {outcome.participant_id: outcome for outcome in outcomes}
    shown, logged = by_id[participant_id], replace(_payment(block[-1]), peers=drawn[participant_id])
    # The draw of the round by its logged key; the shares that gave the key stand with the models.
    draw = Draw(bytes(32), {a.participant_id: bytes(32) for a in outcomes if a.model_sha256})
    draw.__dict__["key"] = bytes.fromhex(parts[0]["key"])  # in the cached property's place
    # Whom somebody has met decides whom it meets; of the others it is not known here, so theirs are taken as logged.
    mine = Meetings([(participant_id, peers) for peers in earlier])
    drawn |= {
        name: peers for name, peers in drawn_peers(terms, draw, by_id, mine).items() if name == participant_id
    }
    settled = settle_round(terms, settlement.round, draw, outcomes, {participant_id: stake}, peers=drawn)
    line = next(payment for payment in settled.payments if payment.participant_id == participant_id)
    problems = [receipt] if receipt else []
    own = _assessment(settlement)
    committed = next(body for body in verdicts if body["outcome"]["participant_id"] == participant_id)
    if hashlib.sha256(settlement.opening).hexdigest() != committed["commitment"]:
        problems.append(
            "what the coordinator says of the evidence is not what the ledger's verdict commits to"
        )
    elif outcome_of(terms, own) != shown:
        problems.append(
            "the outcome in the ledger's verdict is not the one of the assessment that it commits to"
        )
    if line != logged:
        problems.append(f"the ledger says {logged}; the verdicts, the draw and the rule give {line}")
    if settlement.paid_micro != logged.paid_micro:
        problems.append(
            f"the coordinator says that {settlement.paid_micro} micro-credits were paid, the ledger {logged.paid_micro}"
        )
    peers = [by_id[peer] for peer in line.peers] or [shown]
    candidates = peer_candidates(shown, by_id)
    met, expected, remainder, nearer = [], 0, 0, 0
    if own.scored:
        met = [
            Met(peer.participant_id, _scored_by(peer) or Fraction(0), gross_payment(terms, shown, [peer]))
            for peer in peers
        ]
        expected = expected_payments(terms, outcomes)[participant_id]
        remainder = line.paid_micro - payment_against(terms, own, peers)
        nearer = payment_against(terms, _nearer(own), peers) - payment_against(terms, own, peers)
    return Why(
        terms.task_id, settlement.round, participant_id, terms, own, tuple(met), len(candidates), expected, remainder,
        line, stake, settlement.ledger_index, tuple(problems), nearer,
    )  # fmt: skip


def _nearer(own: Assessment) -> Assessment:
    """The same submission from data that are nearer to the reference by `NEARER`."""
    return replace(
        own,
        claimed_degree=max(Fraction(0), own.claimed_degree - Fraction(NEARER)),
        verified_micro=max(0, (own.verified_micro or 0) - int(NEARER * MICRO)),
        lower_micro=None,
        upper_micro=None,
    )


def _payment(entry: Entry) -> Payment:
    """The payment that an entry records, without its peers.

    Raises:
        KeyError, TypeError: it is not one.
    """
    amounts = {name: int(str(entry.body[name])) for name in AMOUNTS}
    audited, held = entry.body.get("audited"), int(str(entry.body.get("held_micro", 0)))
    return Payment(
        participant_id=str(entry.body["participant_id"]),
        peers=(),
        held_micro=held,
        audited=None if audited is None else bool(audited),
        **amounts,
    )


def _scored_by(found: Assessment | Outcome) -> Fraction | None:
    return None if found.verified_micro is None else Fraction(found.verified_micro, MICRO)


def _assessment(settlement: Settlement) -> Assessment:
    """Of the opening that came with a settlement.

    Raises:
        LedgerError: none came, or the coordinator has erased it.
    """
    if not settlement.opening:
        raise LedgerError("the coordinator gives no opening of the verdict")
    return assessment_from_record(parse_canonical(settlement.opening)["assessment"])


def _number(degree: Fraction) -> str:
    """A degree to the millionth, which is how finely it is measured."""
    return f"{float(degree):.6f}".rstrip("0").rstrip(".")
