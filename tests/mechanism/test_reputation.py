"""Reputation across tasks: windowed, decaying, symmetric, with its reasons, from the ledger."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from mechanism.ledger.replay.world import moment
from mechanism.ledger.reputation import ReputationEvents
from mechanism.reputation import (
    HALF_LIFE_DAYS,
    PRIOR,
    WINDOW_DAYS,
    ReputationEvent,
    reputation,
)
from tests.ledger_histories import AUDIT, Shape, played

DAY = 86_400
NOW = 2_000 * DAY

events = st.lists(
    st.builds(
        ReputationEvent, st.just("task"), st.integers(1, 9), st.integers(NOW - 500 * DAY, NOW + DAY), st.booleans(),
        st.just("why"),
    ),
    max_size=30,
)  # fmt: skip


def event(age_days: float, kept: bool) -> ReputationEvent:
    return ReputationEvent("task", 1, int(NOW - age_days * DAY), kept, "why")


@given(events)
def test_good_and_bad_weigh_and_fade_alike(found: list[ReputationEvent]) -> None:
    turned = [replace(e, kept=not e.kept) for e in found]
    value = reputation("ann", found, NOW).value
    assert 0 < value < 1
    assert abs(value + reputation("ann", turned, NOW).value - 1) < 1e-9


@given(events, st.booleans())
def test_one_more_kept_never_lowers_it(found: list[ReputationEvent], kept: bool) -> None:
    before = reputation("ann", found, NOW).value
    after = reputation("ann", [*found, event(0, kept)], NOW).value
    assert (after > before) if kept else (after < before)


def test_an_event_loses_half_of_its_weight_and_then_all() -> None:
    for kept in (True, False):
        for age, weight in ((0, 1.0), (HALF_LIFE_DAYS, 0.5), (2 * HALF_LIFE_DAYS, 0.25)):
            found = reputation("ann", [event(age, kept)], NOW)
            assert found.reasons == ((event(age, kept), weight),)
            assert found.value == (PRIOR / 2 + weight * kept) / (PRIOR + weight)
        assert reputation("ann", [event(WINDOW_DAYS + 0.1, kept)], NOW).value == 0.5
    assert reputation("ann", [], NOW).value == 0.5
    assert not reputation("ann", [event(-1, True)], NOW).reasons  # what is to come says nothing yet


def test_what_a_ledger_says_of_everyone() -> None:
    history = played(
        Shape(
            rounds=3,
            refuted={2: "p001"},
            absent={1: {"p003": "no disk"}, 2: {"p002": None}},
            audit=AUDIT,
            audits={(1, "p000"): ("failed", "unappealed"), (1, "p001"): ("failed", "appeal", "passed"),
                    (3, "p002"): ("failed", "appeal", "failed"), (3, "p003"): ("unvisited",)},
        )
    )  # fmt: skip
    found = ReputationEvents()
    for entry in history.log.entries:
        found.feed(entry)
    assert found.everyone() == history.people
    said = {name: [(e.round, e.kept, e.explanation) for e in found.of(name)] for name in history.people}
    in_time = "Its model came in time and was scored."
    assert (1, False, "Its audit has failed, and it did not appeal.") in said["p000"]
    assert said["p000"].count((2, True, in_time)) == 1
    assert (1, True, "Its audit has passed.") in said["p001"]
    assert (2, False, "Its claim was refuted.") in said["p001"]
    assert (3, False, "Its audit has failed, for good.") in said["p002"]
    assert any(not kept and "No model came" in why for round_, kept, why in said["p002"] if round_ == 2)
    assert any(not kept and "No model came" in why for round_, kept, why in said["p003"] if round_ == 1)
    # Nobody came to audit it, which says nothing of it.
    assert len([e for e in said["p003"] if e[0] == 3]) == 1
    last = moment(str(history.log.entries[-1].body["at"]))
    values = {name: reputation(name, found.of(name), last).value for name in history.people}
    assert values["p002"] < values["p003"] < values["p000"]


def test_its_lines_have_every_reason() -> None:
    found = reputation("ann", [event(0, True), event(90, False)], NOW)
    assert found.lines()[0] == f"ann: {found.value:.3f}, from 2 events of the last 365 days"
    assert [line[:8] for line in found.lines()[1:]] == ["  + 1.00", "  - 0.50"]
    assert str(found) == "\n".join(found.lines())
    assert [reason["kept"] for reason in found.record()["reasons"]] == [True, False]  # type: ignore[union-attr, index, call-overload]
