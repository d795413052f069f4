"""An operator who holds the log's key and re-signs everything: what cannot have happened is refused, and named."""

import pytest

from mechanism.ledger.verify import verify_ledger
from tests.ledger_forgeries import FORGERIES, Forgery, cases_of, digest_of
from tests.ledger_histories import SHAPES, played
from tests.memory_source import KEY, MemorySource, audited


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


#: Forgeries of which the public ledger shows nothing in some cases: they are in what entries commit to.
ONLY_OPENED = {
    "evidence is of another validation set",
    "evidence is of another start",
    "a copy is compared",
    "twins are nobody",
    "a likeness is said of one side alone or otherwise",
    "a group bears another name",
    "a group is held against different others",
    "a copy is of a group",
    "the order of copies is turned round",
    "evidence is about what nobody signed",
    "evidence is not of this round or form",
    "a verdict is not the one that the evidence gives",
    "the evidence is changed and the verdicts left",
    "a verdict says other words or figures than the evidence gives",
    "evidence has a value of another type length or range",
    "a verdict is about what nobody signed",
    "under the papers rule something else than the claim counts",
    "who sent nothing is judged otherwise",
    "a dispute gives the fee back",
    "a dispute cannot have been opened",
    "an award is made up or left out",
    "a number is none",
    "a claim says what no claim can",
    "evidence counts with what is no number",
    "what computed the shadows is no text",
    "an audit with features of other weights",
    "an audit that the auditor did not make",
    "a verdict that the audit does not give",
    "an owner of two pseudonyms",
}


def test_every_other_forgery_is_seen_by_the_public() -> None:
    unseen = {
        forged.name
        for forged in FORGERIES
        for _, ledger in cases_of(forged)
        if verify_ledger(MemorySource(ledger), KEY.verification_key).verified
    }
    assert unseen == ONLY_OPENED
