"""Two verifiers, one written from docs/ledger-format.md alone, agree on every ledger that the tests know.

Ledgers are exported as an auditor gets them. Both accept, with the same balances, or both refuse, at the same entry.
What the second does not check is the arithmetic from evidence to verdicts: `NOT_CHECKED` lists the forgeries that
nothing else shows.
"""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import orjson
import pytest

from fedpeer.audit.export import export_json_lines, export_tiles
from fedpeer.audit.sources import open_source
from mechanism.canonical import canonical_bytes
from mechanism.ledger import entries
from mechanism.ledger.entry import Entry
from mechanism.ledger.verify import LedgerSource, Report, verify_ledger
from mechanism.payment import Linear, Log1p, Power
from mechanism.payment import Log as Payment
from mechanism.settlement import task_budget_micro
from mechanism.statements import ec, hashes
from mechanism.workload import Strata
from tests import ledger_samples as samples
from tests.conformance import second_verifier
from tests.conformance.example import SECOND, example
from tests.conformance.second_verifier import Result
from tests.ledger_forgeries import FORGERIES, Forgery, cases_of
from tests.ledger_histories import SHAPES, History, Log, Shape, played, started
from tests.mechanism.ledger import test_sound_histories as sound
from tests.memory_source import KEY, MemorySource

#: Forgeries that only the arithmetic from evidence to verdicts shows, by name and label.
NOT_CHECKED = {
    ("a verdict is not the one that the evidence gives", f"{change} in round {number}")
    for change in ({"multiplier_ppm": 500_000}, {"refuted": True}, {"lower_micro": 0})
    for number in (1, 2)
}

#: Forgeries that the second verifier shows, and only later than the first: it sees the cause where it takes effect.
LATER: set[tuple[str, str]] = set()


def exported(source: LedgerSource, path: Path) -> Path:
    export_json_lines(source, path)
    return path


def first(path: Path, key: Any = KEY) -> Report:
    with ExitStack() as resources:
        return verify_ledger(open_source(str(path), resources), None if key is None else key.verification_key)


def second(path: Path, key: Any = KEY) -> Result:
    return second_verifier.verify(path, None if key is None else str(key.verification_key))


def bad(report: Report) -> int | None:
    return min((p.index for p in report.problems if p.index is not None), default=None)


def agree_that_it_holds(path: Path, key: Any = KEY) -> Result:
    report, result = first(path, key), second(path, key)
    assert report.verified, report.problems
    assert not result.problems
    assert result.balances == {name: balance.holds for name, balance in report.balances.items()}
    assert len(result.unchecked) == measured(path)
    return result


def measured(path: Path) -> int:
    """Models in time that were measured: as many verdicts are taken as given."""
    with ExitStack() as resources:
        ledger = [orjson.loads(data) for data in open_source(str(path), resources).entries()]
    rounds = {(e["body"]["task_id"], e["body"]["round"]) for e in ledger if e["kind"] == "evidence"}
    return sum(
        e["kind"] == "verdict"
        and (e["body"]["task_id"], e["body"]["round"]) in rounds
        and e["body"]["assessment"]["model_sha256"] != ""
        for e in ledger
    )


@pytest.mark.parametrize("name", SHAPES)
def test_both_accept_a_sound_history_in_either_export(name: str, tmp_path: Path) -> None:
    source = MemorySource(played(SHAPES[name]).log.entries)
    agree_that_it_holds(exported(source, tmp_path / "ledger.jsonl"))
    export_tiles(source, tmp_path / "tiles")
    agree_that_it_holds(tmp_path / "tiles")


@pytest.mark.parametrize(
    "history",
    [
        sound.test_several_tasks_may_run_at_the_same_time,
        sound.test_who_was_revoked_after_its_claim_may_be_selected_or_left_out,
        sound.test_a_commitment_that_was_broken_off_leaves_its_number_unused,
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


@pytest.mark.parametrize("forged", FORGERIES, ids=lambda one: one.name)
def test_both_refuse_a_forgery_at_the_same_entry(forged: Forgery, tmp_path: Path) -> None:
    disagreed, unseen = [], set()
    for number, (label, ledger) in enumerate(cases_of(forged)):
        path = exported(MemorySource(ledger), tmp_path / f"{number}.jsonl")
        report, result = first(path), second(path)
        assert not report.verified
        if not result.problems:
            unseen.add((forged.name, label))
            assert result.unchecked, "it says that it has not checked all"
        # What replay finds comes first in either list; heads, which the forged announcements of keys lack, come after.
        elif bad(report) not in (result.first, result.problems[0][0]) and (forged.name, label) not in LATER:
            disagreed.append((label, bad(report), result.problems))
    assert not disagreed
    assert unseen == {one for one in NOT_CHECKED if one[0] == forged.name}


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


def test_both_follow_copies_of_which_one_is_paid(tmp_path: Path) -> None:
    history = started(Shape(people=5))
    history.begin()
    for _ in (1, 2):
        history.train()
        history.deliver()
        record = history.evidence()
        record["measurements"][1]["twins"] = [["p003", 2_000_000]]
        history.settle(record)
    history.finish()
    clusters = [
        e.body["assessment"]["cluster"]  # type: ignore[index,call-overload]
        for e in history.log.entries
        if e.kind == "verdict"
    ]
    assert clusters.count("p001") == 4
    agree_that_it_holds(exported(MemorySource(history.log.entries), tmp_path / "ledger.jsonl"))


def test_both_put_terms_and_lists_together_from_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entries, "PART_BYTES", 400)
    monkeypatch.setattr(second_verifier, "PART_BYTES", 400)
    ledger = played(Shape(people=60)).log.entries
    for kind in ("terms", "selection", "evidence", "peers"):
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
            if _first_index(ledger) != _second_index(ledger):
                found.append(label)
    return found


@pytest.mark.parametrize("strata", samples.STRATA, ids=lambda strata: strata.name)
def test_both_draw_the_same_line_at_every_value_of_brought_terms(strata: Strata) -> None:
    """Of a workload from a factory, named classes and columns, and each kind of strata."""
    terms = samples.brought(strata)
    [data] = [entry.data for entry in entries.published(terms)]
    record = orjson.loads(data)
    held = {"recipe", "strata", "classes", "columns"}
    for other in ({}, *(changed for _, changed in _left_out(record))):
        ledger = [canonical_bytes(other or record)]
        assert _first_index(ledger) == _second_index(ledger)
    for label, changed in mutated(data):
        if held & set(label.split("'")):
            assert _first_index([changed]) == _second_index([changed]), label


def _left_out(record: Any) -> Iterator[tuple[str, Any]]:
    """The entry without one of the terms' keys that may be left out, each in turn."""
    terms = record["body"]["terms"]
    for key in ("strata", "classes", "columns"):
        if key in terms:
            yield (
                key,
                {**record, "body": {**record["body"], "terms": {k: v for k, v in terms.items() if k != key}}},
            )
    recipe = {k: v for k, v in terms["recipe"].items() if k != "source"}
    yield "source", {**record, "body": {**record["body"], "terms": {**terms, "recipe": recipe}}}


def _first_index(ledger: list[bytes]) -> int | None:
    from mechanism.ledger.replay import Replay, ReplayError

    replay = Replay()
    try:
        for data in ledger:
            replay.feed(data)
        replay.finish()
    except ReplayError as error:
        return error.index
    return None


def _second_index(ledger: list[bytes]) -> int | None:
    try:
        second_verifier.Replay(ledger).run()
    except second_verifier.Wrong as error:
        return error.index
    return None


def test_both_draw_the_same_line_at_every_value_of_the_early_entries() -> None:
    assert not differing({"enrolment", "terms", "reservation", "transition", "claim"}, 1)


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


def test_the_second_verifier_needs_nothing_of_ours(tmp_path: Path) -> None:
    """It runs alone, outside the repository, and says what it has not checked."""
    path = Path(second_verifier.__file__)
    assert "mechanism" not in {line.split()[1].split(".")[0] for line in _imports(path)}
    (tmp_path / "ledger.jsonl").write_bytes(example().lines())
    command = [sys.executable, "-I", str(path), "ledger.jsonl", str(SECOND.verification_key)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "holds"
    assert done.stdout.count("not checked: entry") == 9


def _imports(path: Path) -> list[str]:
    return [line for line in path.read_text().splitlines() if line.startswith(("import ", "from "))]
