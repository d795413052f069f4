"""Arrays as people have them: what becomes numbers and texts, and what is refused."""

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

from fedpeer.learning.arrays import held_array, plain_array
from fedpeer.learning.errors import DataError
from fedpeer.learning.samples import Samples, held_samples, plain_samples

LARGE = 2**53 + 1


class Column:
    """As pandas has one: it has keys, which are its rows, and NumPy reads it."""

    def __init__(self, values: list[Any]) -> None:
        self.values = np.array(values, dtype=object)
        self.dtype = self.values.dtype

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return self.values

    def keys(self) -> range:
        return range(len(self.values))

    def items(self) -> Any:
        return enumerate(self.values)


def column(values: list[Any]) -> np.ndarray[Any, Any]:
    made = np.empty(len(values), dtype=object)
    made[:] = values
    return made


NAN = float("nan")
GIVEN: dict[str, tuple[Any, str, list[Any]]] = {
    "numbers": ([1, 2.5], "float64", [1, 2.5]),
    "whole numbers of Python's": (column([1, LARGE]), "int64", [1, LARGE]),
    "large ones": ([1, 2**63], "uint64", [1, 2**63]),
    "truth values": (column([True, False]), "bool", [True, False]),
    "texts": (column(["a", "bc"]), "<U2", ["a", "bc"]),
    "texts and numbers": (["a", 1, 2.0, 2.5, True], "<U4", ["a", "1", "2", "2.5", "true"]),
    "lists": (column([[1, 2], [3, 4]]), "int64", [[1, 2], [3, 4]]),
    "arrays": ([np.ones(2, np.float32)] * 2, "float32", [[1, 1], [1, 1]]),
    "another order of bytes": (np.array([1.5, 2], ">f4"), "float32", [1.5, 2]),
    "a column": (Column([1, 2]), "int64", [1, 2]),
    "dates": (np.array(["2026-11-30"], "datetime64[D]"), "datetime64[D]", [date(2026, 11, 30)]),
}


@pytest.mark.parametrize("kind", GIVEN)
def test_what_people_have_becomes_numbers_and_texts(kind: str) -> None:
    values, dtype, expected = GIVEN[kind]
    for given in (values, held_array(values, "it")):
        made = plain_array(given, "it")
        assert made.dtype == dtype
        assert made.dtype.isnative
        assert made.tolist() == expected


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float8_e4m3fn"])
def test_tensors_of_torchs(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.tensor([1.5, 2.0]).to(getattr(torch, dtype))
    assert plain_array(tensor, "it").tolist() == [1.5, 2]
    assert plain_array([tensor, tensor], "it").tolist() == [[1.5, 2], [1.5, 2]]
    assert plain_array(list(tensor), "it").tolist() == [1.5, 2]
    assert plain_array(tensor.float().requires_grad_(), "it").tolist() == [1.5, 2]


REFUSED: dict[str, tuple[Any, str]] = {
    "no text": (
        ["x", NAN],
        "it has no value in row 1; expected a value everywhere: fill them in, or leave such rows",
    ),
    "no text of an array": (column(["x", NAN]), "it has no value in row 1"),
    "nothing": (column([None, 1]), "it has no value in row 0"),
    "nothing in a row": ([[1, 2], [3, None]], "it has no value in row 1"),
    "masked": (np.ma.masked_array([1, 2], [False, True]), "it has masked values"),
    "lists of other lengths": (
        [[1], [1, 2]],
        "it has rows of different lengths; expected one length for all",
    ),
    "arrays of other lengths": ([np.zeros(2), np.zeros(3)], "it has rows of different lengths"),
    "a list beside a number": ([1, [2]], "it is an int; expected an array"),
    "one value": (5, "it is an int; expected an array, with a row a sample"),
    "rows one by one": ((n for n in range(3)), "it is a generator; expected an array"),
    "more than 64 bits": ([1, 2**70], "whole numbers of more than 64 bits"),
    "below and beyond int64": ([-1, 2**63], "whole numbers of more than 64 bits"),
    "what a fraction would round": ([LARGE, 0.5], "it has fractions and whole numbers beyond 2.53"),
    "decimals": (
        [Decimal("1.5")],
        r"it has Decimal\('1.5'\) in row 0; .*: write them as floating-point numbers",
    ),
    "dates of Python's": (
        [datetime(2026, 1, 1, tzinfo=UTC)],
        "write dates and times in ISO 8601, as 2026-11-30T16",
    ),
    "bytes": (column([b"a"]), "it has b'a' in row 0; expected numbers or texts: decode them"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_nothing_that_is_missing_becomes_a_value_and_nothing_is_rounded(kind: str) -> None:
    values, words = REFUSED[kind]
    with pytest.raises(DataError, match=words):
        plain_array(values, "it")


def test_texts_of_numpys_own_kind_without_a_value() -> None:
    kind = np.dtypes.StringDType(na_object=None)
    assert plain_array(np.array(["a", "bc"], dtype=kind), "it").tolist() == ["a", "bc"]
    with pytest.raises(DataError, match="it has no value in row 1"):
        plain_array(np.array(["a", None], dtype=kind), "it")


def test_only_the_columns_that_are_needed_are_looked_at() -> None:
    held = held_samples({"hour": [1, 2], "note": ["x", NAN], "day": [date(2026, 1, 1)] * 2}, ["no", "yes"])
    made = plain_samples(held, {"hour"})
    assert list(made.arrays) == ["hour"]
    assert made.targets.tolist() == ["no", "yes"]
    with pytest.raises(DataError, match="the input note has no value in row 1"):
        plain_samples(held)


def test_samples_of_single_values_are_refused() -> None:
    with pytest.raises(
        DataError, match="the targets are a single value; expected an array, with a row a sample"
    ):
        Samples(np.zeros(3), np.array(1))
    with pytest.raises(DataError, match="the input hour is an int; expected an array"):
        held_samples({"hour": 5}, [1])
