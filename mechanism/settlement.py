"""What a round pays: from assessments and a revealed seed to integer micro-credits.

For participant k with peers P_k (drawn by `mechanism.peers` among the scored, never from its own cluster; under
`verified` among those that it has met least often in the task, else anew each round), degrees in [0, 1], a screen
multiplier m_k in [0, 1] and a weight w_k in [0, 1] (`mechanism.coverage`),

    verified:  a_k = max(0, w_k * m_k * mean_{j in P_k} f(Q / (Phi*v_k^2 + Phi*v_j^2 + Upsilon))
                            - penalty_k - fee*(1 - w_k)),    penalty_k = lambda*(claim_k - v_k)^2
    paper:     the same with m_k = 1, no penalty and no fee, v the claimed degree in millionths

    others:    a_k = w_k * s_k * f(Q / Upsilon), s_k in [0, 1] the evidence's score of k by the rule

in credits, computed in `decimal` with 28 digits, half-even; under a logarithm the mean is the logarithm of one product
over the number of peers. A penalty is rounded up to a micro-credit first: so what a round pays follows from `Outcome`s
alone, which a log shows to everybody, and an `Assessment` need not be shown. A participant that is not scored is paid
nothing and is nobody's peer; one without any peer stands in for its own. The round's amounts become micro-credits by
largest remainder: the sum is rounded down, and the units that the single floors lose go to the largest
fractions, ties in participant-id order. What remains of the sum, below one micro-credit, is taken from escrow
as one micro-credit into the rounding account.

A stake is held back from a participant's earnings until it reaches the terms' amount; a refuted claim loses it. Where
the terms have audits (`mechanism.audit`), what is left of a round that is audited is held, and a share of every other.

Sources: Pang et al. 2025, equation (7) for the payment; docs/mechanism.md for the corrections.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Context, Decimal
from fractions import Fraction
from math import floor
from operator import attrgetter

from mechanism.canonical import Json
from mechanism.coverage import least_fee, weight
from mechanism.errors import FieldError, SettlementError
from mechanism.peers import NOBODY, Draw, Meetings
from mechanism.readable import Readable
from mechanism.records import decimal
from mechanism.terms import Terms

#: Micro-credits in a credit; also the resolution of a measured degree and of a screen multiplier.
MICRO = 1_000_000
_MICRO_DIGITS = 6

#: Name of this arithmetic in ledger entries. Any change of a payment's last digit needs a new name.
ARITHMETIC = "decimal28-half-even/largest-remainder-v4"

#: A number as evidence and aggregations write it: no exponent, no blanks, digits that are ASCII.
PLAIN_DECIMAL = re.compile(r"-?[0-9]{1,30}(\.[0-9]{1,30})?")

#: Of all amounts, whatever the program around has set for itself. The largest in an account takes 16 digits.
_CONTEXT = Context(prec=28, rounding=ROUND_HALF_EVEN)

#: Of more candidates than that an expected payment is the mean over so many.
STAND_INS = 300

_MICRO = Decimal(MICRO)
_NOTHING = Decimal(0)
_participant = attrgetter("participant_id")

#: Of an assessment, what is a part of 1.
_PARTS = ("verified_micro", "lower_micro", "upper_micro", "multiplier_ppm", "distinct_micro")


@dataclass(frozen=True)
class Verdict:
    """What one screen found.

    Attributes:
        screen: its name, such as "echo".
        passed: whether the submission passed.
        explanation: a sentence for the participant.
        figures: what it rests on, names to decimal strings.
    """

    screen: str
    passed: bool
    explanation: str
    figures: Mapping[str, str] = field(default_factory=dict)

    def record(self) -> dict[str, Json]:
        return {**vars(self), "figures": dict(self.figures)}

    def __str__(self) -> str:
        return f"{self.screen} {'passed' if self.passed else 'FAILED'}: {self.explanation}"


@dataclass(frozen=True)
class Assessment:
    """What the evidence says of one participant's submission in one round.

    Attributes:
        participant_id: whose.
        model_sha256: digest of the submitted model; empty where none came in time.
        claimed_degree: from the effort claim, in [0, 1].
        verified_micro: verified degree in millionths, or None where the submission is not scored.
        lower_micro, upper_micro: the prediction interval of the evidence, millionths.
        multiplier_ppm: what the screens leave of the payment, millionths.
        refuted: the claim lies outside the error band; costs the stake.
        cluster: name of the cluster of models that are linked by samples in common, None for one of its own. Members
            are never paired.
        holders_micro: how many of its cluster have one of its samples, in the mean, millionths, itself included.
        distinct_micro: its distinct samples over those of the recipe, millionths, at most 1.
        scores: what other rules pay on, by rule name, decimal strings.
        verdicts: every screen's, in the order applied.
    """

    participant_id: str
    model_sha256: bytes
    claimed_degree: Fraction
    verified_micro: int | None
    lower_micro: int | None = None
    upper_micro: int | None = None
    multiplier_ppm: int = MICRO
    refuted: bool = False
    cluster: str | None = None
    holders_micro: int = MICRO
    distinct_micro: int = MICRO
    scores: Mapping[str, str] = field(default_factory=dict)
    verdicts: tuple[Verdict, ...] = ()

    def __post_init__(self) -> None:
        claimed = self.claimed_degree  # compared in integers, as one of these is made for every verdict
        if not 0 <= claimed.numerator <= claimed.denominator:
            raise FieldError("claimed_degree", claimed, "a rational in [0, 1]")
        for name in _PARTS:
            _check_part(name, getattr(self, name))
        if self.holders_micro < MICRO:
            raise FieldError("holders_micro", self.holders_micro, f"an integer of at least {MICRO}")

    @property
    def scored(self) -> bool:
        return self.verified_micro is not None


@dataclass(frozen=True)
class Outcome:
    """What of an assessment a payment rests on, and all of it that a log shows to everybody (`outcome_of`).

    Attributes:
        participant_id, model_sha256, verified_micro, multiplier_ppm, refuted, cluster: as of `Assessment`.
        weight_micro: w_k, millionths.
        penalty_micro: of the claim, micro-credits, rounded up.
        scores: under a rule that pays on one, the score of that rule by its name; else empty.
        verdicts: each screen's name and whether it was passed, in the order applied.
    """

    participant_id: str
    model_sha256: bytes
    verified_micro: int | None
    weight_micro: int = MICRO
    multiplier_ppm: int = MICRO
    penalty_micro: int = 0
    refuted: bool = False
    cluster: str | None = None
    scores: Mapping[str, str] = field(default_factory=dict)
    verdicts: tuple[tuple[str, bool], ...] = ()

    def __post_init__(self) -> None:
        _check_part("verified_micro", self.verified_micro)
        _check_part("weight_micro", self.weight_micro)
        _check_part("multiplier_ppm", self.multiplier_ppm)
        if self.penalty_micro < 0:
            raise FieldError("penalty_micro", self.penalty_micro, "an integer of at least 0")

    @property
    def scored(self) -> bool:
        return self.verified_micro is not None


#: The amounts of a payment that its entry has in any case, by their names.
AMOUNTS = ("gross_micro", "penalty_micro", "fee_micro", "paid_micro", "withheld_micro", "stake_lost_micro")


@dataclass(frozen=True)
class Payment(Readable):
    """One participant's line of a settlement; all amounts in micro-credits.

    Attributes:
        peers: who it was scored against, in id order; empty where it was not scored or had no peer.
        gross_micro: before penalty and fee, rounded down; for the explanation only.
        penalty_micro: of the claim.
        fee_micro: of the weight, rounded up; for the explanation only.
        paid_micro: what it earns in this round.
        withheld_micro: the part of it that goes to the stake.
        stake_lost_micro: what a refuted claim costs of the stake held so far.
        held_micro: the part of it that is held for audits.
        audited: whether it is to be audited; None where the terms have no audits.
    """

    participant_id: str
    peers: tuple[str, ...]
    gross_micro: int
    penalty_micro: int
    fee_micro: int
    paid_micro: int
    withheld_micro: int
    stake_lost_micro: int
    held_micro: int = 0
    audited: bool | None = None

    def __str__(self) -> str:
        return (
            f"{self.participant_id}: paid {self.paid_micro} micro-credits, of {self.gross_micro} before a penalty of "
            f"{self.penalty_micro} and a fee of {self.fee_micro}, against {', '.join(self.peers) or 'nobody'}; "
            f"{self.withheld_micro} held back, {self.stake_lost_micro} of the stake lost"
            + ("" if self.audited is None else f", {self.held_micro} held for audits")
            + (", and it is audited" if self.audited else "")
        )


@dataclass(frozen=True)
class RoundSettlement:
    """A settled round: payments in participant-id order, and what escrow gives up for them.

    `total_micro` = sum of `paid_micro` + `rounding_micro`.
    """

    task_id: str
    round: int
    draw: Draw
    payments: tuple[Payment, ...]
    rounding_micro: int

    @property
    def total_micro(self) -> int:
        return sum(payment.paid_micro for payment in self.payments) + self.rounding_micro


@dataclass(frozen=True)
class _Without(Collection[str]):
    """Everyone but some of them."""

    everyone: frozenset[str]
    gone: Set[str]

    def __contains__(self, name: object) -> bool:
        return name in self.everyone and name not in self.gone

    def __iter__(self) -> Iterator[str]:
        return (name for name in self.everyone if name not in self.gone)

    def __len__(self) -> int:
        return len(self.everyone) - len(self.gone)


#: A rule: (terms, participant, its peers) to what a participant of weight 1 gets before penalty and fee, in credits.
PaymentRule = Callable[[Terms, Outcome, Sequence[Outcome]], Decimal]


def outcome_of(terms: Terms, found: Assessment | Outcome) -> Outcome:
    """What of an assessment the payment rests on; an outcome as it is."""
    if isinstance(found, Outcome):
        return found
    kept = {terms.rule.name: found.scores[terms.rule.name]} if terms.rule.name in found.scores else {}
    return Outcome(
        found.participant_id,
        found.model_sha256,
        found.verified_micro,
        weight_micro(terms, found),
        found.multiplier_ppm,
        in_micro(_penalty(terms, found), ROUND_CEILING) if found.scored else 0,
        found.refuted,
        found.cluster,
        kept if found.scored else {},
        tuple([(verdict.screen, verdict.passed) for verdict in found.verdicts]),
    )


def settle_round(
    terms: Terms,
    round_: int,
    draw: Draw,
    assessments: Sequence[Assessment | Outcome],
    stakes: Mapping[str, int] | None = None,
    own_rule: PaymentRule | None = None,
    meetings: Meetings | None = None,
    peers: Mapping[str, Sequence[str]] | None = None,
) -> RoundSettlement:
    """Payments of one round. A pure function: the ledger's verifier calls it again on the logged inputs.

    Args:
        terms: of the task.
        round_: 1..T.
        draw: the revealed seed of the round and the draw share of every model that was received in time; the caller
            has checked them against the commitment and the claims.
        assessments: of everyone selected, in any order, those who sent nothing included; or what a log shows of them.
        stakes: micro-credits of stake that each participant has in this task before the round.
        own_rule: pays in place of the rule that the terms name; for studies, which keep no ledger.
        meetings: of the rounds of the task before; None: there is none.
        peers: whom each of the scored is scored against, where that is not to be drawn again.

    Raises:
        SettlementError: a participant assessed twice, a model digest missing from a scored one, or a share without a
            model or a model without its share.
        FieldError: a round outside the schedule.
    """
    if not 1 <= round_ <= terms.schedule.rounds:
        raise FieldError("round", round_, f"1 to {terms.schedule.rounds}")
    by_id = {a.participant_id: outcome_of(terms, a) for a in sorted(assessments, key=_participant)}
    if len(by_id) != len(assessments):
        raise SettlementError("a participant is assessed twice in one round; expected one assessment each")
    scored = [name for name, assessment in by_id.items() if assessment.verified_micro is not None]
    for name in scored:
        if len(by_id[name].model_sha256) != 32:
            raise SettlementError(f"{name} is scored without a model digest of 32 bytes")
    received = {name for name, assessment in by_id.items() if assessment.model_sha256}
    if received != draw.shares.keys():
        names = ", ".join(sorted(received ^ draw.shares.keys()))
        raise SettlementError(
            f"the draw's shares are not those of the models in time; expected one share a model: {names}"
        )

    if peers is None:
        peers = drawn_peers(terms, draw, by_id, meetings)
    gross_of, penalty_of, fee_of, net, ratios = {}, {}, {}, {}, _Ratios(terms)
    for name in scored:
        assessment = by_id[name]
        met = [by_id[peer] for peer in peers[name]] or [assessment]
        gross = gross_payment(terms, assessment, met, own_rule, ratios)
        fee = weight_fee(terms, assessment)
        gross_of[name], penalty_of[name] = in_micro(gross, ROUND_FLOOR), assessment.penalty_micro
        fee_of[name] = in_micro(fee, ROUND_CEILING)
        net[name] = _net(gross, assessment.penalty_micro, fee)
    paid_of, rounding = largest_remainder(net)

    most_stake, lines = terms.rule.stake_micro, []
    for name, assessment in by_id.items():
        paid, held = paid_of.get(name, 0), stakes.get(name, 0) if stakes else 0
        withheld = 0 if assessment.refuted else min(paid, max(0, most_stake - held))
        audited, kept = _audited(terms, draw, name, paid, withheld)
        lines.append(
            Payment(
                participant_id=name,
                peers=tuple(peers.get(name, ())),
                gross_micro=gross_of.get(name, 0),
                penalty_micro=penalty_of.get(name, 0),
                fee_micro=fee_of.get(name, 0),
                paid_micro=paid,
                withheld_micro=withheld,
                stake_lost_micro=min(held, most_stake) if assessment.refuted else 0,
                held_micro=kept,
                audited=audited,
            )
        )
    return RoundSettlement(terms.task_id, round_, draw, tuple(lines), rounding)


def _audited(terms: Terms, draw: Draw, name: str, paid: int, withheld: int) -> tuple[bool | None, int]:
    """Whether a payment is audited, and what of it is held for audits."""
    audit = terms.audit
    if audit is None:
        return None, 0
    rest, audited = paid - withheld, paid > 0 and audit.draws(draw.key, name)
    return audited, rest if audited else audit.held(rest)


def drawn_peers(
    terms: Terms, draw: Draw, by_id: Mapping[str, Outcome], meetings: Meetings | None
) -> dict[str, tuple[str, ...]]:
    """Whom each of the scored is scored against.

    Args:
        by_id: of the round.
        meetings: of the rounds of the task before; None: there is none. Under `verified` the least met are drawn.
    """
    everyone = frozenset(name for name, assessment in by_id.items() if assessment.scored)
    members: dict[str | None, set[str]] = {None: set()}
    for name in everyone:
        if (cluster := by_id[name].cluster) is not None:
            members.setdefault(cluster, set()).add(name)
    # Without a copy of everyone for each cluster, so that a round takes linear time.
    candidates = {
        cluster: _Without(everyone, gone) if gone else everyone for cluster, gone in members.items()
    }
    spread = meetings if terms.rule.name == "verified" else None
    peers = {}
    for name in everyone:
        met = NOBODY if spread is None else spread.of(name)
        peers[name] = draw.peers(name, candidates[by_id[name].cluster], terms.rule.peers, met)
    return peers


def expected_payments(terms: Terms, assessments: Sequence[Assessment | Outcome]) -> dict[str, int]:
    """What the round pays if each participant meets every candidate instead of the peers that are drawn.

    The draw is uniform while the same people are scored in every round (`mechanism.peers`), so this is then the mean of
    the round's payments over all draws, as long as no penalty is larger than what a draw pays before it. Paid amounts
    scatter around it, the less the more peers the rule draws.

    Args:
        assessments: as of `settle_round`. Of more than `STAND_INS` that are scored, so many stand for all, of evenly
            spaced ranks by degree: nothing is paid by what is expected.

    Returns:
        micro-credits by participant id, rounded down; 0 where the participant is not scored.
    """
    scored = sorted(
        (outcome_of(terms, a) for a in assessments if a.scored),
        key=lambda a: (_verified_degree(a), a.participant_id),
    )
    if (size := len(scored)) > STAND_INS:
        met = [scored[(2 * i + 1) * size // (2 * STAND_INS)] for i in range(STAND_INS)]
    else:
        met = scored
    expected = dict.fromkeys(sorted(a.participant_id for a in assessments), 0)
    for subject in scored:
        candidates = [other for other in met if may_meet(subject, other)]
        candidates.sort(key=_participant)
        expected[subject.participant_id] = payment_against(terms, subject, candidates or [subject])
    return expected


def payment_against(
    terms: Terms, subject: Assessment | Outcome, peers: Sequence[Assessment | Outcome]
) -> int:
    """a_k of a scored participant against these peers, in micro-credits, rounded down: before the largest remainder."""
    own = outcome_of(terms, subject)
    gross = gross_payment(terms, own, [outcome_of(terms, peer) for peer in peers])
    return in_micro(_net(gross, own.penalty_micro, weight_fee(terms, own)), ROUND_FLOOR)


def _net(gross: Decimal, penalty_micro: int, fee: Decimal) -> Decimal:
    penalty = Decimal(penalty_micro).scaleb(-_MICRO_DIGITS, _CONTEXT)
    return max(_NOTHING, _CONTEXT.subtract(_CONTEXT.subtract(gross, penalty), fee))


def gross_payment(
    terms: Terms,
    subject: Outcome,
    peers: Sequence[Outcome],
    own_rule: PaymentRule | None = None,
    ratios: "_Ratios | None" = None,
) -> Decimal:
    """What the rule gives a scored participant against these peers, times its weight, in credits; `ratios` are those of
    its round, where there are more to be computed."""
    rule = PAYMENT_RULES[terms.rule.name] if own_rule is None else own_rule
    if rule is _paid_by_degree:
        return _part(_paid_by_degree(terms, subject, peers, ratios), subject.weight_micro)
    return _part(rule(terms, subject, peers), subject.weight_micro)


def weight_micro(terms: Terms, subject: Assessment) -> int:
    """w_k in millionths, rounded down."""
    if subject.holders_micro == subject.distinct_micro == MICRO:
        return MICRO
    distinct, holders = Fraction(subject.distinct_micro, MICRO), Fraction(subject.holders_micro, MICRO)
    return floor(weight(distinct, holders, Fraction(terms.rule.whole_from)) * MICRO)


def weight_fee(terms: Terms, subject: Outcome) -> Decimal:
    """fee * (1 - w_k) under the rule `verified`, else nothing, in credits."""
    if terms.rule.name != "verified":
        return _NOTHING
    return _part(terms.rule.fee, MICRO - subject.weight_micro)


def least_fee_of(terms: Terms) -> Decimal:
    """The least fee at which no split of one recipe's samples gains (`mechanism.coverage`), credits."""
    most = max_payment_micro(terms.Q, terms.upsilon, terms.payment.exact)
    return least_fee(Decimal(most).scaleb(-_MICRO_DIGITS, _CONTEXT), terms.rule.whole_from)


def peer_candidates(assessment: Outcome, by_id: Mapping[str, Outcome]) -> frozenset[str]:
    """Those that may be drawn as a peer: the scored, without the participant and its cluster."""
    return frozenset(name for name, other in by_id.items() if other.scored and may_meet(assessment, other))


def may_meet(subject: Outcome, other: Outcome) -> bool:
    """Whether they are two, and not of one cluster."""
    one = subject.cluster is not None and subject.cluster == other.cluster
    return not one and subject.participant_id != other.participant_id


def largest_remainder(amounts: Mapping[str, Decimal]) -> tuple[dict[str, int], int]:
    """Credits to micro-credits: integers that sum to the rounded-down sum, and the residue unit (0 or 1).

    Args:
        amounts: credits >= 0 by participant id.
    """
    floors, fractions, rest = {}, {}, _NOTHING
    for name in sorted(amounts):
        exact = _CONTEXT.multiply(amounts[name], _MICRO)
        floors[name] = floor = int(exact)  # amounts are not negative
        fractions[name] = fraction = _CONTEXT.subtract(exact, floor)
        rest = _CONTEXT.add(rest, fraction)
    units = int(rest)
    for name in sorted(fractions, key=fractions.__getitem__, reverse=True)[
        :units
    ]:  # stable: ties in id order
        floors[name] += 1
    return floors, 0 if rest == units else 1


def max_payment_micro(
    terms_q: Decimal, upsilon: Decimal, exact: Callable[[Decimal, Context], Decimal]
) -> int:
    """f(Q / Upsilon) in micro-credits, rounded up: no participant earns more in one round."""
    return in_micro(exact(_CONTEXT.divide(terms_q, upsilon), _CONTEXT), ROUND_CEILING)


def task_budget_micro(terms: Terms) -> int:
    """The most that the task can pay: rounds * capacity * f(Q / Upsilon), micro-credits."""
    most = max_payment_micro(terms.Q, terms.upsilon, terms.payment.exact)
    return terms.schedule.rounds * terms.schedule.capacity * most


def least_budget_micro(terms: Terms) -> int:
    """What a task must have: its maximal bill, and at least one micro-credit to reserve for each round."""
    return max(task_budget_micro(terms), terms.schedule.rounds)


def peer_payment(terms: Terms, degree: Fraction, peer_degree: Fraction) -> Decimal:
    """f(Q / (Phi*delta_k^2 + Phi*delta_k'^2 + Upsilon)) in credits."""
    return terms.payment.exact_mean([_ratio(terms, _squares(degree, peer_degree))], _CONTEXT)


def _squares(degree: Fraction, peer_degree: Fraction) -> Decimal:
    """delta_k^2 + delta_k'^2."""
    (a, b), (c, d) = degree.as_integer_ratio(), peer_degree.as_integer_ratio()
    return _CONTEXT.divide((a * d) ** 2 + (c * b) ** 2, (b * d) ** 2)


class _Ratios(dict[int, Decimal]):
    """Q / (Phi*s + Upsilon) by s * 10^12, a sum of two squared degrees: two that meet each other in a round have one,
    which is computed once."""

    def __init__(self, terms: Terms) -> None:
        self._terms = terms

    def __missing__(self, sum_: int) -> Decimal:
        squares = Decimal(sum_).scaleb(-2 * _MICRO_DIGITS, _CONTEXT)
        ratio = self[sum_] = _ratio(self._terms, squares)
        return ratio


def _ratio(terms: Terms, squares: Decimal) -> Decimal:
    """Q / (Phi*s + Upsilon) for a sum of squares s."""
    return _CONTEXT.divide(terms.Q, _CONTEXT.fma(terms.phi, squares, terms.upsilon))


def _paid_by_degree(
    terms: Terms, subject: Outcome, peers: Sequence[Outcome], ratios: _Ratios | None = None
) -> Decimal:
    """The mean of f(Q / (Phi*(v_k^2 + v_j^2) + Upsilon)) over the peers, in their order."""
    ratios = _Ratios(terms) if ratios is None else ratios
    square = _verified_degree(subject) ** 2
    met = [ratios[square + _verified_degree(peer) ** 2] for peer in peers]
    return _part(terms.payment.exact_mean(met, _CONTEXT), subject.multiplier_ppm)


def _scored(rule: str) -> PaymentRule:
    """a_k = s_k * f(Q / Upsilon), for the evidence's score s_k in [0, 1] by that rule; no peer matters."""

    def pay(terms: Terms, subject: Outcome, peers: Sequence[Outcome]) -> Decimal:
        if rule not in subject.scores:
            raise SettlementError(f"{subject.participant_id} is scored and has no {rule} score")
        text = subject.scores[rule]
        if not PLAIN_DECIMAL.fullmatch(text) or not 0 <= (score := decimal(f"scores.{rule}", text)) <= 1:
            raise SettlementError(
                f"{subject.participant_id} has the {rule} score {text:.60}; expected a decimal in [0, 1]"
            )
        most = terms.payment.exact(_CONTEXT.divide(terms.Q, terms.upsilon), _CONTEXT)
        return _CONTEXT.multiply(score, most)

    return pay


def _penalty(terms: Terms, subject: Assessment) -> Decimal:
    """lambda * (claim - v)^2 under the rule `verified`, else nothing."""
    if terms.rule.name != "verified":
        return _NOTHING
    claim = subject.claimed_degree
    distance = claim.numerator * MICRO - _verified_degree(subject) * claim.denominator
    if not distance:
        return _NOTHING
    squared = _CONTEXT.divide(distance * distance, (claim.denominator * MICRO) ** 2)
    return _CONTEXT.multiply(terms.rule.claim_penalty, squared)


def _part(amount: Decimal, micro: int) -> Decimal:
    """So many millionths of an amount; the amount itself where it is all."""
    if micro == MICRO:
        return amount
    return _CONTEXT.multiply(amount, Decimal(micro).scaleb(-_MICRO_DIGITS, _CONTEXT))


def _verified_degree(assessment: Assessment | Outcome) -> int:
    if assessment.verified_micro is None:
        raise SettlementError(f"{assessment.participant_id} has no verified degree and cannot be paid on it")
    return assessment.verified_micro


def _check_part(name: str, micro: int | None) -> None:
    """A part of 1, or none."""
    if micro is not None and not 0 <= micro <= MICRO:
        raise FieldError(name, micro, f"an integer in [0, {MICRO}]")


def in_micro(credits_: Decimal, rounding: str) -> int:
    """Credits as whole micro-credits, rounded as a mode of `decimal` says."""
    if not credits_:
        return 0
    return int(_CONTEXT.multiply(credits_, _MICRO).to_integral_value(rounding))


#: The rules that terms can name.
PAYMENT_RULES: Mapping[str, PaymentRule] = {
    "paper": _paid_by_degree,
    "verified": _paid_by_degree,
    **{name: _scored(name) for name in ("leave_one_out", "shapley", "correlated_agreement", "dmi")},
}
