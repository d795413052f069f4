"""Histories that cannot have happened, written by an operator who holds the log's key.

Each forgery is played through the code that makes entries, and everything that follows is computed from it: stakes,
settlements, tree and heads are consistent. What a participant must sign is signed with an enrolled key. A forgery
yields its cases as pairs of a label and the entries; `words` stand in the sentence that refuses it.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from functools import cache
from typing import Any

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from mechanism.audit import ENDS, UNAPPEALED
from mechanism.canonical import canonical_bytes, canonical_digest
from mechanism.evidence import EvidenceModel, Measurement, assess
from mechanism.ledger import entries
from mechanism.ledger.accounts import Post, Reserve, paid, payable, stake
from mechanism.ledger.audit_entries import audit_end, remeasurement
from mechanism.ledger.entry import Entry
from mechanism.ledger.note import SigningKey, VerificationKey
from mechanism.lifecycle import State
from mechanism.peers import Meetings, round_seed
from mechanism.price import Price
from mechanism.server_step import FedAdam
from mechanism.settlement import MICRO, Assessment
from mechanism.statements import MAX_TOLERANCE_MICRO, RemeasurementStatement, sign_statement
from mechanism.unmeasured import as_claimed, missing
from tests import ledger_samples as samples
from tests.ledger_histories import AUDIT, SALT, SHAPES, History, Log, Shape, played, started

Cases = Iterator[tuple[str, list[Entry]]]


@dataclass(frozen=True)
class Forgery:
    name: str
    words: tuple[str, ...]
    cases: Callable[[], Cases]


FORGERIES: list[Forgery] = []


@cache
def cases_of(forged: Forgery) -> list[tuple[str, list[Entry]]]:
    """All cases, made once for every test that needs them."""
    return list(forged.cases())


PLAIN, PAPER = Shape(), Shape(rule="paper")
PRIVATE = Shape(private=frozenset({"p003"}))
RULES = ("verified", "leave_one_out", "shapley", "correlated_agreement", "dmi")


def forgery(*words: str) -> Callable[[Callable[[], Cases]], Callable[[], Cases]]:
    """Registers a forgery; one of `words` stands in the refusal of each of its cases."""

    def register(cases: Callable[[], Cases]) -> Callable[[], Cases]:
        FORGERIES.append(Forgery(cases.__name__.replace("_", " "), words, cases))
        return cases

    return register


def trained(shape: Shape = PLAIN, number: int = 1, deliver: bool = True) -> History:
    """A sound task up to the models of a round."""
    history = started(shape)
    history.begin()
    history.rounds(1, number - 1)
    history.train()
    if deliver:
        history.deliver()
    return history


def claiming(shape: Shape = PLAIN, claims: int | None = None) -> History:
    """A sound task up to its claims."""
    history = started(shape)
    history.open()
    history.enter(State.EFFORT)
    for name in history.people[:claims]:
        history.claim(name)
    return history


def claimed(shape: Shape = PLAIN) -> History:
    """A sound task up to its selection."""
    history = started(shape)
    history.begin()
    return history


def settled(shape: Shape = PLAIN, number: int = 1) -> History:
    """A sound task up to the settlement of a round."""
    history = started(shape)
    history.begin()
    history.rounds(1, number)
    return history


def completed(history: History) -> list[Entry]:
    """The rest of a task, soundly."""
    history.rounds(history.round + 1, history.terms.schedule.rounds)
    history.finish()
    return history.log.entries


def places(ledger: Sequence[Entry], *kinds: str) -> list[int]:
    return [i for i, entry in enumerate(ledger) if entry.kind in kinds]


def each_round(shape: Shape = PLAIN) -> Iterator[tuple[str, History]]:
    for number in range(1, shape.rounds + 1):
        yield f"round {number}, {shape.rule}", trained(shape, number)


# Evidence


def told_otherwise(
    change: Callable[[Any], object], shape: Shape = PLAIN, number: int = 1, left: bool = True
) -> list[Entry]:
    """A task with the evidence of a round changed, its digest with it, and the verdicts of the true one.

    Args:
        left: whether the round is settled on these verdicts and the task goes on; else the log ends.
    """
    history = trained(shape, number)
    record = history.evidence()
    found = history.verdicts(record)
    change(record)
    history.settle(record, found)
    return completed(history) if left else history.log.entries


def opened_otherwise(ledger: Sequence[Entry], place: int, **changes: Any) -> list[Entry]:
    """The ledger up to an entry, which commits to another opening."""
    entry = ledger[place]
    opening: Any = {**(entry.opening or {}), **changes}
    body = {**entry.body, "commitment": canonical_digest(opening).hex()}
    return [*ledger[:place], replace(entry, body=body, opening=opening)]


@forgery("a verdict without evidence")
def evidence_is_left_out_and_claims_are_paid() -> Cases:
    for rule in RULES:
        for label, history in each_round(Shape(rule=rule)):
            best = {} if rule == "verified" else {rule: "1"}
            history.settle(None, [replace(a, scores=best) for a in history.verdicts(None)])
            yield label, completed(history)
    history = started(PLAIN)
    history.begin()
    for _ in (1, 2):
        history.train()
        history.deliver()
        history.settle(None)
    history.finish()
    yield "every round", history.log.entries


@forgery(
    "not of the same participants", "do not follow one another", "another model than it sent", "it interrupts"
)
def evidence_leaves_a_model_out() -> Cases:
    for number in (1, 2):
        for name in ("p000", "p003"):
            history = trained(number=number)
            record = history.evidence([n for n in history.people if n != name])
            found = [a for a in history.verdicts(record) if a.participant_id != name]
            sent = history.models[number][name][0].model_sha256
            history.settle(record, [*found, as_claimed(name, sent, history.claimed[name])])
            yield f"{name} as claimed in round {number}", completed(history)
            history = trained(number=number)
            history.settle(history.evidence([n for n in history.people if n != name]))
            yield f"{name} as absent in round {number}", completed(history)


@forgery("about another model than it sent", "of p001 is of p000", "is not what the evidence gives")
def evidence_speaks_of_somebody_absent_or_of_another() -> Cases:
    history = trained(Shape(absent={1: {"p003": None}}))
    history.close()
    history.models[1]["p003"] = history.models[1]["p002"]
    history.trained_on[1, "p003"] = 10
    history.settle(history.evidence())
    yield "absent", history.log.entries
    history = trained()
    record = history.evidence()
    found = history.verdicts(record)
    measured = {"p001": record["measurements"][0]}
    history.close()
    history.log.write(*samples.judgement(history.terms, 1, found, record, measured))
    yield "another", history.log.entries


@forgery("another validation set")
def evidence_is_of_another_validation_set() -> Cases:
    for label, history in each_round():
        history.settle(history.evidence(validation_sha256="ab" * 32))
        yield label, completed(history)


@forgery("another model than the one that the round began from")
def evidence_is_of_another_start() -> Cases:
    for number in (1, 2, 3):
        for start in ("ab" * 32, samples.INITIAL_MODEL.hex()):
            if number == 1 and start == samples.INITIAL_MODEL.hex():
                continue
            history = trained(Shape(rounds=3), number)
            history.settle(history.evidence(start_sha256=start))
            yield f"round {number}, {start[:4]}", completed(history)


@forgery("shadow models", "shadows_sha256 is")
def shadows_are_those_of_another_round_or_none() -> Cases:
    history = settled(Shape(rounds=3))
    known = history.evidence()["model"]["shadows_sha256"]
    history.train()
    history.deliver()
    history.settle(history.evidence(shadows_sha256=known))
    yield "of round 1", completed(history)
    for text in ("", "ab", "AB" * 32, "ab" * 31):
        yield (
            f"{text[:4]!r} of {len(text)}",
            told_otherwise(lambda r, t=text: r["model"].update(shadows_sha256=t)),
        )


@forgery("computed_on")
def what_computed_the_shadows_is_no_text() -> Cases:
    for label, texts in (
        ("a list", []),
        ("a number", {"cpu": 1}),
        ("nothing", {"cpu": ""}),
        ("too long", {"cpu": "x" * 201}),
        ("too many", {str(number): "x" for number in range(17)}),
    ):
        yield label, told_otherwise(lambda r, t=texts: r["model"].update(computed_on=t))


@forgery("carries over", "carried is", "shadows is")
def shadows_are_carried_over_that_no_round_before_had() -> Cases:
    for number, carried in ((1, 1), (2, samples.SHADOWS + 1), (3, 2 * samples.SHADOWS + 1)):
        yield (
            f"round {number}",
            told_otherwise(
                lambda r, n=carried: r["model"].update(carried=n), Shape(rounds=3), number, left=True
            ),
        )
    for name, values in (("carried", (-1, True, "0", None)), ("shadows", (0, -1, True, "1", None))):
        for value in values:
            yield f"{name} {value!r}", told_otherwise(lambda r, n=name, v=value: r["model"].update({n: v}))


#: A line by which each model saw each of its samples 1.25 times, whatever it is like.
SAMPLES_FEW: Any = {"weights": [0] * 18, "intercept": 1_250_000_000}


def settled_as_distinct(history: History, record: Any) -> None:
    """Settles a round on evidence as if no digest in it said anything."""
    apart = json.loads(json.dumps(record))
    apart["model"]["start_sha256"] = "ab" * 32
    for measured in apart["measurements"]:
        measured["model_sha256"] = hashlib.sha256(measured["participant_id"].encode()).hexdigest()
    signed = {m["participant_id"]: bytes.fromhex(m["model_sha256"]) for m in record["measurements"]}
    history.settle(record, [replace(a, model_sha256=signed[a.participant_id]) for a in assessments(apart)])


@forgery("cluster is", "holders_micro is")
def the_same_model_twice_is_paid_twice() -> Cases:
    for number in (1, 2):
        for copied in (("p002", "p001"), ("p000", "p003")):
            history = trained(Shape(copied={number: copied}), number)
            settled_as_distinct(history, history.evidence())
            yield f"{copied} in round {number}", completed(history)


@forgery("verified_micro is", "lower_micro is", "passes the test of echoes")
def a_model_that_was_sent_out_is_paid() -> Cases:
    for number in (1, 2):
        history = trained(Shape(echoed={number: "p001"}), number)
        settled_as_distinct(history, history.evidence())
        yield f"the start of round {number}", completed(history)
    for number, back in ((2, 1), (3, 1), (3, 2)):
        history = trained(Shape(rounds=3), number, deliver=False)
        sent = history.terms.initial_model if back == 1 else samples.global_model(history.terms, back - 1)
        for name in history.people:
            history.model(name, **({"model_sha256": sent} if name == "p002" else {}))
        settled_as_distinct(history, history.evidence())
        yield f"the start of round {back} in round {number}", completed(history)


@forgery("other figures than that on the same model")
def the_same_model_is_measured_otherwise() -> Cases:
    for field, value in (
        ("fault", "it came too late"), ("features", [[1, 1], [1, 1]]), ("norm", 1),
        ("alignment", 1), ("novelty", 1), ("improvement", -2 * MICRO), ("echo_distance", 1),
        ("echo_cosine", 1), ("straying", 1), ("length", 1), ("nearest_broadcast", "round 1"),
    ):  # fmt: skip
        history = trained(Shape(copied={1: ("p002", "p001")}))
        record = history.evidence()
        record["measurements"][1][field] = value
        history.judge(record)
        yield field, history.log.entries


@forgery("are not others who were the first to send a model", "and another has sent its model before")
def a_copy_is_compared() -> Cases:
    for label, one, other in (("that has twins", 2, 3), ("that is one", 0, 2), ("with its own model", 1, 2)):
        history = trained(Shape(people=5, copied={1: ("p002", "p001")}))
        record = history.evidence()
        record["measurements"][one]["twins"] = [[f"p00{other}", 900_000, 500_000]]
        record["measurements"][other]["twins"] = [[f"p00{one}", 900_000, 500_000]]
        history.settle(record)
        yield label, completed(history)


@forgery("are not others who were the first to send a model")
def twins_are_nobody() -> Cases:
    shape = Shape(absent={1: {"p003": None}})
    for label, twins in (
        ("unknown", ["p009"]), ("itself", ["p001"]), ("absent", ["p003"]), ("one twice", ["p000", "p000"]),
    ):  # fmt: skip
        history = trained(shape)
        record = history.evidence()
        record["measurements"][1]["twins"] = [[name, 0, 0] for name in twins]
        history.settle(record)
        yield label, completed(history)


@forgery("does not say the same of it")
def a_likeness_is_said_of_one_side_alone_or_otherwise() -> Cases:
    for label, of_one, of_other in (
        ("on one side", [["p002", 900_000, 500_000]], []),
        ("more on one", [["p002", 900_000, 500_000]], [["p001", 899_999, 500_000]]),
        ("of another", [["p002", 900_000, 500_000]], [["p000", 900_000, 500_000]]),
        ("at another r", [["p002", 900_000, 500_000]], [["p001", 900_000, 500_001]]),
        ("the other way round", [["p002", 900_000, 500_000]], [["p001", 500_000, 900_000]]),
    ):
        history = trained()
        record = history.evidence()
        record["measurements"][1]["twins"], record["measurements"][2]["twins"] = of_one, of_other
        history.settle(record)
        yield label, completed(history)


def grouped(history: History, outside: int | None = 20_000) -> Any:
    """Evidence with a linked group of p000, p001 and p003, of which no pair is linked."""
    record = history.evidence()
    pairs = [("p000", "p001"), ("p000", "p003"), ("p001", "p003")]
    samples.in_common(record, dict.fromkeys(pairs, (590_000, 500_000)), outside)
    return record


@forgery("does not have the name of its first member")
def a_group_bears_another_name() -> Cases:
    for name in ("p001", "p002", "p009", "p"):
        history = trained()
        record = grouped(history)
        for place in (0, 1, 3):
            record["measurements"][place]["group"] = name
        history.settle(record)
        yield f"named {name}", completed(history)
    for label, place, name in (("without its first", 0, ""), ("whose first is of another", 0, "p002")):
        history = trained()
        record = grouped(history)
        record["measurements"][place].update(group=name, outside=20_000 * bool(name))
        history.settle(record)
        yield label, completed(history)


@forgery("have different values of outside", "an outside of")
def a_group_is_held_against_different_others() -> Cases:
    for label, changes in (
        ("one member", {3: {"outside": 19_999}}),
        ("the first member", {0: {"outside": 0}}),
        ("one without a group", {2: {"outside": 1}}),
        ("one without a group, below 0", {2: {"outside": -1}}),
        ("one of a group no more", {3: {"group": ""}}),
    ):
        history = trained()
        record = grouped(history)
        for place, change in changes.items():
            record["measurements"][place].update(change)
        history.settle(record)
        yield label, completed(history)


@forgery("has a member whose model another has sent before")
def a_copy_is_of_a_group() -> Cases:
    for label, group in (("of its original", "p000"), ("of its own", "p002")):
        for number in (1, 2):
            history = trained(Shape(copied={number: ("p002", "p001")}), number)
            record = grouped(history)
            record["measurements"][2].update(group=group, outside=20_000)
            history.settle(record)
            yield f"{label} in round {number}", completed(history)


@forgery("stands in this log already")
def a_seed_is_used_in_two_tasks() -> Cases:
    def other(history: History, rounds: int, commitment: bytes) -> list[Entry]:
        second = History(history.log, Shape(task_id="other", rounds=rounds))
        second.terms = replace(second.terms, seed_commitment=commitment)
        second.open()
        return history.log.entries

    secret, plain = samples.chain_secret("task"), samples.terms()
    yield "while the other is open", other(claiming(), 2, plain.seed_commitment)
    yield "once the other has ended", other(played(), 2, plain.seed_commitment)
    yield "a revealed seed", other(settled(), 1, round_seed(secret, 2, 1))
    yield "the last seed", other(played(), 3, secret)
    history = claiming()
    other(history, 1, round_seed(secret, 2, 1))
    history.select()
    history.train()
    history.deliver()
    history.judge(history.measured())
    history.pay()
    yield "a commitment that is to be revealed", history.log.entries


@forgery("shadow models")
def shadows_are_those_of_another_task() -> Cases:
    for first in (settled(), played()):
        second = History(first.log, Shape(task_id="other"))
        second.terms = replace(second.terms, initial_model=bytes([7] * 32))
        second.start = second.result = second.terms.initial_model
        second.begin()
        second.train()
        second.deliver()
        known = samples.evidence(first.terms, 1, [])["model"]["shadows_sha256"]  # type: ignore[index, call-overload]
        second.settle(second.evidence(shadows_sha256=known))
        yield f"after {len(first.log.entries)}", completed(second)


@forgery("in the order of commitments")
def the_order_of_copies_is_turned_round() -> Cases:
    for number in (1, 2):
        for twins in (("p000", "p001"), ("p001", "p003"), ("p000", "p003")):
            history = trained(number=number)
            record = history.evidence()
            measured = {m["participant_id"]: m for m in record["measurements"]}
            first, second = (measured[name] for name in twins)
            first["twins"], second["twins"] = [[twins[1], 2 * MICRO, 0]], [[twins[0], 2 * MICRO, 0]]
            first["order"], second["order"] = second["order"], first["order"]
            history.settle(record)
            yield f"{twins} in round {number}", completed(history)


@forgery("another model, claim or sample count")
def evidence_is_about_what_nobody_signed() -> Cases:
    for field, value in (("claimed_degree", "3/10"), ("model_sha256", "ab" * 32), ("samples", 1_000)):
        for number in (1, 2):
            history = trained(number=number)
            record = history.evidence()
            record["measurements"][0][field] = value
            history.settle(record)
            yield f"{field} in round {number}", completed(history)


@forgery(
    "the evidence is of round",
    "another reference",
    "its form does not know",
    "an object with the keys",
    "the keys model, salt alone",
    "the keys assessment, salt, measurement alone",
)
def evidence_is_not_of_this_round_or_form() -> Cases:
    history = trained()
    history.settle(history.evidence(round=2))
    yield "another round", history.log.entries
    history = trained()
    record = history.evidence()
    record["model"]["degree"] = {**record["model"]["degree"], "reference": ["1/3", "2/3"]}
    history.settle(record)
    yield "another reference", history.log.entries
    for place, change in (
        ("model", lambda r: r["model"].update(note="see elsewhere")),
        ("measurement", lambda r: r["measurements"][1].update(note="see elsewhere")),
    ):
        yield f"more in the {place}", told_otherwise(change)
    for kind in ("evidence", "verdict"):
        ledger = settled().log.entries
        place = places(ledger, kind)[0]
        yield f"more in the opening of the {kind}", opened_otherwise(ledger, place, note="see elsewhere")


@forgery(
    "verified_micro is",
    "multiplier_ppm is",
    "refuted is",
    "lower_micro is",
    "holders_micro is",
    "distinct_micro is",
    "does not fit its tests",
    "refuted and passed",
    "a test that decides",
    "what only a measured model",
)
def a_verdict_is_not_the_one_that_the_evidence_gives() -> Cases:
    changes: tuple[dict[str, Any], ...] = (
        {"verified_micro": 1},
        {"multiplier_ppm": 500_000},
        {"refuted": True},
        {"verified_micro": None},
        {"lower_micro": 0},
        {"holders_micro": 2 * MICRO},
        {"distinct_micro": 900_000},
    )
    for change in changes:
        for number in (1, 2):
            history = trained(number=number)
            record = history.evidence()
            found = history.verdicts(record)
            found[3] = replace(found[3], **change)
            history.settle(record, found)
            yield f"{change} in round {number}", completed(history)


def of_degree(**changes: Any) -> Callable[[Any], None]:
    return lambda record: record["model"]["degree"].update(changes)


def of_limits(**changes: Any) -> Callable[[Any], None]:
    return lambda record: record["model"]["thresholds"].update(changes)


def of_likeness(**changes: Any) -> Callable[[Any], None]:
    return lambda record: record["model"]["likeness"].update(changes)


def linked(record: Any, likeness: int, r: int = 500_000, **changes: Any) -> None:
    """p000 and p002 are said to be so alike, where so much of what is not known of their mixes is the same."""
    record["model"]["likeness"].update(changes)
    samples.in_common(record, {("p000", "p002"): (likeness, r)})


def group_of(record: Any, likeness: int, outside: int = 20_000, **changes: Any) -> None:
    """p000, p001 and p002 are said to be a group, and so alike at an r of 0.5."""
    record["model"]["likeness"].update(changes)
    pairs = (("p000", "p001"), ("p000", "p002"), ("p001", "p002"))
    samples.in_common(record, dict.fromkeys(pairs, (likeness, 500_000)), outside)


#: Likeness of models of other samples at an r of 0.5.
APART = 350_000


def of_one(**changes: Any) -> Callable[[Any], None]:
    return lambda record: record["measurements"][2].update(changes)


#: Each leaves a record in order, and gives another verdict on p002 than the true record.
OTHER_EVIDENCE: dict[str, Callable[[Any], Any]] = {
    "a threshold of a test": of_limits(norm_low=MICRO + 1),
    "the distance from broadcasts": of_limits(echo_distance=MICRO + 1),
    "the band of claims": of_limits(claim_band=50_001),
    "the quality from which all is paid": of_limits(quality_full=MICRO),
    "the width that pays the upper end": of_limits(wide=39_999),
    "a coefficient of the shares": of_degree(share_own=[1_000_000_000, 100_000_000]),
    "a coefficient of the means": of_degree(share_mean=[0, 1_000_000]),
    "the shares' intercept": of_degree(share_intercept=1_000_000),
    "the sorted feature": of_degree(sorted_columns=[0]),
    "a coefficient of the degree": lambda r: r["model"]["degree"]["weights"].__setitem__(4, 1_999_000_000),
    "the degree's intercept": lambda r: r["model"]["degree"].update(intercept=0),
    "a bound of a tree": lambda r: r["model"]["degree"]["forest"][0][1].__setitem__(0, 249_999),
    "a leaf": lambda r: r["model"]["degree"]["forest"][1][1].__setitem__(0, 25_004),
    "a tree more": lambda r: r["model"]["degree"]["forest"].append([[-1], [0], [0]]),
    "a half-width": of_degree(half_width=39_999),
    "a coefficient of the quality": lambda r: r["model"]["quality"]["weights"].__setitem__(4, 0),
    "the quality's intercept": lambda r: r["model"]["quality"].update(intercept=999_999_000),
    "a feature": of_one(features=[[710_000, 250_000], [300_000, 250_001]]),
    "a feature that rounds": of_one(features=[[700_000, 250_001], [300_000, 250_001]]),
    "a figure": of_one(norm=999_999),
    "a pair": lambda r: linked(r, 800_000),
    "a pair that is hardly linked": lambda r: linked(r, 800_000, link=800_000 - APART),
    "a pair of another r": lambda r: linked(r, 800_000, 499_999),
    "a pair that is linked for its r": lambda r: linked(r, APART + 249_999, 499_996),
    "a group": lambda r: group_of(r, 590_000),
    "a group that is hardly linked": lambda r: group_of(r, APART + 220_000),
    "a group from a lower limit": lambda r: group_of(r, APART + 20_001, group=[1]),
    "a group that others are less alike with": lambda r: group_of(r, 500_000, outside=-50_000),
    "a map to distinct samples": lambda r: r["model"].update(distinct=[SAMPLES_FEW]),
    "harm": of_one(harm=1),
    "a fault": of_one(fault="it came too late"),
    "scores": of_one(scores={"dmi": "1"}),
}


@forgery("what stands before it gives", "scores.dmi is missing")
def the_evidence_is_changed_and_the_verdicts_left() -> Cases:
    for label, change in OTHER_EVIDENCE.items():
        yield label, told_otherwise(change)
    for number, shape in ((2, PLAIN), (1, Shape(rule="dmi"))):
        yield (
            f"a feature in round {number}, {shape.rule}",
            told_otherwise(OTHER_EVIDENCE["a feature"], shape, number),
        )


@forgery("verdicts", "cluster is", "do not follow one another", "as if it had not", "is of p002")
def a_verdict_says_other_words_or_figures_than_the_evidence_gives() -> Cases:
    def screen(place: int, **change: Any) -> Callable[[Assessment], Assessment]:
        def apply(found: Assessment) -> Assessment:
            verdicts = list(found.verdicts)
            verdicts[place] = replace(verdicts[place], **change)
            return replace(found, verdicts=tuple(verdicts))

        return apply

    changes: dict[str, Callable[[Assessment], Assessment]] = {
        "words": screen(2, explanation="The model behaves well."),
        "a figure": screen(4, figures={"quality": "1", "kept": "1"}),
        "a figure less": screen(6, figures={}),
        "failed": screen(3, passed=False),
        "another test": screen(5, screen="harm"),
        "a test left out": lambda a: replace(a, verdicts=a.verdicts[:-1]),
        "no test": lambda a: replace(a, verdicts=()),
        "another order": lambda a: replace(a, verdicts=a.verdicts[::-1]),
        "a cluster": lambda a: replace(a, cluster="p000"),
    }
    for label, change in changes.items():
        history = trained()
        record = history.evidence()
        found = history.verdicts(record)
        found[2] = change(found[2])
        history.settle(record, found)
        yield label, completed(history)


@forgery("expected")
def evidence_has_a_value_of_another_type_length_or_range() -> Cases:
    features = [[700_000, 250_000], [300_000, 250_001]]
    changes: dict[str, Callable[[Any], Any]] = {
        **{f"{name} of thresholds": of_limits(**{name: True}) for name in ("norm_low", "rate")},
        "a link of nothing": of_likeness(link=0),
        "a table of one": of_likeness(apart=[0]),
        "a table of too many": of_likeness(same=[0] * 102),
        "a table with what is true": of_likeness(same=[0, True]),
        "no table": of_likeness(apart=0),
        "a group from nothing": of_likeness(group=[200_000, 0]),
        "a group's limit that is true": of_likeness(group=[True]),
        "a group's limit in a string": of_likeness(group=["200000"]),
        "a group's limit that is none": of_likeness(group=[None]),
        "limits of groups that are no list": of_likeness(group=200_000),
        "limits of too many groups": of_likeness(group=[200_000] * 63),
        "distinct samples by something else": lambda r: r["model"].update(distinct=None),
        "distinct samples by a line of something else": lambda r: r["model"].update(distinct=[[]]),
        "distinct samples over other regressors": lambda r: r["model"].update(
            distinct=[{"weights": [0] * 16, "intercept": 0}]
        ),
        "distinct samples by too many lines": lambda r: r["model"].update(distinct=[SAMPLES_FEW] * 17),
        "a threshold in a string": of_limits(alignment="50000"),
        "no threshold": of_limits(improvement=None),
        "a rate above 1": of_limits(rate=MICRO + 1),
        "a band below 0": of_limits(claim_band=-1),
        "a width below 0": of_limits(wide=-1),
        "limits that cross": of_limits(norm_low=1_250_001),
        "tapers that cross": of_limits(quality_none=600_001),
        "a half-width that is true": of_degree(half_width=True),
        "a half-width below 0": of_degree(half_width=-1),
        "an intercept that is false": of_degree(share_intercept=False),
        "coefficients in strings": of_degree(share_own=["1000000000", "0"]),
        "a coefficient too few": of_degree(share_mean=[0]),
        "no list": of_degree(weights={}),
        "weights for other regressors": lambda r: r["model"]["degree"]["weights"].append(0),
        "a sorted feature twice": of_degree(sorted_columns=[1, 1]),
        "a sorted feature that is none": of_degree(sorted_columns=[2]),
        "a sorted feature from the end": of_degree(sorted_columns=[-1]),
        "a sorted feature that is true": of_degree(sorted_columns=[True]),
        "too many features": of_degree(share_own=[0] * 101, share_mean=[0] * 101),
        "no tree": of_degree(forest=[]),
        "a tree of two lists": of_degree(forest=[[[-1], [0]]]),
        "an empty tree": of_degree(forest=[[[], [], []]]),
        "a tree that goes back": of_degree(forest=[[[0, -1, -1], [0, 0, 0], [0, 0, 0]]]),
        "a tree without its right side": of_degree(forest=[[[0, -1, -1], [0, 0, 0], [3, 0, 0]]]),
        "a tree over no regressor": of_degree(forest=[[[16, -1, -1], [0, 0, 0], [2, 0, 0]]]),
        "a leaf with a child": of_degree(forest=[[[-1, -1], [0, 0], [1, 0]]]),
        "another leaf": of_degree(forest=[[[-2], [0], [0]]]),
        "a bound that is true": of_degree(forest=[[[-1], [True], [0]]]),
        "quality over other regressors": lambda r: r["model"]["quality"]["weights"].pop(),
        "a quality that is true": lambda r: r["model"]["quality"].update(intercept=True),
        "more of quality": lambda r: r["model"]["quality"].update(note="x"),
        "a figure in a string": of_one(norm="1000000"),
        "a figure that is true": of_one(echo_cosine=True),
        "no figure": of_one(novelty=None),
        "harm that is false": of_one(harm=False),
        "a likeness that is true": of_one(twins=[["p000", True, 0]]),
        "an r that is true": of_one(twins=[["p000", 1, True]]),
        "an r below 0": of_one(twins=[["p000", 1, -1]]),
        "an r above 1": of_one(twins=[["p000", 1, MICRO + 1]]),
        "an r in a string": of_one(twins=[["p000", 1, "0"]]),
        "a number too many": of_one(twins=[["p000", 1, 1, 1]]),
        "a twin without r": of_one(twins=[["p000", 1]]),
        "a twin without likeness": of_one(twins=[["p000"]]),
        "a twin that is a number": of_one(twins=[[0, 1, 1]]),
        "a group that is null": of_one(group=None),
        "a group that is a number": of_one(group=0),
        "an outside that is false": of_one(outside=False),
        "an outside in a string": of_one(outside="0"),
        "no outside": of_one(outside=None),
        "a fault that is null": of_one(fault=None),
        "a score that is a number": of_one(scores={"dmi": 1}),
        "scores in a list": of_one(scores=[]),
        "too few rows": of_one(features=features[:1]),
        "too many rows": of_one(features=[*features, features[0]]),
        "a row too short": of_one(features=[features[0], [300_000]]),
        "a feature in a string": of_one(features=[features[0], [300_000, "250001"]]),
        "a feature that is true": of_one(features=[features[0], [300_000, True]]),
        "no row": of_one(features=[]),
        "too few rows of what is not scored": of_one(features=features[:1], norm=0),
        "features that are text": of_one(fault="it came too late", features=["ab"]),
    }
    for label, change in changes.items():
        yield label, told_otherwise(change, left=False)


@forgery("claimed_degree is", "model_sha256 is", "another claim than it signed", "another model than it sent")
def a_verdict_is_about_what_nobody_signed() -> Cases:
    for shape in (PLAIN, PAPER):
        for change in ({"claimed_degree": Fraction(1, 7)}, {"model_sha256": b"\xab" * 32}):
            history = trained(shape)
            record = history.measured()
            found = history.verdicts(record)
            found[1] = replace(found[1], **change)  # type: ignore[arg-type]
            history.settle(record, found)
            yield f"{sorted(change)} under {shape.rule}", completed(history)


@forgery(
    "evidence under the rule paper",
    "verified_micro is",
    "multiplier_ppm is",
    "refuted is",
    "holders_micro is",
    "what only a measured model",
    "a test that decides",
)
def under_the_papers_rule_something_else_than_the_claim_counts() -> Cases:
    history = trained(PAPER)
    history.settle(history.evidence())
    yield "evidence", completed(history)
    for change in (
        {"verified_micro": 1}, {"multiplier_ppm": 1}, {"refuted": True}, {"verified_micro": None},
        {"holders_micro": 2 * MICRO},
    ):  # fmt: skip
        history = trained(PAPER)
        found = history.verdicts(None)
        found[2] = replace(found[2], **change)  # type: ignore[arg-type]
        history.settle(None, found)
        yield str(change), completed(history)


@forgery(
    "refuted is",
    "claimed_degree is",
    "model_sha256 is",
    "cluster is",
    "verdicts",
    "what only a measured model",
    "another claim than it signed",
    "another model than it sent",
    "not the one on no model",
)
def who_sent_nothing_is_judged_otherwise() -> Cases:
    for shape in (Shape(absent={2: {"p003": "no disk"}}), Shape(rule="paper", absent={2: {"p003": None}})):
        for change in (
            {"refuted": True},  # would take its stake
            {"claimed_degree": Fraction(0)},
            {"verified_micro": 0, "model_sha256": bytes(32)},
            {"cluster": "p000"},
            {"verdicts": missing("p003", Fraction(0), "it deleted its data").verdicts},
        ):
            history = trained(shape, 2)
            record = history.measured()
            found = history.verdicts(record)
            found[3] = replace(found[3], **change)  # type: ignore[arg-type]
            history.settle(record, found)
            yield f"{sorted(change)} under {shape.rule}", completed(history)


@forgery("expected a decimal in [0, 1]", "is scored and has no", "has the scores none")
def a_score_is_none() -> Cases:
    for rule in RULES[1:]:
        for score in ("1.5", "-0.1"):
            history = trained(Shape(rule=rule))
            record = history.evidence()
            record["measurements"][0]["scores"] = {rule: score}
            history.judge(record)
            seed = round_seed(samples.SECRET, 2, 1)
            history.log.write(
                Entry("task/round/1/seed", "seed", {"task_id": "task", "round": 1, "seed": seed.hex()})
            )
            yield f"{rule} {score}", history.log.entries
    history = trained(Shape(rule="shapley"))
    record = history.evidence()
    record["measurements"][0]["scores"] = {}
    history.judge(record)
    seed = round_seed(samples.SECRET, 2, 1)
    history.log.write(Entry("task/round/1/seed", "seed", {"task_id": "task", "round": 1, "seed": seed.hex()}))
    yield "left out", history.log.entries


@forgery("fewer than the quorum")
def a_round_is_scored_below_the_quorum() -> Cases:
    for rule in ("verified", "paper"):
        for absent in ({"p003": None, "p002": None}, {"p000": "no disk", "p001": None, "p002": None}):
            shape = Shape(rule=rule, absent={1: absent, 2: absent})
            history = trained(shape)
            history.settle(history.measured())
            yield f"{len(absent)} absent, {rule}", completed(history)


# States


@forgery(
    "SETTLED does not follow TRAINING",
    "in the end of task: expected",
)
def all_models_are_in_and_the_round_is_refunded() -> Cases:
    for shape in (PLAIN, PAPER):
        for number in (1, 2):
            history = trained(shape, number)
            history.log.write(entries.refund(history.id, number))
            history.unresolved.discard(number)
            history.enter(State.SETTLED)
            yield f"refund of round {number}, {shape.rule}", completed(history)
            history = trained(shape, number)
            history.enter(State.SETTLED)
            yield f"nothing for round {number}, {shape.rule}", history.log.entries
    history = started()
    history.begin()
    for number in (1, 2):
        history.train()
        history.deliver()
        history.log.write(entries.refund(history.id, number))
        history.unresolved.discard(number)
        history.enter(State.SETTLED)
    history.finish()
    yield "all rounds", history.log.entries


@forgery("interrupts the settlement", "expected")
def a_task_is_cancelled_once_its_verdicts_are_known() -> Cases:
    for shape in (PLAIN, PAPER):
        for number in (1, 2):
            history = trained(shape, number)
            history.judge(history.measured())
            history.end(State.CANCELLED, "too expensive")
            yield f"after SCORED({number}), {shape.rule}", history.log.entries
            history = trained(shape, number)
            history.judge(history.measured())
            history.log.entries.pop()
            history.end(State.CANCELLED, "too expensive")
            yield f"after the verdicts of {number}, {shape.rule}", history.log.entries


@forgery("CANCELLED without a reason")
def a_task_is_cancelled_for_no_reason() -> Cases:
    for name, shape in SHAPES.items():
        if shape.cancelled is not None and shape.retention is None and not shape.measured:
            ledger = played(shape).log.entries
            last = dict(ledger[-1].body)
            for reason in ("", "  "):
                again = entries.transition(
                    "task", int(str(last["round"])), "CANCELLED", str(last["at"]), reason
                )
                yield f"{name} {reason!r}", [*ledger[:-1], again]


@forgery("has a reason, which only CANCELLED has")
def another_state_has_a_reason() -> Cases:
    ledger = played().log.entries
    for place in places(ledger, "transition"):
        body = ledger[place].body
        again = entries.transition(
            "task", int(str(body["round"])), str(body["state"]), str(body["at"]), "because"
        )
        yield again.id, [*ledger[:place], again, *ledger[place + 1 :]]


@forgery(
    "in the end of task",
    "CLOSED after round",
    "does not follow",
    "beyond the",
    "expected round",
)
def rounds_are_skipped_or_added() -> Cases:
    history = settled()
    history.end(unresolved=[])
    yield "closed early", history.log.entries
    history = settled()
    history.end()
    yield "closed early, with refunds", history.log.entries
    history = settled()
    history.round = 3
    history.enter(State.TRAINING)
    yield "a round skipped", history.log.entries
    history = settled(number=2)
    history.train()
    yield "a round too many", history.log.entries
    history = trained()
    history.train()
    yield "trained twice", history.log.entries
    history = settled()
    history.enter(State.CLOSED, round_=2)
    yield "the round of another", history.log.entries
    history = settled(number=2)
    history.enter(State.SETTLED)
    yield "settled twice", history.log.entries
    history = started()
    history.open()
    history.enter(State.TRAINING, round_=1)
    yield "nobody asked", history.log.entries


@forgery("has ended", "has no terms", "has terms already")
def a_task_goes_on_after_its_end_or_before_its_beginning() -> Cases:
    history = played()
    history.model("p000", 2, submission_id="once-more", late=True)
    yield "a model", history.log.entries
    history = played()
    history.enter(State.TRAINING)
    yield "a state", history.log.entries
    history = played()
    history.log.write(*entries.published(history.terms))
    yield "the terms again", history.log.entries
    history = trained()
    history.log.write(*entries.published(history.terms))
    yield "the terms while it runs", history.log.entries
    history = started()
    history.claim("p000")
    yield "a claim without terms", history.log.entries


@forgery("before what came before it", "expected a time")
def time_goes_back() -> Cases:
    for state, cut in ((State.EFFORT, 0), (State.TRAINING, 1), (State.TRAINING, 2)):
        history = started()
        if state is State.EFFORT:
            history.open()
        else:
            history.begin()
            history.rounds(1, cut - 1)
            history.round = cut
        history.enter(state, at="2026-11-26T10:00:00Z")
        yield f"{state}({cut})", history.log.entries
    for at in ("", "yesterday", "2026-11-27T10:00:00.5Z", "2026-11-27T10:00:00+00:00"):
        history = started()
        history.open()
        history.enter(State.EFFORT, at=at)
        yield at, history.log.entries
        history = trained()
        history.log.write(*entries.closing_entries("task", 1, at, []))
        yield f"{at}, a closing", history.log.entries
        history = settled(PRIVATE)
        history.log.write(entries.dispute("task", "p003", at, history.counts("p003"), SALT))
        yield f"{at}, a dispute", history.log.entries
    before = "2026-11-27T10:00:00Z"
    history = trained()
    history.close(at=before)
    yield "a closing", history.log.entries
    history = trained()
    history.log.wait(60)
    history.close()
    history.log.wait(-2)
    history.judge(history.measured())
    yield "SCORED before the closing", history.log.entries
    history = settled(PRIVATE)
    history.dispute("p003", at=before)
    yield "a dispute", history.log.entries


# Phases that are cut short


@forgery("places taken")
def claims_are_taken_for_a_shorter_time() -> Cases:
    for seconds in (0, 1, 58, 59):
        for rule in ("verified", "paper"):
            history = claiming(Shape(rule=rule), claims=3)
            history.log.wait(seconds - 61)  # the selection waits for 60, and is written a second later
            history.select(history.people[:3])
            history.people.pop()
            yield f"after {seconds} seconds, {rule}", completed(history)
    history = claiming()
    history.log.revoke("p002")
    history.log.wait(-60)
    history.select([name for name in history.people if name != "p002"])
    history.people.remove("p002")
    yield "without one who was revoked", completed(history)


@forgery("the round is closed after")
def a_round_is_closed_while_somebody_trains() -> Cases:
    for number in (1, 2):
        for seconds in (0, 1, 59):
            for rule in ("verified", "paper"):
                history = trained(Shape(rule=rule, absent={number: {"p003": None}}), number)
                opened = next(e for e in reversed(history.log.entries) if e.kind == "transition")
                history.log.wait(seconds - 1)
                history.close([], at=str(opened.body["at"]) if not seconds else None)
                history.settle(history.measured())
                yield f"round {number} after {seconds} seconds, {rule}", completed(history)


@forgery("absent", "parts; what they say together makes")
def who_is_called_absent_was_there_or_is_not_all() -> Cases:
    shape = Shape(people=5, absent={1: {"p003": None, "p004": "no disk"}})
    for names in (
        ["p002"], ["p004"], ["p002", "p003"], ["p003", "p004"], ["p003", "p009"], ["p003", "p003"], ["p009"],
    ):  # fmt: skip
        history = trained(shape)
        history.close(names)
        history.settle(history.measured())
        yield ", ".join(names), completed(history)
    history = trained(Shape(people=5, absent={1: {"p003": None, "p004": None}}))
    history.close(["p003"])
    history.settle(history.measured())
    yield "one of two", completed(history)
    history = trained()
    history.close(["p000"])
    yield "one that delivered, and nobody is awaited", history.log.entries
    for absent in ("p003", {"p003": 1}, ["p003", 3], [["p003"]], True, None):
        history = trained(shape)
        [made] = entries.closing_entries("task", 1, history.log.now(), [])
        history.log.write(Entry(made.id, made.kind, {**made.body, "absent": absent}))  # type: ignore[dict-item]
        yield repr(absent), history.log.entries
    history = trained(shape)
    at = history.log.now()
    parts = [
        Entry(
            f"task/round/1/closing/{part}", "closing",
            {"task_id": "task", "round": 1, "at": at, "part": part, "parts": 2, "absent": names},
        )
        for part, names in ((1, ["p003"]), (2, list[str]()))
    ]  # fmt: skip
    history.log.write(*parts)
    yield "in more parts than they take", history.log.entries


@forgery("once the round is closed")
def a_round_is_judged_before_its_closing() -> Cases:
    for shape in (PLAIN, PAPER):
        for number in (1, 2):
            history = trained(shape, number)
            history.closed = number
            history.settle(history.measured())
            yield f"round {number}, {shape.rule}", completed(history)


@forgery("a closing in", "expected the closing")
def a_round_is_closed_twice_or_at_another_time() -> Cases:
    history = started()
    history.begin()
    history.log.write(*entries.closing_entries("task", 0, history.log.now(), []))
    yield "before the first round", history.log.entries
    history = trained()
    history.close()
    history.close()
    yield "twice", history.log.entries
    history = settled()
    history.close()
    yield "after its settlement", history.log.entries
    for number in (0, 2):
        history = trained()
        history.log.write(*entries.closing_entries("task", number, history.log.now(), []))
        yield f"as round {number}", history.log.entries


@forgery("not marked late", "until the round is closed")
def something_counts_that_came_after_the_closing() -> Cases:
    for number in (1, 2):
        for shape in (
            Shape(absent={number: {"p003": None}}),
            Shape("task", 5, absent={number: {"p003": "no"}}),
        ):
            history = trained(shape, number)
            history.close()
            history.model("p003")
            history.settle(history.measured())
            yield f"a model of {shape.people} in round {number}", completed(history)
        history = trained(Shape(absent={number: {"p003": None}}), number)
        history.close()
        history.fail("p003", "no disk")
        history.settle(history.measured())
        yield f"a failure in round {number}", completed(history)


@forgery("marked late that came before its round was closed")
def a_model_is_called_late_that_came_in_time() -> Cases:
    for number in (1, 2):
        for shape in (PLAIN, PAPER):
            history = trained(shape, number, deliver=False)
            for name in history.people:
                history.model(name, late=name == "p001")
            history.settle(history.measured())
            yield f"round {number}, {shape.rule}", completed(history)


@forgery("seconds for disputes", "seconds after the last settlement")
def disputes_are_taken_for_another_time() -> Cases:
    for seconds in (1, 59):
        history = settled(PRIVATE, 2)
        history.dispute("p003")
        history.log.wait(seconds - 2)
        history.end()
        yield f"for {seconds} seconds", history.log.entries
    for seconds in (61, 3600):
        history = settled(PRIVATE, 2)
        history.log.wait(seconds - 1)
        history.finish()
        yield f"after {seconds} seconds", history.log.entries


@forgery("promise to keep them until", "has not ended", "promised no deletion", "has no terms")
def submitted_models_are_deleted_at_another_time() -> Cases:
    for retention in (60, 86_400):
        shape = Shape(retention=retention)
        history = started(shape)
        history.begin()
        history.rounds(1, shape.rounds)
        history.finish()
        end = history.log.seconds
        for early in (1, retention):
            at = entries.timestamp(samples.BEGUN + end + retention - early)
            yield (
                f"{early} of {retention} seconds too early",
                [*history.log.entries, entries.deletion("task", at)],
            )
    sound = Shape(retention=0)
    history = started(sound)
    history.open()
    history.delete()
    yield "at the opening", history.log.entries
    history = settled(sound)
    history.delete()
    yield "before the end", completed(history)
    history = played(sound)
    history.delete()
    yield "twice", history.log.entries
    history = played()
    history.delete()
    yield "and nobody promised it", history.log.entries
    log = Log()
    log.write(entries.deletion("nobody", log.now()))
    yield "of no task", log.entries


@forgery("ends early", "is missing")
def the_log_ends_inside_a_transaction() -> Cases:
    ledger = played(PRIVATE).log.entries
    inside = {"reservation", "seed", "peers", "settlement", "payment", "verdict", "evidence", "aggregation"}
    inside |= {"selection", "terms", "awards", "award", "stake_release"}
    seen: set[tuple[str, bool]] = set()
    for place, entry in enumerate(ledger):
        again = entry.kind, ledger[place + 1 :][:1] == [] or ledger[place + 1].kind == entry.kind
        if entry.kind in inside and again not in seen:
            seen.add(again)
            yield f"after {entry.id}", ledger[: place + 1]
    scored = next(i for i, e in enumerate(ledger) if e.id.endswith("state/SCORED"))
    yield "after SCORED", ledger[: scored + 1]


@forgery("interrupts", "expected")
def something_stands_inside_a_transaction() -> Cases:
    history = played(Shape(private=frozenset({"p003"}), absent={1: {"p002": None}}))
    ledger = history.log.entries
    stranger = entries.enrolment("stranger", samples.private_key("stranger").public_key())
    late = History(history.log, history.shape)
    late.round = 1
    late.model("p002", 1, late=True)
    model = history.log.entries.pop()
    for kind in (
        "reservation",
        "verdict",
        "seed",
        "peers",
        "settlement",
        "payment",
        "aggregation",
        "stake_release",
    ):
        place = places(ledger, kind)[0] + 1
        yield f"an enrolment after the {kind}", [*ledger[:place], stranger, *ledger[place:]]
        if kind not in ("reservation", "stake_release"):
            yield f"a model after the {kind}", [*ledger[:place], model, *ledger[place:]]


@forgery(
    "is entered without",
    "interrupts",
    "a seed in",
    "an aggregation outside",
    "out of place",
    "expected",
    "in SETTLED",
)
def a_state_lacks_what_it_rests_on() -> Cases:
    history = claiming()
    history.enter(State.SELECTED)
    yield "SELECTED", history.log.entries
    history = trained()
    history.enter(State.SCORED)
    yield "SCORED", history.log.entries
    history = trained()
    history.judge(history.measured())
    history.aggregate()
    yield "SETTLED without payments", history.log.entries
    ledger = settled().log.entries
    yield (
        "paid twice",
        [*ledger, *(e for e in ledger if e.kind in ("seed", "peers", "settlement", "payment"))],
    )
    history = settled()
    history.aggregate()
    yield "aggregated twice", history.log.entries
    history = settled()
    history.judge(history.measured())
    yield "judged twice", history.log.entries
    history = settled(PAPER)
    history.judge()
    yield "judged twice without evidence", history.log.entries
    history = trained()
    yield "a reservation in training", [*history.log.entries, entries.reservation(history.terms, 1)]


# Selection and statements


@forgery("participants", "interrupts", "fewer than the quorum", "parts")
def a_claimant_is_left_unselected_or_a_stranger_selected() -> Cases:
    for name in samples.names(4):
        history = claiming()
        history.select([n for n in history.people if n != name])
        history.rounds(1, 2)
        history.finish()
        yield f"without {name}", history.log.entries
    history = claiming(claims=3)
    history.select(history.people)
    yield "without a claim", history.log.entries
    for claims in (1, 2):
        history = claiming(claims=claims)
        history.select(history.people[:claims])
        yield f"of {claims}", history.log.entries
    history = claiming()
    [made] = entries.selection_entries("task", history.people)
    turned: Any = {**made.body, "participants": history.people[::-1]}
    history.log.write(Entry(made.id, made.kind, turned))
    yield "out of order", history.log.entries
    history = claiming()
    other = canonical_digest(history.people[1:]).hex()
    history.log.write(Entry(made.id, made.kind, {**made.body, "participants_sha256": other}))
    yield "under another digest", history.log.entries
    history = claiming()
    history.log.write(*entries.selection_entries("task", history.people))
    history.select()
    yield "twice", history.log.entries


@forgery("a selection in")
def a_selection_comes_at_another_time() -> Cases:
    history = trained()
    history.log.write(*entries.selection_entries("task", history.people))
    yield "in TRAINING", history.log.entries
    history = started()
    history.open()
    history.log.write(*entries.selection_entries("task", []))
    yield "in OPEN", history.log.entries


@forgery("claims are taken in EFFORT")
def a_claim_comes_at_another_time() -> Cases:
    history = started()
    history.open()
    history.claim("p000")
    yield "before", history.log.entries
    history = claiming(claims=3)
    history.select(history.people[:3])
    history.claim("p003")
    yield "after the selection", history.log.entries
    history = trained()
    history.claim("p000", submission_id="second")
    yield "in training", history.log.entries


@forgery("claims already; the terms allow no more", "organisation")
def claims_of_more_identities_than_an_organisation_may_have() -> Cases:
    yield "two of one", completed(claimed(Shape(organisations={"p000": SALT, "p003": SALT})))
    three = {"p000": SALT, "p001": SALT, "p003": SALT}
    yield "three where two are allowed", completed(claimed(Shape(organisations=three, identities=2)))
    history = claiming(Shape(organisations={"p000": SALT, "p003": SALT}))
    claim = history.log.entries[-1]
    history.log.entries[-1] = replace(claim, body={**claim.body, "organisation": "ab"})
    yield "a mark of another length", history.log.entries


@forgery("has claimed before", "places of the task are taken", "used before")
def a_claim_is_one_too_many_or_false() -> Cases:
    for name, claims in (("p000", 1), ("p001", 3)):
        history = claiming(claims=claims)
        history.claim(name, submission_id="second", effort=Decimal("0.1"))
        yield f"{name} twice", history.log.entries
    history = started(Shape(people=5))
    full = History(history.log, Shape(people=4))
    full.open()
    full.enter(State.EFFORT)
    for name in samples.names(5):
        full.claim(name)
    yield "a full task", full.log.entries


@forgery("not signed by a key of", "no enrolled key", "revoked before, in entry")
def a_statement_is_signed_by_another_or_by_a_revoked_key() -> Cases:
    for name in ("p000", "p002"):
        other = samples.private_key("p001")
        history = claiming(claims=0)
        history.claim(name, key=other)
        yield f"claim of {name}", history.log.entries
        history = trained(deliver=False)
        history.model(name, key=other)
        yield f"model of {name}", history.log.entries
        history = claiming(claims=0)
        history.log.revoke(name)
        history.claim(name)
        yield f"claim of {name} after its revocation", history.log.entries
        history = trained(deliver=False)
        history.log.revoke(name)
        history.model(name)
        yield f"model of {name} after its revocation", history.log.entries
        history = trained(deliver=False)
        history.log.revoke(name)
        history.log.enrol(name, samples.private_key("new"))
        history.model(name)
        yield f"model of {name} under its old key", history.log.entries


@forgery("was enrolled before", "was revoked before", "has no key", "participant_id", "is enrolled as")
def a_key_comes_twice_or_was_never_there() -> Cases:
    history = started()
    history.log.enrol("p000")
    yield "enrolled twice", history.log.entries
    history = started()
    history.log.enrol("zoe", samples.private_key("p000"))
    yield "enrolled under another name", history.log.entries
    history = started()
    history.log.revoke("p000")
    history.log.enrol("p000")
    yield "enrolled again", history.log.entries
    history = started()
    history.log.revoke("p000")
    history.log.revoke("p000")
    yield "revoked twice", history.log.entries
    history = started()
    history.log.revoke("p009")
    yield "revoked and never enrolled", history.log.entries
    history = started()
    history.log.write(entries.revocation("p000", samples.private_key("p001").public_key(), "lost"))
    yield "another's key revoked", history.log.entries
    for name in ("P000", "", "p/0"):
        history = started()
        history.log.write(entries.enrolment(name, samples.private_key("new").public_key()))
        yield f"named {name!r}", history.log.entries


@forgery("is not ECDSA P-256", "is unreadable")
def a_key_is_of_another_kind() -> Cases:
    def enrolled(key: Any) -> list[Entry]:
        history = started()
        history.log.write(entries.enrolment("zoe", key))
        return history.log.entries

    yield "of another curve", enrolled(ec.derive_private_key(7, ec.SECP384R1()).public_key())
    yield "of another method", enrolled(Ed25519PrivateKey.from_private_bytes(bytes(32)).public_key())
    for text in ("", "AAAA", "no base64"):
        history = started()
        made = entries.enrolment("zoe", samples.private_key("zoe").public_key())
        history.log.write(Entry(made.id, made.kind, {**made.body, "public_key": text}))
        yield repr(text), history.log.entries


@forgery("revoked before, as")
def a_revoked_key_comes_back_under_another_name() -> Cases:
    history = started()
    history.log.revoke("p000")
    history.log.enrol("zoe", samples.private_key("p000"))
    yield "before a task", history.log.entries
    history = trained()
    history.log.revoke("p000")
    history.log.enrol("zoe", samples.private_key("p000"))
    yield "in a task", completed(history)


@forgery("has no key at this point")
def who_has_no_key_left_says_something() -> Cases:
    history = trained(deliver=False)
    history.log.revoke("p000")
    history.fail("p000", "no disk")
    yield "a failure", history.log.entries
    history = settled(PRIVATE)
    history.log.revoke("p003")
    history.dispute("p003")
    yield "a dispute", history.log.entries


@forgery("is not of the chain")
def a_draw_share_is_made_up() -> Cases:
    for late in (False, True):
        for number in (1, 2):
            history = trained(number=number, deliver=False)
            history.model("p000", late=late, draw_share=bytes(32))
            yield f"nothing, late: {late}, round {number}", history.log.entries
            history = trained(number=number, deliver=False)
            history.model("p000", late=late, draw_share=history.share("p001", number))
            yield f"another's, late: {late}, round {number}", history.log.entries
            history = trained(number=number, deliver=False)
            history.model("p000", late=late, draw_share=history.share("p000", 3 - number))
            yield f"of the other round, late: {late}, round {number}", history.log.entries


def rekeyed(*made: Entry) -> list[Entry]:
    history = started()
    history.log.write(*made)
    return history.log.entries


def log_keys(*seeds: int) -> list[VerificationKey]:
    return [SigningKey("example.com/fedpeer", 1, bytes([s] * 32)).verification_key for s in seeds]


@forgery("the log's key before this entry is")
def a_new_log_key_follows_another_than_the_last() -> Cases:
    one, two, three, four = log_keys(1, 2, 3, 4)
    yield "one", rekeyed(entries.log_key(1, one, two), entries.log_key(2, three, four))
    yield "the first", rekeyed(entries.log_key(1, one, two), entries.log_key(2, one, three))


@forgery("the log had the key")
def a_log_key_comes_back() -> Cases:
    one, two, three = log_keys(1, 2, 3)
    yield "the first", rekeyed(entries.log_key(1, one, two), entries.log_key(2, two, one))
    yield (
        "the second",
        rekeyed(entries.log_key(1, one, two), entries.log_key(2, two, three), entries.log_key(3, three, two)),
    )


@forgery("expected the log_key log/key/", "does not belong here")
def a_log_key_is_announced_out_of_turn_or_with_more() -> Cases:
    one, two, three = log_keys(1, 2, 3)
    for number in (0, 2):
        yield str(number), rekeyed(entries.log_key(number, one, two))
    yield "again", rekeyed(entries.log_key(1, one, two), entries.log_key(1, two, three))
    made = entries.log_key(1, one, two)
    yield "more", rekeyed(Entry(made.id, made.kind, {**made.body, "note": "see elsewhere"}))


def cut(**changes: Any) -> list[Entry]:
    """Terms that fit an entry, written as a part."""
    history = started()
    [made] = entries.cut("task/terms", "terms", {"task_id": "task"}, history.terms.canonical)
    body = {**made.body, **changes}
    history.log.write(Entry(f"task/terms/{body['part']}", "terms", body))
    return history.log.entries


@forgery("of the terms is out of place")
def a_part_of_terms_is_out_of_place() -> Cases:
    yield "the second first", cut(part=2, parts=3)
    yield "none", cut(part=0, parts=1)
    yield "beyond the last", cut(part=1, parts=0)
    yield "of too many", cut(part=1, parts=entries.MAX_TERMS_PARTS + 1)


@forgery("note does not belong here")
def a_part_of_terms_says_more() -> Cases:
    yield "more", cut(note="see elsewhere")


@forgery("expected the terms task/terms here")
def terms_are_cut_that_fit_an_entry() -> Cases:
    yield "in one", cut()


@forgery("about other terms", "is not the one of", "the contract allows")
def a_statement_is_not_about_this_task() -> Cases:
    for terms in (bytes(32), samples.terms("other").digest):
        history = claiming(claims=0)
        history.claim("p000", terms_digest=terms)
        yield f"a claim to {terms.hex()[:4]}", history.log.entries
        history = trained(deliver=False)
        history.model("p000", terms_digest=terms)
        yield f"a model for {terms.hex()[:4]}", history.log.entries
    history = trained(deliver=False)
    history.model("p000", nonce=bytes(16))
    yield "another nonce", history.log.entries
    for late in (False, True):
        history = trained(deliver=False)
        history.model("p000", model_bytes=101, late=late)
        yield f"a model that is too large, late: {late}", history.log.entries


@forgery("has a model in round")
def somebody_has_two_models_in_a_round() -> Cases:
    for number in (1, 2):
        for late in (False, True):
            history = trained(number=number, deliver=False)
            history.model("p000")
            history.model("p000", late=late, submission_id="second")
            yield f"in time, then late: {late}, round {number}", history.log.entries
        history = trained(Shape(absent={number: {"p003": None}}), number)
        history.close()
        history.model("p003", late=True)
        history.model("p003", late=True, submission_id="second")
        yield f"both late, round {number}", history.log.entries
    history = settled()
    history.model("p000", 1, late=True, submission_id="second")
    yield "afterwards", history.log.entries


@forgery(
    "not marked late",
    "a model of round",
    "was not selected",
    "in the settlement of task: expected",
    "it interrupts",
)
def a_model_comes_at_another_time_or_from_another() -> Cases:
    history = started()
    history.begin()
    history.model("p000", 1)
    yield "before the first round", history.log.entries
    history = started()
    history.begin()
    history.model("p000", 1, late=True)
    yield "late, before the first round", history.log.entries
    for late in (False, True):
        history = trained()
        history.model("p000", 2, late=late)
        yield f"for the next round, late: {late}", history.log.entries
    history = settled(Shape(absent={1: {"p003": None}}))
    history.model("p003", 1)
    yield "after its round", history.log.entries
    history = trained(Shape(absent={1: {"p003": None}}), 2)
    history.model("p003", 1)
    yield "in the next round", history.log.entries
    for late in (False, True):
        history = claiming(claims=3)
        history.select(history.people[:3])
        history.train()
        history.model("p003", late=late)
        yield f"of who was not selected, late: {late}", history.log.entries
    history = trained(Shape(absent={1: {"p003": None}}))
    history.close()
    record = history.evidence()
    history.log.write(*samples.judgement(history.terms, 1, history.verdicts(record), record)[:1])
    history.model("p003")
    yield "after the evidence", history.log.entries


@forgery("the sequence")
def the_order_of_commitments_is_impossible() -> Cases:
    history = trained(deliver=False)
    history.model("p000", sequence=5)
    history.model("p001", sequence=5)
    yield "the same place", history.log.entries
    for sequence in (0, -1):
        history = trained(deliver=False)
        history.model("p000", sequence=sequence)
        yield f"place {sequence}", history.log.entries
    for sequence in (1, 4):
        history = trained(number=2, deliver=False)
        history.model("p000", sequence=sequence)
        yield f"place {sequence} of the first round in the second", history.log.entries
    history = started(Shape(absent={1: {"p003": None}}))
    history.begin()
    history.train()
    history.sequence = 9
    history.deliver()
    history.settle(history.measured())
    history.train()
    history.model("p000", sequence=8)
    yield "before what the first round had", history.log.entries
    history = settled(Shape(rounds=3, absent={2: {"p003": None}}), 2)
    history.model("p003", 2, late=True, sequence=3)
    yield "late, with a place of the round before", history.log.entries


@forgery("used before")
def a_submission_id_is_used_twice() -> Cases:
    history = trained(deliver=False)
    history.model("p000", submission_id="claim-p000")
    yield "claim and model", history.log.entries
    history = trained(number=2, deliver=False)
    history.model("p000", submission_id="model-1-p000")
    yield "models of two rounds", history.log.entries
    history = trained(deliver=False)
    history.fail("p000", "no disk", submission="claim-p000")
    yield "claim and failure", history.log.entries
    history = trained(deliver=False)
    history.model("p000")
    history.fail("p000", "no disk", submission="model-1-p000")
    yield "model and failure", history.log.entries


@forgery(
    "failures are taken in TRAINING",
    "was not selected",
    "has reported a failure",
    "expected the failure",
    "submission_id",
    "round is 'p000'",
)
def a_failure_cannot_have_been_reported() -> Cases:
    history = started()
    history.begin()
    history.fail("p000", "no disk")
    yield "before training", history.log.entries
    history = settled()
    history.fail("p000", "no disk")
    yield "after the settlement", history.log.entries
    history = trained()
    history.fail("p009", "no disk")
    yield "by a stranger", history.log.entries
    history = trained(deliver=False)
    history.fail("p000", "no disk")
    history.fail("p000", "no memory", submission="second")
    yield "twice", history.log.entries
    for number in (0, 2):
        history = trained()
        history.fail("p000", "no disk", round_=number)
        yield f"in round {number}", history.log.entries
    history = trained()
    history.fail("p000", "no disk", submission="No/Name")
    yield "under no id", history.log.entries
    history = trained()
    history.log.write(
        entries.failure(history.id, "p000", 1, "f-1", "no disk")  # type: ignore[arg-type]
    )
    yield "round and participant swapped", history.log.entries


# Money


@forgery("a task has at most")
def a_task_has_more_rounds_than_any_may_have() -> Cases:
    for rounds in (10_001, 10**8):
        history = started()
        schedule = replace(history.terms.schedule, rounds=rounds)
        large = replace(history.terms, schedule=schedule, budget_micro=2**53 - 1)
        history.log.write(*entries.published(large))
        yield f"{rounds} rounds", history.log.entries


@forgery("the budget of", "expected the reservation", "is missing")
def a_budget_or_its_reservations_are_too_small() -> Cases:
    for short in (1, 1_000_000):
        history = started()
        poor = replace(history.terms, budget_micro=history.terms.budget_micro - short)
        history.log.write(*entries.published(poor), *(entries.reservation(poor, r) for r in (1, 2)))
        yield f"{short} less", history.log.entries
    for left in (0, 1):
        history = started()
        made = [entries.reservation(history.terms, r) for r in (1, 2)]
        history.log.write(*entries.published(history.terms), made[left])
        history.enter(State.OPEN)
        yield f"only the reservation {left + 1}", history.log.entries
    history = started()
    history.log.write(*entries.published(history.terms))
    history.enter(State.OPEN)
    yield "no reservation", history.log.entries


@forgery("does not fit the commitment")
def a_seed_is_not_the_next_of_the_chain() -> Cases:
    for number in (1, 2):
        for label, seed in (
            ("made up", bytes(32)),
            ("of the other round", round_seed(samples.SECRET, 2, 3 - number)),
            ("of another secret", round_seed(bytes(32), 2, number)),
        ):
            history = trained(number=number)
            history.judge(history.measured())
            history.pay(seed)
            yield f"{label} in round {number}", history.log.entries


@forgery(
    "draws", "paid_micro", "micro is", "total_micro", "kept", "transfers", "rounding_micro", "gross_micro"
)
def a_settlement_pays_otherwise() -> Cases:
    def rewritten(number: int, change: Callable[[list[Entry]], list[Entry]]) -> list[Entry]:
        history = trained(number=number)
        history.judge(history.measured())
        begin = len(history.log.entries)
        history.pay()
        ledger = history.log.entries
        return [*ledger[:begin], *change(ledger[begin:])]

    def moved(made: list[Entry]) -> list[Entry]:
        """One micro-credit from the first payment to the second."""
        first, second = places(made, "payment")[:2]
        for place, micro in ((first, -1), (second, 1)):
            entry = made[place]
            body = {**entry.body, "paid_micro": int(str(entry.body["paid_micro"])) + micro}
            transfers = [
                Post(t.debit, t.credit, t.micro + micro) if i == 0 and isinstance(t, Post) else t
                for i, t in enumerate(entry.transfers)
            ]
            made[place] = Entry(entry.id, entry.kind, body, tuple(transfers))
        return made

    def drawn(made: list[Entry]) -> list[Entry]:
        """The first has the second as its peer, or the third."""
        place = next(i for i, e in enumerate(made) if e.kind == "peers")
        draws: Any = [list(draw) for draw in made[place].body["draws"]]  # type: ignore[union-attr]
        draws[0][1] = ["p002" if draws[0][1] == ["p001"] else "p001"]
        made[place] = Entry(made[place].id, "peers", {**made[place].body, "draws": draws})
        return made

    def renamed(made: list[Entry]) -> list[Entry]:
        """The second payment goes to the first's account."""
        place = [i for i, e in enumerate(made) if e.kind == "payment"][1]
        entry = made[place]
        transfers = [
            Post(t.debit, "payable:p000", t.micro) if i == 0 and isinstance(t, Post) else t
            for i, t in enumerate(entry.transfers)
        ]
        made[place] = Entry(entry.id, entry.kind, entry.body, tuple(transfers))
        return made

    for number in (1, 2):
        for name, change in (("moved", moved), ("drawn", drawn), ("renamed", renamed)):
            yield f"{name} in round {number}", rewritten(number, change)
    for number in (1, 2):
        history = trained(PRIVATE, number)
        history.judge(history.measured())
        history.pay(disputable=False)
        yield f"nothing kept for disputes in round {number}", history.log.entries
        history = trained(PLAIN, number)
        history.judge(history.measured())
        history.pay(disputable=True)
        yield f"kept for disputes that nobody can open in round {number}", history.log.entries


@forgery("draws")
def peers_are_not_the_least_met() -> Cases:
    """Whatever is paid follows from the peers that the log says."""
    shape = Shape(rounds=3, people=6, peers=2)
    for number in (2, 3):

        def judged(number: int = number) -> History:
            history = trained(shape, number)
            history.judge(history.measured())
            return history

        sound = judged()
        known = Meetings(samples.draws_of(sound.log.entries))
        begin = len(sound.log.entries)
        sound.pay()
        drawn: dict[str, list[str]] = dict(samples.draws_of(sound.log.entries[begin:]))
        peers, others = drawn["p000"], [name for name in sound.people if name not in ("p000", *drawn["p000"])]
        before = max(others, key=lambda name: known.of("p000").get(name, 0))
        for label, said in (
            ("one that was met more often", sorted([peers[0], before])),
            ("one twice", [peers[0], peers[0]]),
            ("one too few", peers[:1]),
            ("none", []),
            ("one too many", sorted([*peers, others[0]])),
            ("itself", sorted([peers[0], "p000"])),
            ("out of order", peers[::-1]),
        ):
            history = judged()
            history.pay(chosen={"p000": said})
            yield f"{label} in round {number}", history.log.entries
        both = [(j, [k]) for k, met in samples.draws_of(sound.log.entries[:begin]) for j in met]
        for label, meetings in (
            ("as if nobody had met anybody", Meetings()),
            ("counted for both", Meetings([*samples.draws_of(sound.log.entries[:begin]), *both])),
        ):
            history = judged()
            history.pay(meetings=meetings)
            yield f"{label} in round {number}", history.log.entries


@forgery("draws")
def another_number_of_peers_is_drawn_than_the_terms_say() -> Cases:
    for said, drawn in ((1, 2), (2, 1), (3, 5)):
        history = trained(Shape(people=6, peers=said))
        history.judge(history.measured())
        terms = history.terms
        history.terms = replace(terms, rule=replace(terms.rule, peers=drawn))
        history.pay()
        yield f"{drawn} for {said}", history.log.entries


@forgery("total_micro", "micro is", "paid_micro", "gross_micro", "fee_micro", "transfers")
def what_two_have_in_common_is_paid_twice_or_without_its_fee() -> Cases:
    def lying(lie: Callable[[History], None], **limits: Any) -> list[Entry]:
        history = trained()
        record = history.evidence()
        record["model"].update(limits)
        linked(record, 800_000)
        history.judge(record)
        lie(history)
        history.pay()
        return history.log.entries

    def weigh(**changes: Any) -> Callable[[History], None]:
        def apply(history: History) -> None:
            history.judged = [replace(a, **changes) if a.scored else a for a in history.judged]

        return apply

    def agree(**changes: Any) -> Callable[[History], None]:
        def apply(history: History) -> None:
            history.terms = replace(history.terms, rule=replace(history.terms.rule, **changes))

        return apply

    yield "twice", lying(weigh(holders_micro=MICRO))
    yield "by more than is had", lying(weigh(holders_micro=3 * MICRO))
    yield "without the fee", lying(agree(fee=Decimal(0)))
    yield "with another fee", lying(agree(fee=Decimal("0.750001")))
    yield "of few samples as if of enough", lying(weigh(distinct_micro=MICRO), distinct=[SAMPLES_FEW])
    yield "from another share of the samples", lying(agree(whole_from=Decimal("0.8")), distinct=[SAMPLES_FEW])


@forgery("award", "total_micro", "expected")
def a_dispute_gives_the_fee_back() -> Cases:
    history = trained(PRIVATE, 1)
    record = history.evidence()
    samples.in_common(record, {("p000", "p003"): (800_000, 500_000)})
    history.settle(record)
    history.train()
    history.deliver()
    history.settle(history.evidence())
    history.dispute("p003")
    agreed = history.terms
    history.terms = replace(agreed, rule=replace(agreed.rule, fee=Decimal(0)))
    made = [e for number in (1, 2) for e in history.awards(number)]
    history.terms = agreed
    history.log.wait(60)
    history.end(awards=made)
    yield "of round 1", history.log.entries


@forgery("aggregate is missing", "interrupts", "aggregation outside")
def an_aggregation_is_missing_or_elsewhere() -> Cases:
    for number in (1, 2):
        history = trained(number=number)
        history.judge(history.measured())
        history.pay()
        history.enter(State.SETTLED)
        yield f"none in round {number}", history.log.entries
        history = trained(number=number)
        history.aggregate()
        yield f"before the verdicts of round {number}", history.log.entries
        history = trained(number=number)
        history.judge(history.measured())
        history.pay()
        history.aggregate()
        history.aggregate()
        yield f"two in round {number}", history.log.entries


@forgery("server's", "expected 32 bytes")
def a_server_has_a_state_that_it_cannot_have() -> Cases:
    def saying(shape: Shape, state: bytes | None, number: int = 1) -> list[Entry]:
        history = trained(shape, number)
        history.judge(history.measured())
        history.pay()
        history.aggregate(state=state)
        history.enter(State.SETTLED)
        return history.log.entries

    stepping = Shape(aggregation=FedAdam())
    yield "a mean with a state", saying(PLAIN, bytes([7] * 32))
    for number in (1, 2):
        yield f"a step without a state in round {number}", saying(stepping, None, number)
    yield "half a digest", saying(stepping, bytes(16))
    idle = replace(stepping, unscored=frozenset({1}))
    yield "a state of nobody", saying(idle, bytes([7] * 32))
    idle = replace(stepping, unscored=frozenset({2}))
    yield "another state of nobody", saying(idle, bytes([7] * 32), 2)
    yield "a state that is lost where nobody is scored", saying(idle, None, 2)


@forgery("has changed in a round in which no model was scored", "accuracy", "expected 32 bytes", "figures")
def an_aggregation_says_what_cannot_be() -> Cases:
    def saying(shape: Shape, digest: bytes | None, figures: dict[str, str] | None) -> list[Entry]:
        history = trained(shape)
        history.judge(history.measured())
        history.pay()
        history.aggregate(digest, figures)
        history.enter(State.SETTLED)
        return history.log.entries

    yield "a new model of nobody", saying(Shape(unscored=frozenset({1})), bytes([9] * 32), None)
    yield "half a digest", saying(PLAIN, bytes(16), None)
    for accuracy in ("1.01", "-0.1", "much", "NaN"):
        yield f"accuracy {accuracy}", saying(PLAIN, None, {"accuracy": accuracy, "loss": "0.1"})
    yield "a loss that is a number", saying(PLAIN, None, {"loss": 1})  # type: ignore[dict-item]
    yield "accuracy alone", saying(PLAIN, None, {"accuracy": "0.9"})
    yield "praise", saying(PLAIN, None, {"accuracy": "0.9", "loss": "0.3", "praise": "good"})


@forgery(
    "before a settlement",
    "the terms allow none",
    "no private counts",
    "opened them before",
    "committed to",
    "in the end of task",
    "was not selected",
    "go to nobody",
    "committed to",
    "it commits to",
)
def a_dispute_cannot_have_been_opened() -> Cases:
    history = trained(PRIVATE)
    history.dispute("p003")
    yield "before a settlement", history.log.entries
    history = settled(replace(PRIVATE, rule="leave_one_out"))
    history.dispute("p003")
    yield "under another rule", history.log.entries
    history = settled(replace(PRIVATE, people=5, absent={}))
    history.dispute("p009", (5, 5))
    yield "by a stranger", history.log.entries
    history = settled(PRIVATE)
    history.dispute("p003")
    history.dispute("p003")
    yield "twice", history.log.entries
    for counts in ((22, 78), (5, 5), (56, 44)):
        history = settled(PRIVATE)
        history.dispute("p003", counts)
        yield f"other counts {counts}", history.log.entries
    ledger = played(PRIVATE).log.entries
    place = places(ledger, "awards")[0] + 1
    opened = entries.dispute("task", "p003", samples.at(9), (78, 22), SALT)
    bare = [e for e in ledger[:place] if e.kind != "dispute"]
    yield "after the awards", [*bare, opened]


@forgery(
    "award",
    "total_micro",
    "expected",
)
def an_award_is_made_up_or_left_out() -> Cases:
    for number in (1, 2):
        history = settled(PRIVATE, 2)
        history.dispute("p003")
        kept = [e for n in (1, 2) for e in history.awards(n, [] if n == number else None)]
        history.log.wait(60)
        history.end(awards=kept)
        yield f"left out in round {number}", history.log.entries
        history = settled(PRIVATE, 2)
        made = [e for n in (1, 2) for e in history.awards(n, ["p003"] if n == number else None)]
        history.log.wait(60)
        history.end(awards=made)
        yield f"made up in round {number}", history.log.entries
        history = settled(PRIVATE, 2)
        history.dispute("p003")
        history.log.wait(60)
        history.end(awards=[e for n in (1, 2) if n != number for e in history.awards(n)])
        yield f"round {number} not ended", history.log.entries
    history = settled(PRIVATE, 2)
    history.dispute("p003")
    twice = [entries.award_entries(history.terms, n, {"p003": 2}) for n in (1, 2)]
    history.log.wait(60)
    history.end(awards=[e for one in twice for e in one])
    yield "of another amount", history.log.entries


@forgery(
    "expected",
    "is missing",
    "in the end of task: transfers",
)
def a_task_ends_with_money_left_or_taken() -> Cases:
    for shape, number in ((PLAIN, 2), (replace(PLAIN, rule="paper"), 2), (PLAIN, 1)):
        state = State.CLOSED if number == 2 else State.CANCELLED
        reason = "" if number == 2 else "withdrawn"
        whole = settled(shape, number).stakes()
        for label, stakes in (
            ("no stake released", {}),
            ("one stake not released", {**whole, "p001": 0}),
            ("half a stake released", {**whole, "p001": whole["p001"] // 2}),
        ):
            history = settled(shape, number)
            history.end(state, reason, stakes=stakes)
            yield f"{label}, {shape.rule}, {state}", history.log.entries
        history = settled(shape, number)
        history.log.write(entries.stake_release("task", "p000", whole["p000"]))
        history.train()
        yield f"a stake released early, {shape.rule}", history.log.entries
    history = settled(PLAIN, 1)
    history.end(State.CANCELLED, "withdrawn", unresolved=[])
    yield "a round not refunded", history.log.entries
    for number in (1, 2):
        history = trained()
        history.log.write(entries.refund("task", number))
        yield f"a refund of round {number} and nothing else", history.log.entries
    history = started()
    history.begin()
    history.log.write(entries.refund("task", 2))
    history.unresolved.discard(2)
    history.train()
    yield "a refund of a round to come", history.log.entries
    history = settled(PLAIN, 2)
    loot = stake("task", "p000")
    taken = Entry(
        "task/stake/p000/release",
        "stake_release",
        {"task_id": "task", "participant_id": "p000"},
        (Post(loot, "payable:p003", history.stakes()["p000"]),),
    )
    history.log.write(taken)
    history.end()
    yield "a stake to somebody else", history.log.entries


@forgery("does not belong here", "transfers", "expected")
def an_entry_says_more_or_moves_money_of_its_own() -> Cases:
    shape = Shape(private=frozenset({"p003"}), absent={1: {"p002": "no disk"}}, late=frozenset({(1, "p002")}))
    history = played(shape)
    history.log.revoke("p000")
    ledger, seen = history.log.entries, set()
    for place, entry in enumerate(ledger):
        if entry.kind in seen:
            continue
        seen.add(entry.kind)
        gift = (*entry.transfers, Post("treasury", "payable:p000", 5))
        for label, other in (
            (
                "says more",
                Entry(entry.id, entry.kind, {**entry.body, "note": "see elsewhere"}, entry.transfers),
            ),
            ("moves money", Entry(entry.id, entry.kind, entry.body, gift)),
            ("has another id", Entry(entry.id + "-2", entry.kind, entry.body, entry.transfers)),
        ):
            yield f"{entry.kind} {label}", [*ledger[:place], other, *ledger[place + 1 :]]


@forgery("is unknown, or out of place", "round is missing")
def an_entry_is_of_no_kind() -> Cases:
    for kind in ("gift", "payment", "award", "peers", "settlement", "reservation"):
        ledger = settled().log.entries
        place = next((i for i, e in enumerate(ledger) if e.kind == kind), None)
        body = {"task_id": "task"} if place is None else ledger[place].body
        extra = Entry(f"task/{kind}", kind, body, (Post("treasury", "payable:p000", 5),))
        yield kind, [*ledger, extra]


@forgery("expected a string")
def a_text_is_none() -> Cases:
    history = started()
    entry = entries.revocation("p000", samples.private_key("p000").public_key(), "x")
    history.log.write(Entry(entry.id, entry.kind, {**entry.body, "reason": {"of": 1}}))
    yield "a revocation's reason", history.log.entries
    history = trained()
    history.log.write(entries.failure("task", 1, "p000", "f-1", 5))  # type: ignore[arg-type]
    yield "a failure's reason", history.log.entries
    history = trained()
    history.enter(State.CANCELLED, ["no"])  # type: ignore[arg-type]
    yield "a cancellation's reason", history.log.entries


@forgery("an integer", "true or false")
def a_number_is_none() -> Cases:
    for change in ({"samples": True}, {"model_bytes": True}):
        history = trained(deliver=False)
        history.model("p000", **change)
        yield str(change), history.log.entries
    history = trained(deliver=False)
    history.model("p000", sequence=True)
    yield "sequence", history.log.entries
    history = trained(deliver=False)
    history.model("p000", late=1)  # type: ignore[arg-type]
    yield "late", history.log.entries


def altered(entry: Entry, change: Callable[[Any], None]) -> bytes:
    """The bytes of an entry with its record changed; a statement is signed again by its author."""
    record: Any = json.loads(entry.data)
    change(record)
    statement = record["body"].get("statement")
    if statement is not None:
        key = samples.private_key(statement["participant_id"])
        record["body"]["signature"] = key.sign(
            canonical_bytes(statement), ec.ECDSA(hashes.SHA256(), deterministic_signing=True)
        ).hex()
    return canonical_bytes(record)


def replaced(ledger: Sequence[Entry], place: int, change: Callable[[Any], None]) -> list[Entry]:
    """The ledger up to one entry, and that one changed."""
    entry = ledger[place]
    data = altered(entry, change)
    record = json.loads(data)
    other = Entry(record["id"], entry.kind, record["body"], entry.transfers)
    other.__dict__["_data"] = data
    return [*ledger[:place], other]


@forgery("expected a string", "expected a time", "expected an integer")
def a_time_or_a_round_is_none() -> Cases:
    ledger = settled().log.entries
    for state in ("EFFORT", "TRAINING"):
        place = next(i for i in places(ledger, "transition") if ledger[i].body["state"] == state)
        for at in (
            None,
            False,
            0,
            [],
            {},
            "2026-11-27T10:00:0\u0661Z",
            "2026-02-30T10:00:00Z",
            "2026-11-27T24:60:00Z",
        ):
            yield f"{state} at {at!r}", replaced(ledger, place, lambda r, at=at: r["body"].update(at=at))
        number = ledger[place].body["round"]
        if number in (0, 1):
            yield (
                f"{state} in round {bool(number)}",
                replaced(
                    ledger,
                    place,
                    lambda r, number=number: r.update(
                        id=f"task/round/{bool(number)}/state/{r['body']['state']}",
                        body={**r["body"], "round": bool(number)},
                    ),
                ),
            )


@forgery(
    "32 bytes of SHA-256", "a plain decimal or a rational", "degree is", "effort is", "salt is", "no such key"
)
def a_claim_says_what_no_claim_can() -> Cases:
    ledger = claiming().log.entries
    place = places(ledger, "claim")[0]
    for name in ("commitment", "counts_commitment"):
        for value in ("", "ab"):
            changes = {name: value}
            yield str(changes), replaced(ledger, place, lambda r, c=changes: r["body"]["statement"].update(c))
    for changes in (
        {"degree": "1e-999999999"},
        {"degree": "0.0"},
        {"degree": "0/1"},
        {"degree": "6/5"},
        {"effort": "1.1"},
        {"effort": "0.1234567"},
        {"salt": "ab"},
        {"note": "see elsewhere"},
    ):
        opening: Any = {**(ledger[place].opening or {}), **changes}
        commitment = canonical_digest(opening).hex()
        other = replaced(ledger, place, lambda r, c=commitment: r["body"]["statement"].update(commitment=c))
        other[-1] = replace(other[-1], opening=opening)
        yield f"the opening of {changes}", other


@forgery("expected a whole number", "claimed_degree is")
def evidence_counts_with_what_is_no_number() -> Cases:
    for change in ({"order": True}, {"claimed_degree": "1e-999999999"}):
        yield str(change), told_otherwise(lambda r, c=change: r["measurements"][0].update(c))
    yield "a round that is true", told_otherwise(lambda r: r["model"].update(round=True))


@forgery("expected a decimal in [0, 1]")
def a_figure_or_a_score_is_not_written_plainly() -> Cases:
    ledger = settled().log.entries
    place = places(ledger, "aggregation")[0]
    for accuracy in (" 0.9", "9e-1", "0_9", "\u0660.9", ".9", "+0.9"):
        figures = {"accuracy": accuracy, "loss": "0.1"}
        yield (
            f"accuracy {accuracy!r}",
            replaced(ledger, place, lambda r, f=figures: r["body"].update(figures=f)),
        )
    for score in (" 0.5", "5e-1", "0_5", "+0.5"):
        history = trained(Shape(rule="shapley"))
        record = history.evidence()
        record["measurements"][0]["scores"] = {"shapley": score}
        history.judge(record)
        seed = round_seed(samples.SECRET, 2, 1)
        history.log.write(
            Entry("task/round/1/seed", "seed", {"task_id": "task", "round": 1, "seed": seed.hex()})
        )
        yield f"score {score!r}", history.log.entries


@forgery(
    "q is",
    "recipe.model",
    "shape",
    "contract.max_bytes",
    "and 1 for each round",
    "contract.tensors",
    "at most 10^64",
    "rule.fee",
    "rule.whole_from",
)
def terms_hold_what_terms_cannot() -> Cases:
    history = started()
    history.open()
    ledger = history.log.entries
    place = places(ledger, "terms")[0]

    def change(*path: Any, value: Any) -> list[Entry]:
        def apply(record: Any) -> None:
            inner = record["body"]["terms"]
            for key in path[:-1]:
                inner = inner[key]
            inner[path[-1]] = value

        return replaced(ledger, place, apply)

    for model in (None, True, 5, [], {"of": 1}):
        yield f"recipe.model {model!r}", change("recipe", "model", value=model)
    yield "a reference of long shares", change("reference", value=samples.LONG_SHARES)
    yield "a size that is true", change("contract", "tensors", 0, "shape", value=[True])
    yield (
        "bytes that are true",
        change(
            "contract",
            value={
                "tensors": [{"name": "w", "dtype": "U8", "shape": [0]}],
                "max_norm": "1",
                "max_bytes": True,
            },
        ),
    )
    for name, value in (("fee", "-0.1"), ("fee", None), ("whole_from", "0.5"), ("whole_from", "1.1")):
        yield f"rule.{name} {value}", change("rule", name, value=value)
    for digits in ("9" * 31, "0." + "1" * 31):
        yield f"q of {len(digits)} characters", change("q", value=digits)
    history = started()
    free = replace(history.terms, Q=history.terms.upsilon, budget_micro=1)  # ln 1 pays nothing
    history.log.write(*entries.published(free), entries.reservation(free, 1))
    nothing = entries.reservation(free, 2)
    history.log.write(Entry(nothing.id, nothing.kind, nothing.body))
    yield "a round without anything to reserve", history.log.entries


@forgery("recipe.", "allowed")
def a_recipe_says_what_recipes_cannot() -> Cases:
    history = started()
    history.open()
    ledger = history.log.entries
    place = places(ledger, "terms")[0]

    def change(name: str, value: Any) -> list[Entry]:
        return replaced(ledger, place, lambda r: r["body"]["terms"]["recipe"].update({name: value}))

    for name, value in (
        ("momentum", "1"),
        ("momentum", "0.9"),
        ("momentum", 1),
        ("beta2", "-0.1"),
        ("epsilon", "0"),
        ("epsilon", "0.00000001"),
        ("weight_decay", "0"),
        ("weight_decay", "-1"),
        ("label_smoothing", "1"),
        ("augmentation", "none"),
        ("augmentation", "heavy"),
        ("precision", "tensors"),
        ("precision", "float8"),
    ):
        yield f"{name} {value!r}", change(name, value)
    for allowed in (
        None,
        {},
        {"batch_factor": "1"},
        {"batch_factor": "65"},
        {"batch_factor": "0.5"},
        {"epochs": 0},
        {"epochs": True},
        {"epochs": 1001},
        {"learning_rate": "1"},
        {"learning_rate": "0"},
        {"label_smoothing": "1.5"},
        {"weight_decay": "-0.1"},
        {"proximal": "0"},
        {"augmentation": False},
        {"augmentation": 1},
        {"precision": []},
        {"precision": ["float64", "bfloat16"]},
        {"precision": ["float64", "float64"]},
        {"precision": ["float8"]},
        {"momentum": "0.1"},
    ):
        yield f"allowed {allowed!r}", change("allowed", allowed)


@forgery("nothing comes before", "are not the next to come")
def an_end_begins_where_nothing_is_left() -> Cases:
    free = Shape(stake_micro=0)
    for label, entry in (
        ("a refund", entries.refund("task", 2)),
        ("a release", entries.stake_release("task", "p000", 1)),
        ("awards", entries.award_entries(samples.terms(), 1, {})[0]),
    ):
        history = settled(free, 2)
        history.log.write(Entry(entry.id, entry.kind, entry.body))
        history.end()
        yield label, history.log.entries


@forgery("is out of place", "part is True")
def a_part_stands_alone_before_the_end() -> Cases:
    for label, part, parts in (("second of one", 2, 1), ("none of one", 0, 1), ("true of one", True, 1)):
        history = claiming()
        body: dict[str, Any] = {
            "task_id": "task", "part": part, "parts": parts, "participants": history.people,
            "participants_sha256": canonical_digest(list(history.people)).hex(),
        }  # fmt: skip
        history.log.write(Entry(f"task/selection/{int(part)}", "selection", body))
        history.end(State.CANCELLED, "the learner withdrew")
        yield f"a selection, {label}", history.log.entries
        history = trained()
        [made] = entries.closing_entries("task", 1, history.log.now(), [])
        history.log.write(
            Entry(f"task/round/1/closing/{int(part)}", "closing", {**made.body, "part": part, "parts": parts})
        )
        history.end(State.CANCELLED, "the learner withdrew")
        yield f"a closing, {label}", history.log.entries


PRICED = Shape(funder="trust", price=Price(Decimal("0.75"), "EUR", 2))


def owed() -> History:
    """A sound task that has ended; four participants are owed what it paid."""
    return played(PRICED)


def price() -> Price:
    assert PRICED.price is not None
    return PRICED.price


def paid_out(outcome: str = entries.CONFIRMED) -> History:
    """The same with a first run that has ended."""
    history = owed()
    history.log.pay_out(1, price(), history.people)
    history.log.end_run(1, outcome, "the bank is closed" if outcome == entries.WITHDRAWN else "")
    return history


def line(name: str, number: int, units: int, micro: int) -> Entry:
    """A line of a run that says what it likes, and moves that."""
    made = entries.payout_line(number, name, price(), 10 * MICRO)
    moved = Reserve(f"payout:{name}/{number}", payable(name), paid(name), micro)
    return Entry(made.id, made.kind, {**made.body, "units": units, "micro": micro}, (moved,))


@forgery("what stands before it gives")
def a_line_pays_out_otherwise() -> Cases:
    for label, more_units, more_micro in (
        ("rounded up", 1, 0),
        ("rounded up, credits too", 1, 13_334),
        ("more credits than its units take", 0, 1),
        ("fewer credits than its units take", 0, -1),
        ("less than is owed", -1, -13_334),
    ):
        history = owed()
        made = entries.payout_entries(
            1, history.log.now(), price(), {n: history.log.free(n) for n in history.people}
        )
        body: Any = made[1].body
        made[1] = line("p000", 1, body["units"] + more_units, body["micro"] + more_micro)
        history.log.entries += made
        yield label, history.log.entries


@forgery("are worth less", "follows run", "somebody twice", "no terms have a price")
def a_run_pays_twice_or_who_is_owed_nothing() -> Cases:
    history = paid_out()
    history.log.write(*entries.payout_entries(2, history.log.now(), price(), {"p000": 10 * MICRO})[:1])
    yield "what was paid before", history.log.entries
    history = owed()
    history.log.write(*entries.payout_entries(1, history.log.now(), price(), {"p999": 10 * MICRO})[:1])
    yield "a stranger", history.log.entries
    history = owed()
    [listed, *_] = entries.payout_entries(1, history.log.now(), price(), {"p000": 10 * MICRO})
    history.log.write(Entry(listed.id, listed.kind, {**listed.body, "participants": ["p000", "p000"]}))
    yield "somebody twice", history.log.entries
    history = owed()
    history.log.write(Entry(listed.id, listed.kind, {**listed.body, "participants": []}))
    yield "nobody", history.log.entries
    for number in (0, 1, 3):
        history = paid_out()
        history.log.write(
            *entries.payout_entries(number, history.log.now(), price(), {"p000": 10 * MICRO})[:1]
        )
        yield f"run {number} after run 1", history.log.entries
    history = owed()
    history.log.pay_out(2, price(), history.people)
    history.log.end_run(2)
    yield "no first run", history.log.entries
    history = played()
    history.log.write(*entries.payout_entries(1, history.log.now(), price(), {"p000": 10 * MICRO})[:1])
    yield "a run without a price", history.log.entries


@forgery("begins before run 1", "no run")
def a_run_begins_or_ends_out_of_turn() -> Cases:
    history = owed()
    history.log.pay_out(1, price(), ["p000"])
    history.log.pay_out(2, price(), ["p001"])
    yield "two at once", history.log.entries
    for first in entries.OUTCOMES:
        for then in entries.OUTCOMES:
            history = paid_out(first)
            reason = "the bank is closed" if then == entries.WITHDRAWN else ""
            made = entries.payout_end_entries(1, history.log.now(), then, reason, history.log.runs[1])
            history.log.entries.append(made[0])
            yield f"{first}, then {then}", history.log.entries
    history = owed()
    history.log.write(
        *entries.payout_end_entries(1, history.log.now(), entries.CONFIRMED, "", {"p000": 1})[:1]
    )
    yield "one that never began", history.log.entries


@forgery("for a reason", "what stands before it gives", "before the run", "expected")
def a_run_ends_otherwise() -> Cases:
    for label, outcome, reason in (
        ("confirmed for a reason", entries.CONFIRMED, "we like it"),
        ("withdrawn without one", entries.WITHDRAWN, " "),
    ):
        history = owed()
        history.log.pay_out(1, price(), history.people)
        history.log.end_run(1, outcome, reason)
        yield label, history.log.entries
    history = owed()
    history.log.pay_out(1, price(), history.people)
    first, *resolved = entries.payout_end_entries(
        1, entries.timestamp(samples.BEGUN), entries.CONFIRMED, "", history.log.runs[1]
    )
    history.log.write(first, *resolved)
    yield "before it began", history.log.entries
    for label, change in (
        ("one line is withdrawn", lambda made: [*made[:-1], resolved_for("p003", 0)]),
        ("one line is left out", lambda made: [*made[:1], *made[2:]]),
        ("one line is paid in part", lambda made: [*made[:-1], resolved_for("p003", 1)]),
        ("under another name", lambda made: [replace(made[0], id="payout/1/over"), *made[1:]]),
    ):
        history = owed()
        history.log.pay_out(1, price(), history.people)
        made = entries.payout_end_entries(1, history.log.now(), entries.CONFIRMED, "", history.log.runs[1])
        history.log.write(*change(made))
        yield label, history.log.entries
    history = owed()
    history.log.pay_out(1, price(), history.people)
    [ended, *_] = entries.payout_end_entries(1, history.log.now(), entries.CONFIRMED, "", {"p000": 1})
    history.log.write(Entry(ended.id, ended.kind, {**ended.body, "outcome": "lost"}))
    yield "in another way", history.log.entries


def resolved_for(name: str, micro: int) -> Entry:
    """A line of run 1 that ends with so much of it."""
    return entries.payout_end_entries(1, "", entries.CONFIRMED, "", {name: micro})[1]


@forgery("has not paid", "what stands before it gives", "for a reason", "before the run")
def a_payment_comes_back_that_cannot() -> Cases:
    def returned(
        history: History,
        name: str = "p000",
        more: int = 0,
        reason: str = "closed",
        at: str = "",
        number: int = 1,
    ) -> list[Entry]:
        micro = history.log.runs[1].get(name, 1) + more
        made = entries.payout_return(number, name, at or history.log.now(), reason, micro)
        history.log.entries.append(made)
        return history.log.entries

    yield "more than was paid", returned(paid_out(), more=1)
    yield "less than was paid", returned(paid_out(), more=-1)
    history = paid_out()
    history.log.return_payment(1, "p000")
    yield "twice", returned(history)
    yield "a run that was withdrawn", returned(paid_out(entries.WITHDRAWN))
    history = owed()
    history.log.pay_out(1, price(), history.people)
    yield "a run that has not ended", returned(history)
    yield "a run that was not", returned(paid_out(), number=2)
    yield "who was not in it", returned(paid_out(), name="p999")
    yield "for no reason", returned(paid_out(), reason="")
    yield "before the run ended", returned(paid_out(), at=entries.timestamp(samples.BEGUN))


@forgery("would be overdrawn", "recorded before", "what stands before it gives")
def a_learner_spends_or_withdraws_what_it_has_not() -> Cases:
    history = started(PRICED)
    history.log.deposit("trust", history.terms.budget_micro - 1)
    history.log.entries += entries.terms_entries(history.terms)
    yield "a task beyond the deposit", history.log.entries
    history = started(PRICED)
    history.log.deposit("other", history.terms.budget_micro)
    history.log.entries += entries.terms_entries(history.terms)
    yield "another learner's deposit", history.log.entries
    history = claiming(PRICED)
    history.log.entries.append(entries.withdrawal("trust", "back-1", 1, history.log.now()))
    yield "a withdrawal of what a task has reserved", history.log.entries
    for kind in (entries.deposit, entries.withdrawal):
        history = owed()
        made = kind("trust", "bank-2", 5, history.log.now())
        history.log.write(made)
        history.log.entries.append(kind("trust", "bank-2", 5, history.log.now()))
        yield f"{made.kind} twice", history.log.entries
        history = owed()
        lie = Entry(made.id, made.kind, {**made.body, "micro": 4}, made.transfers)
        history.log.write(lie)
        yield f"{made.kind} of another amount", history.log.entries


@forgery("price", "expected", "funder", "at is")
def a_price_or_a_time_of_payouts_is_none() -> Cases:
    for label, changed in (
        ("no amount", {"amount": "0"}),
        ("a number", {"amount": 1}),
        ("an exponent", {"amount": "1e2"}),
        ("small letters", {"currency": "eur"}),
        ("two letters", {"currency": "EU"}),
        ("five places", {"minor_unit": 5}),
        ("no places", {"minor_unit": -1}),
        ("true places", {"minor_unit": True}),
        ("more", {"rate": "1"}),
    ):
        yield label, priced({**price().record(), **changed})
    yield "null", priced(None)
    record: Any = {**replace(samples.terms(), funder="trust").record(), "funder": ""}
    yield "an empty funder", of_terms(record)
    for label, second in (
        ("another price", replace(price(), amount=Decimal("0.5"))),
        ("another currency", replace(price(), currency="CHF")),
        ("no price", None),
    ):
        history = owed()
        other = replace(samples.terms("other"), price=second)
        history.log.write(*entries.terms_entries(other))
        yield f"{label} after the first", history.log.entries
    history = owed()
    dear = replace(price(), amount=Decimal(2))
    history.log.pay_out(1, dear, history.people)
    yield "a run at another price", history.log.entries
    for at in ("2026-11-27 10:00:00Z", "", "2026-13-01T00:00:00Z"):
        history = owed()
        history.log.write(entries.deposit("trust", "bank-2", 5, at))
        yield f"a deposit at {at!r}", history.log.entries
        history = owed()
        free = {name: history.log.free(name) for name in history.people}
        history.log.write(*entries.payout_entries(1, at, price(), free))
        yield f"a run at {at!r}", history.log.entries


@forgery("learner_id is", "reference is")
def a_learner_or_a_reference_is_none() -> Cases:
    for learner, reference in (("Trust", "a"), ("", "a"), ("trust", "Bank"), ("trust", "")):
        for make in (entries.deposit, entries.withdrawal):
            history = owed()
            made = make(learner, reference, 5, history.log.now())
            history.log.write(Entry(made.id, made.kind, made.body))
            yield made.id, history.log.entries


def priced(record: Any) -> list[Entry]:
    """Terms with this record of a price."""
    return of_terms({**samples.terms().record(), "price": record})


def of_terms(record: Any) -> list[Entry]:
    history = started()
    history.log.write(Entry("task/terms", "terms", {"task_id": "task", "terms": record}))
    return history.log.entries


def digest_of(ledger: Sequence[Entry]) -> str:
    """What tells two histories apart."""
    return hashlib.sha256(b"".join(entry.data for entry in ledger)).hexdigest()


def assessments(record: Any) -> list[Assessment]:
    """The verdicts that a record gives."""
    measured = [Measurement.from_record(item) for item in record["measurements"]]
    return list(assess(EvidenceModel.from_record(record["model"]), measured))


# Audits

AUDITED = Shape(audit=AUDIT)


def audited(shape: Shape = AUDITED) -> History:
    """A sound task whose first round is settled, all of its audits pending."""
    return settled(shape)


def with_audit(*changes: dict[str, Any], shape: Shape = AUDITED) -> list[Entry]:
    """One audit of p001 after another, each otherwise than it was, with verdicts that follow."""
    history = audited(replace(shape, audits=PENDING))
    for change in changes:
        history.audit(history.findings(1, "p001", **change))
        history.question[1, "p001"] = 0  # it is released once
    return history.log.entries


#: Nobody's audit is made.
PENDING = {(number, f"p{i:03d}"): () for number in (1, 2, 3) for i in range(8)}


@forgery("in the settlement of task")
def who_is_audited_is_not_whom_the_key_draws() -> Cases:
    half = replace(AUDITED, audit=replace(AUDIT, probability=Fraction(1, 2)), people=6)
    for name, change in (
        ("nobody", {"audited": False}),
        ("nothing held", {"held_micro": 0}),
        ("not said", {"audited": None}),
    ):
        history = audited(half)
        ledger = history.log.entries
        place = next(i for i in places(ledger, "payment") if ledger[i].body["audited"])
        entry = ledger[place]
        body = {k: v for k, v in {**entry.body, **change}.items() if v is not None}
        ledger[place] = Entry(entry.id, entry.kind, body, entry.transfers)
        yield name, ledger
    history = audited(half)
    ledger = history.log.entries
    place = next(i for i in places(ledger, "payment") if not ledger[i].body["audited"])
    entry = ledger[place]
    ledger[place] = Entry(entry.id, entry.kind, {**entry.body, "audited": True}, entry.transfers)
    yield "one who was not drawn", ledger
    ledger = list(audited(half).log.entries)
    entry = ledger[place]
    ledger[place] = Entry(entry.id, entry.kind, entry.body, entry.transfers[:-1])
    yield "held in words alone", ledger


@forgery("samples are committed to where")
def a_claim_without_its_commitment_or_with_one_that_nobody_asks_for() -> Cases:
    history = started(AUDITED)
    history.open()
    history.enter(State.EFFORT)
    history.claim("p000", samples_root=b"")
    yield "without", history.log.entries
    history = started(PLAIN)
    history.open()
    history.enter(State.EFFORT)
    history.claim("p000", samples_root=SALT)
    yield "with one", history.log.entries


@forgery(
    "no audit of", "where the first audit is awaited", "where an appeal is awaited", "whose terms have none"
)
def an_audit_of_nobody_who_is_to_be_audited() -> Cases:
    yield "twice", with_audit({}, {})
    yield "the second first", with_audit({"number": 2})
    yield "again without an appeal", with_audit({"passes": False}, {"number": 2})
    yield "the first again", with_audit({"passes": False}, {"passes": False})
    history = audited(replace(AUDITED, audits=PENDING))
    history.question[2, "p001"], history.starts[2], history.shown[2, "p001"] = 0, history.result, 0
    history.audit(history.findings(2, "p001"))
    yield "a round to come", history.log.entries
    history = settled(PLAIN)
    ledger = history.log.entries
    there = audited(replace(AUDITED, audits=PENDING))
    found = there.findings(1, "p001")
    history.log.write(samples.audited(history.log.now(), found, there.verdict_of(found), 0))
    yield "terms without", ledger


@forgery("is not signed by the auditor", "about other terms", "about another model")
def an_audit_that_the_auditor_did_not_make() -> Cases:
    yield "the participant's key", with_audit({"key": samples.private_key("p001")})
    yield "other terms", with_audit({"terms_digest": bytes(32)})
    yield "another start", with_audit({"start_sha256": bytes(32)})


@forgery(
    "outcome is",
    "limit_micro is",
    "retrained_micro is",
    "transfers",
    "has passed",
)
def a_verdict_that_the_audit_does_not_give() -> Cases:
    for name, passes, change in (
        ("failed", True, {"outcome": "failed"}),
        ("a wider limit", True, {"limit_micro": 70_000}),
        ("other weights", True, {"retrained_micro": 1}),
        ("another submission", True, {"submitted_micro": 0}),
    ):
        history = audited(replace(AUDITED, audits=PENDING))
        found = history.findings(1, "p001", passes=passes)
        history.audit(found, verdict=replace(history.verdict_of(found), **change))
        yield name, history.log.entries
    history = audited(replace(AUDITED, audits=PENDING))
    history.question[1, "p001"] += 1
    history.audit(history.findings(1, "p001"))
    yield "more released", history.log.entries
    for number, change in enumerate(
        ({"degree": Fraction(1, 3)}, {"samples_root": bytes(32)}, {"accepted": False, "remark": "bought"})
    ):
        history = audited(replace(AUDITED, audits=PENDING))
        found = history.findings(1, "p001", **change)
        sound = history.verdict_of(history.findings(1, "p001"))
        history.audit(found, verdict=sound)
        yield f"passed all the same, {number}", history.log.entries


@forgery(
    "though", "says at most", "expected passed or failed", "without re-trained weights", "expected at most"
)
def an_audits_verdict_does_not_fit_its_figures() -> Cases:
    for name, passes, change in (
        ("passed above the limit", False, {"outcome": "passed"}),
        ("passed without weights", True, {"retrained_micro": None, "limit_micro": None}),
        ("a limit without weights", False, {"retrained_micro": None}),
        ("the submission shows more than the verdict", True, {"submitted_micro": 900_000}),
        ("weights that show more than everything", False, {"retrained_micro": MICRO + 1}),
        ("another word", True, {"outcome": "well"}),
    ):
        history = audited(replace(AUDITED, audits=PENDING))
        found = history.findings(1, "p001", passes=passes)
        history.audit(found, verdict=replace(history.verdict_of(found), **change))
        yield name, history.log.entries


@forgery("features are measured of weights", "re-trained weights")
def an_audit_with_features_of_other_weights() -> Cases:
    history = audited(replace(AUDITED, audits=PENDING))
    found = history.findings(1, "p001")
    history.audit(replace(found, features=()), verdict=history.verdict_of(found))
    yield "none", history.log.entries
    history = audited(replace(AUDITED, audits=PENDING))
    none = history.findings(1, "p001", model_sha256=b"")
    history.audit(none, verdict=history.verdict_of(found))
    yield "nothing trained", history.log.entries
    history = audited(replace(AUDITED, audits=PENDING))
    history.audit(replace(none, features=found.features), verdict=history.verdict_of(found))
    yield "of nothing that is named", history.log.entries


@forgery(
    "seconds; the terms give",
    "it ends after",
    "audit ends as",
    "the terms allow none",
    "before what",
    "is awaited",
)
def an_audit_or_its_end_at_another_time() -> Cases:
    history = audited(replace(AUDITED, audits=PENDING))
    history.log.wait(AUDIT.seconds + 1)
    history.audit(history.findings(1, "p001"))
    yield "an audit that is late", history.log.entries
    history = audited(replace(AUDITED, audits=PENDING))
    history.audit(history.findings(1, "p001", passes=False))
    history.log.wait(AUDIT.appeal_seconds)
    history.appeal(1, "p001")
    yield "an appeal that is late", history.log.entries
    for why in ENDS:
        history = audited(replace(AUDITED, audits=PENDING))
        history.audit(history.findings(1, "p001", passes=False))
        history.log.write(
            audit_end(history.terms, 1, "p001", why, history.question[1, "p001"], history.log.now())
        )
        yield f"{why}, at once", history.log.entries
    history = audited(replace(AUDITED, audits=PENDING))
    history.log.wait(AUDIT.seconds)
    history.log.write(audit_end(history.terms, 1, "p001", UNAPPEALED, 0, history.log.now()))
    yield "lost without an audit", history.log.entries
    history = audited(replace(AUDITED, audit=replace(AUDIT, appeal_seconds=0), audits=PENDING))
    history.audit(history.findings(1, "p001", passes=False), at=(at := history.log.now()))
    history.appeal(1, "p001", at=at)
    yield "an appeal that the terms do not know", history.log.entries
    history = audited(replace(AUDITED, audits=PENDING))
    history.appeal(1, "p001")
    yield "an appeal against nothing", history.log.entries
    history = audited(replace(AUDITED, audits=PENDING))
    history.audit(history.findings(1, "p001"), at=samples.at(0))
    yield "an audit before its round", history.log.entries


NAMED = Shape(pseudonyms=True)


def naming(shape: Shape = NAMED) -> History:
    """A sound task that takes claims, of which there is none yet."""
    history = started(shape)
    history.open()
    history.enter(State.EFFORT)
    return history


@forgery(
    "whose terms have none", "until the selection", "is a pseudonym of", "no key at this point", "has no terms",
    "has ended",
)  # fmt: skip
def a_pseudonym_where_none_can_be() -> Cases:
    history = naming(PLAIN)
    history.name("p000")
    yield "terms that ask for none", history.log.entries
    history = naming()
    history.name("p000")
    history.name("p000")
    yield "twice", history.log.entries
    history = naming()
    history.name("p009")
    yield "nobody", history.log.entries
    history = claimed(NAMED)
    history.log.enrol("p009")
    history.name("p009")
    yield "after the selection", history.log.entries
    history = played(NAMED)
    history.log.enrol("p009")
    history.name("p009")
    yield "after the end", history.log.entries
    history = started(NAMED)
    history.name("p000")
    yield "before the terms", history.log.entries
    history = naming()
    history.name("p000")
    other = History(history.log, Shape(task_id="other", pseudonyms=True))
    other.open()
    other.name("p000")
    yield "of two tasks", history.log.entries


@forgery("takes pseudonyms of its own")
def a_claim_under_another_name_than_the_terms_take() -> Cases:
    history = naming()
    history.claim("p000")
    yield "no pseudonym", history.log.entries
    history = naming()
    history.name("p000")
    other = History(history.log, Shape(task_id="other", pseudonyms=True))
    other.open()
    other.enter(State.EFFORT)
    other.claim("p000")
    yield "another task's", history.log.entries
    history = naming()
    history.name("p000")
    plain = History(history.log, Shape(task_id="other"))
    plain.open()
    plain.enter(State.EFFORT)
    plain.claim("p000")
    yield "in a task without", history.log.entries


@forgery("is the second name of its owner", "opening.owner")
def an_owner_of_two_pseudonyms() -> Cases:
    history = naming()
    history.name("p000", "st-mary")
    history.name("p001", "st-mary")
    yield "two", history.log.entries
    history = naming()
    history.name("p000", "p000")
    yield "its own", history.log.entries
    history = naming()
    history.name("p000", "St Mary")
    yield "no id", history.log.entries


@forgery("pseudonyms")
def terms_with_no_word_on_pseudonyms() -> Cases:
    plain = samples.terms().record()
    for value in (False, None, 1, "yes"):
        yield repr(value), of_terms({**plain, "pseudonyms": value})


MEASURED = Shape(auditor=True)


@forgery(
    "has not ended", "has no auditor", "were deleted", "has no terms", "the task had", "not signed by the auditor",
    "other terms", "other evidence", "were measured again", "before the task's end",
)  # fmt: skip
def a_task_is_measured_again_by_whom_or_when_it_cannot_be() -> Cases:
    for name, changes in {
        "by a participant": {"key": "p001"},
        "under other terms": {"terms_digest": bytes(32)},
        "the second first": {"number": 2},
        "of other entries": {"measured": bytes(32)},
        "without a round": {"rounds": 1, "identical": 1, "merged": 1},
        "of a round more": {"rounds": 3, "identical": 3, "merged": 3},
        "of a model less": {"submissions": 7},
        "before the end, it says": {"at": samples.at(0)},
    }.items():
        history = played(MEASURED)
        history.measure(**changes)
        yield name, history.log.entries
    history = played(MEASURED)
    history.measure()
    history.measure(number=1)
    yield "the first again", history.log.entries
    history = played(MEASURED)
    history.measure(at=samples.at(600))
    history.measure(at=samples.at(599))
    yield "before the one before", history.log.entries
    history = settled(MEASURED, 2)
    history.measure()
    yield "before its end", history.log.entries
    history = played()
    history.measure()
    yield "terms that name nobody", history.log.entries
    history = played(replace(MEASURED, retention=60))
    history.measure()
    yield "models that were deleted", history.log.entries
    history = played(replace(MEASURED, cancelled=(State.TRAINING, 1)))
    history.measure(rounds=1)
    yield "nothing settled", history.log.entries
    elsewhere = played(Shape(task_id="elsewhere"))
    played_here = played(MEASURED)
    played_here.measure()
    elsewhere.log.write(played_here.log.entries[-1])
    yield "a task of another log", elsewhere.log.entries


@forgery("outcome is")
def a_task_is_confirmed_that_is_not() -> Cases:
    for name, outcome, changes in (
        ("a degree beyond the tolerance", "confirmed", {"identical": 1, "degree_micro": 10_001}),
        ("a weight beyond the tolerance", "confirmed", {"identical": 1, "weight_micro": 10_001}),
        ("a multiplier beyond the tolerance", "confirmed", {"identical": 0, "multiplier_micro": 10_001}),
        ("a test that turned", "confirmed", {"identical": 1, "turned": 1}),
        ("another model", "confirmed", {"merged": 1}),
        ("within the tolerance", "deviates", {"identical": 1, "degree_micro": 10_000}),
        ("another word", "fine", {}),
    ):
        history = played(MEASURED)
        history.measure(outcome=outcome, **changes)
        yield name, history.log.entries


@forgery("tolerance_micro is")
def a_task_is_confirmed_by_a_tolerance_that_lets_everything_pass() -> Cases:
    for micro in (MAX_TOLERANCE_MICRO + 1, MICRO):
        history = played(MEASURED)
        history.measure(identical=1, degree_micro=MAX_TOLERANCE_MICRO, tolerance_micro=MAX_TOLERANCE_MICRO)
        entry = history.log.entries.pop()
        said = replace(RemeasurementStatement.from_record(entry.body["statement"]))
        object.__setattr__(said, "tolerance_micro", micro)  # which no statement takes
        signature = sign_statement(said, samples.private_key("auditor"))
        history.log.write(remeasurement(said, signature, str(entry.body["at"])))
        yield str(micro), history.log.entries


@forgery("auditor", "rule that pays on evidence")
def terms_with_an_auditor_that_none_can_be() -> Cases:
    key = AUDIT.auditor.hex()
    plain = samples.terms().record()
    yield "no key", of_terms({**plain, "auditor": "00" * 91})
    yield "no text", of_terms({**plain, "auditor": None})
    yield "capitals", of_terms({**plain, "auditor": key.upper()})
    yield (
        "twice",
        of_terms({**plain, "auditor": key, "audit": replace(samples.terms(), audit=AUDIT).record()["audit"]}),
    )
    yield "without evidence", of_terms({**samples.terms(rule="paper").record(), "auditor": key})


@forgery("while the audit of p000 for round 1 is pending")
def a_task_closes_while_an_audit_is_pending() -> Cases:
    history = audited(replace(AUDITED, audits=PENDING))
    history.rounds(2, 2)
    history.end()
    yield "closed", history.log.entries


@forgery("in the end of task", "is entered before the task has ended", "is missing")
def what_is_held_goes_elsewhere() -> Cases:
    failed = replace(AUDITED, audits={(1, "p000"): ("failed", "unappealed")})
    history = audited(failed)
    history.rounds(2, 2)
    history.convicted.clear()
    history.end()
    yield "released to who has failed", history.log.entries
    history = audited()
    history.rounds(2, 2)
    history.convicted.add("p002")
    history.end()
    yield "lost by who has passed", history.log.entries
    history = audited()
    history.rounds(2, 2)
    history.end(audits=[])
    yield "kept", history.log.entries
