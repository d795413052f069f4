"""An operator who holds the log's key and re-signs everything: what cannot have happened is refused, and named."""

import pytest

from tests.ledger_forgeries import FORGERIES, Forgery, cases_of, digest_of
from tests.ledger_histories import SHAPES, played
from tests.memory_source import MemorySource, audited


@pytest.mark.parametrize("forged", FORGERIES, ids=lambda one: one.name)
def test_what_cannot_have_happened_is_refused_and_named(forged: Forgery) -> None:
    accepted, unnamed = [], []
    for label, ledger in cases_of(forged):
        report = audited(MemorySource(ledger))
        if report.verified:
            accepted.append(label)
        elif not any(word in report.problems[0].message for word in forged.words):
            unnamed.append((label, report.problems[0].message))
    assert not accepted
    assert not unnamed


def test_there_are_enough_of_them_and_none_is_a_sound_history() -> None:
    made = {digest_of(ledger) for forged in FORGERIES for _, ledger in cases_of(forged)}
    assert len(FORGERIES) >= 15
    assert len(made) >= 200
    assert not made & {digest_of(played(shape).log.entries) for shape in SHAPES.values()}
