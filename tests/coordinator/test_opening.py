from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest

from coordinator.config import TaskConfig
from coordinator.errors import MarketTaskError
from coordinator.opening import coefficient, prepare_task
from mechanism.degree import reference_distribution
from mechanism.errors import FieldError
from mechanism.game import Game
from mechanism.gap_bound import GapBound
from mechanism.learner import Learner, best_offer, offer
from mechanism.payment import Log
from mechanism.population import population
from mechanism.settlement import least_fee_of

PARTICIPANTS = [{"delta0": 0.8, "rate": 1.0, "cost": cost} for cost in (0.3, 0.5, 0.7, 0.9)]


def task(**changes: Any) -> TaskConfig:
    return TaskConfig.model_validate(
        {
            "id": "t",
            "Q": "best",
            "phi": 300,
            "upsilon": 200,
            "schedule": {"rounds": 5, "capacity": 4},
            "recipe": {"model": "digits-cnn", "samples": 100},
            "plan": {
                "participants": PARTICIPANTS,
                "learner": {"omega": 1, "gamma": 5, "reward": 800},
            },
            **changes,
        }
    )


def test_the_best_coefficient_is_the_learners_optimum_rounded_up() -> None:
    people = population(PARTICIPANTS)
    game = Game(Log(), 200.0, GapBound(300.0, 200.0), people.effort, people.cost)
    wanted = best_offer(game, Learner(omega=1, gamma=5, reward=800, rounds=5)).Q
    assert 0 <= float(coefficient(task())) - wanted <= 1.1e-6


def test_who_is_meant_to_take_part_does_not_lose_at_the_best_coefficient() -> None:
    people = population(PARTICIPANTS)
    game = Game(Log(), float(coefficient(task())), GapBound(300.0, 200.0), people.effort, people.cost)
    at_it = offer(game, Learner(omega=1, gamma=5, reward=800, rounds=5))
    assert (at_it.slack >= 0).all()


def test_a_number_is_taken_as_it_stands() -> None:
    assert coefficient(task(Q="2000.5", plan=None)) == Decimal("2000.5")


def test_best_without_a_plan_and_a_plan_beside_a_number_are_refused() -> None:
    with pytest.raises(FieldError, match=r"\[plan\] section"):
        coefficient(task(plan=None))
    with pytest.raises(FieldError, match="no plan with a number for Q"):
        coefficient(task(Q=2000))


def test_a_plan_out_of_range_is_refused_by_its_field() -> None:
    plan = {"participants": [{"delta0": 2.0, "rate": 1.0, "cost": 1.0}] * 3, "learner": {"omega": 1}}
    with pytest.raises(FieldError):
        coefficient(task(plan=plan))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"Q": "much"}, 'a number above 0, or "best"'),
        ({"Q": "nan"}, 'a number above 0, or "best"'),
        ({"Q": True}, 'a number above 0, or "best"'),
    ],
)
def test_a_coefficient_that_is_none_is_refused_in_one_sentence(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        task(plan=None, **changes)


@pytest.mark.parametrize(
    ("patterns", "said"),
    [
        (
            ["output.wieght"],
            "averaged is 'output.wieght'; expected a pattern of these tensors: conv1.bias, ",
        ),
        (["*"], "expected patterns that leave fedadam a tensor to step"),
    ],
)
def test_patterns_that_match_nothing_or_everything_are_refused(patterns: list[str], said: str) -> None:
    asked = {"name": "fedadam", "averaged": patterns}
    config = task(Q=2000, plan=None, rule={"name": "paper"}, reference=["1/10"] * 10, aggregation=asked)
    with pytest.raises(FieldError) as refusal:
        prepare_task(config, 0.0)
    assert said in str(refusal.value)


@pytest.mark.parametrize(
    ("rule", "peers"),
    [
        ({"name": "verified"}, 3),
        ({"name": "paper"}, 1),
        ({"name": "shapley"}, 1),
        ({"name": "verified", "peers": 1}, 1),
        ({"name": "verified", "peers": "all"}, 3),
        ({"name": "paper", "peers": "all"}, 3),
        ({"name": "verified", "peers": 2}, 2),
    ],
)
def test_a_rule_draws_as_many_peers_as_it_should_or_as_its_name_asks(
    rule: dict[str, Any], peers: int
) -> None:
    assert task(rule=rule).rule.rule(capacity=4).peers == peers


@pytest.mark.parametrize("peers", [0, -1, 2.0, True, "some", "3"])
def test_a_number_of_peers_that_is_none_is_refused_in_one_sentence(peers: Any) -> None:
    with pytest.raises(ValueError, match='a whole number of at least 1, or "all"'):
        task(rule={"peers": peers})


def test_more_peers_than_there_can_be_others_are_refused_at_once() -> None:
    places = task(Q=2000, plan=None, rule={"name": "paper"}).schedule.capacity
    with pytest.raises(FieldError, match=rf'rule\.peers.*at most {places - 1}.*or "all"'):
        prepare_task(task(Q=2000, plan=None, rule={"name": "paper", "peers": places}), 0.0)


def test_a_price_at_which_a_whole_budget_buys_nothing_is_refused() -> None:
    given = {"Q": 2000, "plan": None, "rule": {"name": "paper"}, "reference": ["1/10"] * 10}
    with pytest.raises(FieldError, match=r"price\.credit.*less than the smallest amount.*0\.01 EUR"):
        prepare_task(task(**given, price={"credit": "1e-20", "currency": "EUR"}), 0.0)
    assert prepare_task(task(**given, price={"credit": "1e-3", "currency": "EUR"}), 0.0).row.terms.price


def test_a_fee_that_is_left_out_is_the_least_at_which_no_split_gains() -> None:
    digits = {"Q": 2000, "plan": None, "data": {"dataset": "digits"}}
    for rule, fee in (({}, None), ({"fee": "0.5"}, "0.5"), ({"fee": 0}, "0"), ({"name": "shapley"}, "0")):
        terms = prepare_task(task(**digits, rule=rule), 0.0).row.terms
        assert terms.rule.fee == (least_fee_of(terms) if fee is None else Decimal(fee))
    wider = prepare_task(task(**digits, rule={"whole_from": "0.7"}), 0.0).row.terms
    assert wider.rule.fee == least_fee_of(wider) > Decimal("1.7")  # 0.3 / 0.4 of ln 10


def test_terms_say_whether_anything_is_drawn() -> None:
    config = task(Q=2000, plan=None, rule={"name": "paper", "peers": "all"}, reference=["1/10"] * 10)
    terms = prepare_task(config, 0.0).row.terms
    assert terms.all_peers
    assert "peers      all;" in str(terms)
    assert "peers      2;" in str(replace(terms, rule=replace(terms.rule, peers=2)))


def test_a_reference_of_decimals_is_exact() -> None:
    config = task(reference=[0.1] * 10)
    assert reference_distribution(config.reference or []) == (Fraction(1, 10),) * 10


def test_a_task_that_could_pay_nobody_is_refused() -> None:
    with pytest.raises(FieldError, match="pays nobody"):
        prepare_task(task(Q=200, plan=None, rule={"name": "paper"}, reference=["1/2", "1/2"]), 0.0)


def test_an_architecture_that_cannot_read_the_learners_images_is_refused() -> None:
    recipe = {"model": "fashion-mnist-cnn", "samples": 100}
    with pytest.raises(MarketTaskError, match="name the architecture of that data set"):
        prepare_task(task(Q=2000, plan=None, recipe=recipe, data={"dataset": "digits"}), 0.0)
