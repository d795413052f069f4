"""Labels of every kind that people have are counted as what they are, or refused; none is cut off."""

from typing import Any

import numpy as np
import pytest

from fedpeer.learning.errors import DataError
from fedpeer.learning.labels import class_count, real_inputs, whole_labels


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        ([1, 0, 2], 3),
        (np.array([1, 0, 2], np.int32), 3),
        (np.array([1, 0, 2], np.uint8), np.int64(3)),
        (np.array([1.0, 0.0, 2.0]), 3),
        (np.array([1, 0, 2], object), 3),
        (["dog", "cat", "owl"], ["cat", "dog", "owl"]),
        (np.array(["dog", "cat", "owl"]), np.array(["cat", "dog", "owl"])),
        (np.array(["dog", "cat", "owl"], object), ("cat", "dog", "owl")),
        ([1, 0, 2], ["cat", "dog", "owl"]),
    ],
)
def test_labels_are_whole_numbers_or_names_of_classes(labels: Any, classes: Any) -> None:
    found = whole_labels(labels, classes)
    assert found.dtype == np.int64
    assert found.tolist() == [1, 0, 2]
    assert class_count(classes) == 3


@pytest.mark.parametrize(
    ("labels", "classes", "words"),
    [
        ([0.5, 1.0], 2, "a label is 0.5; expected whole numbers from 0 to 1"),
        ([float("nan"), 1.0], 2, "a label is nan"),
        ([float("inf"), 1.0], 2, "a label is inf"),
        (["cat", "dog"], 2, "give `classes` as the learner's list of class names"),
        (["cat", "cow"], ["cat", "dog"], "a label is 'cow'; expected one of the classes"),
        ([b"cat"], ["cat", "dog"], "a label is b'cat'"),
        ([None, 1], 2, "a label is None"),
        ([1 + 0j, 0j], 2, "a label is"),
        (np.array(["2020-01-01"], "datetime64[D]"), 2, "a label is"),
        ([0, 2], 2, "labels run from 0 to 2; expected 0 to 1"),
        ([-1, 0], 2, "labels run from -1 to 0"),
        ([0, 2**63], 2, "expected 0 to 1"),
        ([0, 10**5000], 2, "expected 0 to 1"),
        ([[0, 1], [1, 0]], 2, r"labels have shape \(2, 2\)"),
        ([[0], [1, 0]], 2, "cannot be read as an array"),
        (np.ma.array([0, 1], mask=[0, 1]), 2, "masked"),
        ([0], 1, "at least 2"),
        ([0], 2.5, "at least 2"),
        ([0], "cat", "a list of their names"),
        ([0], {"cat", "dog"}, "a list in the reference's order"),
        ([0], {"cat": 0, "dog": 1}, "a list in the reference's order"),
        ([0], ["cat", "cat"], "each once"),
    ],
)
def test_labels_of_another_kind_are_refused(labels: Any, classes: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        whole_labels(labels, classes)


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ([[1.0, float("nan")]], "1 values that are NaN"),
        ([[1e300]], "too large"),
        ([["red"]], "expected real numbers"),
        ([[1j]], "expected real numbers"),
    ],
)
def test_inputs_are_finite_real_numbers(inputs: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        real_inputs(inputs, np.float32)
