"""A task's events as entries. Every id is a function of the event, so that recording one twice is recording it once.

    <task>/terms                                terms, or <task>/terms/<part> where they outgrow one entry;
                                                then <task>/round/<r>/reservation
    participant/<p>/key/<f>                     enrolment of a public key with fingerprint f; .../revoked/<f>
    <task>/pseudonym/<p>                        whose a name is that takes part in this task alone: a commitment
    log/key/<n>                                 the n-th change of the key that signs the heads
    <task>/claim/<p>/<submission>               signed effort claim
    <task>/selection/<part>                     who trains
    <task>/round/<r>/state/<STATE>              transition
    <task>/round/<r>/model/<p>/<submission>     signed model; .../failure/<p>/<submission>
    <task>/round/<r>/closing/<part>             the round's models are fixed
    <task>/round/<r>/evidence                   commitment to what verdicts rest on
    <task>/round/<r>/verdict/<p>                outcome, and a commitment to assessment and measurement
    <task>/round/<r>/seed, /peers/<part>, /settlement, /payment/<p>
    <task>/round/<r>/aggregate, /refund
    <task>/dispute/<p>                          counts opened to the coordinator
    <task>/round/<r>/awards, /award/<p>         what disputes add to a settled round
    <task>/stake/<p>/release
    <task>/round/<r>/audit/..., /appeal/<p>     audits: `mechanism.ledger.audit_entries`; <task>/held/<p>/...
    <task>/remeasurement/<n>                    an auditor has measured the ended task again
    <task>/deletion                             no submitted model is kept any more
    learner:<l>/deposit/<reference>             a learner's money comes; .../withdrawal/<reference>: it goes back
    payout/<n>/<part>, payout/<n>/line/<p>      the n-th payout run: what is payable is on its way
    payout/<n>/end, payout/<n>/resolved/<p>     the run is paid, or taken back, as a whole
    payout/<n>/returned/<p>                     one payment came back from the bank

A pseudonym, a claim, a model, evidence, a verdict and a dispute each commit to an opening, which `Entry.opening`
carries and the log has not (`mechanism.ledger.openings`). Lists that may outgrow one entry are cut into numbered
parts. Claims, models and payments carry `keys`, the digest of the key history up to them
(`mechanism.ledger.key_history`).
"""

import base64
import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from math import floor
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from mechanism.canonical import Json, canonical_bytes, canonical_digest
from mechanism.degree import rational
from mechanism.errors import FieldError
from mechanism.ledger.accounts import (
    ROUNDING,
    TREASURY,
    Post,
    Reserve,
    Resolve,
    Transfer,
    escrow,
    held,
    learner,
    moved,
    paid,
    payable,
    payout_reservation,
    reservation_id,
    stake,
)
from mechanism.ledger.entry import Entry
from mechanism.ledger.key_history import NO_KEYS, fingerprint
from mechanism.ledger.note import ED25519, VerificationKey
from mechanism.lifecycle import State
from mechanism.peers import Draw, Meetings
from mechanism.price import Price
from mechanism.settlement import (
    AMOUNTS,
    ARITHMETIC,
    Assessment,
    Outcome,
    Payment,
    RoundSettlement,
    Verdict,
    least_budget_micro,
    outcome_of,
    settle_round,
)
from mechanism.statements import (
    ClaimOpening,
    ClaimStatement,
    ModelOpening,
    ModelStatement,
    check_salt,
    counts_opening,
)
from mechanism.terms import Terms

#: Kind of the entry that announces a new key of the log.
LOG_KEY = "log_key"

#: How a payout run ends.
CONFIRMED, WITHDRAWN = OUTCOMES = "confirmed", "withdrawn"

#: What the entry of a round's evidence says in clear: which shadow models it rests on, and how many.
SHADOW_FIGURES = ("shadows_sha256", "shadows", "carried")

#: Bytes of a part's payload: an entry's limit less its frame and ids.
PART_BYTES = 48_000

#: Parts that terms may take, some 12 MB of canonical text: a reader that puts them together keeps them in memory. What
#: one message of the protocol holds takes fewer.
MAX_TERMS_PARTS = 350


def terms_entries(terms: Terms) -> list[Entry]:
    """The terms, and one reservation a round: payer to escrow, pending, together the whole budget.

    Raises:
        FieldError: a budget below the maximal bill, which settlement could then exceed.
    """
    least = least_budget_micro(terms)
    if terms.budget_micro < least:
        raise FieldError(
            "budget_micro",
            terms.budget_micro,
            f"at least the maximal bill, and 1 for each round: {least} micro-credits",
        )
    return [*published(terms), *(reservation(terms, r) for r in range(1, terms.schedule.rounds + 1))]


def published(terms: Terms) -> list[Entry]:
    """The terms themselves: as they are where they fit an entry, else their canonical text cut into parts.

    Raises:
        FieldError: terms that take more than `MAX_TERMS_PARTS` parts.
    """
    place: dict[str, Json] = {"task_id": terms.task_id}
    if len(terms.canonical) <= PART_BYTES:
        return [Entry(f"{terms.task_id}/terms", "terms", {**place, "terms": terms.record()})]
    parts = cut(f"{terms.task_id}/terms", "terms", place, terms.canonical)
    if len(parts) > MAX_TERMS_PARTS:
        raise FieldError(
            "contract.tensors",
            f"terms of {len(terms.canonical)} bytes",
            f"terms of at most {MAX_TERMS_PARTS} parts of an entry each; fewer tensors, or shorter names",
        )
    return parts


def payer(terms: Terms) -> str:
    """The account from which a task's budget is reserved, and to which lost stakes go."""
    return learner(terms.funder) if terms.funder else TREASURY


def reserved_micro(terms: Terms, round_: int) -> int:
    """What of the budget is reserved for a round: equal parts, the remainder to the first rounds."""
    share, rest = divmod(terms.budget_micro, terms.schedule.rounds)
    return share + (1 if round_ <= rest else 0)


def enrolment(participant_id: str, public_key: ec.EllipticCurvePublicKey) -> Entry:
    """A participant's key, under which its statements must be signed from here on."""
    spki = public_key_bytes(public_key)
    return Entry(
        f"participant/{participant_id}/key/{fingerprint(spki)}",
        "enrolment",
        {"participant_id": participant_id, "public_key": base64.b64encode(spki).decode()},
    )


def pseudonym(task_id: str, participant_id: str, owner: str, salt: bytes) -> Entry:
    """A name, enrolled before, takes part in this task alone; the entry commits to whose it is.

    Args:
        owner: the id under which the operator knows it.
        salt: 32 random bytes.
    """
    opening: dict[str, Json] = {"owner": owner, "salt": check_salt(salt).hex()}
    return pseudonym_as(task_id, participant_id, canonical_digest(opening), opening)


def pseudonym_as(
    task_id: str, participant_id: str, commitment: bytes, opening: Mapping[str, Json] | None = None
) -> Entry:
    """The same of the commitment."""
    body: dict[str, Json] = {
        "task_id": task_id, "participant_id": participant_id, "commitment": commitment.hex(),
    }  # fmt: skip
    return Entry(pseudonym_id(task_id, participant_id), "pseudonym", body, opening=opening)


def pseudonym_id(task_id: str, participant_id: str) -> str:
    """Id of the entry that commits to whose a pseudonym is."""
    return f"{task_id}/pseudonym/{participant_id}"


def revocation(participant_id: str, public_key: ec.EllipticCurvePublicKey, reason: str) -> Entry:
    """The end of a key: nothing signed by it counts from here on."""
    name = fingerprint(public_key_bytes(public_key))
    return Entry(
        f"participant/{participant_id}/revoked/{name}",
        "revocation",
        {"participant_id": participant_id, "fingerprint": name, "reason": reason},
    )


def log_key(number: int, previous: VerificationKey, following: VerificationKey) -> Entry:
    """The `number`-th change of the log's key: heads of more entries than this one's are signed by `following`.

    Raises:
        FieldError: keys of different names, the same key twice, or a witness's.
    """
    if following == previous or following.name != previous.name or following.kind != ED25519:
        raise FieldError(
            "verification_key", str(following), f"another Ed25519 key of the log {previous.name}"
        )
    return Entry(
        log_key_id(number),
        LOG_KEY,
        {"number": number, "previous": str(previous), "verification_key": str(following)},
    )


def log_key_id(number: int) -> str:
    """Id of the `number`-th announcement of a new key, from 1 on."""
    return f"log/key/{number}"


def claim(
    statement: ClaimStatement,
    signature: bytes,
    opening: ClaimOpening | None = None,
    keys: bytes = NO_KEYS,
    organisation: bytes = b"",
) -> Entry:
    """Receipt of an effort claim. None is recorded that came too late.

    Args:
        opening: what the statement commits to, here and below; None where it is not at hand.
        keys: digest of the key history before this entry, here and below.
        organisation: 32 bytes that are the same for all claims of one organisation in the task, and tell nothing else;
            empty where the participant is one by itself.
    """
    return Entry(
        f"{statement.task_id}/claim/{statement.participant_id}/{statement.submission_id}",
        "claim",
        {
            "statement": statement.record(),
            "signature": signature.hex(),
            "keys": keys.hex(),
            "organisation": organisation.hex(),
        },
        opening=None if opening is None else opening.record(),
    )


def selection_entries(task_id: str, participants: Iterable[str]) -> list[Entry]:
    """Those selected to train, in id order; every part has the digest of the whole list."""
    chosen: list[Json] = [*sorted(participants)]
    place: dict[str, Json] = {"task_id": task_id, "participants_sha256": canonical_digest(chosen).hex()}
    return _listed(f"{task_id}/selection", "selection", place, "participants", chosen)


def transition(task_id: str, round_: int, state: str, at: str, reason: str = "") -> Entry:
    """A task enters a state.

    Args:
        round_: the current round; 0 before the first.
        at: when, as `timestamp` writes it, by the coordinator's clock; never before the one before it.
        reason: why a task was cancelled; empty for every other state.
    """
    if state not in State.__members__:
        raise FieldError("state", state, "one of " + ", ".join(State))
    return Entry(
        transition_id(task_id, round_, state),
        "transition",
        {"task_id": task_id, "round": round_, "state": state, "at": at, "reason": reason},
    )


def timestamp(seconds: float) -> str:
    """Seconds since the epoch as entries write a time, such as "2026-11-27T22:30:00Z": in whole ones, rounded down."""
    return datetime.fromtimestamp(floor(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def transition_id(task_id: str, round_: int, state: str) -> str:
    """Id of the entry with which a task enters a state."""
    return f"{task_id}/round/{round_}/state/{state}"


def deletion(task_id: str, at: str) -> Entry:
    """No file of a model that was submitted in the task is kept any more, as its terms have promised.

    Args:
        at: as of `transition`; not before the task's end and the time that the terms promise.
    """
    return Entry(deletion_id(task_id), "deletion", {"task_id": task_id, "at": at})


def deletion_id(task_id: str) -> str:
    """Id of the entry that says so."""
    return f"{task_id}/deletion"


def model(
    statement: ModelStatement,
    signature: bytes,
    sequence: int,
    late: bool = False,
    opening: ModelOpening | None = None,
    keys: bytes = NO_KEYS,
) -> Entry:
    """Receipt of a model. A late one is recorded and not scored.

    Args:
        sequence: the place of its commitment among all of the task, from 1 on: fixed when the upload began.
    """
    return Entry(
        f"{statement.task_id}/round/{statement.round}/model/{statement.participant_id}/{statement.submission_id}",
        "model",
        {
            "statement": statement.record(),
            "signature": signature.hex(),
            "sequence": sequence,
            "late": late,
            "keys": keys.hex(),
        },
        opening=None if opening is None else opening.record(),
    )


def failure(task_id: str, round_: int, participant_id: str, submission_id: str, reason: str) -> Entry:
    """A participant's word that it cannot deliver."""
    return Entry(
        f"{task_id}/round/{round_}/failure/{participant_id}/{submission_id}",
        "failure",
        {
            "task_id": task_id,
            "round": round_,
            "participant_id": participant_id,
            "submission_id": submission_id,
            "reason": reason,
        },
    )


def closing_entries(task_id: str, round_: int, at: str, absent: Iterable[str]) -> list[Entry]:
    """A round's models are fixed: those selected have delivered or failed, the time is over, or the rest is absent.

    Args:
        at: as of `transition`.
        absent: those of the selected that are no longer waited for though the time is not over.
    """
    place: dict[str, Json] = {"task_id": task_id, "round": round_, "at": at}
    return _listed(f"{task_id}/round/{round_}/closing", "closing", place, "absent", sorted(absent))


def evidence(task_id: str, round_: int, model: Mapping[str, Any], salt: bytes) -> Entry:
    """What a round's verdicts rest on besides the submissions.

    Args:
        model: `EvidenceModel.record()` of `mechanism.evidence`.
        salt: 32 random bytes, here and below.
    """
    opening: dict[str, Json] = {"model": model, "salt": check_salt(salt).hex()}
    shadows = {name: model[name] for name in SHADOW_FIGURES}
    return evidence_as(task_id, round_, canonical_digest(opening), shadows, opening)


def evidence_as(
    task_id: str,
    round_: int,
    commitment: bytes,
    shadows: Mapping[str, Json],
    opening: Mapping[str, Json] | None = None,
) -> Entry:
    """The same of the commitment and what is said in clear of the shadows (`SHADOW_FIGURES`)."""
    body: dict[str, Json] = {"task_id": task_id, "round": round_, "commitment": commitment.hex(), **shadows}
    return Entry(evidence_id(task_id, round_), "evidence", body, opening=opening)


def evidence_id(task_id: str, round_: int) -> str:
    """Id of the entry that commits to a round's evidence."""
    return f"{task_id}/round/{round_}/evidence"


def verdict(terms: Terms, round_: int, assessment: Assessment, measurement: Json, salt: bytes) -> Entry:
    """What the evidence says of one participant: in clear what its payment rests on.

    Args:
        measurement: `Measurement.record()` of `mechanism.evidence`, which the assessment rests on; None without one.
    """
    opening: dict[str, Json] = {
        "assessment": assessment_record(assessment),
        "measurement": measurement,
        "salt": check_salt(salt).hex(),
    }
    outcome = outcome_record(outcome_of(terms, assessment))
    return verdict_as(terms.task_id, round_, outcome, canonical_digest(opening), opening)


def verdict_as(
    task_id: str,
    round_: int,
    outcome: Mapping[str, Json],
    commitment: bytes,
    opening: Mapping[str, Json] | None = None,
) -> Entry:
    """The same of the record of the outcome and the commitment."""
    body: dict[str, Json] = {
        "task_id": task_id, "round": round_, "outcome": outcome, "commitment": commitment.hex(),
    }  # fmt: skip
    return Entry(
        verdict_id(task_id, round_, str(outcome["participant_id"])), "verdict", body, opening=opening
    )


def verdict_id(task_id: str, round_: int, participant_id: str) -> str:
    """Id of a participant's verdict in a round."""
    return f"{task_id}/round/{round_}/verdict/{participant_id}"


def settlement_entries(
    terms: Terms,
    round_: int,
    draw: Draw,
    assessments: Sequence[Assessment | Outcome],
    stakes: Mapping[str, int] | None = None,
    disputable: bool = False,
    keys: bytes = NO_KEYS,
    meetings: Meetings | None = None,
) -> tuple[RoundSettlement, list[Entry]]:
    """A round's settlement and the entries that record it: seed, peer draws, settlement, payments.

    Append them in one transaction, after the verdicts of the same assessments. Arguments are those of
    `mechanism.settlement.settle_round`; where disputes are possible, what the round leaves of its reservation is
    kept back until `award_entries`.
    """
    settlement = settle_round(terms, round_, draw, assessments, stakes, meetings=meetings)
    place: dict[str, Json] = {"task_id": terms.task_id, "round": round_}
    prefix = f"{terms.task_id}/round/{round_}"
    entries = [Entry(f"{prefix}/seed", "seed", {**place, "seed": draw.seed.hex()})]
    drawn: dict[str, Json] = {**place, "shares": draw.digest.hex(), "key": draw.key.hex()}
    draws: list[Json] = [[p.participant_id, list(p.peers)] for p in settlement.payments]
    entries += _listed(f"{prefix}/peers", "peers", drawn, "draws", draws)
    kept = kept_micro(terms, round_, settlement) if disputable else 0
    held = Reserve(dispute_reservation(terms, round_), payer(terms), escrow(terms.task_id), kept)
    entries.append(_settled(settlement, prefix, place, held))
    entries += [payment(settlement, line, keys, payer(terms)) for line in settlement.payments]
    return settlement, entries


def peers_id(task_id: str, round_: int, part: int) -> str:
    """Id of a part of a round's peer draws."""
    return f"{task_id}/round/{round_}/peers/{part}"


def dispute_reservation(terms: Terms, round_: int) -> str:
    """The reservation from which a settled round's disputes are paid; those of the rounds come before."""
    return reservation_id(terms.task_id, terms.schedule.rounds + round_)


def kept_micro(terms: Terms, round_: int, settlement: RoundSettlement) -> int:
    """What a settlement leaves of its round's reservation."""
    return reserved_micro(terms, round_) - settlement.total_micro


def award_entries(terms: Terms, round_: int, awards: Mapping[str, int]) -> list[Entry]:
    """Ends the disputes of a settled round: what they add is paid, the rest of what was kept back is voided.

    Args:
        awards: micro-credits by participant id; zeros are passed over.
    """
    ended = awards_ended(terms, round_, sum(awards.values()))
    return [ended, *(award(terms, round_, name, awards[name]) for name in sorted(awards) if awards[name])]


def awards_ended(terms: Terms, round_: int, total_micro: int) -> Entry:
    """What disputes add to a settled round is `total_micro` >= 0 in all; the rest of what was kept back is voided."""
    return Entry(
        awards_id(terms.task_id, round_),
        "awards",
        {"task_id": terms.task_id, "round": round_, "total_micro": total_micro},
        (Resolve(dispute_reservation(terms, round_), total_micro),),
    )


def awards_id(task_id: str, round_: int) -> str:
    """Id of the entry with which the disputes of a round end."""
    return f"{task_id}/round/{round_}/awards"


def award(terms: Terms, round_: int, participant_id: str, micro: int) -> Entry:
    """`micro` >= 1 that a dispute adds to what a participant was paid in a round."""
    return Entry(
        award_id(terms.task_id, round_, participant_id),
        "award",
        {"task_id": terms.task_id, "round": round_, "participant_id": participant_id, "award_micro": micro},
        (Post(escrow(terms.task_id), payable(participant_id), micro),),
    )


def award_id(task_id: str, round_: int, participant_id: str) -> str:
    """Id of a participant's award for a round."""
    return f"{task_id}/round/{round_}/award/{participant_id}"


def payment(
    settlement: RoundSettlement, line: Payment, keys: bytes = NO_KEYS, lost_to: str = TREASURY
) -> Entry:
    """One participant's line of a settlement; a lost stake goes to the account `lost_to`."""
    task_id, name = settlement.task_id, line.participant_id
    staked, owed = stake(task_id, name), payable(name)
    body: dict[str, Json] = {
        "task_id": task_id,
        "round": settlement.round,
        "participant_id": name,
        **{amount: getattr(line, amount) for amount in AMOUNTS},
        "keys": keys.hex(),
    }
    transfers = (
        *moved(escrow(task_id), owed, line.paid_micro),
        *moved(owed, staked, line.withheld_micro),
        *moved(staked, lost_to, line.stake_lost_micro),
    )
    if line.audited is not None:
        body |= {"audited": line.audited, "held_micro": line.held_micro}
        transfers += moved(owed, held(task_id, name), line.held_micro)
    return Entry(f"{task_id}/round/{settlement.round}/payment/{name}", "payment", body, transfers)


def aggregation(
    task_id: str, round_: int, model_sha256: bytes, figures: Mapping[str, str], state_sha256: bytes | None
) -> Entry:
    """The global model after a round, and its figures (loss and, of a classifier, accuracy) as decimal strings.

    Args:
        state_sha256: of the file with the server's state (`mechanism.server_step`); None where there is none.
    """
    return Entry(
        aggregation_id(task_id, round_),
        "aggregation",
        {
            "task_id": task_id,
            "round": round_,
            "model_sha256": model_sha256.hex(),
            "figures": dict(figures),
            "state_sha256": None if state_sha256 is None else state_sha256.hex(),
        },
    )


def aggregation_id(task_id: str, round_: int) -> str:
    """Id of the entry of the global model after a round."""
    return f"{task_id}/round/{round_}/aggregate"


def refund(task_id: str, round_: int) -> Entry:
    """A round that pays nothing: its reservation is voided."""
    return Entry(
        f"{task_id}/round/{round_}/refund",
        "refund",
        {"task_id": task_id, "round": round_},
        (Resolve(reservation_id(task_id, round_), 0),),
    )


def stake_release(task_id: str, participant_id: str, micro: int) -> Entry:
    """A stake of `micro` >= 1 goes back to its participant, at the end of a task."""
    return Entry(
        f"{task_id}/stake/{participant_id}/release",
        "stake_release",
        {"task_id": task_id, "participant_id": participant_id},
        (Post(stake(task_id, participant_id), payable(participant_id), micro),),
    )


def ending_entries(
    task_id: str,
    round_: int,
    state: str,
    unresolved: Iterable[int],
    stakes: Mapping[str, int],
    at: str,
    reason: str = "",
    awards: Sequence[Entry] = (),
    audits: Sequence[Entry] = (),
    convicted: Collection[str] = (),
) -> list[Entry]:
    """What closes or cancels a task: disputes paid, refunds of the unresolved rounds, stakes released, what is held
    released or lost, the last transition.

    Args:
        state: "CLOSED" or "CANCELLED".
        unresolved: rounds whose reservation nobody resolved.
        stakes: micro-credits at stake by participant id; zeros are passed over.
        awards: `award_entries` of every round that kept something back, in round order.
        audits: `mechanism.ledger.audit_entries.held_entries`; convicted: whose stakes are in them.
    """
    refunds = [refund(task_id, number) for number in sorted(unresolved)]
    releases = [
        stake_release(task_id, name, stakes[name])
        for name in sorted(stakes)
        if stakes[name] and name not in convicted
    ]
    return [*awards, *refunds, *releases, *audits, transition(task_id, round_, state, at, reason)]


def dispute(
    task_id: str, participant_id: str, at: str, counts: Sequence[int] | None = None, salt: bytes = b""
) -> Entry:
    """A participant has opened to the coordinator the counts behind its claim's commitment; `at` is as of `transition`.

    Args:
        counts, salt: what it opened; None where that is not at hand.
    """
    return Entry(
        dispute_id(task_id, participant_id),
        "dispute",
        {"task_id": task_id, "participant_id": participant_id, "at": at},
        opening=None if counts is None else counts_opening(counts, salt),
    )


def dispute_id(task_id: str, participant_id: str) -> str:
    """Id of the entry of a participant's dispute."""
    return f"{task_id}/dispute/{participant_id}"


def deposit(learner_id: str, reference: str, micro: int, at: str) -> Entry:
    """A learner's money has come: `micro` >= 1 of credits, under the bank's or the operator's reference."""
    post = Post(TREASURY, learner(learner_id), micro)
    return _funding(deposit_id(learner_id, reference), "deposit", learner_id, reference, at, post)


def deposit_id(learner_id: str, reference: str) -> str:
    """Id of a deposit's entry: one for each learner and reference."""
    return f"learner:{learner_id}/deposit/{reference}"


def withdrawal(learner_id: str, reference: str, micro: int, at: str) -> Entry:
    """`micro` >= 1 of a learner's money goes back to it; arguments as of `deposit`."""
    post = Post(learner(learner_id), TREASURY, micro)
    return _funding(withdrawal_id(learner_id, reference), "withdrawal", learner_id, reference, at, post)


def withdrawal_id(learner_id: str, reference: str) -> str:
    """Id of a withdrawal's entry: one for each learner and reference, apart from deposits'."""
    return f"learner:{learner_id}/withdrawal/{reference}"


def _funding(entry_id: str, kind: str, learner_id: str, reference: str, at: str, post: Post) -> Entry:
    body: dict[str, Json] = {"learner_id": learner_id, "reference": reference, "micro": post.micro, "at": at}
    return Entry(entry_id, kind, body, (post,))


def payout_entries(number: int, at: str, price: Price, free: Mapping[str, int]) -> list[Entry]:
    """A payout run: all that each of its participants is owed, in whole units of the currency, is on its way.

    Args:
        number: 1 for the first run of a log.
        free: what each participant's payable account holds and has not reserved, micro-credits by id; each is worth a
            unit at least.
    """
    place: dict[str, Json] = {"number": number, "at": at, "price": price.record()}
    lines = [payout_line(number, name, price, free[name]) for name in sorted(free)]
    return [*_listed(f"payout/{number}", "payout", place, "participants", sorted(free)), *lines]


def payout_line(number: int, participant_id: str, price: Price, free: int) -> Entry:
    """One participant's line of a run; `free` as of `payout_entries`."""
    units = price.units(free)
    micro = price.micro(units)
    held = Reserve(
        payout_reservation(participant_id, number), payable(participant_id), paid(participant_id), micro
    )
    return Entry(
        f"payout/{number}/line/{participant_id}",
        "payout_line",
        {"number": number, "participant_id": participant_id, "units": units, "micro": micro},
        (held,),
    )


def payout_end_entries(
    number: int, at: str, outcome: str, reason: str, lines: Mapping[str, int]
) -> list[Entry]:
    """A run ends as a whole.

    Args:
        outcome: "confirmed": the bank has paid it; "withdrawn": it was not paid, and all of it is payable again.
        reason: why it is withdrawn; empty where it is confirmed.
        lines: micro-credits of its lines, by participant id.

    Raises:
        FieldError: another outcome.
    """
    if outcome not in OUTCOMES:
        raise FieldError("outcome", outcome, "one of " + ", ".join(OUTCOMES))
    body: dict[str, Json] = {"number": number, "at": at, "outcome": outcome, "reason": reason}
    resolved = [
        Entry(
            f"payout/{number}/resolved/{name}",
            "payout_resolved",
            {"number": number, "participant_id": name},
            (Resolve(payout_reservation(name, number), lines[name] if outcome == CONFIRMED else 0),),
        )
        for name in sorted(lines)
    ]
    return [Entry(f"payout/{number}/end", "payout_end", body), *resolved]


def payout_return(number: int, participant_id: str, at: str, reason: str, micro: int) -> Entry:
    """One payment of a confirmed run came back from the bank: all of its line is payable again.

    Args:
        reason: the bank's; not empty.
        micro: of the line, >= 1.
    """
    return Entry(
        payout_return_id(number, participant_id),
        "payout_return",
        {"number": number, "participant_id": participant_id, "at": at, "reason": reason, "micro": micro},
        (Post(paid(participant_id), payable(participant_id), micro),),
    )


def payout_return_id(number: int, participant_id: str) -> str:
    """Id of the entry of a payment that came back."""
    return f"payout/{number}/returned/{participant_id}"


def assessment_record(assessment: Assessment) -> dict[str, Json]:
    """The canonical record of an assessment."""
    return {
        **vars(assessment),
        "model_sha256": assessment.model_sha256.hex(),
        "claimed_degree": str(assessment.claimed_degree),
        "scores": dict(assessment.scores),
        "verdicts": [item.record() for item in assessment.verdicts],
    }


def assessment_from_record(record: Mapping[str, Any]) -> Assessment:
    """The assessment that `record` writes down; FieldError, TypeError or ValueError where it writes none."""
    fields = dict(record)
    fields["model_sha256"] = bytes.fromhex(fields["model_sha256"])
    fields["claimed_degree"] = rational("claimed_degree", fields["claimed_degree"])
    fields["verdicts"] = tuple([Verdict(**item) for item in fields["verdicts"]])
    return Assessment(**fields)


def outcome_record(outcome: Outcome) -> dict[str, Json]:
    """The canonical record of an outcome."""
    return {
        **vars(outcome),
        "model_sha256": outcome.model_sha256.hex(),
        "scores": dict(outcome.scores),
        "verdicts": [list(verdict) for verdict in outcome.verdicts],
    }


def outcome_from_record(record: Mapping[str, Any]) -> Outcome:
    """The outcome that `record` writes down; FieldError, TypeError or ValueError where it writes none."""
    fields = dict(record)
    fields["model_sha256"] = bytes.fromhex(fields["model_sha256"])
    fields["verdicts"] = tuple([(screen, passed) for screen, passed in fields["verdicts"]])
    return Outcome(**fields)


def public_key_bytes(public_key: ec.EllipticCurvePublicKey) -> bytes:
    """The key's SubjectPublicKeyInfo in DER."""
    return public_key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def reservation(terms: Terms, round_: int) -> Entry:
    """The reservation from which a round is paid: payer to escrow, pending."""
    task_id = terms.task_id
    micro = reserved_micro(terms, round_)
    held = Reserve(reservation_id(task_id, round_), payer(terms), escrow(task_id), micro)
    return Entry(
        f"{task_id}/round/{round_}/reservation", "reservation", {"task_id": task_id, "round": round_}, (held,)
    )


def _settled(settlement: RoundSettlement, prefix: str, place: Mapping[str, Json], kept: Reserve) -> Entry:
    transfers: list[Transfer] = [
        Resolve(reservation_id(settlement.task_id, settlement.round), settlement.total_micro),
        *moved(escrow(settlement.task_id), ROUNDING, settlement.rounding_micro),
        *((kept,) if kept.micro else ()),
    ]
    return Entry(
        f"{prefix}/settlement",
        "settlement",
        {
            **place,
            "arithmetic": ARITHMETIC,
            "participants": len(settlement.payments),
            "total_micro": settlement.total_micro,
            "rounding_micro": settlement.rounding_micro,
        },
        tuple(transfers),
    )


def joined(pieces: Sequence[str], digest: str) -> bytes:
    """The canonical text that was cut into `pieces`, the `data` of all parts in order.

    Raises:
        FieldError: not base64, or not of that digest.
    """
    try:
        data = base64.b64decode("".join(pieces), validate=True)
    except ValueError:
        raise FieldError("data", pieces[0][:40], "base64") from None
    if hashlib.sha256(data).hexdigest() != digest:
        raise FieldError("sha256", digest, "the digest of the parts put together")
    return data


def cut(prefix: str, kind: str, place: Mapping[str, Json], data: bytes) -> list[Entry]:
    """A record's canonical text in numbered parts, its digest in each."""
    text, digest = base64.b64encode(data).decode(), hashlib.sha256(data).hexdigest()
    pieces = [text[start : start + PART_BYTES] for start in range(0, len(text), PART_BYTES)]
    return [
        Entry(
            f"{prefix}/{number}",
            kind,
            {**place, "part": number, "parts": len(pieces), "sha256": digest, "data": piece},
        )
        for number, piece in enumerate(pieces, 1)
    ]


def _listed(
    prefix: str, kind: str, place: Mapping[str, Json], name: str, items: Sequence[Json]
) -> list[Entry]:
    """A list in numbered parts."""
    parts = _parts(items)
    return [
        Entry(f"{prefix}/{number}", kind, {**place, "part": number, "parts": len(parts), name: part})
        for number, part in enumerate(parts, 1)
    ]


def _parts(items: Sequence[Json]) -> list[list[Json]]:
    """Consecutive runs of `items` whose canonical bytes fit an entry; one empty run where there is none."""
    if len(canonical_bytes(items)) - len("[]") <= PART_BYTES:
        return [list(items)]
    parts: list[list[Json]] = [[]]
    used = 0
    for item in items:
        length = len(canonical_bytes(item)) + 1
        if used + length > PART_BYTES and parts[-1]:
            parts.append([])
            used = 0
        parts[-1].append(item)
        used += length
    return parts
