"""Terms that outgrow an entry: cut into parts, put together by readers of the log, and nothing but whole."""

from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from typing import Any

import orjson
import pytest

from mechanism.canonical import canonical_bytes
from mechanism.errors import FieldError
from mechanism.ledger import entries
from mechanism.ledger.entry import MAX_ENTRY_BYTES, Entry
from mechanism.ledger.verify import Report, verify_ledger
from mechanism.terms import ModelContract, TensorSpec, Terms
from tests import ledger_samples as samples
from tests.memory_source import KEY, MemorySource

PEOPLE = samples.names(3)


def large(
    tensors: int, name: str = "layer.{:05d}.attention.output.dense.weight", task: str = "task"
) -> Terms:
    """Terms of a model of many tensors."""
    specs = tuple(TensorSpec(name.format(i), "BF16", (64, 64)) for i in range(tensors))
    return replace(
        samples.terms(task, rounds=1), contract=ModelContract(specs, Decimal(1000), tensors * 8192 + 1)
    )


LARGE = large(2_000)
LEDGER = [entry for step in samples.transactions(LARGE, PEOPLE) for entry in step]
PARTS = [i for i, entry in enumerate(LEDGER) if entry.kind == "terms"]


def verify(ledger: list[Entry | bytes]) -> Report:
    return verify_ledger(MemorySource(ledger), KEY.verification_key)


def refused(ledger: list[Entry | bytes], words: str) -> None:
    report = verify(ledger)
    assert not report.verified
    assert words in report.problems[0].message


def test_small_terms_stand_as_they_are() -> None:
    [whole] = entries.published(samples.terms())
    assert whole.id == "task/terms"
    assert Terms.from_record(whole.body["terms"]) == samples.terms()  # type: ignore[arg-type]


@pytest.mark.parametrize("tensors", [847, 20_000])
def test_terms_of_many_tensors_are_cut_into_entries_and_put_together(tensors: int) -> None:
    terms = large(tensors)
    parts = entries.published(terms)
    assert len(parts) > 1
    assert all(len(part.data) <= MAX_ENTRY_BYTES for part in parts)
    assert {part.body["sha256"] for part in parts} == {terms.digest.hex()}
    pieces = [str(part.body["data"]) for part in parts]
    assert Terms.parse(entries.joined(pieces, terms.digest.hex())) == terms


def test_a_task_whose_terms_are_in_parts_verifies_to_its_end() -> None:
    assert len(PARTS) > 3
    report = verify([*LEDGER])
    assert report.verified, report.problems
    assert report.counts.tasks == 1
    assert report.counts.payments == len(PEOPLE)


def forged(index: int, change: Callable[[Any], None]) -> bytes:
    record = orjson.loads(LEDGER[index].data)
    change(record)
    return canonical_bytes(record)


def test_a_missing_repeated_or_exchanged_part_is_refused() -> None:
    first, second, last = PARTS[0], PARTS[1], PARTS[-1]
    refused([*LEDGER[:second], *LEDGER[second + 1 :]], "task/terms/")
    refused([*LEDGER[:first], *LEDGER[first + 1 :]], "out of place")
    refused([*LEDGER[:last], *LEDGER[last + 1 :]], "interrupts the opening")
    refused(LEDGER[:last], "ends early")
    exchanged: list[Entry | bytes] = [*LEDGER]
    exchanged[first], exchanged[second] = exchanged[second], exchanged[first]
    refused(exchanged, "out of place")


def test_a_part_of_other_terms_is_refused() -> None:
    other = entries.published(replace(LARGE, Q=Decimal(1999)))
    at = PARTS[1]
    refused([*LEDGER[:at], other[1], *LEDGER[at + 1 :]], "out of place")
    changed = forged(at, lambda r: r["body"].update(data="A" * 48_000))
    refused([*LEDGER[:at], changed, *LEDGER[at + 1 :]], "sha256")


def test_terms_are_cut_in_one_way_alone() -> None:
    """Otherwise the same terms could stand in the log as other bytes."""
    small = entries.published(samples.terms(rounds=1))[0].body["terms"]
    short = entries.cut("task/terms", "terms", {"task_id": "task"}, canonical_bytes(small))
    rest = [entry for entry in LEDGER if entry.kind != "terms"]
    refused([*rest[: PARTS[0]], *short, *rest[PARTS[0] :]], "expected the terms task/terms here")
    pieces = "".join(str(LEDGER[i].body["data"]) for i in PARTS)
    first = len(str(LEDGER[PARTS[0]].body["data"]))
    for size in (40_000, first - 4):  # more parts, and as many
        cut = [pieces[at : at + size] for at in range(0, len(pieces), size)]
        other = [
            Entry(
                f"task/terms/{number}",
                "terms",
                {
                    "task_id": "task",
                    "part": number,
                    "parts": len(cut),
                    "sha256": LARGE.digest.hex(),
                    "data": piece,
                },
            )
            for number, piece in enumerate(cut, 1)
        ]
        assert (len(cut) == len(PARTS)) == (size == first - 4)
        refused(
            [*rest[: PARTS[0]], *other, *rest[PARTS[0] :]],
            "what they say together" if size == 40_000 else "data is",
        )


def test_terms_in_parts_cannot_interrupt_each_other() -> None:
    other = entries.published(large(2_000, task="other"))
    refused([*LEDGER[: PARTS[1]], *other], "task/terms/")
    refused([*LEDGER[: PARTS[1]], *entries.published(samples.terms("third"))], "interrupts")


def test_terms_beyond_every_part_are_refused_before_they_are_recorded() -> None:
    with pytest.raises(FieldError, match="350 parts"):
        entries.published(large(20_000, "𝄞" * 240 + "{:016d}"))
