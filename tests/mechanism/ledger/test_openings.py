"""Files of openings, and whom an opening is about."""

from typing import Any

import pytest

from mechanism.canonical import canonical_bytes
from mechanism.ledger.errors import LedgerError
from mechanism.ledger.openings import FORMAT, Openings, joined_openings, read_openings, subject_of
from tests import ledger_samples as samples
from tests.ledger_histories import Shape, played

HEAD = canonical_bytes({"format": FORMAT, "participant": None})
ONE = canonical_bytes({"id": "task/claim/p/c", "opening": {"salt": "ab"}})


def test_a_file_of_openings_is_read_as_it_was_written() -> None:
    found = samples.openings_of(played(Shape(private=frozenset({"p003"}))).log.entries)
    for participant, level in ((None, "auditor"), ("p001", "participant p001")):
        openings = Openings(participant, found)
        assert read_openings(openings.lines()) == openings
        assert openings.level == level
    assert read_openings([HEAD]) == Openings(None, {})


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([b"{"], "line 1"),
        ([ONE], "other keys than format, participant"),
        ([HEAD, HEAD], "other keys than id, opening"),
        ([canonical_bytes({"format": "x", "participant": None})], FORMAT),
        ([canonical_bytes({"format": FORMAT, "participant": 5})], FORMAT),
        ([HEAD, canonical_bytes({"id": 5, "opening": {}})], "no id with its opening"),
        ([HEAD, canonical_bytes({"id": "x", "opening": []})], "no id with its opening"),
        ([HEAD, ONE, ONE], "a second one of task/claim/p/c"),
        ([HEAD, b' {"id":"x","opening":{}}'], "line 2"),
    ],
)
def test_a_file_that_is_none_is_refused_with_its_line(lines: list[bytes], words: str) -> None:
    with pytest.raises(LedgerError, match=words):
        read_openings(lines)


def test_files_of_one_participant_are_joined() -> None:
    one, other = {"a": {"salt": "1"}}, {"b": {"salt": "2"}}
    assert joined_openings([Openings("p", one), Openings("p", {**one, **other})]) == Openings(
        "p", {**one, **other}
    )
    for parts, words in (
        ([], "of nobody"),
        ([Openings("p", one), Openings("q", other)], "of p, q"),
        ([Openings("p", one), Openings(None, other)], "of all, p"),
        ([Openings("p", one), Openings("p", {"a": {"salt": "2"}})], "two openings of a"),
    ):
        with pytest.raises(LedgerError, match=words):
            joined_openings(parts)


def test_an_entrys_id_says_whom_its_opening_is_about() -> None:
    history: Any = played(Shape(private=frozenset({"p003"})))
    about = {entry.id: subject_of(entry.id) for entry in history.log.entries if entry.opening is not None}
    assert about["task/claim/p001/claim-p001"] == ("task", 0, "p001")
    assert about["task/round/2/model/p001/model-2-p001"] == ("task", 2, "p001")
    assert about["task/round/1/evidence"] == ("task", 1, "")
    assert about["task/round/2/verdict/p000"] == ("task", 2, "p000")
    assert about["task/dispute/p003"] == ("task", 0, "p003")
    assert len(about) == 4 + 2 * (4 + 1 + 4) + 1
