import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mechanism.canonical import MAX_INTEGER, canonical_bytes, decimal_text, parse_canonical
from mechanism.errors import FieldError
from mechanism.records import decimal

text = st.text(st.characters(codec="utf-8"), max_size=20)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-MAX_INTEGER, MAX_INTEGER) | text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4),
    max_leaves=20,
)


@given(values)
def test_what_is_written_is_read_back(value: object) -> None:
    assert parse_canonical(canonical_bytes(value)) == value  # type: ignore[arg-type]


@given(st.dictionaries(text, st.integers(0, 9), min_size=2))
def test_the_order_of_members_does_not_matter(value: dict[str, int]) -> None:
    assert canonical_bytes(value) == canonical_bytes(dict(reversed(value.items())))


def test_members_are_sorted_by_utf16_code_units() -> None:
    # U+10000 is the surrogate pair D800 DC00 in UTF-16 and sorts below U+FFFF there, above it by code point.
    assert list(json.loads(canonical_bytes({"\uffff": 1, "\U00010000": 2}))) == ["\U00010000", "\uffff"]


def test_escapes_are_the_shortest() -> None:
    assert canonical_bytes('\x00\b\t\n\f\r"\\/é\u2028') == '"\\u0000\\b\\t\\n\\f\\r\\"\\\\/é\u2028"'.encode()


@pytest.mark.parametrize(
    "value", [1.5, float("nan"), MAX_INTEGER + 1, "\ud800", {1: 2}, {"\udfff": 1}, b"x", {1, 2}]
)
def test_what_has_no_one_encoding_is_refused(value: object) -> None:
    with pytest.raises(FieldError):
        canonical_bytes({"a": [value]})  # type: ignore[dict-item, list-item]


def test_deep_nesting_is_refused_and_not_followed() -> None:
    with pytest.raises(FieldError):
        parse_canonical(b"[" * 100_000 + b"]" * 100_000)
    value: object = 1
    for _ in range(100):
        value = [value]
    with pytest.raises(FieldError, match="nesting"):
        canonical_bytes(value)  # type: ignore[arg-type]


@pytest.mark.parametrize("leaf", [1, "é", {}])
def test_a_value_lies_within_at_most_32_others(leaf: object) -> None:
    value = leaf
    for _ in range(32):
        value = [value]
    assert parse_canonical(canonical_bytes(value)) == value  # type: ignore[arg-type]
    with pytest.raises(FieldError, match="nesting"):
        canonical_bytes([value])  # type: ignore[list-item]


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b'{"a": 1}', b'{"b":1,"a":2}', b'{"a":1,"a":1}', b"1.0", b"1e3", b"-0", b"NaN", b'"\\u0061"', b"\xff",
     b'{"a":1}\n', b"01", b'"\\ud800"', b"99999999999999999999"],
)  # fmt: skip
def test_bytes_that_are_not_canonical_are_refused(data: bytes) -> None:
    with pytest.raises(FieldError):
        parse_canonical(data)


@given(st.decimals(min_value=-(10**9), max_value=10**9, places=6))
def test_a_decimal_has_one_text(value: object) -> None:
    written = decimal_text(value)  # type: ignore[arg-type]
    assert decimal("x", written) == value
    assert "E" not in written.upper()
    assert decimal_text(decimal("x", written + ("0" if "." in written else ".0"))) == written
