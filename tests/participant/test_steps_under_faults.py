"""A whole task with a fault at every single effect: each round is submitted once, or missed with a reason."""

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import participant.steps
from fedpeer.protocol.certificates import new_key
from participant.backoff import Backoff
from participant.effort import Fixed
from participant.engagement import Engagement, OwnerRules, join
from participant.errors import (
    CountsChangedError,
    NotFoundError,
    SharesLostError,
    StateError,
    TaskError,
    TrainingError,
)
from participant.journal import Journal
from participant.model_store import ModelStore
from participant.report import TaskReport
from participant.steps import MarketSteps
from participant.work import LocalTrainer, ignore_activity, run_task
from tests.participant.simulated_market import PARTICIPANT, Cats, Killed, SimulatedMarket


@pytest.fixture(autouse=True)
def small_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several frames a model, so that an upload can be cut in the middle."""
    monkeypatch.setattr(participant.steps, "FRAME_BYTES", 256)
    monkeypatch.setattr(participant.steps, "MIN_FRAME_BYTES", 16)


def take_part(market: SimulatedMarket, folder: Path, task: Cats | None = None) -> TaskReport:
    """One process's life: it may end with `Killed`."""
    journal = Journal(folder / "journal.db")
    try:
        engagement = engage(market, folder, journal)
        trainer = LocalTrainer(task or Cats())
        market.run(run_task(engagement, trainer, Fixed(0.5), ignore_activity))
        return engagement.report()
    finally:
        journal.close()


def engage(
    market: SimulatedMarket, folder: Path, journal: Journal, rules: OwnerRules | None = None
) -> Engagement:
    return market.run(
        join(
            market.terms.task_id,
            participant_id=PARTICIPANT,
            key=market.key,
            market=MarketSteps(Backoff(), clock=lambda: market.clock),
            journal=journal,
            models=ModelStore(folder / "models"),
            rules=rules,
        )
    )


def through_restarts(market: SimulatedMarket, folder: Path, limit: int = 50) -> TaskReport:
    for _ in range(limit):
        try:
            return take_part(market, folder)
        except Killed:
            continue
    raise AssertionError("the participant never came through")


def check_complete(market: SimulatedMarket, report: TaskReport) -> None:
    assert len(market.claims) == 1
    for number in range(1, market.rounds + 1):
        assert len(market.models.get(number, [])) == 1
    assert report.state == "CLOSED"
    assert [line.number for line in report.rounds] == list(range(1, market.rounds + 1))
    assert all(line.receipt is not None and not line.missed for line in report.rounds)
    assert report.paid_micro == 1_000_000 * market.rounds


def test_a_task_without_faults(tmp_path: Path) -> None:
    market = SimulatedMarket()
    report = take_part(market, tmp_path)
    check_complete(market, report)
    assert report.effort == Decimal("0.500000")
    assert report.claimed_degree == market.degree
    assert report.rounds[0].metrics == {"loss": 0.5}
    assert not list((tmp_path / "models").iterdir()), "finished rounds leave no model files"


@pytest.mark.parametrize("name", [PARTICIPANT, "", "another"])
def test_a_settlement_is_asked_for_where_the_event_does_not_carry_it(tmp_path: Path, name: str) -> None:
    market = SimulatedMarket(settlement_for=name)
    check_complete(market, take_part(market, tmp_path))
    assert market.asked == ([] if name == PARTICIPANT else [1, 2])


def effects_of_a_task(tmp_path: Path) -> int:
    market = SimulatedMarket()
    take_part(market, tmp_path / "counted")
    return market.effects


@pytest.mark.parametrize("largest", [255, 100, 16])
def test_a_link_that_is_too_slow_for_a_frame_gets_smaller_ones(tmp_path: Path, largest: int) -> None:
    market = SimulatedMarket(largest_frame=largest)
    check_complete(market, take_part(market, tmp_path))
    assert market.uploaded == sum(len(model) for [model] in market.models.values()), "no byte was taken twice"


@pytest.mark.parametrize("fault", ["lost", "unanswered", "cut", "killed"])
def test_any_single_fault_costs_nothing(tmp_path: Path, fault: str) -> None:
    (tmp_path / "counted").mkdir()
    total = effects_of_a_task(tmp_path)
    assert total > 15
    for at in range(1, total + 1):
        folder = tmp_path / f"{fault}-{at}"
        folder.mkdir()
        market = SimulatedMarket(fault=lambda number, at=at: fault if number == at else "")  # type: ignore[misc]  # mypy infers no default
        check_complete(market, through_restarts(market, folder))


@settings(max_examples=40)
@given(
    st.lists(
        st.sampled_from(["", "", "", "", "lost", "unanswered", "cut", "killed"]), min_size=0, max_size=60
    )
)
def test_any_sequence_of_faults_costs_nothing(
    tmp_path_factory: pytest.TempPathFactory, faults: list[str]
) -> None:
    fault: Callable[[int], str] = lambda number: faults[number - 1] if number <= len(faults) else ""  # noqa: E731
    market = SimulatedMarket(fault=fault)
    check_complete(market, through_restarts(market, tmp_path_factory.mktemp("faults"), limit=70))


def test_a_journal_that_is_lost_anywhere_loses_no_draw_share(tmp_path: Path) -> None:
    """Killed at any effect and its journal gone: the chain comes of the key, so every round is still delivered."""
    (tmp_path / "counted").mkdir()
    for at in range(1, effects_of_a_task(tmp_path) + 1):
        folder = tmp_path / str(at)
        folder.mkdir()
        market = SimulatedMarket(fault=lambda number, at=at: "killed" if number == at else "")  # type: ignore[misc]  # mypy infers no default
        with pytest.raises(Killed):
            take_part(market, folder)
        for file in folder.glob("journal.*"):
            file.unlink()
        take_part(market, folder)
        assert len(market.claims) == 1, at
        assert [len(market.models.get(number, [])) for number in (1, 2)] == [1, 1], at


def test_another_key_without_the_journal_is_an_error_before_it_collects_or_trains(tmp_path: Path) -> None:
    market, kept, elsewhere = SimulatedMarket(), tmp_path / "kept", tmp_path / "elsewhere"
    for folder in (kept, elsewhere):
        folder.mkdir()
    journal = Journal(kept / "journal.db")
    market.run(engage(market, kept, journal).claim(Decimal("0.5"), [30, 20]))
    journal.close()
    market.key = new_key()
    task = Cats()
    with pytest.raises(SharesLostError, match="draw shares"):
        take_part(market, elsewhere, task)
    assert (task.trained, task.held) == ([], [30, 10])
    # With the journal it goes on under the new key: its chain is the one that was claimed.
    journal = Journal(kept / "journal.db")
    journal.set_effort(market.terms.task_id, "0.5")
    journal.close()
    check_complete(market, take_part(market, kept))


def test_a_cut_upload_goes_on_where_it_stopped(tmp_path: Path) -> None:
    market = SimulatedMarket(rounds=1)
    cut = [False]

    def fault(number: int) -> str:
        # Before the upload nothing of the model has been sent.
        if not cut[0] and market.round == 1 and market.claims and number >= 8:
            cut[0] = True
            return "cut"
        return ""

    market.fault = fault
    check_complete(market, take_part(market, tmp_path))
    assert market.uploaded == len(market.models[1][0]), "no byte was sent twice"


def test_a_failed_training_is_reported_and_the_next_round_is_taken(tmp_path: Path) -> None:
    market, task = SimulatedMarket(), Cats()
    task.failing = {1}
    report = take_part(market, tmp_path, task)
    assert market.failures == {1: ["Cats.train raised ValueError"]}, (
        "a text may quote the data; it stays here"
    )
    assert len(market.models[2]) == 1
    assert "scanner" in report.rounds[0].missed
    assert report.rounds[0].receipt is None


def test_a_task_says_in_its_own_words_why_it_gives_up(tmp_path: Path) -> None:
    class Closed(Cats):
        def train(self, weights, round):  # type: ignore[no-untyped-def]  # noqa: A002 - as Task.train
            raise TrainingError("the archive is closed on Sundays")

    market = SimulatedMarket(rounds=1)
    take_part(market, tmp_path, Closed())
    assert market.failures == {1: ["the archive is closed on Sundays"]}


def test_a_round_that_went_by_is_noted_as_missed(tmp_path: Path) -> None:
    market = SimulatedMarket()
    journal = Journal(tmp_path / "journal.db")
    market.run(engage(market, tmp_path, journal).claim(Decimal("0.5"), [30, 20]))
    journal.close()
    market.miss_round()
    task = Cats()
    report = take_part(market, tmp_path, task)
    assert task.trained == [2]
    assert "had closed" in report.rounds[0].missed
    assert report.rounds[1].receipt is not None


def test_weights_of_a_wrong_shape_are_never_sent(tmp_path: Path) -> None:
    class Wrong(Cats):
        def train(self, weights, round):  # type: ignore[no-untyped-def]  # noqa: A002 - as Task.train
            return {"w": weights["w"][:5], "n": weights["n"]}

    market = SimulatedMarket(rounds=1)
    report = take_part(market, tmp_path, Wrong())
    assert not market.models
    assert "shape [5]" in report.rounds[0].missed
    assert "expected F32 of shape [300]" in report.rounds[0].missed


def test_counts_that_changed_after_the_claim_are_refused(tmp_path: Path) -> None:
    class Shrinking(Cats):
        def train(self, weights, round):  # type: ignore[no-untyped-def]  # noqa: A002 - as Task.train
            self.held = [1, 1]
            return super().train(weights, round)

    market, task = SimulatedMarket(), Shrinking()
    report = take_part(market, tmp_path, task)
    assert "[1, 1]" in report.rounds[1].missed
    assert "were claimed" in report.rounds[1].missed
    assert market.failures == {2: ["the counts are not those that were claimed"]}, "counts may be private"

    journal = Journal(tmp_path / "journal.db")
    engagement = engage(market, tmp_path, journal)
    with pytest.raises(CountsChangedError):
        market.run(engagement.claim(Decimal("0.5"), [4, 4]))
    journal.close()


def test_an_unknown_task_is_said_to_be_unknown(tmp_path: Path) -> None:
    market = SimulatedMarket()
    journal = Journal(tmp_path / "journal.db")
    steps = join(
        "dogs-1",
        participant_id=PARTICIPANT,
        key=market.key,
        market=MarketSteps(),
        journal=journal,
        models=ModelStore(tmp_path / "models"),
    )
    with pytest.raises(NotFoundError, match="List the tasks"):
        market.run(steps)
    journal.close()


def test_terms_that_changed_are_not_accepted(tmp_path: Path) -> None:
    market = SimulatedMarket()
    journal = Journal(tmp_path / "journal.db")
    engage(market, tmp_path, journal)
    market.terms = SimulatedMarket(rounds=3).terms
    with pytest.raises(StateError, match="other terms"):
        engage(market, tmp_path, journal)
    journal.close()


def test_negative_counts_are_refused_before_anything_is_sent(tmp_path: Path) -> None:
    class Negative(Cats):
        def label_counts(self) -> list[int]:
            return [-1, 3]

    market = SimulatedMarket()
    with pytest.raises(TaskError, match="count of at least 0"):
        take_part(market, tmp_path, Negative())
    assert not market.claims
