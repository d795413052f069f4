"""Why a round paid what it paid: the numbers of the ledger in the rule's formula, computed again.

What one payment rests on stands together in the log: the verdicts on everyone, the draw's key, the peers, the payment.
`why` reads those entries, settles the round again by `mechanism.settlement`, and compares it with what the ledger and
the coordinator say. It takes verdicts and draw key as they are logged; `fedpeer ledger verify` recomputes them.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from fractions import Fraction
from typing import Any

from mechanism.errors import MechanismError
from mechanism.ledger.entries import assessment_from_record, verdict_id
from mechanism.ledger.entry import Entry
from mechanism.ledger.errors import LedgerError
from mechanism.peers import Draw
from mechanism.readable import Readable, Table
from mechanism.settlement import (
    MICRO,
    PAYMENT_RULES,
    Assessment,
    Payment,
    peer_candidates,
    settle_round,
)
from mechanism.terms import Terms
from participant.earnings import receipt_error
from participant.effects import Steps, transform
from participant.errors import NotFoundError, NotSelectedError, StateError
from participant.journal import Journal
from participant.log_keys import pinned_log_keys
from participant.report import Settlement, credit_text, degree_text, settlement_of, stored_settlement
from participant.steps import MarketSteps

#: Entries that are read at first, backwards from the payment; more where the round has more participants.
_FIRST_ENTRIES = 64

#: f(x) in words, by the payment function's name.
_FUNCTIONS = {
    "log": "ln({x})",
    "log1p": "ln(1 + {x})",
    "linear": "{kappa} * {x}",
    "power": "{kappa} * ({x})^{exponent}",
}


@dataclass(frozen=True)
class Met:
    """One peer that a participant was scored against.

    Attributes:
        degree: what the peer was scored by, in [0, 1].
        credits: what the round pays where it is the only peer, before the penalty.
    """

    participant_id: str
    degree: Fraction
    credits: Decimal


@dataclass(frozen=True, repr=False)
class Why(Readable):
    """Why one round paid what it paid; print it.

        paid = max(0, m * mean over the peers of f(Q / (Phi*v^2 + Phi*v'^2 + Upsilon)) - lambda*(claim - v)^2)

    in whole micro-credits, by largest remainder (mechanism.settlement; other rules of the terms have no peers in it).

    Attributes:
        terms: of the task.
        own: the assessment: claimed and measured degree, its interval, m as `multiplier_ppm`, each screen's verdict.
        peers: who it was scored against, in the order drawn; itself where nobody else could be drawn.
        candidates: how many could be drawn.
        expected_micro: what is paid in the mean over the candidates, rounded down. With several peers and a penalty
            above what some of them bring, the mean over the draws is a little lower.
        remainder_micro: the unit that the largest remainder adds, 0 or 1.
        payment: what the round is settled with.
        stake_before_micro: the stake that was held before the round.
        ledger_index: where the payment stands in the ledger.
        problems: where ledger, receipt and the computed amounts differ, as sentences; empty where all agree.
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

    @property
    def degree(self) -> Fraction | None:
        """What it was scored by: the measured degree, or the claimed one under the rule `paper`; None: not scored."""
        return _scored_by(self.terms, self.own)

    @property
    def formula(self) -> str:
        """The rule with this round's numbers in it; the empty text where the model was not scored."""
        terms, own = self.terms, self.own
        if self.degree is None:
            return ""
        x = "{q} / {upsilon}" if terms.rule.name not in ("verified", "paper") else (
            "{q} / ({phi} * {v}^2 + {phi} * {peer}^2 + {upsilon})"
        )  # fmt: skip
        function = _FUNCTIONS[terms.payment.name]
        numbers = {
            "q": f"{terms.Q:f}", "phi": f"{terms.phi:f}", "upsilon": f"{terms.upsilon:f}",
            "v": _number(self.degree),
        }  # fmt: skip
        parameters = {name: f"{value:f}" for name, value in terms.payment.parameters().items()}
        paid = [
            function.format(x=x.format(**numbers, peer=_number(met.degree)), **parameters)
            for met in self.peers[: None if "{peer}" in x else 1]
        ]
        text = paid[0] if len(paid) == 1 else f"({' + '.join(paid)}) / {len(paid)}"
        if terms.rule.name not in ("verified", "paper"):
            return f"{own.scores[terms.rule.name]} * {text}"
        if terms.rule.name == "verified" and own.multiplier_ppm != MICRO:
            text = f"{Decimal(own.multiplier_ppm) / MICRO} * {text}"
        if self.payment.penalty_micro:
            claim = _number(own.claimed_degree)
            text += f" - {terms.rule.claim_penalty:f} * ({claim} - {numbers['v']})^2"
            text = text if self.payment.paid_micro else f"max(0, {text})"
        return text

    def record(self) -> dict[str, Any]:
        """As JSON."""
        payment, own = self.payment, self.own
        return {
            "task": self.task_id,
            "round": self.round,
            "id": self.participant_id,
            "rule": self.terms.rule.name,
            "claimed_degree": str(own.claimed_degree),
            "verified_micro": own.verified_micro,
            "lower_micro": own.lower_micro,
            "upper_micro": own.upper_micro,
            "multiplier_ppm": own.multiplier_ppm,
            "peers": [
                {"id": met.participant_id, "degree": str(met.degree), "credits": str(met.credits)}
                for met in self.peers
            ],
            "candidates": self.candidates,
            "formula": self.formula,
            "gross_micro": payment.gross_micro,
            "penalty_micro": payment.penalty_micro,
            "remainder_micro": self.remainder_micro,
            "paid_micro": payment.paid_micro,
            "expected_micro": self.expected_micro,
            "stake_before_micro": self.stake_before_micro,
            "withheld_micro": payment.withheld_micro,
            "stake_lost_micro": payment.stake_lost_micro,
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
        paid = credit_text(self.payment.paid_micro)
        return f"{self.task_id}, round {self.round}: {self.participant_id} was paid {paid} credits."

    @property
    def _lines(self) -> list[tuple[str, str]]:
        own, payment, rule = self.own, self.payment, self.terms.rule
        measured = "not measured"
        if own.verified_micro is not None:
            measured = f"{degree_text(Fraction(own.verified_micro, MICRO))} measured"
        if own.lower_micro is not None and own.upper_micro is not None:
            low, high = (degree_text(Fraction(end, MICRO)) for end in (own.lower_micro, own.upper_micro))
            measured += f", interval {low} to {high}"
        lines = [("degree", f"{measured}; claimed {degree_text(own.claimed_degree)}")]
        if self.degree is not None:
            met = ", ".join(
                f"{met.participant_id} of degree {degree_text(met.degree)} brings {met.credits:.6f}"
                for met in self.peers
            )
            drawn = f"{met} (drawn among {self.candidates})" if self.candidates else "nobody else was scored"
            exact = f" = {credit_text(payment.paid_micro)}"
            luck = payment.paid_micro - self.expected_micro
            lines += [
                ("peers", drawn),
                ("formula", self.formula + exact),
                (
                    "expected",
                    f"{credit_text(self.expected_micro)} in the mean over all who could be drawn; the draw gave "
                    f"{credit_text(abs(luck))} {'more' if luck >= 0 else 'less'}",
                ),
            ]
        lines.append(
            ("penalty", f"{credit_text(payment.penalty_micro)} for a claim that is not what was measured")
        )
        if rule.stake_micro:
            lost = f", {credit_text(payment.stake_lost_micro)} lost" if payment.stake_lost_micro else ""
            lines.append(
                (
                    "stake",
                    f"{credit_text(payment.withheld_micro)} of the payment held back{lost}; "
                    f"{credit_text(self.stake_before_micro)} of {credit_text(rule.stake_micro)} was held before",
                )
            )
        return lines + [
            ("screen", f"{v.screen} {'passed' if v.passed else 'FAILED'}: {v.explanation}")
            for v in own.verdicts
        ]


def why(
    task_id: str, round_: int | None, participant_id: str, market: MarketSteps, journal: Journal
) -> Steps[Why]:
    """Why a round paid what it paid.

    Args:
        round_: None: the last one that is settled.

    Raises:
        StateError: nothing of the task is in the journal, or the round's entries cannot be read.
        NotFoundError: the round is not settled yet.
    """
    record = journal.task(task_id)
    if record is None:
        raise StateError(
            f"{participant_id} has taken no part in task {task_id!r} from this state folder; "
            "`fedpeer participant status` lists the tasks that it knows"
        )
    terms = Terms.from_record(json.loads(record.terms))
    kept = dict(journal.settlements(task_id))
    if round_ is None:
        if not kept:
            raise StateError(f"no round of task {task_id} is settled yet, as far as this state folder knows")
        round_ = max(kept)
    paid = yield from _settlement(task_id, round_, kept, market)
    if paid is None:
        raise StateError(f"nothing was due to {participant_id} in round {round_} of task {task_id}")
    stake = 0
    for earlier in range(1, round_):
        before = yield from _settlement(task_id, earlier, kept, market)
        if before is not None:
            [entry] = yield from _entries(market, before.ledger_index, 1)
            stake += _payment(entry).withheld_micro - before.stake_lost_micro
    try:
        block = yield from _block(market, task_id, round_, paid.ledger_index)
        return _explained(
            terms, round_, participant_id, paid, block, stake, _receipt(paid, participant_id, journal)
        )
    except (LedgerError, MechanismError, KeyError, TypeError, ValueError) as error:
        raise StateError(
            f"the ledger's entries of round {round_} of task {task_id} are not those of a settled round ({error}); "
            "check the ledger with `fedpeer ledger verify` and ask the coordinator's operator"
        ) from error


def _receipt(paid: Settlement, participant_id: str, journal: Journal) -> str:
    return receipt_error(paid, participant_id, pinned_log_keys(journal))


def _settlement(
    task_id: str, round_: int, kept: Mapping[int, bytes], market: MarketSteps
) -> Steps[Settlement | None]:
    found = stored_settlement(task_id, round_, kept[round_]) if round_ in kept else None
    if found is None:
        try:
            found = settlement_of((yield from market.settlement(task_id, round_)))
        except NotSelectedError:
            return None
        except NotFoundError:
            if round_ not in kept:
                raise
    return found


def _entries(market: MarketSteps, first: int, count: int) -> Steps[list[Entry]]:
    found: list[bytes] = []

    def keep(data: bytes) -> Steps[bool]:
        found.append(data)
        return True
        yield

    yield from transform(market.entries(first, count), keep)
    return [Entry.parse(data) for data in found]


def _block(market: MarketSteps, task_id: str, round_: int, index: int) -> Steps[list[Entry]]:
    """The entries of a round from its first verdict to the payment at `index`."""
    first, count, block = index + 1, _FIRST_ENTRIES, list[Entry]()
    prefix = verdict_id(task_id, round_, "")

    def start() -> int | None:
        """Where the first verdict is, once the entry before it is there too."""
        found = next((i for i, entry in enumerate(block) if entry.id.startswith(prefix)), 0)
        return found or None

    while first and start() is None:
        count = min(count, first)
        first -= count
        block = (yield from _entries(market, first, count)) + block
        count *= 4
    return block[start() or 0 :]


def _explained(
    terms: Terms,
    round_: int,
    participant_id: str,
    told: Settlement,
    block: list[Entry],
    stake: int,
    receipt: str,
) -> Why:
    bodies: list[tuple[str, Any]] = [(entry.kind, entry.body) for entry in block]
    assessments = [assessment_from_record(body["assessment"]) for kind, body in bodies if kind == "verdict"]
    parts = [body for kind, body in bodies if kind == "peers"]
    drawn = {name: tuple(peers) for part in parts for name, peers in part["draws"]}
    by_id = {assessment.participant_id: assessment for assessment in assessments}
    own, logged = by_id[participant_id], replace(_payment(block[-1]), peers=drawn[participant_id])
    # The draw of the round by its logged key; the shares that gave the key stand with the models.
    draw = Draw(bytes(32), {a.participant_id: bytes(32) for a in assessments if a.model_sha256})
    draw.__dict__["key"] = bytes.fromhex(parts[0]["key"])  # in the cached property's place
    settled = settle_round(terms, round_, draw, assessments, {participant_id: stake})
    line = next(payment for payment in settled.payments if payment.participant_id == participant_id)
    problems = [receipt] if receipt else []
    if line != logged:
        problems.append(f"the ledger says {logged}; the verdicts, the draw and the rule give {line}")
    if told.paid_micro != logged.paid_micro:
        problems.append(
            f"the coordinator said that {told.paid_micro} micro-credits were paid, the ledger {logged.paid_micro}"
        )
    rule = PAYMENT_RULES[terms.rule.name]
    peers = [by_id[peer] for peer in line.peers] or [own]
    candidates = [by_id[peer] for peer in sorted(peer_candidates(own, by_id))]
    met, expected, remainder = [], 0, 0
    if own.scored:
        met = [
            Met(peer.participant_id, _scored_by(terms, peer) or Fraction(0), rule(terms, own, [peer]))
            for peer in peers
        ]
        penalty = _penalty(terms, own)
        nets = [
            max(Fraction(0), Fraction(rule(terms, own, [peer])) - penalty) for peer in candidates or [own]
        ]
        expected = int(MICRO * sum(nets) / len(nets))
        remainder = line.paid_micro - int(
            MICRO * max(Fraction(0), Fraction(rule(terms, own, peers)) - penalty)
        )
    return Why(
        terms.task_id, round_, participant_id, terms, own, tuple(met), len(candidates), expected, remainder,
        line, stake, told.ledger_index, tuple(problems),
    )  # fmt: skip


def _payment(entry: Entry) -> Payment:
    """The payment that an entry records, without its peers.

    Raises:
        KeyError, TypeError: it is none.
    """
    names = ("gross_micro", "penalty_micro", "paid_micro", "withheld_micro", "stake_lost_micro")
    return Payment(str(entry.body["participant_id"]), (), *(int(str(entry.body[name])) for name in names))


def _scored_by(terms: Terms, assessment: Assessment) -> Fraction | None:
    if assessment.verified_micro is None:
        return None
    if terms.rule.name == "paper":
        return assessment.claimed_degree
    return Fraction(assessment.verified_micro, MICRO)


def _number(degree: Fraction) -> str:
    """A degree in the formula: to the millionth, which is how finely it is measured."""
    return f"{float(degree):.6f}".rstrip("0").rstrip(".")


def _penalty(terms: Terms, own: Assessment) -> Fraction:
    """lambda * (claim - v)^2 under the rule `verified`, else nothing; credits."""
    if terms.rule.name != "verified" or own.verified_micro is None:
        return Fraction(0)
    distance = own.claimed_degree - Fraction(own.verified_micro, MICRO)
    return Fraction(terms.rule.claim_penalty) * distance * distance
