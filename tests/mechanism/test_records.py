"""Records: one of each value, and every other refused by the path to what is wrong."""

from copy import deepcopy
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mechanism.canonical import canonical_bytes, parse_canonical
from mechanism.errors import FieldError
from mechanism.payment import Linear, Log, Log1p, Power
from mechanism.records import MAX_NUMBER_CHARACTERS
from mechanism.server_step import FedAdam, FedAvg, FedAvgM, FedYogi
from mechanism.terms import (
    MAX_LABELS,
    MAX_TENSORS,
    ModelContract,
    Recipe,
    Rule,
    Schedule,
    TensorSpec,
    Terms,
)

decimals = st.decimals(min_value="0.000001", max_value=1_000_000, places=6)
digests = st.binary(min_size=32, max_size=32)
identifiers = st.from_regex(r"[a-z0-9]([a-z0-9._-]{0,20}[a-z0-9])?", fullmatch=True)
payments = st.one_of(
    st.builds(Log, decimals),
    st.builds(Log1p, decimals),
    st.builds(Linear, decimals),
    st.builds(Power, decimals, st.decimals(min_value="0.01", max_value=1, places=2)),
)

shares = st.decimals(min_value=0, max_value="0.999", places=3)
patterns = st.sets(st.text(min_size=1, max_size=8), max_size=3).map(lambda found: tuple(sorted(found)))
aggregations = st.one_of(
    st.just(FedAvg()),
    st.builds(FedAvgM, decimals, shares, averaged=patterns),
    st.builds(FedAdam, decimals, shares, shares, decimals, averaged=patterns),
    st.builds(FedYogi, decimals, shares, shares, decimals, averaged=patterns),
)

#: No value twice, so that none can stand in another's place.
TERMS = Terms(
    task_id="task-7",
    reference=(Fraction(1, 7), Fraction(2, 7), Fraction(4, 7)),
    Q=Decimal("2000.5"),
    phi=Decimal("300.25"),
    upsilon=Decimal("200.125"),
    payment=Power(Decimal("1.5"), Decimal("0.75")),
    rule=Rule("paper", 2, Decimal("0.5"), 150_000, Decimal("0.75")),
    schedule=Schedule(9, 4, 12, 61, 62, 63),
    contract=ModelContract((TensorSpec("b", "I64", (5,)), TensorSpec("w", "F32", (3, 4))), Decimal("17.5"), 90_000),
    recipe=Recipe("digits-cnn", 6, 32, "adam", Decimal("0.003"), 120, Decimal("0.01")),
    budget_micro=123_456_789,
    seed_commitment=b"s" * 32,
    validation_commitment=b"v" * 32,
    initial_model=b"i" * 32,
    aggregation=FedAdam(Decimal("0.02"), Decimal("0.8"), Decimal("0.95"), Decimal("0.004"), averaged=("*var",)),
)  # fmt: skip

RECORD: dict[str, Any] = {
    "task_id": "task-7",
    "reference": ["1/7", "2/7", "4/7"],
    "q": "2000.5",
    "phi": "300.25",
    "upsilon": "200.125",
    "payment": {"name": "power", "scale": "1.5", "exponent": "0.75"},
    "rule": {
        "name": "paper",
        "peers": 2,
        "claim_penalty": "0.5",
        "stake_micro": 150_000,
        "fee": "0.75",
        "whole_from": "0.85",
    },
    "schedule": {
        "rounds": 9,
        "quorum": 4,
        "capacity": 12,
        "effort_seconds": 61,
        "round_seconds": 62,
        "dispute_seconds": 63,
    },
    "contract": {
        "tensors": [
            {"name": "b", "dtype": "I64", "shape": [5]},
            {"name": "w", "dtype": "F32", "shape": [3, 4]},
        ],
        "max_norm": "17.5",
        "max_bytes": 90_000,
    },
    "recipe": {
        "model": "digits-cnn",
        "epochs": 6,
        "batch_size": 32,
        "optimizer": "adam",
        "learning_rate": "0.003",
        "samples": 120,
        "proximal": "0.01",
    },
    "aggregation": {
        "name": "fedadam",
        "rate": "0.02",
        "beta1": "0.8",
        "beta2": "0.95",
        "tau": "0.004",
        "averaged": ["*var"],
    },
    "budget_micro": 123_456_789,
    "seed_commitment": "73" * 32,
    "validation_commitment": "76" * 32,
    "initial_model": "69" * 32,
}


def changed(path: str, value: Any) -> dict[str, Any]:
    """The record with another value at a path such as `rule.peers`."""
    record = deepcopy(RECORD)
    place: Any = record
    *outer, last = path.split(".")
    for name in outer:
        place = place[int(name)] if isinstance(place, list) else place[name]
    place[int(last) if isinstance(place, list) else last] = value
    return record


@st.composite
def terms(draw: st.DrawFn) -> Terms:
    weights = draw(st.lists(st.integers(1, 50), min_size=2, max_size=12))
    names = draw(st.sets(st.text(min_size=1, max_size=8, alphabet="abcxyz.0123é"), min_size=1, max_size=4))
    specs = tuple(TensorSpec(n, draw(st.sampled_from(["F32", "I64"])), (2, 3)) for n in sorted(names))
    quorum = draw(st.integers(3, 10))
    return Terms(
        task_id=draw(identifiers),
        reference=tuple(Fraction(w, sum(weights)) for w in weights),
        Q=draw(decimals),
        phi=draw(decimals),
        upsilon=draw(decimals),
        payment=draw(payments),
        rule=Rule(draw(st.sampled_from(["verified", "paper"])), draw(st.integers(1, 5)), draw(decimals), 10),
        schedule=Schedule(draw(st.integers(1, 9)), quorum, quorum + draw(st.integers(0, 9)), 60, 60),
        contract=ModelContract(specs, draw(decimals), 10_000),
        recipe=Recipe("digits-cnn", 5, 32, "adam", draw(decimals), 120),
        budget_micro=draw(st.integers(0, 2**50)),
        seed_commitment=draw(digests),
        validation_commitment=draw(digests),
        initial_model=draw(digests),
        aggregation=draw(aggregations),
    )


@given(terms())
def test_terms_come_back_from_their_bytes_with_the_same_digest(original: Terms) -> None:
    parsed = Terms.parse(original.canonical)
    assert parsed == original
    assert parsed.record() == original.record()
    assert parsed.digest == original.digest
    assert canonical_bytes(parse_canonical(original.canonical)) == original.canonical


def test_terms_are_written_under_their_names() -> None:
    assert TERMS.record() == RECORD
    assert Terms.from_record(RECORD) == TERMS


@pytest.mark.parametrize("payment", [Log(), Linear(Decimal(2)), Power(Decimal(2), Decimal("0.5"))])
def test_every_payment_function_has_its_own_parameters(payment: Any) -> None:
    made = replace(TERMS, payment=payment)
    assert Terms.parse(made.canonical).payment == payment


@pytest.mark.parametrize(
    ("record", "field"),
    [
        ({}, "payment.name"),
        ("log", "payment"),
        ({"name": ["log"]}, "payment.name"),
        ({"name": "cubic"}, "payment.name"),
        ({"name": "log"}, "payment.scale"),
        ({"name": "log", "scale": "1", "exponent": "1"}, "payment.exponent"),
        ({"name": "linear"}, "payment.scale"),
        ({"name": "linear", "scale": "0"}, "payment.scale"),
        ({"name": "power", "scale": "1", "exponent": "1.5"}, "payment.exponent"),
        ({"name": "linear", "scale": 1}, "payment.scale"),
    ],
)
def test_a_payment_function_that_is_none_is_refused(record: Any, field: str) -> None:
    with pytest.raises(FieldError) as refused:
        Terms.from_record(changed("payment", record))
    assert refused.value.field == field


NUMBERS = [
    "q", "phi", "upsilon", "payment.scale", "payment.exponent", "rule.claim_penalty", "contract.max_norm",
    "recipe.learning_rate", "reference.0",
]  # fmt: skip


@pytest.mark.parametrize("path", NUMBERS)
@pytest.mark.parametrize(
    "value",
    [
        "much",
        "",
        "1" * (MAX_NUMBER_CHARACTERS + 1),
        "0.50",
        "+1",
        "1e1",
        "01",
        ".5",
        "NaN",
        "½",
        " 1",
        1,
        None,
        ["1"],
    ],
)
def test_a_number_in_another_notation_is_refused_under_its_own_name(path: str, value: Any) -> None:
    with pytest.raises(FieldError) as refused:
        Terms.from_record(changed(path, value))
    assert refused.value.field == path.replace(".0", "[0]")


@pytest.mark.parametrize("value", ["2/14", "0.25", "-0", "1/-7", "1/7 "])
def test_a_rational_in_another_notation_is_refused(value: str) -> None:
    with pytest.raises(FieldError) as refused:
        Terms.from_record(changed("reference.0", value))
    assert refused.value.field == "reference[0]"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("task_id", 7),
        ("rule.name", None),
        ("rule.peers", True),
        ("rule.peers", "2"),
        ("budget_micro", 1.0),
        ("reference", "1"),
        ("reference", {"0": "1"}),
        ("contract", []),
        ("contract.tensors", "w"),
        ("contract.tensors.1", ["w"]),
        ("contract.tensors.1.shape", 3),
        ("contract.tensors.1.shape.0", True),
        ("contract.tensors.1.dtype", []),
        ("seed_commitment", "AB" * 32),
        ("seed_commitment", "ab " * 32),
        ("seed_commitment", 5),
    ],
)
def test_a_value_of_another_type_is_refused_under_its_own_name(path: str, value: Any) -> None:
    with pytest.raises(FieldError) as refused:
        Terms.from_record(changed(path, value))
    assert refused.value.field == path.replace(".1", "[1]").replace(".0", "[0]")


def test_lists_are_read_up_to_their_limits_and_not_one_beyond() -> None:
    reference = [f"1/{MAX_LABELS}"] * MAX_LABELS
    assert len(Terms.from_record(changed("reference", reference)).reference) == MAX_LABELS
    tensors = [{"name": f"{i:05d}", "dtype": "BOOL", "shape": [0]} for i in range(MAX_TENSORS)]
    assert len(Terms.from_record(changed("contract.tensors", tensors)).contract.tensors) == MAX_TENSORS
    for read, field, most in (
        (lambda: Terms.from_record(changed("reference", [*reference, "0"])), "reference", MAX_LABELS),
        (
            lambda: Terms.from_record(changed("contract.tensors", [*tensors, tensors[0]])),
            "contract.tensors",
            MAX_TENSORS,
        ),
    ):
        with pytest.raises(FieldError, match=f"{most + 1} values.*at most {most}") as refused:
            read()
        assert refused.value.field == field


def test_a_number_may_have_so_many_characters_and_no_more() -> None:
    digits = "9" * (MAX_NUMBER_CHARACTERS - 2)
    with pytest.raises(FieldError, match="probabilities that sum to 1"):  # it is read
        Terms.from_record(changed("reference.0", f"1/{digits}"))
    with pytest.raises(FieldError, match=f"at most {MAX_NUMBER_CHARACTERS} characters"):
        Terms.from_record(changed("reference.0", f"1/{digits}9"))


def test_an_integer_that_no_record_holds_is_named() -> None:
    with pytest.raises(FieldError, match="53 bits") as refused:
        _ = replace(TERMS, rule=replace(TERMS.rule, peers=2**53)).canonical
    assert refused.value.field == "rule.peers"
