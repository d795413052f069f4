"""Terms, value by value: what lies in its range is taken, what lies outside is refused by the name of its field."""

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from mechanism.errors import FieldError
from mechanism.records import decimal
from mechanism.terms import (
    DTYPE_BYTES,
    MAX_ROUNDS,
    RULE_NAMES,
    ModelContract,
    Rule,
    TensorSpec,
    Terms,
    identifier,
)
from mechanism.workload import MAX_NAME, Quantiles, Source, SourceFile
from tests import ledger_samples as samples
from tests.ledger_histories import AUDIT

RECORD: Mapping[str, Any] = samples.terms().record()


def changed(path: str, value: Any) -> dict[str, Any]:
    """The record with another value at a path such as `rule.peers`."""
    record = deepcopy(dict(RECORD))
    place: Any = record
    *folders, last = path.split(".")
    for name in folders:
        place = place[int(name)] if isinstance(place, list) else place[name]
    place[int(last) if isinstance(place, list) else last] = value
    return record


def test_terms_come_back_from_their_record_and_are_named_by_it() -> None:
    terms = samples.terms()
    assert Terms.from_record(RECORD) == terms
    assert Terms.from_record(RECORD).digest == terms.digest
    assert RECORD["schedule"]["dispute_seconds"] == 0
    window = replace(terms, schedule=replace(terms.schedule, dispute_seconds=60))
    assert window.record()["schedule"]["dispute_seconds"] == 60  # type: ignore[index, call-overload]
    assert Terms.from_record(window.record()) == window


IN_RANGE: tuple[tuple[str, Any], ...] = (
    ("task_id", "a"),
    ("task_id", "a" * 64),
    ("task_id", "0.a_b-9"),
    ("q", "0." + "0" * 29 + "1"),
    ("q", "1" + "0" * 29),
    ("q", "9" * 30 + "." + "9" * 30),
    ("upsilon", "0.5"),
    ("rule.peers", 1),
    ("rule.claim_penalty", "0"),
    ("rule.stake_micro", 0),
    ("rule.fee", "0"),
    ("rule.whole_from", "1"),
    ("rule.whole_from", "0." + "5" + "0" * 28 + "1"),
    ("schedule.rounds", 1),
    ("schedule.quorum", 4),
    ("schedule.effort_seconds", 1),
    ("schedule.round_seconds", 1),
    ("schedule.dispute_seconds", 0),
    ("contract.tensors.0.name", "n" * 256),
    ("contract.tensors.0.shape", []),
    ("contract.tensors.0.shape", [0, 3]),
    ("contract.max_bytes", 4),
    ("recipe.epochs", 1),
    ("recipe.samples", 1),
    ("recipe.optimizer", "sgd"),
    ("budget_micro", 0),
    *(("rule.name", name) for name in RULE_NAMES),
    *(("contract.tensors.0.dtype", name) for name in DTYPE_BYTES),
)


@pytest.mark.parametrize(("path", "value"), IN_RANGE)
def test_a_value_at_the_end_of_its_range_is_taken(path: str, value: Any) -> None:
    Terms.from_record(changed(path, value))


#: Path, value, and the field that is named.
OUTSIDE: tuple[tuple[str, Any, str], ...] = (
    *(("task_id", value, "task_id") for value in ("", "A", "-a", "a-", "a/b", "a" * 65, 5, None)),
    *((name, "0", name) for name in ("q", "phi", "upsilon")),
    *((name, "-1", name) for name in ("q", "phi", "upsilon")),
    *(
        ("q", value, "q")
        for value in (
            "NaN",
            "Infinity",
            "1e30",
            "1" + "0" * 30,
            "9" * 31,
            "0." + "0" * 30 + "1",
            "much",
            None,
        )
    ),
    ("reference", ["1/2", "1/3"], "reference"),
    ("reference", samples.LONG_SHARES, "reference"),
    ("rule.name", "best", "rule.name"),
    ("rule.peers", 0, "rule.peers"),
    ("rule.peers", True, "rule.peers"),
    ("rule.peers", "1", "rule.peers"),
    ("rule.claim_penalty", "-0.1", "rule.claim_penalty"),
    ("rule.claim_penalty", "1" + "0" * 30, "rule.claim_penalty"),
    ("rule.stake_micro", -1, "rule.stake_micro"),
    ("rule.fee", "-0.1", "rule.fee"),
    ("rule.fee", 1, "rule.fee"),
    ("rule.whole_from", "0.5", "rule.whole_from"),
    ("rule.whole_from", "1.01", "rule.whole_from"),
    ("schedule.rounds", 0, "schedule.rounds"),
    ("schedule.quorum", 2, "schedule.quorum"),
    ("schedule.quorum", 5, "schedule.capacity"),
    ("schedule.capacity", 2, "schedule.capacity"),
    ("schedule.effort_seconds", 0, "schedule.effort_seconds"),
    ("schedule.round_seconds", 0, "schedule.round_seconds"),
    ("schedule.dispute_seconds", -1, "schedule.dispute_seconds"),
    ("contract.tensors", [], "contract.tensors"),
    ("contract.tensors.0.name", "", "contract.tensors.name"),
    ("contract.tensors.0.name", "n" * 257, "contract.tensors.name"),
    ("contract.tensors.0.dtype", "F8", "contract.tensors[w].dtype"),
    ("contract.tensors.0.shape", [2, -1], "contract.tensors[w].shape"),
    ("contract.max_norm", "0", "contract.max_norm"),
    ("contract.max_bytes", 3, "contract.max_bytes"),
    ("recipe.epochs", 0, "recipe.epochs"),
    ("recipe.batch_size", 0, "recipe.batch_size"),
    ("recipe.samples", 0, "recipe.samples"),
    ("recipe.samples", 1.5, "recipe.samples"),
    ("recipe.optimizer", "adagrad", "recipe.optimizer"),
    ("recipe.learning_rate", "0", "recipe.learning_rate"),
    ("budget_micro", -1, "budget_micro"),
    *(
        (name, value, name)
        for name in ("seed_commitment", "validation_commitment", "initial_model")
        for value in ("", "ab" * 31, "ab" * 33, "no", 5)
    ),
)


@pytest.mark.parametrize(("path", "value", "field"), OUTSIDE)
def test_a_value_outside_of_its_range_is_refused_by_name(path: str, value: Any, field: str) -> None:
    with pytest.raises(FieldError) as refused:
        Terms.from_record(changed(path, value))
    assert refused.value.field.lower() == field.lower()


@pytest.mark.parametrize("part", ["", "rule", "schedule", "contract", "contract.tensors.0", "recipe"])
def test_every_key_is_there_and_no_other(part: str) -> None:
    prefix = f"{part}." if part else ""
    record: Any = changed(f"{prefix}praise", "good")
    with pytest.raises(FieldError, match="no such key") as refused:
        Terms.from_record(record)
    assert refused.value.field.endswith("praise")
    place: Any = record
    for name in filter(None, part.split(".")):
        place = place[int(name)] if isinstance(place, list) else place[name]
    del place["praise"]
    for key in list(place):
        kept = place.pop(key)
        with pytest.raises(FieldError, match=f"the key {key}"):
            Terms.from_record(record)
        place[key] = kept
    Terms.from_record(record)


@pytest.mark.parametrize("part", ["rule", "schedule", "contract", "recipe"])
def test_a_part_is_an_object(part: str) -> None:
    with pytest.raises(FieldError, match="expected an object"):
        Terms.from_record(changed(part, [1]))


def test_tensors_stand_in_the_order_of_their_names_each_once() -> None:
    one, two = TensorSpec("a", "F32", (1,)), TensorSpec("b", "F32", (1,))
    ModelContract((one, two), Decimal(1), 8)
    for wrong in ((two, one), (one, one)):
        with pytest.raises(FieldError, match="in name order, each name once"):
            ModelContract(wrong, Decimal(1), 8)
    with pytest.raises(FieldError, match="own 8 bytes"):
        ModelContract((one, two), Decimal(1), 7)


@pytest.mark.parametrize(
    ("dtype", "size"), [("F64", 8), ("F32", 4), ("F16", 2), ("BF16", 2), ("I64", 8), ("I32", 4), ("I16", 2),
                        ("I8", 1), ("U8", 1), ("BOOL", 1)],
)  # fmt: skip
def test_an_element_takes_its_bytes(dtype: str, size: int) -> None:
    assert TensorSpec("w", dtype, (2, 3)).size_bytes == 6 * size
    assert TensorSpec("w", dtype, ()).size_bytes == size


def test_a_decimal_is_finite_and_written_out() -> None:
    assert decimal("x", "1.5") == Decimal("1.5")
    assert decimal("x", 3) == 3
    for value in ("x", "", "sNaN", "-Infinity", [1], object()):
        with pytest.raises(FieldError, match=r"^x is"):
            decimal("x", value)  # type: ignore[arg-type]
    assert identifier("name", "p-1") == "p-1"


@pytest.mark.parametrize("value", ["NaN", "Infinity", "1e-31", "1e31"])
def test_an_amount_that_no_record_gives_is_refused_too(value: str) -> None:
    terms, amount = samples.terms(), Decimal(value)
    made: dict[str, Callable[[], object]] = {
        "Q": lambda: replace(terms, Q=amount),
        "phi": lambda: replace(terms, phi=amount),
        "upsilon": lambda: replace(terms, upsilon=amount),
        "contract.max_norm": lambda: replace(terms.contract, max_norm=amount),
        "recipe.learning_rate": lambda: replace(terms.recipe, learning_rate=amount),
    }
    for field, make in made.items():
        with pytest.raises(FieldError) as refused:
            make()
        assert refused.value.field == field


def test_the_bytes_of_a_model_are_a_whole_number() -> None:
    for value in (100.5, True, "100"):
        with pytest.raises(FieldError, match=r"contract\.max_bytes.*a whole number of at least 0"):
            replace(samples.terms().contract, max_bytes=value)  # type: ignore[arg-type]


def test_a_log_has_room_for_so_many_rounds_and_for_any_number_of_participants() -> None:
    assert MAX_ROUNDS == 10_000
    agreed = samples.terms(capacity=10**6, stake_micro=0)
    assert Terms.parse(agreed.canonical).schedule.capacity == 10**6


def test_terms_are_shown_with_their_numbers() -> None:
    shown = str(samples.terms()).splitlines()
    assert shown[0] == "task task: 2 x 60 s, rule verified"
    assert shown[1] == "  payment    log, scale 1, Q 2000, phi 300, upsilon 200"
    assert shown[3] == "  weight     fee 0.75, whole from 0.85 of the recipe's samples"
    assert shown[4] == "  places     4, quorum 3; claims for 60 s; 1 of an organisation"
    audited = str(replace(samples.terms(), audit=AUDIT)).splitlines()
    assert audited[-1].startswith(
        "  audits     of 1 of paid submissions, within 3600 s, else paid; appeals for 600 s"
    )


def test_a_proximal_term_pulls_toward_the_start_or_not_at_all() -> None:
    recipe = samples.terms().recipe
    assert replace(recipe, proximal=Decimal(0)).proximal == 0
    with pytest.raises(FieldError, match=r"recipe\.proximal is -0\.1; expected a decimal of at least 0"):
        replace(recipe, proximal=Decimal("-0.1"))
    for wrong in ("NaN", "1e31"):
        with pytest.raises(FieldError, match=r"recipe\.proximal"):
            replace(recipe, proximal=Decimal(wrong))


def test_a_recipe_names_its_model() -> None:
    for wrong in (5, "m" * (MAX_NAME + 1)):
        with pytest.raises(FieldError, match=r"recipe\.model"):
            replace(samples.terms().recipe, model=wrong)  # type: ignore[arg-type]
    replace(samples.terms().recipe, model="m" * MAX_NAME)


def test_a_factory_comes_with_its_files_and_nothing_else_does() -> None:
    recipe = samples.terms().recipe
    source = Source("{}", (SourceFile("models.py", bytes(32)),))
    assert replace(recipe, model="models:tabular", source=source).source == source
    for model, given, field in (
        ("models:", source, "recipe.model"),
        ("my models:tabular", source, "recipe.model"),
        ("models:tabular", None, "recipe.source"),
        ("digits-cnn", source, "recipe.source"),
    ):
        with pytest.raises(FieldError) as refused:
            replace(recipe, model=model, source=given)
        assert refused.value.field == field


def test_classes_are_named_each_once() -> None:
    terms = samples.terms()
    names = tuple(f"class {i}" for i in range(len(terms.reference)))
    assert replace(terms, classes=names).strata_names == names
    for wrong in (names[:1] * len(names), ("", *names[1:]), names[:1], (*names, "one more")):
        with pytest.raises(FieldError) as refused:
            replace(terms, classes=wrong)
        assert refused.value.field == "classes"


def test_there_are_as_many_strata_as_the_reference_has_shares() -> None:
    terms = samples.terms()
    edges = tuple(map(Decimal, range(len(terms.reference))))
    assert replace(terms, strata=Quantiles("target", edges[1:])).strata.count == len(terms.reference)
    with pytest.raises(FieldError) as refused:
        replace(terms, strata=Quantiles("target", edges))
    assert refused.value.field == "strata"


@pytest.mark.parametrize("penalty", ["NaN", "Infinity", "1e-31", "1e31"])
def test_a_claim_penalty_that_no_record_gives_is_refused_too(penalty: str) -> None:
    with pytest.raises(FieldError, match="claim_penalty"):
        Rule(claim_penalty=Decimal(penalty))
