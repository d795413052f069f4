"""The first difference of two entries, in words that say where it is."""

from typing import Any

import pytest

from mechanism.ledger.entry import Entry
from mechanism.ledger.replay.comparing import Wrong, difference, same, same_parts


def entry(body: dict[str, Any], id_: str = "task/terms", kind: str = "terms") -> Entry:
    return Entry(id_, kind, body)


def test_entries_of_the_same_bytes_are_the_same_and_no_others() -> None:
    one = entry({"a": 1, "b": [1, 2]})
    same(one, entry({"b": [1, 2], "a": 1}))
    with pytest.raises(Wrong, match=r"^here: body\.a is 1; what stands before it gives 2$"):
        same(one, entry({"a": 2, "b": [1, 2]}), "here: ")


def test_parts_are_the_same_each_and_as_many() -> None:
    one, two = entry({"part": 1}), entry({"part": 2})
    same_parts([one, two], [one, two])
    same_parts([], [])
    for found, expected in (([one], [one, two]), ([one, two], [one])):
        with pytest.raises(Wrong, match=f"^{len(found)} parts; .* makes {len(expected)}$"):
            same_parts(found, expected)
    with pytest.raises(Wrong, match=r"body\.part is 2; what stands before it gives 1"):
        same_parts([one, two], [one, one])


def test_another_entry_is_named_before_what_is_in_it() -> None:
    wanted = entry({"a": 1})
    for found in (entry({"a": 2}, id_="task/claim"), entry({"a": 2}, kind="claim")):
        assert difference(found, wanted) == "expected the terms task/terms here"


@pytest.mark.parametrize(
    ("found", "wanted", "words"),
    [
        ({"a": 1}, {}, "body.a does not belong here"),
        ({}, {"a": 1}, "body.a is missing"),
        ({"a": {"b": 1}}, {"a": {}}, "body.a.b does not belong here"),
        ({"a": [{"b": 1}, {"b": 2}]}, {"a": [{"b": 1}, {"b": 3}]}, "body.a[1].b is 2; what stands before it gives 3"),
        ({"a": [[1], [2]]}, {"a": [[1], [2, 3]]}, "body.a[1] is [2]; what stands before it gives [2, 3]"),
        ({"a": [1, 2]}, {"a": {"b": 1, "c": 2}}, "body.a is [1, 2]; what stands before it gives {'b': 1, 'c': 2}"),
        ({"a": {"b": 1}}, {"a": [1]}, "body.a is {'b': 1}; what stands before it gives [1]"),
        ({"a": {"b": 1}}, {"a": 1}, "body.a is {'b': 1}; what stands before it gives 1"),
        ({"a": [1, 2]}, {"a": "12"}, "body.a is [1, 2]; what stands before it gives '12'"),
        ({"a": "12"}, {"a": [1, 2]}, "body.a is '12'; what stands before it gives [1, 2]"),
        ({"a": 1}, {"a": [1]}, "body.a is 1; what stands before it gives [1]"),
        ({"a": True}, {"a": 1}, "body.a is True; what stands before it gives 1"),
        ({"a": None}, {"a": ""}, "body.a is None; what stands before it gives ''"),
        ({"a": 1, "b": 1}, {"a": 1, "b": 2}, "body.b is 1; what stands before it gives 2"),
        ({"a": [1, 1]}, {"a": [1, 2]}, "body.a[1] is 1; what stands before it gives 2"),
    ],
)  # fmt: skip
def test_the_first_difference_has_its_path(found: dict[str, Any], wanted: dict[str, Any], words: str) -> None:
    assert difference(entry(found), entry(wanted)) == words


def test_keys_are_gone_through_by_their_names() -> None:
    keys = [f"k{number:02d}" for number in range(40)]
    assert difference(entry(dict.fromkeys(reversed(keys), 1)), entry(dict.fromkeys(keys, 2))).startswith(
        "body.k00 is 1"
    )
    assert difference(entry(dict.fromkeys(keys, 1)), entry({})) == "body.k00 does not belong here"


def test_a_long_value_is_cut() -> None:
    words = difference(entry({"a": "x" * 500}), entry({"a": "y"}))
    assert words == f"body.a is '{'x' * 119}; what stands before it gives 'y'"
