"""What participants may vary of a recipe."""

from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mechanism.errors import FieldError
from mechanism.privacy import Privacy
from mechanism.terms import Recipe, Terms
from mechanism.variation import Allowed, Choices, Numbers, asked_beyond, kept, ranges, varied
from tests.participant.simulated_market import terms

RECIPE = Recipe("custom", 5, 20, "adam", Decimal("0.004"), 50)
ALLOWED = Allowed(
    batch_factor=Decimal(2),
    epochs=1,
    learning_rate=Decimal("0.25"),
    weight_decay=Decimal("0.01"),
    label_smoothing=Decimal("0.1"),
    proximal=Decimal("0.02"),
    augmentation=True,
    precision=("bfloat16", "float64"),
)
WIDE = replace(RECIPE, allowed=ALLOWED)


def test_nothing_varies_that_terms_do_not_allow() -> None:
    assert varied(RECIPE) == {}
    assert kept(RECIPE, {"epochs": 5, "learning_rate": Decimal("0.004")}) == (RECIPE, ())
    made, said = kept(RECIPE, {"epochs": 6, "augmentation": "light"})
    assert made == RECIPE
    assert said == (
        "epochs 6 is not what the task's recipe allows (5): 5 is used in its place",
        "augmentation light is not what the task's recipe allows (none): none is used in its place",
    )


def test_ranges_are_around_the_recipe() -> None:
    found = varied(WIDE)
    assert found == {
        "epochs": Numbers(Decimal(4), Decimal(6), whole=True),
        "batch_size": Numbers(Decimal(10), Decimal(40), whole=True),
        "learning_rate": Numbers(Decimal("0.003"), Decimal("0.005")),
        "weight_decay": Numbers(Decimal(0), Decimal("0.01")),
        "label_smoothing": Numbers(Decimal(0), Decimal("0.1")),
        "proximal": Numbers(Decimal(0), Decimal("0.02")),
        "augmentation": Choices(("none", "light")),
        "precision": Choices(("tensors", "bfloat16", "float64")),
    }


def test_a_range_never_leaves_what_can_be_trained() -> None:
    small = replace(RECIPE, epochs=1, batch_size=3, allowed=Allowed(batch_factor=Decimal(4), epochs=3))
    assert ranges(small)["epochs"] == Numbers(Decimal(1), Decimal(4), whole=True)
    assert ranges(small)["batch_size"] == Numbers(Decimal(2), Decimal(12), whole=True)
    odd = replace(RECIPE, batch_size=21, allowed=Allowed(batch_factor=Decimal("1.9")))
    assert ranges(odd)["batch_size"] == Numbers(Decimal(12), Decimal(39), whole=True)
    long = replace(RECIPE, learning_rate=Decimal("0." + "1" * 30), allowed=ALLOWED)
    assert kept(long, {"learning_rate": Decimal(1)})[0].learning_rate > long.learning_rate


def test_wishes_within_the_ranges_are_followed() -> None:
    wishes = {"epochs": 4, "batch_size": 30, "label_smoothing": Decimal("0.05"), "precision": "float64"}
    made, said = kept(WIDE, wishes)
    assert said == ()
    assert made == replace(WIDE, **wishes)


def test_wishes_beyond_them_are_followed_as_nearly_as_they_allow() -> None:
    made, said = kept(WIDE, {"batch_size": 64, "learning_rate": Decimal("0.001"), "momentum": Decimal("0.5")})
    assert (made.batch_size, made.learning_rate, made.momentum) == (40, Decimal("0.003"), Decimal("0.9"))
    assert said == (
        "batch_size 64 is not what the task's recipe allows (10 to 40): 40 is used in its place",
        "learning_rate 0.001 is not what the task's recipe allows (0.003 to 0.005): 0.003 is used in its place",
        "momentum 0.5 is not what the task's recipe allows (0.9): 0.9 is used in its place",
    )


@pytest.mark.parametrize("wish", [{"samples": 9}, {"epoch": 3}, {"epochs": "five"}, {"augmentation": 1}])
def test_a_wish_is_for_a_part_of_a_recipe(wish: dict[str, Any]) -> None:
    with pytest.raises(FieldError, match=r"recipe\."):
        kept(WIDE, wish)


def test_what_is_accounted_does_not_vary() -> None:
    private = replace(WIDE, privacy=Privacy("dp-sgd", Decimal(1), Decimal(1), Decimal("0.001")))
    assert {"epochs", "batch_size"} & varied(private).keys() == set()
    noisy = replace(WIDE, privacy=Privacy("update", Decimal(1), Decimal(1), Decimal("0.001")))
    assert {"epochs", "batch_size"} <= varied(noisy).keys()


@given(
    st.integers(1, 200), st.decimals(Decimal("0.001"), 1, places=3), st.sampled_from(["epochs", "batch_size"])
)
def test_what_is_kept_is_within_the_range_and_kept_again(number: int, rate: Decimal, name: str) -> None:
    made, said = kept(WIDE, {name: number, "learning_rate": rate})
    for part in (name, "learning_rate"):
        range_ = ranges(WIDE)[part]
        assert isinstance(range_, Numbers)
        assert range_.low <= getattr(made, part) <= range_.high
    wished = {name: number, "learning_rate": rate}
    assert len(said) == sum(getattr(made, part) != wish for part, wish in wished.items())
    assert kept(WIDE, {name: getattr(made, name), "learning_rate": made.learning_rate}) == (made, ())


def test_terms_have_one_record_with_what_may_vary_and_say_it() -> None:
    recipe = replace(WIDE, momentum=Decimal("0.8"), weight_decay=Decimal("0.001"), precision="float64")
    wide = replace(terms(), recipe=recipe)
    record = wide.record()["recipe"]
    assert record["allowed"] == {
        "batch_factor": "2", "epochs": 1, "learning_rate": "0.25", "weight_decay": "0.01", "label_smoothing": "0.1",
        "proximal": "0.02", "augmentation": True, "precision": ["bfloat16", "float64"],
    }  # fmt: skip
    assert (record["momentum"], record["weight_decay"], record["precision"]) == ("0.8", "0.001", "float64")
    assert not record.keys() & {"beta2", "epsilon", "label_smoothing", "augmentation"}
    assert Terms.parse(wide.canonical) == wide
    shown = str(wide)
    assert (
        "beta1 0.8, beta2 0.999, epsilon 0.00000001, samples 50, weight decay 0.001, precision float64"
        in shown
    )
    assert (
        "may vary   batches by a factor of 2, epochs by 1, learning rate by 25.00 %, weight decay to 0.01, label "
        "smoothing to 0.1, proximal to 0.02, light augmentation, precision bfloat16 or float64"
    ) in shown


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("batch_factor", Decimal("0.5")),
        ("batch_factor", Decimal(65)),
        ("epochs", -1),
        ("epochs", True),
        ("epochs", 1001),
        ("learning_rate", Decimal(1)),
        ("learning_rate", Decimal("-0.1")),
        ("label_smoothing", Decimal(1)),
        ("weight_decay", Decimal(-1)),
        ("proximal", Decimal("NaN")),
        ("precision", ("float8",)),
        ("precision", ("float64", "bfloat16")),
    ],
)
def test_ranges_have_ends(name: str, value: Any) -> None:
    with pytest.raises(FieldError, match=rf"allowed\.{name}"):
        replace(ALLOWED, **{name: value})


def test_a_section_allows_something() -> None:
    with pytest.raises(FieldError, match="allowed is 'nothing'"):
        Allowed()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("momentum", Decimal(1)),
        ("beta2", Decimal("-0.1")),
        ("epsilon", Decimal(0)),
        ("weight_decay", Decimal(-1)),
        ("label_smoothing", Decimal("1.5")),
        ("augmentation", "heavy"),
        ("precision", "float8"),
    ],
)
def test_parts_of_a_recipe_have_ranges(name: str, value: Any) -> None:
    with pytest.raises(FieldError, match=rf"recipe\.{name}"):
        replace(RECIPE, **{name: value})


def test_sgd_has_neither_a_second_beta_nor_an_epsilon() -> None:
    replace(RECIPE, optimizer="sgd", momentum=Decimal(0))
    for name in ("beta2", "epsilon"):
        with pytest.raises(FieldError, match=rf"recipe\.{name}"):
            replace(RECIPE, optimizer="sgd", **{name: Decimal("0.5")})


def test_what_a_training_does_not_look_at_is_named() -> None:
    asked = replace(RECIPE, weight_decay=Decimal("0.1"), augmentation="light", epochs=9)
    assert asked_beyond(asked, {"epochs"}) == ["augmentation", "weight_decay"]
    assert asked_beyond(asked, {"augmentation", "weight_decay"}) == []
