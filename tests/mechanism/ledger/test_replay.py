"""What an outsider recomputes, against a coordinator that holds the log's key and signs whatever it likes."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import orjson
import pytest

from mechanism.canonical import canonical_bytes
from mechanism.errors import FieldError
from mechanism.ledger import entries
from mechanism.ledger.entry import Entry
from mechanism.ledger.key_history import NO_KEYS, extended, held_keys, key_event
from mechanism.ledger.openings import Openings
from mechanism.ledger.replay import Replay, ReplayError
from mechanism.ledger.replay.forms import check_body, check_counts, check_opening
from mechanism.ledger.verify import Known, Report, verify_ledger
from mechanism.peers import draw_share, round_seed
from mechanism.statements import ModelStatement, sign_statement
from tests import ledger_samples as samples
from tests.ledger_histories import Shape, played
from tests.memory_source import KEY, MemorySource, head

PEOPLE = samples.names(4)
TERMS = samples.terms(rounds=2)
LEDGER = [entry for step in samples.transactions(TERMS, PEOPLE, {2: "p001"}) for entry in step]


def verify(ledger: list[Entry | bytes], known: str | None = None) -> Report:
    """With the openings of what stands in it under the ids of `LEDGER`."""
    source, known_ones = MemorySource(ledger), samples.openings_of(LEDGER)
    ids = {orjson.loads(item)["id"] for item in ledger if isinstance(item, bytes)}
    openings = {**{id_: known_ones[id_] for id_ in ids & known_ones.keys()}, **source.openings.by_id}
    return verify_ledger(source, KEY.verification_key, known, openings=Openings(None, openings))


def refused(ledger: list[Entry | bytes], *words: str) -> Report:
    report = verify(ledger)
    assert not report.verified
    for word in words:
        assert word in report.problems[0].message, report.problems[0]
    return report


def where(kind: str, number: int = 0) -> int:
    """Index of the `number`-th entry of a kind."""
    return [i for i, entry in enumerate(LEDGER) if entry.kind == kind][number]


def edited(index: int, change: Callable[[Any], None]) -> list[Entry | bytes]:
    """The ledger with one entry's record changed."""
    record = orjson.loads(LEDGER[index].data)
    change(record)
    return [*LEDGER[:index], canonical_bytes(record), *LEDGER[index + 1 :]]


def test_a_settled_task_verifies_and_is_counted() -> None:
    report = verify([*LEDGER])
    assert report.verified, report.problems
    assert report.pinned
    counts = report.counts
    assert (counts.tasks, counts.statements, counts.verdicts, counts.settlements) == (1, 12, 8, 2)
    assert (counts.payments, counts.degrees) == (8, 8)
    assert counts.paid_micro == sum(int(str(e.body["paid_micro"])) for e in LEDGER if e.kind == "payment")
    assert report.balances["escrow:task"].holds == 0
    assert report.open_tasks == {}


def test_an_unfinished_task_verifies_up_to_each_transaction() -> None:
    steps = list(samples.transactions(TERMS, PEOPLE))
    for count in range(len(steps)):
        ledger = [entry for step in steps[:count] for entry in step]
        assert verify([*ledger]).verified


def test_a_task_that_has_ended_is_told_from_one_that_never_was() -> None:
    shape = Shape(people=3, rounds=1)
    log = [*played(shape).log.entries]
    for task, words in (("task", "the task 'task' has ended"), ("other", "the task 'other' has no terms")):
        refused([*log, entries.failure(task, 1, "p000", "f-1", "no disk")], words)


# A coordinator that lies and signs


def change_paid(record: Any) -> None:
    record["body"]["paid_micro"] += 1
    record["transfers"][0]["micro"] += 1


LIES: dict[str, tuple[int, Callable[[Any], None], str]] = {
    "a higher payment": (where("payment"), change_paid, "paid_micro"),
    "a payment under another name": (
        where("payment"),
        lambda r: r["transfers"][0].update(credit="payable:p003"),
        "credit is 'payable:p003'",
    ),
    "another key history in a payment": (
        where("payment"),
        lambda r: r["body"].update(keys="00" * 32),
        "keys is",
    ),
    "another key history in a claim": (where("claim"), lambda r: r["body"].update(keys="00" * 32), "keys is"),
    "another key history in a model": (where("model"), lambda r: r["body"].update(keys="00" * 32), "keys is"),
    "a missing transfer": (where("payment"), lambda r: r.pop("transfers"), "transfers is missing"),
    "another peer": (
        where("peers"),
        lambda r: r["body"]["draws"][0][1].__setitem__(0, "p000"),
        "draws[0][1][0]",
    ),
    "a seed of its choice": (where("seed"), lambda r: r["body"].update(seed="ab" * 32), "seed"),
    "a better degree": (
        where("verdict"),
        lambda r: r["body"]["outcome"].update(verified_micro=100_001),
        "verified_micro is 100001",
    ),
    "another penalty": (
        where("verdict"),
        lambda r: r["body"]["outcome"].update(penalty_micro=7),
        "penalty_micro is 7",
    ),
    "another commitment": (
        where("verdict"),
        lambda r: r["body"].update(commitment="ab" * 32),
        "not the one that it commits to",
    ),
    "a verdict on another model": (
        where("verdict"),
        lambda r: r["body"]["outcome"].update(model_sha256="cd" * 32),
        "another model than it sent",
    ),
    "a changed claim": (
        where("claim"),
        lambda r: r["body"]["statement"].update(commitment="ab" * 32),
        "not signed by a key of",
    ),
    "a changed model": (
        where("model"),
        lambda r: r["body"]["statement"].update(commitment="ab" * 32),
        "not signed by a key of",
    ),
    "a claim to other terms": (
        where("claim"),
        lambda r: r["body"]["statement"].update(terms="00" * 32),
        "other terms",
    ),
    "changed terms": (where("terms"), lambda r: r["body"]["terms"].update(q="3000"), "budget"),
    "a smaller reservation": (
        where("reservation"),
        lambda r: r["transfers"][0].update(micro=5),
        "micro is 5",
    ),
    "a smaller settlement": (
        where("settlement"),
        lambda r: r["transfers"][0].update(micro=5),
        "transfers[0].micro",
    ),
    "another arithmetic": (
        where("settlement"),
        lambda r: r["body"].update(arithmetic="float64"),
        "arithmetic is 'float64'",
    ),
    "a selection of a stranger": (
        where("selection"),
        lambda r: r["body"]["participants"].append("p009"),
        "participants",
    ),
    "an unknown kind": (where("aggregation"), lambda r: r.update(kind="gift"), "'gift'"),
    "an unknown version": (where("aggregation"), lambda r: r.update(v=2), "version 2"),
    "evidence of another commitment": (
        where("evidence"),
        lambda r: r["body"].update(commitment="ab" * 32),
        "not the one that it commits to",
    ),
    "evidence from other shadows": (
        where("evidence"),
        lambda r: r["body"].update(shadows=7),
        "shadow models",
    ),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_is_named_with_its_place_though_it_is_signed(lie: str) -> None:
    index, change, words = LIES[lie]
    report = verify(edited(index, change))
    assert not report.verified
    first = report.problems[0]
    assert words in first.message
    assert first.index is not None
    assert first.index >= index
    assert first.place.startswith(f"entry {first.index}")


def test_tasks_that_have_not_ended_are_reported_with_their_states() -> None:
    for kind, state in (("terms", ""), ("claim", "EFFORT"), ("model", "TRAINING"), ("seed", "SCORED")):
        assert verify(LEDGER[: where(kind) + 1]).open_tasks == {"task": state}  # type: ignore[arg-type]


#: Fields that nothing rests on: text for readers, and what needs the models themselves.
FREE = ("at", "reason")


def mutations(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Each scalar in a record, and another value for it."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from mutations(item, (*path, key))
    elif isinstance(value, list):
        for i, item in enumerate(value):
            yield from mutations(item, (*path, i))
    elif isinstance(value, bool):
        yield path, not value
        yield path, int(value)
    elif isinstance(value, int):
        yield path, value + 1
        if value in (0, 1):
            yield path, bool(value)
    elif value is None:
        yield path, 1
    else:
        yield path, (value[:-1] + ("0" if value[-1:] != "0" else "1")) if value else "0"


def test_no_field_of_any_entry_can_change_though_it_is_signed() -> None:
    seen = 0
    for index, entry in enumerate(LEDGER):
        for path, other in mutations(orjson.loads(entry.data)):
            if set(path) & set(FREE):
                continue
            if entry.kind == "aggregation" and path[-1] in ("model_sha256", "accuracy", "loss"):
                continue

            def change(record: Any, path: tuple[Any, ...] = path, other: Any = other) -> None:
                for key in path[:-1]:
                    record = record[key]
                record[path[-1]] = other

            # Signatures are checked elsewhere; here a changed statement must be caught by them alone.
            if "statement" in path or "signature" in path:
                continue
            data = edited(index, change)
            replay = Replay(check_statements=False, openings=samples.openings_of(LEDGER))
            with pytest.raises(ReplayError):
                run(replay, data, index, entry, path)
            seen += 1
    assert seen > 400


def run(replay: Replay, ledger: list[Entry | bytes], index: int, entry: Entry, path: tuple[Any, ...]) -> None:
    for item in ledger:
        replay.feed(item if isinstance(item, bytes) else item.data)
    replay.finish()
    raise AssertionError(f"entry {index} ({entry.id}) with another {path} was accepted")


def test_no_part_of_a_statement_can_change_though_it_is_signed() -> None:
    for kind in ("claim", "model"):
        index = where(kind)
        for path, other in mutations(orjson.loads(LEDGER[index].data)["body"], ("body",)):

            def change(record: Any, path: tuple[Any, ...] = path, other: Any = other) -> None:
                for key in path[:-1]:
                    record = record[key]
                record[path[-1]] = other

            assert not verify(
                edited(index, change)[: index + 1]
                if path[-1] not in ("late", "sequence")
                else edited(index, change)
            ).verified


def test_no_entry_can_be_left_out_though_it_is_signed() -> None:
    for index, entry in enumerate(LEDGER[:-1]):
        report = verify([*LEDGER[:index], *LEDGER[index + 1 :]])
        assert not report.verified, entry.id


def test_no_entry_can_be_doubled_though_it_is_signed() -> None:
    for index, entry in enumerate(LEDGER):
        report = verify([*LEDGER[: index + 1], entry, *LEDGER[index + 1 :]])
        assert not report.verified, entry.id


def test_a_known_head_catches_reordering_truncation_and_forks() -> None:
    known = head([entry.data for entry in LEDGER], 20)
    assert verify([*LEDGER], known).known is Known.EXTENDED
    first, second = where("claim"), where("claim", 1)
    swapped = [*LEDGER]
    swapped[first], swapped[second] = swapped[second], swapped[first]
    assert verify([*swapped]).verified  # either order could have happened
    report = verify([*swapped], known)
    assert report.problems[0].place == "known checkpoint"
    assert "fork" in report.problems[0].message
    assert report.known is Known.CONTRADICTED
    truncated = verify([*LEDGER[:15]], known)
    assert truncated.verified
    assert truncated.known is Known.OLDER
    other = [entry for step in samples.transactions(samples.terms(rounds=1), PEOPLE) for entry in step]
    assert "fork" in verify([*other], known).problems[0].message
    foreign = replace(KEY, name="example.com/other")
    report = verify([*LEDGER], head([entry.data for entry in LEDGER], 20, foreign))
    assert report.problems[0].place == "known checkpoint"


def test_nothing_stands_between_two_parts_of_one_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entries, "PART_BYTES", 30)
    ledger: list[Entry | bytes] = [*played(Shape(people=6, rounds=1)).log.entries]
    other = entries.enrolment("zoe", samples.private_key("zoe").public_key())
    for kind in ("selection", "peers"):
        second, *_ = (
            i for i, e in enumerate(ledger) if isinstance(e, Entry) and e.kind == kind and e.body["part"] == 2
        )
        report = refused([*ledger[:second], other, *ledger[second:]], f"{kind}/2 here")
        assert report.problems[0].index == second


def test_each_entry_that_follows_is_answered_with_itself() -> None:
    replay, ledger = Replay(), samples.stamped(LEDGER)
    assert [replay.feed(entry.data) for entry in ledger] == list(ledger)


def test_a_replay_that_fails_says_at_which_entry() -> None:
    with pytest.raises(ReplayError) as caught:
        Replay().feed(LEDGER[where("claim")].data)
    assert str(caught.value) == "entry 0 (task/claim/p000/claim-p000): the task 'task' has no terms"


def test_a_key_that_is_not_the_logs_is_named() -> None:
    other = replace(KEY, seed=bytes(32))
    report = verify_ledger(MemorySource(LEDGER), other.verification_key)
    assert report.problems[0].place == "key"
    assert str(other.verification_key) in report.problems[0].message


def test_a_revoked_key_signs_nothing_more() -> None:
    begun = samples.opening(TERMS, PEOPLE)
    gone = entries.revocation("p000", samples.private_key("p000").public_key(), "laptop stolen")
    training = entries.transition("task", 1, "TRAINING", samples.at(2))
    ledger = [*begun, gone, training, samples.model(TERMS, 1, "p000")]
    report = refused([*ledger], "signed by a key of p000 that was revoked before", f"in entry {len(begun)}")
    assert (report.problems[0].index, report.holds) == (len(begun) + 2, len(begun) + 2)
    assert report.record()["holds"] == len(begun) + 2
    again = entries.enrolment("p000", samples.private_key("new").public_key())
    refused([*ledger[:-1], again, ledger[-1]], "signed by a key of p000 that was revoked before")
    forged = ledger[-1]
    stranger = Entry(forged.id, forged.kind, {**forged.body, "signature": "00" * 70})
    refused([*ledger[:-1], again, stranger], "not signed by a key of p000")
    refused([*ledger[:-1], stranger], "no enrolled key, since all were revoked")


def test_a_revoked_key_is_enrolled_by_nobody_any_more() -> None:
    key = samples.private_key("p000").public_key()
    begun = [entries.enrolment("p000", key), entries.revocation("p000", key, "")]
    refused([*begun, entries.enrolment("p000", key)], "revoked before, as p000's in entry 1")
    refused([*begun, entries.enrolment("zoe", key)], "revoked before, as p000's in entry 1")


def test_who_has_no_key_left_says_nothing_more() -> None:
    begun = samples.opening(TERMS, PEOPLE)
    gone = entries.revocation("p000", samples.private_key("p000").public_key(), "")
    training = entries.transition("task", 1, "TRAINING", samples.at(2))
    failure = entries.failure("task", 1, "p000", "s", "no data")
    assert verify([*begun, training, failure]).verified
    refused([*begun, gone, training, failure], "p000 has no key at this point")


def test_a_second_key_under_a_name_shows_in_every_later_receipt() -> None:
    """The forged model verifies, for enrolment is the operator's word; that there is a second key cannot be hidden."""
    begun = samples.opening(TERMS, PEOPLE)
    second = entries.enrolment("p000", samples.private_key("operator").public_key())
    honest = samples.model(TERMS, 1, "p001")
    share = draw_share(
        samples.share_secret(TERMS, "p000"), TERMS.schedule.rounds, 1
    )  # somehow it knows that, too
    statement = ModelStatement(
        "model-1-p000", "task", TERMS.digest, "p000", 1, bytes(32), 64, bytes(32), share, samples.NONCE
    )
    forged = entries.model(statement, sign_statement(statement, samples.private_key("operator")), 1)
    ledger = [*begun, second, entries.transition("task", 1, "TRAINING", samples.at(2)), forged, honest]
    assert verify([*ledger]).verified
    receipt = samples.stamped(ledger)[-1]
    shown = [(i, e.data) for i, e in enumerate(ledger) if e.kind == "enrolment"]
    digest = NO_KEYS
    for index, data in shown:
        digest = extended(digest, index, data)
    assert receipt.body["keys"] == digest.hex()
    for left_out in range(len(shown)):
        digest = NO_KEYS
        for index, data in shown[:left_out] + shown[left_out + 1 :]:
            digest = extended(digest, index, data)
        assert receipt.body["keys"] != digest.hex()
    held = held_keys([key_event(index, data) for index, data in shown])
    assert [key.enrolled_at for key in held["p000"]] == [0, len(begun)]


def test_seeds_must_follow_the_commitment_in_order() -> None:
    index = where("seed")
    later = round_seed(samples.SECRET, 2, 2).hex()
    refused(edited(index, lambda r: r["body"].update(seed=later)), "does not fit the commitment")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b'{"v":1}',
        b'{"body":{},"id":"x","kind":"terms","v":1}',
        b'{"body":{"task_id":[]},"id":"x","kind":"seed","v":1}',
        b'{"body":{"terms":5},"id":"x","kind":"terms","v":1}',
        b'{"body":{"statement":{}},"id":"x","kind":"claim","v":1}',
        b'{"body":[],"id":"x","kind":"claim","v":1}',
        b'{"body":{},"id":"x","kind":"claim","transfers":[],"v":1}',
        b'{"body":{},"id":"x","kind":"claim","transfers":[{"micro":1}],"v":1}',
        b'{"body":{},"extra":1,"id":"x","kind":"claim","v":1}',
        b'{"body":{"public_key":"AAAA","participant_id":"p"},"id":"x","kind":"enrolment","v":1}',
        b"\xff" * 70_000,
    ],
)
def test_garbage_is_an_error_and_never_a_traceback(data: bytes) -> None:
    with pytest.raises(ReplayError):
        Replay().feed(data)


def test_a_ledger_that_ends_inside_a_transaction_says_which_and_what_is_missing() -> None:
    ledger = MemorySource([*played(Shape(private=frozenset({"p003"}))).log.entries]).data
    missing = {
        "reservation": "opening", "verdict": "settlement", "seed": "settlement",
        "peers": "settlement", "settlement": "settlement", "payment": "settlement", "aggregation": "settlement",
        "award": "end", "stake_release": "end",
    }  # fmt: skip
    states = {"OPEN": "opening", "SELECTED": "selection", "SCORED": "settlement", "SETTLED": "settlement"}
    replay, seen, kinds = Replay(check_statements=False), set[str](), set[str]()
    for number, data in enumerate(ledger):
        entry = Entry.parse(data)
        what = missing.get(entry.kind) or states.get(entry.id.rpartition("/")[2]) or ""
        if entry.id.endswith("CLOSED") or (entry.kind == "awards" and "awards" in kinds):
            what = "end"
        kinds.add(entry.kind)
        if what:
            with pytest.raises(ReplayError) as caught:
                replay.finish()
            assert caught.value.reason.startswith(f"the {what} of task ends early: {entry.id} is missing")
            assert caught.value.index == number
            seen.add(what)
        else:
            replay.finish()
        replay.feed(data)
    assert seen == {"opening", "selection", "settlement", "end"}


@pytest.mark.parametrize(("state", "rest"), [("SELECTED", "a selection"), ("SCORED", "verdicts")])
def test_a_state_that_rests_on_something_says_on_what(state: str, rest: str) -> None:
    place = next(i for i, entry in enumerate(LEDGER) if entry.id.endswith(state))
    begun = max(i for i in where_all("claim", "model") if i < place)
    refused([*LEDGER[: begun + 1], LEDGER[place]], f"{state} is entered without {rest}")


def where_all(*kinds: str) -> list[int]:
    return [i for i, entry in enumerate(LEDGER) if entry.kind in kinds]


def test_a_field_of_another_form_is_named_with_what_was_expected() -> None:
    body = {"task_id": "task", "participant_id": "p", "at": "now"}
    check_body(Entry("d", "dispute", body))
    with pytest.raises(FieldError, match="a string") as named:
        check_body(Entry("d", "dispute", {**body, "at": 5}))
    assert named.value.field == "at"
    opened = {"counts": [1, 2], "salt": "0" * 64}
    check_counts(opened)
    for counts in ([1, "2"], ["1", "2"], [1, True], {}, None):
        with pytest.raises(FieldError, match="a list of integers") as caught:
            check_counts({**opened, "counts": counts})
        assert caught.value.field == "opening.counts"
    with pytest.raises(FieldError, match="alone"):
        check_counts({**opened, "note": "x"})


def test_an_opening_has_its_objects_and_a_salt_and_nothing_else() -> None:
    whole: dict[str, Any] = {"assessment": {}, "measurement": None, "salt": "0" * 64}
    check_opening(whole, "assessment", "measurement")
    check_opening({**whole, "measurement": {}}, "assessment", "measurement")
    for change, field in (
        ({"assessment": []}, "opening.assessment"),
        ({"measurement": 5}, "opening.measurement"),
        ({"salt": "0" * 63}, "opening.salt"),
        ({"note": "x"}, "opening"),
    ):
        with pytest.raises(FieldError) as caught:
            check_opening({**whole, **change}, "assessment", "measurement")
        assert caught.value.field == field
