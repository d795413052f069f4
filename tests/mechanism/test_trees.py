"""Trees of integers say what scikit-learn's say, end their walks, and are written down without loss."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mechanism.canonical import canonical_bytes
from mechanism.errors import FieldError
from mechanism.trees import Forest, Tree

pytestmark = pytest.mark.arithmetic

#: x_0 <= 10 ? (x_1 <= 0 ? 1 : 2) : 5
TREE = Tree((0, 1, -1, -1, -1), (10, 0, 1, 2, 5), (4, 3, 0, 0, 0))


@pytest.mark.parametrize(("z", "value"), [((10, 0), 1), ((10, 1), 2), ((11, 0), 5), ((-3, 7), 2)])
def test_a_walk_goes_left_up_to_the_bound(z: tuple[int, int], value: int) -> None:
    assert TREE(z) == value


def test_a_forest_says_the_exact_mean() -> None:
    forest = Forest((TREE, Tree((-1,), (2,), (0,)), Tree((-1,), (0,), (0,))), 2)
    assert forest((11, 0)) * 3 == 7
    with pytest.raises(FieldError, match="3 integers"):
        forest((1, 2, 3))


def test_a_record_gives_the_forest_again() -> None:
    forest = Forest((TREE, Tree((-1,), (2,), (0,))), 2)
    assert Forest.from_record(json.loads(canonical_bytes(forest.record())), 2) == forest


@given(st.lists(st.tuples(st.integers(-1, 3), st.integers(), st.integers(-2, 9)), min_size=1, max_size=8))
def test_every_tree_that_is_accepted_ends(nodes: list[tuple[int, int, int]]) -> None:
    try:
        tree = Tree(*(tuple(column) for column in zip(*nodes, strict=True)))
    except FieldError:
        return
    try:
        assert isinstance(tree((0, 0, 0, 0)), int)
    except IndexError:
        pytest.fail("a walk left the tree")


@pytest.mark.parametrize(
    ("feature", "bound", "right"),
    [
        ((), (), ()),
        ((0, -1, -1), (0, 0), (2, 0, 0)),
        ((0, -1, -1), (0, 0, 0), (0, 0, 0)),  # back to itself
        ((0, -1, -1), (0, 0, 0), (3, 0, 0)),  # beyond the end
        ((0, -1, -1), (0, 0, 0), (1, 0, 0)),  # both children the same
        ((0,), (0,), (1,)),  # a last node with children
    ],
)
def test_what_is_no_tree_is_refused(
    feature: tuple[int, ...], bound: tuple[int, ...], right: tuple[int, ...]
) -> None:
    with pytest.raises(FieldError):
        Tree(feature, bound, right)


def test_a_forest_without_trees_or_over_other_regressors_is_refused() -> None:
    with pytest.raises(FieldError, match="at least one tree"):
        Forest((), 2)
    with pytest.raises(FieldError, match="a regressor below 1"):
        Forest((TREE,), 1)


def test_fitted_trees_in_integers_agree_with_the_fitted_ones() -> None:
    from sklearn.ensemble import ExtraTreesRegressor

    from fedpeer.evidence.regression import MICRO, LineAndTrees, integer_tree, ridge

    generator = np.random.default_rng(0)
    # Multiples of 1/64 are exact in single precision, in which scikit-learn compares.
    z = generator.integers(-640, 640, (60, 5)) / 64
    y = np.clip(z[:, 0] / 20 + np.abs(z[:, 1]) / 20, 0, 1)
    trees = ExtraTreesRegressor(16, min_samples_leaf=2, random_state=0).fit(z, y)
    degree = LineAndTrees(ridge(z, y), trees)
    other = generator.integers(-700, 700, (40, 5)) / 64
    for row, expected in zip(other, trees.predict(other), strict=True):
        found = degree.forest()([int(x * MICRO) for x in row])
        assert abs(float(found) / MICRO - expected) < 1e-6
    assert integer_tree(trees.estimators_[0].tree_) == degree.forest().trees[0]
