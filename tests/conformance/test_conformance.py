"""Two verifiers, one written from docs/ledger-format.md alone, agree on every ledger that the tests know.

Ledgers are exported as an auditor gets them. Both accept, with the same balances, or both refuse, at the same entry.
"""

import random
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import orjson
import pytest

from fedpeer.audit.export import export_json_lines, export_tiles
from fedpeer.audit.sources import open_source
from mechanism.affine import NANO
from mechanism.canonical import canonical_bytes, canonical_digest
from mechanism.degree_map import regressor_count
from mechanism.evidence import ARITHMETIC, EvidenceModel, Measurement, assess
from mechanism.ledger import entries
from mechanism.ledger.entry import Entry
from mechanism.ledger.openings import Openings, read_openings
from mechanism.ledger.replay import Replay, ReplayError
from mechanism.ledger.replay import keys as replay_keys
from mechanism.ledger.verify import Report, verify_ledger
from mechanism.lifecycle import State
from mechanism.payment import Linear, Log1p, Power
from mechanism.payment import Log as Payment
from mechanism.settlement import MICRO, task_budget_micro
from mechanism.statements import Signed, ec, hashes
from mechanism.workload import Strata
from tests import ledger_samples as samples
from tests.conformance import second_verifier
from tests.conformance.example import SECOND, example
from tests.conformance.second_verifier import Result
from tests.ledger_forgeries import FORGERIES, Forgery, cases_of
from tests.ledger_histories import SHAPES, History, Log, Shape, played, started
from tests.mechanism.ledger import test_sound_histories as sound
from tests.memory_source import KEY, MemorySource, own


class _Key:
    """A public key that remembers what it has verified."""

    def __init__(self, key: ec.EllipticCurvePublicKey) -> None:
        self._key, self._sound = key, set[tuple[bytes, bytes]]()

    def verify(self, signature: bytes, data: bytes, algorithm: ec.EllipticCurveSignatureAlgorithm) -> None:
        if (signature, data) not in self._sound:
            self._key.verify(signature, data, algorithm)
            self._sound.add((signature, data))


@pytest.fixture(autouse=True, scope="module")
def _remembering() -> Iterator[None]:
    """Thousands of ledgers have most entries in common: that they are canonical and signed is found once."""
    canonical, whole = set[bytes](), second_verifier.parsed

    def parsed(data: bytes) -> Any:
        if data in canonical:
            return orjson.loads(data)
        value = whole(data)
        canonical.add(data)
        return value

    public_key = second_verifier.public_key
    keys = cache(lambda spki: _Key(public_key(spki)))
    holds = replay_keys.signature_holds
    held: dict[tuple[bytes, bytes, bytes], bool] = {}

    def signature_holds(statement: Signed, signature: bytes, key: ec.EllipticCurvePublicKey) -> bool:
        said = statement.canonical, signature, entries.public_key_bytes(key)
        if said not in held:
            held[said] = holds(statement, signature, key)
        return held[said]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(second_verifier, "parsed", parsed)
        patch.setattr(second_verifier, "public_key", keys)
        patch.setattr(replay_keys, "signature_holds", signature_holds)
        yield


#: Forgeries that the second verifier shows, and only later than the first: it sees the cause where it takes effect.
LATER: set[tuple[str, str]] = set()


def exported(source: MemorySource, path: Path) -> Path:
    """The ledger, and beside it what the auditor and one participant have of openings."""
    export_json_lines(source, path)
    for name, openings in (("auditor", source.openings), ("p001", own(source.openings, "p001"))):
        given(path, name).write_bytes(b"".join(line + b"\n" for line in openings.lines()))
    return path


def given(path: Path, name: str) -> Path:
    """The file of openings of a participant or the auditor that lies beside an export."""
    return path.with_name(f"{path.name}.{name}")


def first(path: Path, key: Any = KEY, openings: Path | None = None) -> Report:
    opened = None if openings is None else read_openings(openings.read_bytes().splitlines())
    with ExitStack() as resources:
        return verify_ledger(
            open_source(str(path), resources),
            None if key is None else key.verification_key,
            openings=opened,
        )


def second(path: Path, key: Any = KEY, openings: Path | None = None) -> Result:
    return second_verifier.verify(path, None if key is None else str(key.verification_key), openings)


def bad(report: Report) -> int | None:
    return min((p.index for p in report.problems if p.index is not None), default=None)


#: Whose openings are there; nobody's are those of the public.
LEVELS = ("", "p001", "auditor")


def agree_that_it_holds(path: Path, key: Any = KEY, levels: Sequence[str] = LEVELS) -> Result:
    """At each level of verification."""
    for name in levels:
        openings = given(path, name) if name else None
        report, result = first(path, key, openings), second(path, key, openings)
        assert report.verified, (name, report.problems)
        assert not result.problems, name
        assert result.balances == {name: balance.holds for name, balance in report.balances.items()}
        assert result.level == report.level
        assert result.opened == sum(report.counts.opened.values())
        assert result.unchecked == sum(report.counts.unchecked.values())
    return result


@pytest.mark.parametrize("name", SHAPES)
def test_both_accept_a_sound_history_in_either_export(name: str, tmp_path: Path) -> None:
    source = MemorySource(played(SHAPES[name]).log.entries)
    agree_that_it_holds(exported(source, tmp_path / "ledger.jsonl"))
    export_tiles(source, tmp_path / "tiles")
    agree_that_it_holds(tmp_path / "tiles", levels=("",))


@pytest.mark.parametrize(
    "history",
    [
        sound.test_several_tasks_may_run_at_the_same_time,
        sound.test_who_was_revoked_after_its_claim_may_be_selected_or_left_out,
        sound.test_a_commitment_that_was_broken_off_leaves_its_number_unused,
        sound.test_payouts_stand_between_the_entries_of_tasks_that_run,
        sound.test_a_price_may_be_said_after_tasks_without_one,
    ],
    ids=lambda test: test.__name__,
)
def test_both_accept_what_other_tests_verify(
    history: Callable[[], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The histories of the first verifier's own tests."""
    seen: list[list[Entry]] = []
    verify = sound.verify

    def kept(ledger: list[Entry]) -> Report:
        seen.append(list(ledger))
        return verify(ledger)

    monkeypatch.setattr(sound, "verify", kept)
    history()
    assert seen
    for number, ledger in enumerate(seen):
        agree_that_it_holds(exported(MemorySource(ledger), tmp_path / f"{number}.jsonl"))


def test_both_read_a_run_in_parts_and_in_no_other_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (entries, second_verifier):
        monkeypatch.setattr(module, "PART_BYTES", 16)
    history = played(Shape(rule="paper", price=sound.PRICE))
    history.log.pay_out(1, sound.PRICE, history.people)
    ledger = history.log.entries
    parts = [index for index, entry in enumerate(ledger) if entry.kind == "payout"]
    assert len(parts) == 2
    agree_that_it_holds(exported(MemorySource(ledger), tmp_path / "sound.jsonl"))
    left, right = parts
    for number, wrong in enumerate(
        (
            [*ledger[:left], ledger[right], ledger[left], *ledger[right + 1 :]],
            [*ledger[:right], *ledger[right + 1 :]],
            ledger[:right],
            ledger[:-1],
        )
    ):
        path = exported(MemorySource(wrong), tmp_path / f"{number}.jsonl")
        report, result = first(path), second(path)
        assert not report.verified
        assert bad(report) == result.problems[0][0]


def test_both_refuse_openings_of_somebody_else_than_they_say(tmp_path: Path) -> None:
    source = MemorySource(played(Shape(pseudonyms=True)).log.entries)
    path = exported(source, tmp_path / "l.jsonl")
    entry_of: dict[str, int | None] = {}
    for name, openings in (
        ("another's", Openings("p002", own(source.openings, "p001").by_id)),
        ("all", Openings("p001", source.openings.by_id)),
        ("nobody's", Openings("nobody")),
        ("none", Openings(None)),
    ):
        given(path, name).write_bytes(b"".join(line + b"\n" for line in openings.lines()))
        report, result = first(path, openings=given(path, name)), second(path, openings=given(path, name))
        assert not report.verified
        assert result.problems
        assert bad(report) == result.problems[0][0]
        entry_of[name] = bad(report)
    assert entry_of["nobody's"] is entry_of["none"] is None
    assert None not in (entry_of["another's"], entry_of["all"])


@pytest.mark.parametrize("forged", FORGERIES, ids=lambda one: one.name)
def test_both_refuse_a_forgery_at_the_same_entry(forged: Forgery, tmp_path: Path) -> None:
    """The auditor finds every one. What others find is the same by both, and no more than that."""
    disagreed = []
    for number, (label, ledger) in enumerate(cases_of(forged)):
        path = exported(MemorySource(ledger), tmp_path / f"{number}.jsonl")
        for name in LEVELS:
            openings = given(path, name) if name else None
            report, result = first(path, openings=openings), second(path, openings=openings)
            assert not report.verified or name != "auditor"
            # What replay finds comes first in either list; heads, which forged announcements of keys lack, come after.
            places = (result.first, result.problems[0][0]) if result.problems else (None,)
            if bad(report) not in places and (forged.name, label) not in LATER:
                disagreed.append((label, name, report.problems[:1], result.problems))
    assert not disagreed


def paying(**changes: Any) -> History:
    """A task of five with two peers each, under other terms."""
    log = Log()
    for name in samples.names(5):
        log.enrol(name)
    history = History(log, Shape(people=5, private=frozenset({"p003"}), absent={2: {"p004": None}}))
    rule = replace(history.terms.rule, peers=changes.pop("peers", 2))
    terms = replace(history.terms, rule=rule, **changes)
    history.terms = replace(terms, budget_micro=task_budget_micro(terms))
    history.play()
    return history


@pytest.mark.parametrize(
    "changes",
    [
        {"payment": Payment(Decimal("2.345"))},
        {"payment": Log1p(Decimal("0.75"))},
        {"payment": Linear(Decimal("0.3"))},
        {"payment": Power(Decimal("1.7"), Decimal("0.37"))},
        {"peers": 3},
        {"peers": 9},
        {"Q": Decimal("1999.999999999"), "phi": Decimal("0.1"), "upsilon": Decimal("333.3333333")},
        {"Q": Decimal("201")},
    ],
    ids=str,
)
def test_both_pay_the_same_by_every_payment_function_and_number_of_peers(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    history = paying(**changes)
    agree_that_it_holds(exported(MemorySource(history.log.entries), tmp_path / "ledger.jsonl"))


@pytest.mark.parametrize("rule", ["shapley", "correlated_agreement", "dmi"])
def test_both_pay_the_same_by_scores(rule: str, tmp_path: Path) -> None:
    history = played(Shape(rule=rule))
    agree_that_it_holds(exported(MemorySource(history.log.entries), tmp_path / "ledger.jsonl"))


def test_both_follow_samples_in_common_that_are_paid_once(tmp_path: Path) -> None:
    history = started(Shape(people=5))
    history.begin()
    for number in (1, 2):
        history.train()
        history.deliver()
        record = history.evidence()
        samples.in_common(record, {("p001", "p003"): (2_000_000 - 1_300_000 * (number == 2), 500_000)})
        history.settle(record)
    history.finish()
    found: list[Any] = [
        e.opening["assessment"] for e in history.log.entries if e.kind == "verdict" and e.opening
    ]
    assert [a["cluster"] for a in found].count("p001") == 4
    assert {MICRO, 2 * MICRO} < {a["holders_micro"] for a in found}
    agree_that_it_holds(exported(MemorySource(history.log.entries), tmp_path / "ledger.jsonl"))


def test_both_follow_groups_and_those_who_are_linked_with_a_member(tmp_path: Path) -> None:
    """In round 2 a copy and a pair join the group's cluster; in round 3 what is outside keeps it apart."""
    history = started(Shape(people=7, rounds=3, copied={2: ("p006", "p001")}))
    history.begin()
    pairs = dict.fromkeys((("p001", "p003"), ("p001", "p004"), ("p003", "p004")), (580_000, 500_000))
    for number, outside in ((1, 30_000), (2, -10_000), (3, 30_001)):
        history.train()
        history.deliver()
        record = history.evidence()
        samples.in_common(record, pairs, outside)
        if number == 2:
            samples.in_common(record, {("p004", "p005"): (700_000, MICRO // 3)})
        history.settle(record)
    history.finish()
    found: list[Any] = [
        e.opening["assessment"] for e in history.log.entries if e.kind == "verdict" and e.opening
    ]
    clusters = [
        [a["participant_id"] for a in found[place : place + 7] if a["cluster"]] for place in (0, 7, 14)
    ]
    assert clusters == [["p001", "p003", "p004"], ["p001", "p003", "p004", "p005", "p006"], []]
    agree_that_it_holds(exported(MemorySource(history.log.entries), tmp_path / "ledger.jsonl"))


def test_both_put_terms_and_lists_together_from_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entries, "PART_BYTES", 400)
    monkeypatch.setattr(second_verifier, "PART_BYTES", 400)
    ledger = played(Shape(people=60)).log.entries
    for kind in ("terms", "selection", "peers"):
        assert any(e.kind == kind and e.body["part"] == 2 for e in ledger), kind
    agree_that_it_holds(exported(MemorySource(ledger), tmp_path / "ledger.jsonl"))


def test_both_take_a_loss_without_an_accuracy(tmp_path: Path) -> None:
    history = played(Shape())
    place = next(i for i, e in enumerate(history.log.entries) if e.kind == "aggregation")
    ledger = [*history.log.entries]
    ledger[place] = replace(ledger[place], body={**ledger[place].body, "figures": {"loss": "0.25"}})
    agree_that_it_holds(exported(MemorySource(ledger), tmp_path / "ledger.jsonl"))


def test_both_follow_the_logs_key(tmp_path: Path) -> None:
    made, path = example(), tmp_path / "ledger.jsonl"
    path.write_bytes(made.lines())
    for name, openings in (("auditor", made.openings()), ("p001", own(made.openings(), "p001"))):
        given(path, name).write_bytes(b"".join(line + b"\n" for line in openings.lines()))
    for key in (SECOND, KEY, None):
        agree_that_it_holds(path, key)
    stranger = replace(KEY, seed=bytes(32))
    assert not first(path, stranger).verified
    assert second(path, stranger).problems
    for wrong in (
        made.lines().replace(made.heads[made.rotated + 1].split("\n")[-2].encode() + b"\\n", b""),
        made.lines().replace(b'"number":1', b'"number":2'),
    ):
        assert wrong != made.lines()
        path.write_bytes(wrong)
        assert not first(path).verified
        assert second(path).problems


@pytest.mark.parametrize("place", ["entry", "tile", "head", "checkpoint", "key", "cut"])
def test_both_refuse_an_altered_folder(place: str, tmp_path: Path) -> None:
    export_tiles(MemorySource(played(Shape(people=40)).log.entries), folder := tmp_path / "tiles")
    bundle = next(iter(sorted((folder / "tile" / "entries").iterdir())))
    path = {
        "entry": bundle, "cut": bundle, "tile": folder / "tile" / "0" / bundle.name, "head": folder / "heads",
        "checkpoint": folder / "checkpoint", "key": folder / "ledger.json",
    }[place]  # fmt: skip
    data = path.read_bytes()
    path.write_bytes(data[:-1] if place == "cut" else data[:60] + bytes([data[60] ^ 1]) + data[61:])
    try:
        refused = not first(folder).verified
    except ValueError:  # not even a source
        refused = True
    assert refused
    assert second(folder).problems


# Single values


def mutations(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Each place in a record, and other values for it."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from mutations(item, (*path, key))
    if path:
        yield from (
            (path, other) for other in _others(value) if other != value or type(other) is not type(value)
        )


def _others(value: Any) -> Iterator[Any]:
    yield from (None, True, False, 0, 1, "", "1", "ab", "00" * 32, [], {}, [value], {"x": value})
    if isinstance(value, int):
        yield from (value + 1, -value, str(value))
    if isinstance(value, str):
        yield from (value + " ", value + "0", value[:-1], "\u0661", "1e-1", "2/4", "0.50")


def mutated(data: bytes) -> Iterator[tuple[str, bytes]]:
    """An entry with one value changed; statements are signed again, and ids follow."""
    record = orjson.loads(data)
    for path, other in mutations(record):
        changed = orjson.loads(data)
        inner = changed
        for key in path[:-1]:
            inner = inner[key]
        old, inner[path[-1]] = inner[path[-1]], other
        body = changed["body"]
        if isinstance(body, dict) and isinstance(body.get("statement"), dict) and path[-1] != "signature":
            _sign(body)
        places = [changed]
        if path[0] == "body" and isinstance(changed["id"], str) and str(old) in changed["id"].split("/"):
            id_ = "/".join(str(other) if part == str(old) else part for part in changed["id"].split("/"))
            places.append({**changed, "id": id_})
        for one in places:
            yield f"{record['id']}: {path} {other!r:.40}", canonical_bytes(one)


def _sign(body: dict[str, Any]) -> None:
    name, message = body["statement"].get("participant_id"), canonical_bytes(body["statement"])
    if "measured" in body["statement"]:
        name = "auditor"
    if isinstance(name, str):
        signer = ec.ECDSA(hashes.SHA256(), deterministic_signing=True)
        body["signature"] = samples.private_key(name).sign(message, signer).hex()


def differing(kinds: set[str], most: int) -> list[str]:
    """Places at which the verifiers differ on the example, one value changed and nothing after it."""
    made, seen, found = example(), dict[str, int](), []
    for index, entry in enumerate(made.entries):
        seen[entry.kind] = seen.get(entry.kind, 0) + 1
        if entry.kind not in kinds or seen[entry.kind] > most:
            continue
        for label, data in mutated(entry.data):
            ledger = [*made.data[:index], data]
            for openings in ({}, made.openings().by_id):
                if _first_index(ledger, openings=openings) != _second_index(ledger, openings):
                    found.append(label)
    return found


@pytest.mark.parametrize("strata", samples.STRATA, ids=lambda strata: strata.name)
def test_both_draw_the_same_line_at_every_value_of_brought_terms(strata: Strata) -> None:
    """Of a workload from a factory, named classes and columns, and each kind of strata."""
    terms = samples.brought(strata)
    [data] = [entry.data for entry in entries.published(terms)]
    record = orjson.loads(data)
    held = {"recipe", "strata", "classes", "columns", "arrays"}
    for other in ({}, *(changed for _, changed in _left_out(record))):
        ledger = [canonical_bytes(other or record)]
        assert _first_index(ledger) == _second_index(ledger)
    for label, changed in mutated(data):
        if held & set(label.split("'")):
            assert _first_index([changed]) == _second_index([changed]), label


def _left_out(record: Any) -> Iterator[tuple[str, Any]]:
    """The entry without one of the terms' keys that may be left out, each in turn."""
    terms = record["body"]["terms"]
    for key in ("strata", "classes", "columns", "arrays"):
        if key in terms:
            yield (
                key,
                {**record, "body": {**record["body"], "terms": {k: v for k, v in terms.items() if k != key}}},
            )
    recipe = {k: v for k, v in terms["recipe"].items() if k != "source"}
    yield "source", {**record, "body": {**record["body"], "terms": {**terms, "recipe": recipe}}}


def _first_index(
    ledger: list[bytes], check_statements: bool = True, openings: Mapping[str, Any] | None = None
) -> int | None:
    replay = Replay(check_statements, openings)
    try:
        for data in ledger:
            replay.feed(data)
        replay.finish()
    except ReplayError as error:
        return error.index
    return None


def _second_index(ledger: list[bytes], openings: Mapping[str, Any] | None = None) -> int | None:
    try:
        second_verifier.Replay(ledger, openings or {}).run()
    except second_verifier.Wrong as error:
        return error.index
    return None


def test_both_draw_the_same_line_at_every_value_of_the_early_entries() -> None:
    assert not differing({"enrolment", "terms", "reservation", "transition", "claim"}, 1)


@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["remeasurement", "pseudonym"])
def test_both_draw_the_same_line_at_every_value_of_rarer_entries(kind: str, step: int) -> None:
    shape = Shape(rounds=1, people=3, auditor=True, measured=1, pseudonyms=True)
    ledger, found = played(shape).log.entries, []
    place, entry = next((i, e) for i, e in enumerate(ledger) if e.kind == kind)
    before, openings = [e.data for e in ledger[:place]], samples.openings_of([entry])
    for label, data in list(mutated(entry.data))[::step]:
        made = [*before, data]
        if _first_index(made, openings=openings) != _second_index(made, openings):
            found.append(label)
    assert not found


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [
        "enrolment", "terms", "reservation", "transition", "claim", "selection", "model", "failure", "evidence", "seed",
        "peers", "settlement", "payment", "aggregation", "log_key", "dispute", "awards", "award", "stake_release",
    ],
)  # fmt: skip
def test_both_draw_the_same_line_at_every_value(kind: str) -> None:
    assert not differing({kind}, 3)


@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_both_draw_the_same_line_at_every_value_of_the_evidence(
    step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commitments follow; what the verdicts say stays. Statements, which are sound, are not checked again."""
    monkeypatch.setattr(second_verifier.Replay, "signed", lambda *_: None)
    history = started(Shape(people=3))
    history.begin()
    history.rounds(1, 1)
    made, judged = history.log.entries, history.judged
    place = [entry.kind for entry in made].index("evidence")
    openings = samples.openings_of(made)
    shadows = {name: made[place].body[name] for name in entries.SHADOW_FIGURES}
    record = history.evidence()
    # One of a kind is enough.
    record["measurements"][1:] = ["p001", "p002"]
    for part in (record["model"]["degree"], record["model"]["quality"]):
        part["weights"][2:] = []
    differing, count = [], 0
    for path, other in list(mutations(record))[::step]:
        changed = history.evidence()
        inner = changed
        for key in path[:-1]:
            inner = inner[key]
        if path == ("model",) or (path[:1] == ("measurements",) and (len(path) < 2 or path[1] != 0)):
            continue
        inner[path[-1]] = other
        measured = dict(zip(samples.names(3), changed["measurements"], strict=True))
        opening: Any = {"model": changed["model"], "salt": "00" * 32}
        said = [
            entries.evidence_as("task", 1, canonical_digest(opening), shadows, opening),
            *(entries.verdict(history.terms, 1, a, measured[a.participant_id], bytes(32)) for a in judged),
        ]
        ledger = [e.data for e in (*made[:place], *said, *made[place + len(said) :])]
        opened = {**openings, **samples.openings_of(said)}
        found = (
            _first_index(ledger, check_statements=False, openings=opened),
            _second_index(ledger, opened),
        )
        count += found[0] is not None
        if found[0] != found[1]:
            differing.append((path, other, found))
    assert not differing
    assert count > 1_000 // step


def test_both_give_the_same_verdicts_on_whatever_was_measured() -> None:
    """Over maps, limits and measurements at random, so that every test is passed and failed."""
    seen = set()
    for seed in range(400):
        record = drawn_evidence(random.Random(seed))
        model = EvidenceModel.from_record(record["model"])
        measured = [Measurement.from_record(item) for item in record["measurements"]]
        mine = [entries.assessment_record(a) for a in assess(model, measured, ["01" * 32])]
        sent = {"01" * 32, record["model"]["start_sha256"]}
        evidence = second_verifier.Evidence(record["model"])
        for item in record["measurements"]:
            evidence.add(item)
        theirs = second_verifier.assessed(evidence, sent)
        assert mine == [theirs[m.participant_id] for m in measured]
        seen |= {(v["screen"], v["passed"]) for a in theirs.values() for v in a["verdicts"]}
        seen |= {
            a["verified_micro"] != a["upper_micro"]
            for a in theirs.values()
            if a["verified_micro"] is not None
        }
        seen |= {("of the samples", a["distinct_micro"] < MICRO) for a in theirs.values()}
        seen |= {("in part", bool(a["holders_micro"] % MICRO)) for a in theirs.values()}
        ungrouped = [replace(m, group="", outside=0) for m in measured]
        seen.add(
            (
                "by groups",
                mine == [entries.assessment_record(a) for a in assess(model, ungrouped, ["01" * 32])],
            )
        )
    assert len(seen) == 2 * 7 + 2 + 2 * 3


def drawn_evidence(chance: random.Random) -> dict[str, Any]:
    """A record whose figures lie about its limits."""
    strata, columns = chance.randint(2, 5), chance.randint(0, 4)
    ordered = chance.sample(range(columns), chance.randint(0, columns))
    counts = [chance.randint(0, 9) for _ in range(strata - 1)] + [chance.randint(1, 9)]
    count = regressor_count(strata, columns, len(ordered))

    def some(length: int, most: int) -> list[int]:
        return [chance.randint(-most, most) for _ in range(length)]

    def pair(most: int) -> list[int]:
        return sorted(some(2, most))

    def tree(depth: int) -> list[list[int]]:
        if not depth or not count:
            return [[-1], some(1, MICRO), [0]]
        left, right = tree(depth - 1), tree(depth - chance.randint(1, depth))
        size = len(left[0])
        moved = [
            [child + by if child else 0 for child in part[2]] for part, by in ((left, 1), (right, size + 1))
        ]
        which, bound = chance.randrange(count), chance.randint(-MICRO, MICRO)
        return [[which, *left[0], *right[0]], [bound, *left[1], *right[1]], [size + 1, *moved[0], *moved[1]]]

    def line(more: int = 0) -> dict[str, Any]:
        return {"weights": some(count + more, NANO // count), "intercept": chance.randint(-NANO, 2 * NANO)}

    (norm_low, norm_high), (none, full), (harm_full, harm_none) = pair(3), pair(MICRO), pair(3)
    if chance.random() < 0.2:
        none, full = -1, 0
    limits = {
        "norm_low": norm_low - 2, "norm_high": norm_high + 2, "alignment": -2, "novelty": 2, "improvement": -2,
        "echo_distance": -2, "echo_cosine": 2, "quality_none": none,
        "quality_full": full, "quality_degree": chance.randint(0, MICRO),
        "claim_band": chance.randint(0, MICRO // 2), "harm_full": harm_full, "harm_none": harm_none,
        "wide": chance.randint(0, MICRO // 4), "rate": chance.randint(0, MICRO),
    }  # fmt: skip
    names = samples.names(chance.randint(1, 6))
    models = {name: chance.choice(["01", "02", *(f"{i:02d}" for i in range(10, 40))]) * 32 for name in names}
    alike: dict[str, Any] = {}
    measured = []
    for name in names:
        others = [other for other in names if other != name]
        twins = chance.sample(others, chance.randint(0, min(2, len(others))))
        own = alike.setdefault(models[name], {
            "fault": "it is no model" if chance.random() < 0.05 else "",
            "features": [some(columns, 2 * MICRO) for _ in range(strata)],
            "nearest_broadcast": f"round {chance.randint(1, 9)}",
            **{figure: chance.randint(-3, 3) if chance.random() < 0.1 else 0 for figure in second_verifier.MEASURED},
        })  # fmt: skip
        measured.append({
            **own, "participant_id": name, "model_sha256": models[name], "order": chance.randint(0, 3), "samples": 1,
            "claimed_degree": str(Fraction(chance.randint(0, 12), 12)), "harm": chance.choice([None, *range(-5, 6)]),
            "twins": [
                [other, chance.randint(0, MICRO), chance.choice((0, MICRO, chance.randint(0, MICRO)))]
                for other in twins
            ],
            "group": "", "outside": 0, "scores": {"dmi": "0.5"},
        })  # fmt: skip
    members = chance.sample(measured, chance.randint(0, len(measured)))
    for group in (members[:3], members[3:]):
        outside = chance.randint(-MICRO // 2, MICRO // 4)
        for item in group:
            item.update(group=min(m["participant_id"] for m in group), outside=outside)
    return {
        "model": {
            "arithmetic": ARITHMETIC, "round": 1, "start_sha256": "02" * 32, "validation_sha256": "03" * 32,
            "shadows_sha256": "04" * 32, "shadows": 12, "carried": 0, "thresholds": limits,
            "computed_on": {"cpu": "x86_64"},
            "likeness": {
                "apart": some(chance.randint(2, 5), MICRO // 2), "same": some(chance.randint(2, 5), MICRO),
                "link": chance.randint(1, MICRO // 2),
                "group": [chance.randint(1, MICRO // 4) for _ in range(chance.randint(0, 3))],
            },
            "quality": line(), "distinct": [line(2) for _ in range(chance.choice((0, 1, 3)))],
            "degree": {
                "reference": [str(Fraction(c, sum(counts))) for c in counts], "share_own": some(columns, NANO),
                "share_mean": some(columns, NANO), "share_intercept": chance.randint(-NANO, NANO),
                "sorted_columns": ordered, "weights": some(count, NANO // count),
                "intercept": chance.randint(-NANO, NANO), "half_width": chance.randint(0, MICRO // 2),
                "forest": [tree(chance.randint(0, 3)) for _ in range(chance.randint(1, 4))],
            },
        },
        "measurements": measured,
    }  # fmt: skip


def test_the_second_verifier_needs_nothing_of_ours(tmp_path: Path) -> None:
    """It runs alone, outside the repository."""
    path = Path(second_verifier.__file__)
    assert "mechanism" not in {line.split()[1].split(".")[0] for line in _imports(path)}
    (tmp_path / "ledger.jsonl").write_bytes(example().lines())
    command = [sys.executable, "-I", str(path), "ledger.jsonl", str(SECOND.verification_key)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "holds"


def _imports(path: Path) -> list[str]:
    return [line for line in path.read_text().splitlines() if line.startswith(("import ", "from "))]


# Sentences


def test_each_names_the_absent_list_of_a_closing_that_is_wrong() -> None:
    ledger = played(Shape(people=5, absent={1: {"p003": None}, 2: {"p004": None}}, gone=frozenset({1}))).log
    index, entry = next((i, e) for i, e in enumerate(ledger.entries) if e.kind == "closing")
    data = [e.data for e in ledger.entries[:index]]
    assert entry.body["absent"] == ["p003"]
    changed = replace(entry, body={**entry.body, "absent": ["p001"]})
    for sentence in sentences([*data, changed.data]):
        assert "body.absent" in sentence
        assert "p001" in sentence
        assert "p003" in sentence


@pytest.mark.parametrize(("state", "found"), [(None, "missing"), (5, "5"), ([], "[]"), ("ab", "ab")], ids=str)
def test_each_names_the_servers_state_that_is_none(state: Any, found: str) -> None:
    made = example()
    index, entry = next((i, e) for i, e in enumerate(made.entries) if e.kind == "aggregation")
    body = {**entry.body, "state_sha256": state}
    if state is None:
        del body["state_sha256"]
    for sentence in sentences([*made.data[:index], replace(entry, body=body).data]):
        assert "state_sha256" in sentence
        assert found in sentence or "has no state_sha256" in sentence
        assert "expected" in sentence


#: Words of Python's, and the sentence of a last resort, which names no field.
_PYTHONS = re.compile(r"\b[A-Z]\w+(Error|Exception)\b|NoneType|not of the form that its kind has")


def test_each_says_what_is_wrong_with_any_field_of_any_entry_and_never_in_pythons_words() -> None:
    shapes = (
        Shape(rounds=1, people=3, private=frozenset({"p002"})),
        Shape(rounds=1, absent={1: {"p002": "no disk", "p003": None}}, gone=frozenset({1})),
        Shape(rounds=1, people=3, cancelled=(State.EFFORT, 0)),
        Shape(rounds=1, people=3, auditor=True, measured=1),
    )
    places: dict[str, tuple[int, list[Entry]]] = {}
    for ledger in (*(played(shape).log.entries for shape in shapes), revoked(), example().entries):
        for index, entry in enumerate(ledger):
            places.setdefault(entry.kind, (index, ledger))
    assert places.keys() >= {"revocation", "refund", "closing", "failure", "dispute", "award", "log_key"}
    unclear = []
    for index, ledger in places.values():
        before = [entry.data for entry in ledger[:index]]
        for label, changed in misshapen(ledger[index]):
            said = sentences([*before, changed])
            unclear += [(label, sentence) for sentence in said if _PYTHONS.search(sentence)]
    assert not unclear


def misshapen(entry: Entry) -> Iterator[tuple[str, bytes]]:
    """The entry with one key of its body, or of the statement in it, missing or of another type or range."""
    body = orjson.loads(entry.data)["body"]
    said = body.get("statement", {})
    for key in (*body, *(f"statement.{name}" for name in said)):
        place, _, name = key.rpartition(".")
        for other in (..., None, -1, "x", [{}]):
            changed = orjson.loads(entry.data)["body"]
            inner = changed["statement"] if place else changed
            inner[name] = other
            if other is ...:
                del inner[name]
            yield f"{entry.kind} {key} {other!r}", replace(entry, body=changed).data


def sentences(ledger: list[bytes]) -> Iterator[str]:
    """What each verifier says of a ledger, where it refuses it."""
    replay = Replay()
    try:
        for data in ledger:
            replay.feed(data)
    except ReplayError as error:
        yield str(error)
    try:
        second_verifier.Replay(ledger, {}).run()
    except second_verifier.Wrong as error:
        yield str(error)


def revoked() -> list[Entry]:
    """A ledger of a key that was revoked."""
    log = Log()
    log.enrol("p000")
    log.revoke("p000")
    return log.entries
