"""A small market on paper: terms, keys, statements, and whole tasks as the entries that record them."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec

from mechanism.affine import NANO
from mechanism.audit_verdict import AuditVerdict
from mechanism.canonical import Json
from mechanism.degree_map import DegreeMap
from mechanism.evidence import EvidenceModel, LikenessMap, Measurement, QualityMap, Thresholds, assess
from mechanism.ledger import entries
from mechanism.ledger.audit_entries import AuditFindings, audit, audit_id
from mechanism.ledger.entry import Entry
from mechanism.ledger.key_history import NO_KEYS, keys_after
from mechanism.payment import Log
from mechanism.peers import Draw, Meetings, draw_head, draw_share, round_seed, seed_commitment
from mechanism.settlement import MICRO, Assessment, task_budget_micro
from mechanism.statements import (
    ClaimOpening,
    ClaimStatement,
    ModelOpening,
    ModelStatement,
    commit_counts,
    sign_statement,
)
from mechanism.terms import ModelContract, Recipe, Rule, Schedule, TensorSpec, Terms
from mechanism.trees import Forest, Tree
from mechanism.unmeasured import as_claimed, missing
from mechanism.variation import Allowed
from mechanism.workload import ArrayForm, Coded, Column, Columns, Labels, Quantiles, Strata, source_of

NONCE = bytes(16)

#: End of the chain of seeds of the tasks called "task" and "demo", which no log has both of.
SECRET = bytes(range(32))

#: A distribution whose shares are short, and their common denominator is not: 10^40 + 1 times 10^40 + 3.
LONG_SHARES = [str(share) for share in (
    1 - Fraction(1, 10**40 + 1), Fraction(1, 10**40 + 1) - Fraction(1, 10**40 + 3), Fraction(1, 10**40 + 3),
)]  # fmt: skip

#: When the tasks open, 2026-11-27T10:00:00Z.
BEGUN = 1_795_773_600

#: What the terms below commit to: the first model, and D_c.
INITIAL_MODEL, VALIDATION = bytes([1] * 32), bytes([2] * 32)


def terms(
    task_id: str = "task",
    rounds: int = 2,
    capacity: int = 4,
    stake_micro: int = 300_000,
    rule: str = "verified",
) -> Terms:
    """Terms whose budget is the maximal bill."""

    def with_budget(budget: int) -> Terms:
        return Terms(
            task_id=task_id,
            reference=(Fraction(1, 2), Fraction(1, 2)),
            Q=Decimal(2000),
            phi=Decimal(300),
            upsilon=Decimal(200),
            payment=Log(),
            rule=Rule(rule, claim_penalty=Decimal("0.5"), stake_micro=stake_micro, fee=Decimal("0.75")),
            schedule=Schedule(rounds, 3, capacity, 60, 60),
            contract=ModelContract((TensorSpec("w", "F32", (1,)),), Decimal(1), 100),
            recipe=Recipe("digits-cnn", 1, 1, "adam", Decimal("0.01"), 1),
            budget_micro=budget,
            seed_commitment=seed_commitment(chain_secret(task_id), rounds),
            validation_commitment=VALIDATION,
            initial_model=INITIAL_MODEL,
        )

    return with_budget(task_budget_micro(with_budget(0)))


#: Each kind of strata, two of them.
STRATA: tuple[Strata, ...] = (
    Labels(),
    Quantiles("target", (Decimal("-0.5"),)),
    Column("carrier", ("AA", "B6")),
    Coded("shop.strata:sites", source_of({}, {"strata.py": "ab" * 32}), ("north", "south")),
)


def brought(strata: Strata) -> Terms:
    """Terms of a workload from a factory, with everything that may be left out."""
    plain = terms()
    source = source_of(
        {"hidden": [64, 32], "dropout": 0.1}, {"models.py": "01" * 32, "layers/dense.py": "02" * 32}
    )
    source = replace(source, frozen=bytes([3] * 32))
    return replace(
        plain,
        recipe=replace(
            plain.recipe,
            model="shop.models:make",
            source=source,
            momentum=Decimal("0.8"),
            beta2=Decimal("0.99"),
            epsilon=Decimal("0.000001"),
            weight_decay=Decimal("0.01"),
            label_smoothing=Decimal("0.1"),
            augmentation="light",
            precision="float64",
            allowed=Allowed(
                batch_factor=Decimal("1.5"),
                epochs=2,
                learning_rate=Decimal("0.25"),
                weight_decay=Decimal("0.1"),
                label_smoothing=Decimal("0.2"),
                proximal=Decimal("0.05"),
                augmentation=True,
                precision=("bfloat16", "tensors"),
            ),
        ),
        strata=strata,
        classes=("late", "on time"),
        columns=Columns(("hour", "distance"), "delay", "array"),
        arrays=(ArrayForm("inputs", "float64", (2,)), ArrayForm("targets", "int64", ())),
    )


def at(minutes: int) -> str:
    """A time, so many minutes after the opening."""
    return entries.timestamp(BEGUN + 60 * minutes)


def names(count: int) -> list[str]:
    return [f"p{i:03d}" for i in range(count)]


def private_key(name: str) -> ec.EllipticCurvePrivateKey:
    """The key of a participant, the same in every run."""
    secret = int.from_bytes(hashlib.sha256(name.encode()).digest()) % (2**255) + 1
    return ec.derive_private_key(secret, ec.SECP256R1())


def model_digest(task_id: str, round_: int, name: str) -> bytes:
    return hashlib.sha256(f"{task_id}/{round_}/{name}".encode()).digest()


def chain_secret(task_id: str) -> bytes:
    """The end of the chain of a task's seeds, the same in every run; each task has its own."""
    return SECRET if task_id in ("task", "demo") else hashlib.sha256(f"seed {task_id}".encode()).digest()


def share_secret(agreed: Terms, name: str) -> bytes:
    """The end of a participant's chain of draw shares, the same in every run."""
    return hashlib.sha256(f"share {agreed.task_id}/{name}".encode()).digest()


def draw_of(agreed: Terms, round_: int, who: Iterable[str]) -> Draw:
    """What the peers of a round are drawn from in which `who` sent a model in time."""
    rounds = agreed.schedule.rounds
    shares = {name: draw_share(share_secret(agreed, name), rounds, round_) for name in who}
    return Draw(round_seed(chain_secret(agreed.task_id), rounds, round_), shares)


def global_model(agreed: Terms, round_: int) -> bytes:
    """The model after a round; the first one after none."""
    if round_ == 0:
        return agreed.initial_model
    return hashlib.sha256(f"{agreed.task_id}/{round_}/global".encode()).digest()


def degree(name: str) -> Fraction:
    """True degree, claimed and measured; at most 0.4, since with two even labels none is above 0.5."""
    return Fraction(int(name[1:]) % 5, 10)


def stamped(recorded: Sequence[Entry], keys: bytes = NO_KEYS, first: int = 0) -> list[Entry]:
    """Entries from index `first` on with the digest of the key history that belongs in each."""
    made: list[Entry] = []
    for index, entry in enumerate(recorded, first):
        if entry.kind in ("claim", "model", "payment"):
            entry = replace(entry, body={**entry.body, "keys": keys.hex()})
        keys = keys_after([entry], keys, index)
        made.append(entry)
    return made


def salt(what: str) -> bytes:
    """The salt of an entry's opening, the same in every run."""
    return hashlib.sha256(f"salt {what}".encode()).digest()


def sequence(round_: int, name: str) -> int:
    """The place of a model's commitment: by rounds, then by names."""
    return round_ * 10_000 + int(name[1:]) + 1


def claim(agreed: Terms, name: str, head: bytes | None = None) -> Entry:
    """A signed claim; `head` commits to other shares than its own."""
    more = int(name[1:]) % 5
    own = draw_head(share_secret(agreed, name), agreed.schedule.rounds)
    opening = ClaimOpening(Decimal("0.5"), degree(name), salt(f"{agreed.task_id}/claim/{name}"))
    statement = ClaimStatement(
        submission_id=f"claim-{name}",
        task_id=agreed.task_id,
        terms_digest=agreed.digest,
        participant_id=name,
        commitment=opening.digest,
        counts_commitment=commit_counts((5 + more, 5 - more), salt(f"{agreed.task_id}/counts/{name}")),
        draw_head=own if head is None else head,
        nonce=NONCE,
    )
    return entries.claim(statement, sign_statement(statement, private_key(name)), opening)


def model(
    agreed: Terms, round_: int, name: str, late: bool = False, share: bytes | None = None, digest: bytes = b""
) -> Entry:
    """A signed model.

    Args:
        share, digest: others than its own.
    """
    own = draw_share(share_secret(agreed, name), agreed.schedule.rounds, round_)
    opening = ModelOpening(10, salt(f"{agreed.task_id}/{round_}/model/{name}"))
    statement = ModelStatement(
        submission_id=f"model-{round_}-{name}",
        task_id=agreed.task_id,
        terms_digest=agreed.digest,
        participant_id=name,
        round=round_,
        model_sha256=digest or model_digest(agreed.task_id, round_, name),
        model_bytes=64,
        commitment=opening.digest,
        draw_share=own if share is None else share,
        nonce=NONCE,
    )
    signature = sign_statement(statement, private_key(name))
    return entries.model(statement, signature, sequence(round_, name), late, opening)


#: Shadows of a round.
SHADOWS = 100

#: What the measurements below pass.
LIMITS = Thresholds(
    norm_low=800_000, norm_high=1_250_000, alignment=50_000, novelty=6_000_000, improvement=-500_000,
    echo_distance=350_000, echo_cosine=600_000, quality_full=600_000, quality_none=300_000, quality_degree=700_000,
    claim_band=50_000, harm_full=MICRO, harm_none=2 * MICRO, wide=350_000, rate=10_000,
)  # fmt: skip

#: From what is as like as models of other samples, up to 0.5 where all that is not known of their mixes is the same, to
#: those of the same samples. Groups are linked from less than pairs, and large ones from less than small ones.
LIKENESS = LikenessMap((200_000, 350_000, 500_000), (900_000, 950_000), 250_000, (200_000, 150_000))

#: The second feature of either stratum. Its mean is between two millionths.
ODD, EVEN = 250_000, 250_001


def degree_map(reference: Sequence[Fraction]) -> DegreeMap:
    """Of two strata: the first feature is the share, and the distance from the reference the degree.

    z has 16 regressors: the second feature in order, the shares less the reference, the distance, 7 sums of excess,
    two means, two deviations. The least second feature and the trees cancel out with the intercept.
    """
    least, distance, mean = 0, 4, 13
    weights = [0] * 16
    weights[least], weights[distance] = NANO // 10, 2 * NANO
    by_mean = Tree((mean, -1, -1), (ODD, 60_000, MICRO), (2, 0, 0))  # the mean is rounded to the even one
    return DegreeMap(
        reference=tuple(reference),
        share_own=(NANO, 0),
        share_mean=(0, 0),
        share_intercept=0,
        sorted_columns=(1,),
        weights=tuple(weights),
        intercept=-(ODD * NANO // 10 + 42_500 * NANO) // MICRO,
        forest=Forest((by_mean, Tree((-1,), (25_000,), (0,))), len(weights)),
        half_width=40_000,
    )


def quality_map() -> QualityMap:
    """1 less half the distance."""
    return QualityMap((*[0] * 4, -NANO // 2, *[0] * 11), NANO)


def features(shown: Fraction) -> tuple[tuple[int, int], ...]:
    """Of a model that shows a degree from two even strata."""
    off = int(shown * MICRO)
    return (MICRO // 2 + off, ODD), (MICRO // 2 - off, EVEN)


def evidence(agreed: Terms, round_: int, who: Sequence[str], refuted: str = "") -> dict[str, Json]:
    """A round's evidence, in which models show their degree; `refuted` shows more than it claimed."""
    start = global_model(agreed, round_ - 1).hex()
    shadows = hashlib.sha256(f"{agreed.task_id}/{round_}/shadows".encode()).hexdigest()
    fitted = degree_map(agreed.reference)
    carried = SHADOWS if round_ > 1 else 0
    model_ = EvidenceModel(
        round_, start, VALIDATION.hex(), shadows, SHADOWS, carried, fitted, quality_map(), LIMITS, LIKENESS,
        computed_on={"cpu": "x86_64 AVX2", "torch": "2.9.1"},
    )  # fmt: skip
    measured = [
        Measurement(
            participant_id=name,
            model_sha256=model_digest(agreed.task_id, round_, name).hex(),
            claimed_degree=degree(name),
            order=sequence(round_, name),
            samples=10,
            features=features(degree(name) + (Fraction(3, 10) if name == refuted else 0)),
            norm=MICRO,
            alignment=500_000,
            novelty=MICRO,
            improvement=300_000,
            echo_distance=MICRO,
            echo_cosine=100_000,
            straying=500_000,
            length=1_050_000,  # not what `norm` is
            nearest_broadcast="this round",
        )
        for name in who
    ]
    return {"model": model_.record(), "measurements": [m.record() for m in measured]}


def in_common(
    record: Any, pairs: Mapping[tuple[str, str], tuple[int, int]], outside: int | None = None
) -> None:
    """Says of pairs in a round's evidence how alike they are, and at which r.

    Args:
        outside: of all of them, who are a group; None: they are none.
    """
    measured = {item["participant_id"]: item for item in record["measurements"]}
    for (one, other), figures in pairs.items():
        measured[one]["twins"].append([other, *figures])
        measured[other]["twins"].append([one, *figures])
    members = {name for pair in pairs for name in pair}
    for name in members if outside is not None else ():
        measured[name].update(group=min(members), outside=outside)


def assessments(agreed: Terms, round_: int, who: Sequence[str], refuted: str = "") -> list[Assessment]:
    """The verdicts that this evidence gives, or the claims where the rule pays without."""
    if agreed.rule.name == "paper":
        return [as_claimed(name, model_digest(agreed.task_id, round_, name), degree(name)) for name in who]
    record: Any = evidence(agreed, round_, who, refuted)
    measured = [Measurement.from_record(item) for item in record["measurements"]]
    return list(assess(EvidenceModel.from_record(record["model"]), measured))


def opening(agreed: Terms, who: Sequence[str]) -> list[Entry]:
    """Terms, enrolments and claims, up to the selection."""
    return [
        *[entries.enrolment(name, private_key(name).public_key()) for name in who],
        *entries.terms_entries(agreed),
        entries.transition(agreed.task_id, 0, "OPEN", at(0)),
        entries.transition(agreed.task_id, 0, "EFFORT", at(0)),
        *[claim(agreed, name) for name in who],
        *entries.selection_entries(agreed.task_id, who),
        entries.transition(agreed.task_id, 0, "SELECTED", at(1)),
    ]


def training(agreed: Terms, round_: int, who: Sequence[str]) -> list[Entry]:
    """A round's models, up to its closing."""
    return [
        entries.transition(agreed.task_id, round_, "TRAINING", at(2 * round_)),
        *[model(agreed, round_, name) for name in who],
    ]


def settling(
    agreed: Terms,
    round_: int,
    who: Sequence[str],
    stakes: Mapping[str, int],
    refuted: str = "",
    absent: Mapping[str, str | None] | None = None,
    meetings: Meetings | None = None,
) -> list[Entry]:
    """A round's closing when its time is over, evidence, verdicts and settlement.

    Args:
        who: whose models came in time.
        absent: the other selected, and what they said why nothing came.
        meetings: of the rounds before.
    """
    measured = [] if agreed.rule.name == "paper" else [evidence(agreed, round_, who, refuted)]
    judged = assessments(agreed, round_, who, refuted)
    judged += [missing(name, degree(name), said) for name, said in (absent or {}).items()]
    return judging(agreed, round_, judged, measured, stakes, meetings=meetings)


def judging(
    agreed: Terms,
    round_: int,
    judged: Sequence[Assessment],
    measured: Sequence[Json],
    stakes: Mapping[str, int],
    disputable: bool = False,
    draw: Draw | None = None,
    meetings: Meetings | None = None,
) -> list[Entry]:
    """A round's closing when its time is over, and its settlement on given verdicts, which `measured`, one record or
    none, is the evidence for.

    Args:
        draw: what peers are drawn from, where that is not what was sent.
        meetings: of the rounds before.
    """
    task_id = agreed.task_id
    draw = draw or draw_of(agreed, round_, [a.participant_id for a in judged if a.model_sha256])
    found = sorted(judged, key=lambda a: a.participant_id)
    over = at(2 * round_ + 1)
    return [
        *entries.closing_entries(task_id, round_, over, []),
        *judgement(agreed, round_, found, measured[0] if measured else None),
        entries.transition(task_id, round_, "SCORED", over),
        *entries.settlement_entries(agreed, round_, draw, found, stakes, disputable, meetings=meetings)[1],
        entries.aggregation(
            task_id, round_, global_model(agreed, round_), {"accuracy": "0.9", "loss": "0.31"}, None
        ),
        entries.transition(task_id, round_, "SETTLED", over),
    ]


def judgement(
    agreed: Terms,
    round_: int,
    judged: Sequence[Assessment],
    record: Json,
    others: Mapping[str, Json] | None = None,
) -> list[Entry]:
    """The commitment to a round's evidence where there is any, and the verdicts.

    Args:
        record: `{"model", "measurements"}`, or None.
        others: measurements by name that take the place of these.
    """
    known: Any = record or {"measurements": []}
    measured = {item["participant_id"]: item for item in known["measurements"]} | dict(others or {})
    made = []
    if record is not None:
        salted = salt(entries.evidence_id(agreed.task_id, round_))
        made.append(entries.evidence(agreed.task_id, round_, known["model"], salted))
    for one in judged:
        salted = salt(entries.verdict_id(agreed.task_id, round_, one.participant_id))
        made.append(entries.verdict(agreed, round_, one, measured.get(one.participant_id), salted))
    return made


def audited(at: str, findings: AuditFindings, verdict: AuditVerdict, question: int) -> Entry:
    """An audit with the salt of its id."""
    said = findings.statement
    salted = salt(audit_id(said.task_id, said.round, said.participant_id, said.number))
    return audit(at, findings, verdict, question, salted)


def openings_of(recorded: Iterable[Entry]) -> dict[str, Any]:
    """The openings that entries carry, by id."""
    return {entry.id: entry.opening for entry in recorded if entry.opening is not None}


def draws_of(recorded: Iterable[Entry]) -> list[Any]:
    """Each participant and its peers, of all rounds that are settled among `recorded`."""
    parts: list[Any] = [entry.body["draws"] for entry in recorded if entry.kind == "peers"]
    return [draw for part in parts for draw in part]


def stakes_after(recorded: Sequence[Entry], task_id: str, stakes: Mapping[str, int]) -> dict[str, int]:
    """Stakes once the payments among `recorded` are posted."""
    held = dict(stakes)
    for entry in recorded:
        if entry.kind == "payment" and entry.body["task_id"] == task_id:
            name = str(entry.body["participant_id"])
            change = int(str(entry.body["withheld_micro"])) - int(str(entry.body["stake_lost_micro"]))
            held[name] = held.get(name, 0) + change
    return held


def transactions(
    agreed: Terms, who: Sequence[str], refuted_in: Mapping[int, str] | None = None
) -> Iterator[list[Entry]]:
    """A whole task, one list of entries a transaction, to its closing."""
    keys, size = NO_KEYS, 0
    for step in _steps(agreed, who, refuted_in):
        made = stamped(step, keys, size)
        keys, size = keys_after(made, keys, size), size + len(made)
        yield made


def _steps(agreed: Terms, who: Sequence[str], refuted_in: Mapping[int, str] | None) -> Iterator[list[Entry]]:
    yield opening(agreed, who)
    stakes: dict[str, int] = {}
    meetings = Meetings()
    for round_ in range(1, agreed.schedule.rounds + 1):
        yield training(agreed, round_, who)
        refuted = (refuted_in or {}).get(round_, "")
        settled = settling(agreed, round_, who, stakes, refuted, meetings=meetings)
        meetings.add(draws_of(settled))
        stakes = stakes_after(settled, agreed.task_id, stakes)
        yield settled
    last = agreed.schedule.rounds
    yield entries.ending_entries(agreed.task_id, last, "CLOSED", [], stakes, at(2 * last + 2))
