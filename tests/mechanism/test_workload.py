"""What terms say of a workload and its samples: one record of each value, and every other refused by name."""

from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from mechanism.canonical import canonical_bytes
from mechanism.errors import FieldError
from mechanism.terms import Terms
from mechanism.workload import (
    MAX_OPTIONS,
    MAX_STRATA,
    ArrayForm,
    Column,
    Columns,
    Labels,
    Quantiles,
    Source,
    SourceFile,
    Strata,
    options_text,
    source_of,
)
from tests import ledger_samples as samples

OPTIONAL = ("strata", "classes", "columns", "arrays")


@pytest.mark.parametrize("strata", samples.STRATA, ids=lambda strata: strata.name)
def test_terms_come_back_from_their_bytes(strata: Strata) -> None:
    terms = samples.brought(strata)
    assert Terms.parse(canonical_bytes(terms.record())) == terms
    assert len(terms.strata_names) == 2


def test_what_a_task_does_without_is_not_written() -> None:
    terms = samples.terms()
    assert not {*OPTIONAL, "source"} & {*terms.record(), *terms.record()["recipe"]}
    for key, value in (("strata", {"name": "labels"}), ("classes", []), ("columns", None)):
        with pytest.raises(FieldError, match="the default") as refused:
            Terms.from_record({**terms.record(), key: value})
        assert refused.value.field == key


def test_strata_have_names() -> None:
    names = [samples.brought(strata).strata_names for strata in samples.STRATA]
    assert names == [("late", "on time"), ("below -0.5", "from -0.5"), ("AA", "B6"), ("north", "south")]
    assert samples.terms().strata_names == ("0", "1")
    close = Quantiles("target", (Decimal("1000001.25"), Decimal("1000002"), Decimal("1000003")))
    assert close.names(4) == (
        "below 1000001",
        "[1000001, 1000002)",
        "[1000002, 1000003)",
        "from 1000003",
    )
    shown = str(samples.brought(samples.STRATA[2]))
    assert "strata     column: AA, B6" in shown
    assert "shop.models:make" in shown


def test_options_travel_as_one_text() -> None:
    options = {"hidden": [64], "dropout": 0.1, "name": "é", "deep": {"b": None, "a": True}}
    source = source_of(options, {"m.py": "00" * 32})
    assert source.options == '{"deep":{"a":true,"b":null},"dropout":0.1,"hidden":[64],"name":"\\u00e9"}'
    assert source.keywords == options
    assert source.digests == {"m.py": "00" * 32}
    for wrong in ({"x": float("nan")}, {"x": {1}}):
        with pytest.raises(FieldError, match="values that JSON has"):
            options_text(wrong)


FILE = SourceFile("m.py", bytes(32))


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: Source("{}", ()), "files"),
        (lambda: Source("{}", (FILE, FILE)), "files"),
        (lambda: Source('{"a": 1}', (FILE,)), "options"),
        (lambda: Source("[]", (FILE,)), "options"),
        (lambda: Source("[" * 5_000, (FILE,)), "options"),
        (lambda: Source('{"a":"' + "b" * MAX_OPTIONS + '"}', (FILE,)), "options"),
        (lambda: SourceFile("a\x1b[2J", bytes(32)), "files.name"),
        (lambda: SourceFile("m.py", bytes(31)), "files[m.py].sha256"),
        (lambda: Columns((), "y", "array"), "columns.inputs"),
        (lambda: Columns(("a", "a"), "y", "array"), "columns.inputs"),
        (lambda: Columns(("a", "y"), "y", "array"), "columns.target"),
        (lambda: Columns(("a",), "y", "matrix"), "columns.layout"),
        (lambda: ArrayForm("input", "int64", ()), "arrays.name"),
        (lambda: ArrayForm("inputs.", "int64", ()), "arrays.name"),
        (lambda: ArrayForm("inputs", "complex64", ()), "arrays[inputs].dtype"),
        (lambda: ArrayForm("inputs", "int64", (-1,)), "arrays[inputs].shape"),
        (lambda: Quantiles("target", ()), "strata.edges"),
        (lambda: Quantiles("target", (Decimal(2), Decimal(1))), "strata.edges"),
        (lambda: Column("c", ("one",)), "strata.values"),
        (lambda: Column("c", tuple(map(str, range(MAX_STRATA + 1)))), "strata.values"),
    ],
)
def test_what_is_out_of_its_range_is_refused_by_name(make: Any, field: str) -> None:
    with pytest.raises(FieldError) as refused:
        make()
    assert refused.value.field == field


def test_terms_agree_with_themselves() -> None:
    terms = samples.brought(Labels())
    source, columns, (one, targets) = terms.recipe.source, terms.columns, terms.arrays
    assert columns is not None
    many = tuple(ArrayForm(f"inputs.{name}", "text", ()) for name in columns.inputs)
    for change, field in (
        ({"classes": ("a", "b", "c")}, "classes"),
        ({"strata": Column("c", ("a", "b", "c"))}, "strata"),
        ({"strata": Quantiles("target", (Decimal(1), Decimal(2)))}, "strata"),
        ({"arrays": (one, many[0], targets)}, "arrays"),
        ({"arrays": (one, one, targets)}, "arrays"),
        ({"arrays": (targets, one)}, "arrays"),
        ({"arrays": (one,)}, "arrays"),
        ({"arrays": (*many, targets)}, "arrays"),
        ({"arrays": (one, targets), "columns": replace(columns, layout="named")}, "arrays"),
        ({"arrays": (*many[::-1], targets), "columns": replace(columns, layout="named")}, "arrays"),
    ):
        with pytest.raises(FieldError) as refused:
            replace(terms, **change)
        assert refused.value.field == field
    for model, held in (("digits-cnn", source), ("shop.models:make", None)):
        with pytest.raises(FieldError, match=r"recipe\.source"):
            replace(terms.recipe, model=model, source=held)
    for model in ("shop models:make", "shop:", ":make", "shop:a:b", "a" * 300):
        with pytest.raises(FieldError, match=r"recipe\.model"):
            replace(terms.recipe, model=model, source=source)
    replace(terms, arrays=(*many, targets), columns=replace(columns, layout="named"))
    # Other strata than the labels leave the classes free.
    replace(terms, strata=Column("c", ("x", "y")), classes=("a", "b", "c"))
