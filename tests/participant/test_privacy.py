"""Models with noise: what is sent, what it is accounted as, and when a round is refused."""

import math
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load

from mechanism.privacy import Gaussians, Privacy
from participant.accounting import Accountant, PrivacyLimit, epsilon_of, kept_spending
from participant.effort import Fixed
from participant.engagement import OwnerRules
from participant.errors import ConfigurationError, PrivacyLimitError, TaskError
from participant.journal import Journal
from participant.task import TrainingRound
from participant.work import LocalTrainer, ignore_activity, run_task
from tests.participant.simulated_market import (
    PARTICIPANT,
    Cats,
    Killed,
    SimulatedMarket,
    start_weights,
    terms,
)
from tests.participant.test_steps_under_faults import engage

pytest.importorskip("opacus")

DELTA = Decimal("0.00001")
UPDATE = Privacy("update", Decimal("0.5"), Decimal(8), DELTA)  # epsilon 1.0 or so, a round
DP_SGD = Privacy("dp-sgd", Decimal(1), Decimal(2), DELTA)


def private(privacy: Privacy, rounds: int = 2) -> SimulatedMarket:
    market = SimulatedMarket(rounds=rounds)
    market.terms = replace(market.terms, recipe=replace(market.terms.recipe, privacy=privacy))
    return market


def take_part(
    market: SimulatedMarket, folder: Path, rules: OwnerRules | None = None, task: Any = None
) -> Journal:
    """One process's life; the journal is left open for reading."""
    journal = Journal(folder / "journal.db")
    try:
        engagement = engage(market, folder, journal, rules)
        market.run(run_task(engagement, LocalTrainer(task or Cats()), Fixed(0.0), ignore_activity))
    finally:
        journal.close()
    return Journal(folder / "journal.db", writer=False)


def change(market: SimulatedMarket, round_: int) -> Any:
    """What a round's model adds to its start."""
    return load(market.models[round_][0])["w"] - load(market.starts[round_])["w"]


@pytest.mark.parametrize("own", [False, True])
def test_every_tasks_update_is_clipped_and_has_noise(own: bool, tmp_path: Path) -> None:
    market = SimulatedMarket() if own else private(UPDATE)
    rules = OwnerRules(privacy=UPDATE) if own else None
    journal = take_part(market, tmp_path, rules)
    for round_ in (1, 2):
        # Unclipped it is 1 everywhere; clipped 0.5 / sqrt(300) = 0.03, with a deviation of 4.
        assert change(market, round_).std() == pytest.approx(4.0, rel=0.2)
        assert load(market.models[round_][0])["n"] == start_weights()["n"]
    assert [row.gaussians for row in journal.privacy()] == [Gaussians(4.0, 1.0, 1)] * 2
    assert all(row.sent for row in journal.privacy())
    spent = kept_spending(journal)
    assert spent is not None
    assert spent.epsilon == pytest.approx(epsilon_of([Gaussians(4.0, 1.0, 2)], 1e-5))
    assert spent.models == 2
    journal.close()


def test_noise_is_another_one_in_every_life(tmp_path: Path) -> None:
    changes = []
    for life in ("one", "two"):
        (tmp_path / life).mkdir()
        market = private(UPDATE)
        take_part(market, tmp_path / life).close()
        changes.append(change(market, 1))
    assert np.abs(changes[0] - changes[1]).min() > 0


def test_a_round_beyond_the_limit_is_handed_back_before_training(tmp_path: Path) -> None:
    one, two = (epsilon_of([Gaussians(4.0, 1.0, n)], 1e-5) for n in (1, 2))
    market, task = private(UPDATE, rounds=3), Cats()
    rules = OwnerRules(limit=PrivacyLimit(Decimal(str((one + two) / 2)), DELTA))
    journal = take_part(market, tmp_path, rules, task)
    assert task.trained == [1]
    assert market.failures == {
        2: ["the participant's privacy limit is reached"],
        3: ["the participant's privacy limit is reached"],
    }
    spent = kept_spending(journal)
    assert spent is not None
    assert spent.epsilon == pytest.approx(one)
    assert len(journal.privacy()) == 1
    reason = {line.round: line.reason for line in journal.rounds("cats-1")}[2]
    assert "above the limit of" in reason
    journal.close()


def test_a_training_that_fails_tells_nothing(tmp_path: Path) -> None:
    market, task = private(UPDATE), Cats()
    task.failing = {1}
    journal = take_part(market, tmp_path, task=task)
    assert [row.round for row in journal.privacy()] == [2]
    journal.close()


def test_a_crash_counts_no_round_twice_and_none_too_few(tmp_path: Path) -> None:
    for kill in range(1, 40):
        folder = tmp_path / str(kill)
        folder.mkdir()
        market = private(UPDATE)
        market.fault = lambda number, kill=kill: "killed" if number == kill else ""  # type: ignore[misc]
        for _ in range(2):
            try:
                journal = take_part(market, folder)
            except Killed:
                continue
            assert sorted(row.round for row in journal.privacy()) == [1, 2]
            assert all(row.sent for row in journal.privacy())
            journal.close()
            break
        if market.effects < kill:
            return
    raise AssertionError("the task has more effects than were tried")


def test_a_model_that_is_made_again_counts_again(tmp_path: Path) -> None:
    market = private(UPDATE, rounds=1)

    take = market._SubmitModel

    def half(requests: Any, cut: bool) -> Any:
        raise Killed

    market._SubmitModel = half  # type: ignore[method-assign]
    with pytest.raises(Killed):
        take_part(market, tmp_path)
    for path in (tmp_path / "models").glob("*.trained.safetensors"):
        path.unlink()
    market._SubmitModel = take  # type: ignore[method-assign]
    journal = take_part(market, tmp_path)
    assert [row.sent for row in journal.privacy()] == [1, 1]
    journal.close()


def test_models_without_noise_have_no_bound(tmp_path: Path) -> None:
    journal = take_part(SimulatedMarket(), tmp_path)
    spent = kept_spending(journal)
    assert spent is not None
    assert math.isinf(spent.epsilon)
    assert spent.record()["epsilon"] is None
    assert "without a bound" in str(spent)
    journal.close()


def test_a_task_that_cannot_train_so_is_refused_before_the_claim(tmp_path: Path) -> None:
    market = private(DP_SGD)
    with pytest.raises(TaskError, match="DP-SGD, which Cats does not do"):
        take_part(market, tmp_path)
    assert not market.claims


def test_seeds_of_private_trainings_are_nobodys_to_know() -> None:
    plain = TrainingRound(terms(), PARTICIPANT, 1)
    assert plain.seed(0) == plain.seed(0)
    noisy = replace(plain, terms=private(DP_SGD).terms)
    assert noisy.seed(0) != noisy.seed(0)


def test_epsilon_of_a_gaussian_is_below_the_classical_one() -> None:
    # Dwork and Roth, theorem A.1: sigma = sqrt(2 ln(1.25 / delta)) / epsilon for epsilon below 1
    sigma = math.sqrt(2 * math.log(1.25 / 1e-5)) / 0.5
    assert 0.3 < epsilon_of([Gaussians(sigma, 1.0, 1)], 1e-5) < 0.5


def test_epsilon_grows_with_steps_and_falls_with_sampling() -> None:
    one, many = (epsilon_of([Gaussians(1.0, 0.1, n)], 1e-5) for n in (1, 100))
    assert one < many < epsilon_of([Gaussians(1.0, 1.0, 100)], 1e-5)
    assert epsilon_of([Gaussians(1.0, 0.1, 50)] * 2, 1e-5) == pytest.approx(many)
    assert epsilon_of([], 1e-5) == 0
    assert epsilon_of([Gaussians(1.0, 0.5, 100)], 1e-5) < 100, "and comes to an end"


def test_two_rounds_at_once_do_not_pass_the_limit_together(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.db")
    told = Gaussians(4.0, 1.0, 1)
    limit = PrivacyLimit(Decimal(str(1.1 * epsilon_of([told], 1e-5))), DELTA)
    accountant = Accountant(journal, limit)
    accountant.reserve("a", 1, told, DELTA)
    accountant.reserve("a", 1, told, DELTA)  # the same, once more
    with pytest.raises(PrivacyLimitError, match="without it epsilon"):
        accountant.reserve("b", 1, told, DELTA)
    accountant.release("a", 1)
    accountant.reserve("b", 1, told, DELTA)
    accountant.sending("b", 1)
    accountant.release("b", 1)
    assert [(row.task_id, row.sent) for row in journal.privacy()] == [("b", 1)]
    journal.close()


def test_without_opacus_nothing_is_claimed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("participant.accounting.find_spec", lambda name: None)
    market = private(UPDATE)
    with pytest.raises(ConfigurationError, match=r"fedpeer\[privacy\]"):
        take_part(market, tmp_path)
    assert not market.claims


@pytest.mark.parametrize("values", [{"epsilon": 0}, {"epsilon": "much"}, {"epsilon": 1, "delta": 1}])
def test_limits_out_of_range(values: Any) -> None:
    with pytest.raises(ConfigurationError, match="privacy limit"):
        PrivacyLimit(**values)
