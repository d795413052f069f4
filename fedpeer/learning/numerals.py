"""Texts that stand for numbers, and those that nearly do: decimal commas, thousands, dashes, marks of what is
missing or beyond what can be measured.
"""

import re
from collections.abc import Sequence

#: 3,5 and 1,000 and 1'000.5 and 1.234,5. Several points alone are an address's or a date's.
_GROUPED = re.compile(
    r"\s*[+-]?(?:[0-9]+,[0-9]+|[0-9]{1,3}([,'\u2019 \u00a0\u202f])[0-9]{3}(?:\1[0-9]{3})*(?:\.[0-9]+)?"
    r"|[0-9]{1,3}(?:\.[0-9]{3})+,[0-9]+)\s*"
)

#: A number with a unit.
_WITH_UNIT = re.compile(r"\s*(?:[€$£¥]\s*[+-]?[0-9.,]+|[+-]?[0-9.,]+\s*[%€$£¥])\s*")

#: Above or below what can be measured.
_BOUND = re.compile(r"\s*[<>\u2264\u2265]=?\s*[+-]?[0-9]+(?:[.,][0-9]+)?\s*")

#: A dash that word processors put in the place of a hyphen.
_DASHED = re.compile(r"\s*[\u2212\u2013]\s*[0-9]+(?:[.,][0-9]+)?\s*")

#: What people write where there is no value.
_ABSENT = frozenset(
    ("", "-", "--", "?", ".", "na", "n/a", "#n/a", "nan", "nil", "none", "null", "missing", "unknown")
)


def is_number(text: str) -> bool:
    """Whether a text is a number as Python writes them."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def advice(text: str) -> str:
    """What to do with a text that stands where a number is expected; empty where it is no number's."""
    if _GROUPED.fullmatch(text):
        return "write numbers with a point before decimals, and nothing between thousands, as 1234.5"
    if _WITH_UNIT.fullmatch(text):
        return "write numbers without a unit"
    if _BOUND.fullmatch(text):
        return "write the number that stands for what is above or below what can be measured"
    if _DASHED.fullmatch(text):
        return "write a hyphen before numbers below zero, as -1.5"
    if text.strip().casefold() in _ABSENT:
        return "fill in what is missing, or leave such rows out"
    return ""


def nearly_numbers(texts: Sequence[str]) -> int | None:
    """The first of texts that keeps them from being numbers, where each is one, or nearly; None where they are
    names, or numbers all.
    """
    first, numeric = None, False
    for place, text in enumerate(texts):
        absent = text.strip().casefold() in _ABSENT
        if not is_number(text) or absent:
            if not advice(text):
                return None
            first = place if first is None else first
        numeric = numeric or not absent
    return first if numeric else None
