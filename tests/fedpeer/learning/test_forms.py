"""Types and shapes of samples: what everybody's are brought to, and what is refused."""

from typing import Any

import numpy as np
import pytest

from fedpeer.learning.errors import DataError
from fedpeer.learning.forms import formed, forms_of, texts_among
from fedpeer.learning.samples import Samples
from mechanism.workload import ArrayForm

LABELS = np.array([0, 1, 1])


def table(**inputs: Any) -> Samples:
    return Samples({name: np.asarray(part) for name, part in inputs.items()}, LABELS)


D_C = table(
    code=["01", "x", "7"],
    hour=[1, 2, 3],
    miles=np.array([1.5, 2, 3], np.float32),
    vector=np.zeros((3, 2)),
)


def test_what_each_array_is() -> None:
    forms = forms_of(D_C)
    assert [str(form) for form in forms] == [
        "inputs.code text",
        "inputs.hour int64",
        "inputs.miles float32",
        "inputs.vector float64 of shape 2",
        "targets int64",
    ]
    assert texts_among(forms) == ("code",)
    images = forms_of(Samples(np.zeros((3, 1, 8, 8), np.uint8), LABELS))
    assert images == (ArrayForm("inputs", "uint8", (1, 8, 8)), ArrayForm("targets", "int64", ()))
    with pytest.raises(DataError, match="the inputs are complex128; expected texts, or numbers of 64 bits"):
        forms_of(Samples(np.zeros((3, 2), complex), LABELS))


def test_numbers_become_what_they_are_in_the_learners_data() -> None:
    own = {
        "vector": np.ones((3, 2), np.int32),
        "code": np.array([10, 20, 30]),
        "hour": np.array([1.0, 5.0, 9.0]),
        "miles": np.array([4, 5, 6]),
    }
    found = formed(table(**own), forms_of(D_C))
    inputs = found.arrays
    assert list(inputs) == ["code", "hour", "miles", "vector"]
    assert inputs["code"].tolist() == ["10", "20", "30"]
    assert [inputs[name].dtype.name for name in ("hour", "miles", "vector")] == [
        "int64",
        "float32",
        "float64",
    ]
    assert inputs["hour"].tolist() == [1, 5, 9]
    assert formed(found, forms_of(D_C)).arrays["hour"] is inputs["hour"]


def test_dates_become_the_texts_that_tables_have() -> None:
    own = {
        **D_C.arrays,
        "code": np.array(["2026-11-30T00", "2026-11-30T10", "2026-12-01T00"], "datetime64[h]"),
    }
    assert formed(table(**own), forms_of(D_C)).arrays["code"].tolist() == [
        "2026-11-30", "2026-11-30T10:00:00", "2026-12-01",
    ]  # fmt: skip


def test_a_measured_target_may_be_whole_in_the_learners_data_by_chance() -> None:
    forms = forms_of(D_C)
    own = Samples(D_C.inputs, np.array([0.5, 1, 2]))
    assert formed(own, forms).targets.tolist() == [0.5, 1, 2]
    assert formed(Samples(D_C.inputs, np.array([3.0, 1, 2])), forms).targets.dtype == np.int64


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a fraction": (
        {"hour": [1, 2.5, 3]},
        r"inputs.hour have 2.5 in row 1; expected whole numbers \(int64\), as the operator",
    ),
    "texts": (
        {"hour": ["1", "2", "-"]},
        r"inputs.hour are texts; expected whole numbers \(int64\), as the operator has them; the first that is no "
        r"number is '-' in row 2: fill in what is missing",
    ),
    "texts of numbers": (
        {"miles": ["1", "2", "3"]},
        r"texts; expected numbers \(float32\), as the operator has them",
    ),
    "too large": ({"miles": [1, 1e300, 3]}, "have 1e[+]300 in row 1"),
    "no number in the place of a text": ({"code": [1, np.nan, 2]}, "inputs.code have no value in row 1"),
    "no date in the place of a text": (
        {"code": np.array(["2026-01-01", "2026-01-02", "NaT"], "datetime64[D]")},
        "inputs.code have no value in row 2",
    ),
    "bytes": (
        {"code": np.array([b"a", b"b", b"c"])},
        r"are \|S1; expected texts, as the operator has them: decode",
    ),
    "lengths of time": (
        {"hour": np.array([1, 2, 3], "timedelta64[s]")},
        "them: write lengths of time as numbers",
    ),
    "what 64 bits round": (
        {"vector": np.array([[1, 2], [3, 2**53 + 1], [5, 6]])},
        "inputs.vector have 9007199254740993 in row 1",
    ),
    "a column of one": (
        {"hour": np.zeros((3, 1), int)},
        r"inputs.hour are 1; expected a single value, as the operator has them: reshape the array from \(3, 1\) to "
        r"\(3,\)",
    ),
    "a longer list": (
        {"vector": np.zeros((3, 4))},
        "a sample's inputs.vector are 4; expected 2, as the operator",
    ),
    "dates": ({"hour": np.array(["2026-01-01"] * 3, "datetime64[D]")}, "are datetime64"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_no_type_or_shape_of_the_learners_has(kind: str) -> None:
    changes, words = REFUSED[kind]
    with pytest.raises(DataError, match=words):
        formed(table(**{**D_C.arrays, **changes}), forms_of(D_C))


def test_images_of_another_size_or_number_of_channels_and_other_inputs() -> None:
    forms = forms_of(Samples(np.zeros((3, 1, 28, 28), np.float32), LABELS))
    for shape, words, todo in (
        ((3, 32, 32), "3 x 32 x 32", "scale or cut the images, or give them as many channels"),
        ((28, 28), "28 x 28", r"reshape the array from \(3, 28, 28\) to \(3, 1, 28, 28\)"),
    ):
        with pytest.raises(
            DataError,
            match=rf"a sample's inputs are {words}; expected 1 x 28 x 28 \(channels x height x width\), as the "
            f"operator has them: {todo}",
        ):
            formed(Samples(np.zeros((3, *shape), np.float32), LABELS), forms)
    with pytest.raises(
        DataError, match=r"the samples have inputs.code, .*; expected inputs, targets: give one array"
    ):
        formed(D_C, forms)
