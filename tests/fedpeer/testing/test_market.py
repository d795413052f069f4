"""Markets for other people's tests: everything real, the clock and the faults the test's."""

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpeer.testing import LocalMarket, MarketTestError
from participant import Task, TaskError, Trained, TrainingRound, Weights
from participant.adapters.numpy import SoftmaxRegression

Make = Callable[..., LocalMarket]


class Ward(Task):
    """Three kinds of scans, the first the more of them the higher the number; effort evens them out."""

    def __init__(self, participant: int = 0) -> None:
        self.excess = 30 * participant
        self.number = participant

    def start_weights(self) -> dict[str, Any]:
        return {"w": np.zeros((3, 2), np.float32)}

    def label_counts(self) -> list[int]:
        return [30 + self.excess, 30, 30]

    def train(self, weights: Weights, round: TrainingRound) -> Trained:  # noqa: A002 - as Task.train
        return Trained({"w": weights["w"] + np.float32(1 + self.number)})


def test_everybody_is_paid_and_the_ledger_holds(fedpeer_market: Make) -> None:
    market = fedpeer_market(Ward, participants=["north", "south", "west"], effort=0.0)
    reports = market.run()
    assert market.state == "CLOSED"
    assert {name: report.paid_micro for name, report in reports.items()} == market.paid_micro
    assert reports["north"].claimed_degree == 0
    assert min(market.paid_micro.values()) > 0
    assert len(market.entries("payment")) == 6
    report = market.verify()
    assert report.balances["payable:north"].holds == market.paid_micro["north"]


def test_the_same_seed_pays_the_same() -> None:
    def paid() -> dict[str, int]:
        with LocalMarket(Ward, participants=4, rounds=1, effort=0.5) as market:
            market.run()
            return market.paid_micro

    assert paid() == paid()


def test_who_dies_is_not_paid_and_the_round_closes_at_its_deadline(fedpeer_market: Make) -> None:
    market = fedpeer_market(participants=4, effort=0.0)
    market.participants["p2"].dies(round=2)
    before = market.coordinator.clock.now()
    reports = market.run()
    assert market.coordinator.clock.now() == before + 600
    assert market.state == "CLOSED"
    assert market.participants["p2"].dead
    assert reports["p2"].state != "CLOSED"
    paid = {(p["participant_id"], p["round"]): p["paid_micro"] for p in market.entries("payment")}
    assert paid["p2", 1] > 0
    assert paid["p2", 2] == 0
    assert paid["p1", 2] > 0
    market.verify()


def test_who_comes_back_in_time_is_paid(fedpeer_market: Make) -> None:
    market = fedpeer_market(participants=3, rounds=1, effort=0.0)
    market.participants["p3"].dies(round=1)
    market.start()
    market.participants["p3"].until_dead()
    market.participants["p3"].comes_back()
    assert min(report.paid_micro for report in market.finish().values()) > 0


def test_who_dies_before_the_claim_is_not_waited_for_after_it(fedpeer_market: Make) -> None:
    market = fedpeer_market(participants=4, effort=0.0)
    market.participants["p4"].dies(round=0)
    market.run()
    assert market.state == "CLOSED"
    assert [claim["statement"]["participant_id"] for claim in market.entries("claim")].count("p4") == 0


def test_with_fewer_than_the_quorum_the_task_is_cancelled(fedpeer_market: Make) -> None:
    market = fedpeer_market(participants=3, effort=0.0)
    market.participants["p1"].dies(round=1)
    reports = market.run()
    assert market.state == "CANCELLED"
    assert reports["p2"].paid_micro == 0
    assert "fewer than the quorum" in reports["p2"].note
    market.verify()


def test_a_late_model_is_recorded_and_not_scored(fedpeer_market: Make) -> None:
    market = fedpeer_market(participants=4, effort=0.0)
    market.participants["p4"].is_late(round=1)
    reports = market.run()
    receipt = reports["p4"].rounds[0].receipt
    assert receipt is not None
    assert receipt.late
    assert reports["p4"].rounds[0].settlement is not None
    assert reports["p4"].rounds[0].settlement.paid_micro == 0
    assert reports["p4"].rounds[1].settlement is not None
    assert reports["p4"].rounds[1].settlement.paid_micro > 0
    market.verify()


def test_garbage_is_refused_and_the_others_go_on(fedpeer_market: Make) -> None:
    market = fedpeer_market(participants=4, effort=0.0)
    market.participants["p2"].sends_garbage(round=1)
    reports = market.run()
    assert reports["p2"].rounds[0].missed
    assert reports["p2"].rounds[0].receipt is None
    assert market.state == "CLOSED"
    rounds = [entry["statement"]["round"] for entry in market.entries("model")]
    assert sorted(rounds) == [1, 1, 1, 2, 2, 2, 2]
    market.verify()


def test_the_coordinator_restarts_in_the_middle(fedpeer_market: Make) -> None:
    market = fedpeer_market(participants=3, effort=0.0)
    restarted: list[int] = []

    class Restarting(Ward):
        def train(self, weights: Weights, round: TrainingRound) -> Trained:  # noqa: A002 - as Task.train
            if self.number == 0 and round.number == 1:
                running.restart()
                restarted.append(round.number)
            return super().train(weights, round)

    running = fedpeer_market(Restarting, participants=3, effort=0.0)
    reports = running.run()
    assert restarted == [1]
    assert min(report.paid_micro for report in reports.values()) > 0
    running.verify()
    assert market.state != "CLOSED", "markets are apart"


def test_the_test_moves_the_clock(fedpeer_market: Make) -> None:
    market = fedpeer_market(terms={"schedule": {"effort_seconds": 3600}})
    assert market.until("EFFORT") == "EFFORT"
    market.advance(3599)
    assert market.state == "EFFORT"
    market.advance(1)
    assert market.until("SELECTED", "CANCELLED") == "CANCELLED"
    with pytest.raises(MarketTestError, match=r"ended without TRAINING.*no claim came in"):
        market.until("TRAINING")


def test_waiting_in_vain_says_how_the_task_stands(fedpeer_market: Make) -> None:
    market = fedpeer_market()
    with pytest.raises(MarketTestError, match=r"did not come to CLOSED in 0.1 s; it is EFFORT in round 0"):
        market.until("CLOSED", patience=0.1)


async def test_it_works_beside_a_running_loop(tmp_path: Path) -> None:
    async with LocalMarket(participants=3, rounds=1, folder=tmp_path) as market:
        reports = await asyncio.to_thread(market.run)
        assert Counter(report.state for report in reports.values()) == {"CLOSED": 3}


def test_playing_without_patience_says_how_the_task_stands(fedpeer_market: Make) -> None:
    with pytest.raises(MarketTestError, match="nothing has happened for 0 s; it is"):
        fedpeer_market(participants=3, rounds=1).run(patience=0)


def test_an_adapter_brings_its_own_start(fedpeer_market: Make) -> None:
    inputs, labels = np.random.default_rng(0).normal(size=(30, 2)), np.arange(30) % 3
    reports = fedpeer_market(SoftmaxRegression(inputs, labels, classes=3), rounds=1).run()
    assert {report.state for report in reports.values()} == {"CLOSED"}


def test_what_a_participant_raises_is_raised(fedpeer_market: Make) -> None:
    class Refusing(Ward):
        def prepare(self, terms: Any) -> None:
            if self.number == 1:
                raise ValueError("not with us")

    with pytest.raises(TaskError, match="not with us"):
        fedpeer_market(Refusing).run()


class NoStart(Task):
    def label_counts(self) -> list[int]:
        return [1, 1]

    def train(self, weights: Weights, round: TrainingRound) -> Weights:  # noqa: A002 - as Task.train
        return weights


class Uncounted(Ward):
    def label_counts(self) -> Any:
        return (number for number in (5, 5))


class Mapped(Ward):
    def label_counts(self) -> Any:
        return {"0": 5}


def broken() -> Task:
    raise ZeroDivisionError("by zero")


def leaving() -> Task:
    raise SystemExit(3)


@pytest.mark.parametrize(
    ("arguments", "options", "sentence"),
    [
        ((Ward, 2), {}, "there are 2 participants; expected at least 3"),
        ((Ward, ["a", "b", "a"]), {}, "expected each name once"),
        ((NoStart,), {}, "no model to begin with: give NoStart a method start_weights"),
        ((broken,), {}, "the task broken of p1 could not be made: ZeroDivisionError: by zero"),
        ((leaving,), {}, "the task leaving of p1 could not be made: SystemExit: 3"),
        ((Uncounted,), {}, "is not known: Uncounted.label_counts gives no list of them yet: TypeError: "),
        ((Mapped,), {}, "is not known: Mapped.label_counts is a mapping, .* give the terms a reference"),
        ((dict,), {}, "dict makes a dict; expected a Task"),
        ((7,), {}, "the task is 7, an int; expected a Task"),
        (([Ward, Ward],), {}, "there are 2 tasks for 3 participants"),
        ((Ward,), {"terms": {"schedule": {"quorum": 5}}}, "the quorum is 5, and there are 3 participants"),
    ],
)
def test_a_mistake_is_one_sentence(
    arguments: tuple[Any, ...], options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(MarketTestError, match=sentence):
        LocalMarket(*arguments, **options)


def test_expected_pay_is_the_mean_over_all_draws(fedpeer_market: Make) -> None:
    """Where all others are drawn as peers, every draw gives it, but for the last unit of the rounding."""
    market = fedpeer_market(Ward, 3, rounds=2, terms={"rule": {"peers": 2}})
    market.run()
    assert all(abs(market.paid_micro[name] - micro) <= 2 for name, micro in market.expected_micro.items())
    assert min(market.expected_micro.values()) > 0


def test_no_folder_and_no_thread_is_left() -> None:
    import threading

    before = threading.active_count()
    with LocalMarket(rounds=1) as market:
        folder = market.folder
        market.participants["p1"].dies(round=1)
        market.start()
        market.participants["p1"].until_dead()
    assert not folder.exists()
    assert threading.active_count() <= before + 1
