"""The exact map from features to a degree."""

import json
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mechanism.degree_map import EXCESS_LEVELS, DegreeMap, regressor_count, regressors
from mechanism.errors import FieldError
from mechanism.settlement import MICRO
from mechanism.trees import Forest, Tree

THIRDS = (Fraction(1, 2), Fraction(1, 3), Fraction(1, 6))
LENGTH = regressor_count(3, 2, 1)


def constant(value: int) -> Tree:
    return Tree((-1,), (value,), (0,))


def a_map(**changed: Any) -> DegreeMap:
    values: dict[str, Any] = {
        "reference": THIRDS,
        "share_own": (1_000_000_000, 0),
        "share_mean": (0, 0),
        "share_intercept": 0,
        "sorted_columns": (1,),
        "weights": (0,) * LENGTH,
        "intercept": 300_000_000,
        "forest": Forest((constant(100_000), constant(200_000)), LENGTH),
        "half_width": 50_000,
    }
    return DegreeMap(**{**values, **changed})


def features(*rows: tuple[int, int]) -> list[list[int]]:
    return [list(row) for row in rows]


MICROS = st.integers(-5 * MICRO, 5 * MICRO)
ROWS = st.lists(st.tuples(MICROS, MICROS), min_size=3, max_size=3)


def test_the_degree_is_the_mean_of_line_and_trees() -> None:
    # (0.3 + 0.15) / 2
    assert a_map().degree_micro(features((0, 0), (0, 0), (0, 0))) == 225_000


def test_the_degree_is_cut_at_what_the_reference_allows() -> None:
    zero = features((0, 0), (0, 0), (0, 0))
    assert a_map(intercept=-5_000_000_000).degree_micro(zero) == 0
    assert a_map(intercept=5_000_000_000).degree_micro(zero) == int(Fraction(5, 6) * MICRO)


@given(ROWS)
def test_regressors_are_those_of_the_formula(rows: list[tuple[int, int]]) -> None:
    z = np.array(a_map().regressors(rows)) / MICRO
    x, q = np.array(rows) / MICRO, np.array([float(p) for p in THIRDS])
    p = x[:, 0]
    positive = np.maximum(p, 0)
    distance = np.abs(positive / positive.sum() - q).sum() / 2 if positive.sum() else 0.0
    expected = [
        *np.sort(x[:, 1]),
        *np.sort(p - q),
        distance,
        *(np.maximum(p - float(t) * q, 0).sum() for t in EXCESS_LEVELS),
        *x.mean(axis=0),
        *x.std(axis=0),
    ]
    assert len(z) == LENGTH
    assert z == pytest.approx(expected, abs=2e-6)


@given(ROWS, st.permutations(range(3)))
def test_regressors_do_not_depend_on_the_order_of_strata(
    rows: list[tuple[int, int]], order: list[int]
) -> None:
    shares = [row[0] for row in rows]
    here = regressors(THIRDS, (1,), rows, shares)
    there = regressors([THIRDS[i] for i in order], (1,), [rows[i] for i in order], [shares[i] for i in order])
    assert here == there


def test_a_map_comes_back_from_its_record() -> None:
    model = a_map()
    assert DegreeMap.from_record(json.loads(json.dumps(model.record()))) == model


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"share_mean": (0,)}, "share_mean"),
        ({"sorted_columns": (2,)}, "sorted_columns"),
        ({"weights": (0,)}, "weights"),
        ({"forest": Forest((constant(0),), 4)}, "weights"),
    ],
)
def test_maps_whose_parts_do_not_fit_are_refused(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(FieldError, match=said):
        a_map(**changed)


def test_features_of_another_shape_are_refused() -> None:
    with pytest.raises(FieldError, match="features"):
        a_map().degree_micro(features((0, 0)))
    with pytest.raises(FieldError, match="an object with the keys forest, half_width"):
        DegreeMap.from_record({"reference": ["1/2", "1/2"]})
