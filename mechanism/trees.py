"""Regression trees with integer thresholds and leaves, so that what they say is exact.

A tree is three sequences over its nodes in preorder, root first, left subtree before right:

    feature[i]      which regressor is compared; -1 at a leaf
    bound[i]        go left where regressor <= bound; at a leaf: its value
    right[i]        where the right subtree begins (the left one begins at i + 1); 0 at a leaf

A forest says the mean of its trees.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from mechanism.canonical import Json
from mechanism.errors import FieldError
from mechanism.ranges import integers, listed

#: Of a forest. A walk may visit every second one, for each model of a round: so long may a log keep its verifier.
MAX_NODES = 2**18


@dataclass(frozen=True)
class Tree:
    """One tree; see the module's text.

    Raises:
        FieldError: sequences that hold anything but integers or have different lengths, or a node whose children do
            not come after it, so that a walk might never end.
    """

    feature: tuple[int, ...]
    bound: tuple[int, ...]
    right: tuple[int, ...]

    def __post_init__(self) -> None:
        for name in ("feature", "bound", "right"):
            integers(f"tree.{name}", getattr(self, name))
        nodes = len(self.feature)
        if not nodes or len(self.bound) != nodes or len(self.right) != nodes:
            raise FieldError(
                "tree", [nodes, len(self.bound), len(self.right)], "three sequences of one length"
            )
        for i, (feature, right) in enumerate(zip(self.feature, self.right, strict=True)):
            if feature >= 0 and not i + 1 < right < nodes:
                raise FieldError("tree.right", right, f"a node after {i + 1} and before {nodes}")
            if feature < 0 and (feature, right) != (-1, 0):
                raise FieldError("tree", [feature, right], "a leaf, whose feature is -1 and whose right is 0")

    def __call__(self, z: Sequence[int]) -> int:
        """The value of the leaf that `z` falls into."""
        i = 0
        while self.feature[i] >= 0:
            i = i + 1 if z[self.feature[i]] <= self.bound[i] else self.right[i]
        return self.bound[i]


@dataclass(frozen=True)
class Forest:
    """At least one tree over `regressors` regressors; `MAX_NODES` nodes in all.

    Raises:
        FieldError: no tree, too many nodes, or a tree that looks at a regressor that does not exist.
    """

    trees: tuple[Tree, ...]
    regressors: int

    def __post_init__(self) -> None:
        if not self.trees:
            raise FieldError("trees", self.trees, "at least one tree")
        if (nodes := sum(len(tree.feature) for tree in self.trees)) > MAX_NODES:
            raise FieldError("trees", f"{nodes} nodes", f"at most {MAX_NODES}")
        highest = max(max(tree.feature) for tree in self.trees)
        if highest >= self.regressors:
            raise FieldError("tree.feature", highest, f"a regressor below {self.regressors}")

    def __call__(self, z: Sequence[int]) -> Fraction:
        """The mean of the trees, exact; `z` has `regressors` integers."""
        return Fraction(self.total(z), len(self.trees))

    def total(self, z: Sequence[int]) -> int:
        """The sum of the trees."""
        if len(z) != self.regressors:
            raise FieldError("regressors", f"{len(z)} integers", f"{self.regressors}, as the trees have")
        return sum([tree(z) for tree in self.trees])

    def record(self) -> list[Json]:
        return [[list(t.feature), list(t.bound), list(t.right)] for t in self.trees]

    @classmethod
    def from_record(cls, record: Any, regressors: int) -> "Forest":
        """Raises FieldError where `record` is none."""
        trees = []
        for parts in listed("forest", record):
            if not isinstance(parts, list) or len(parts) != 3:
                raise FieldError("tree", parts, "features, bounds and right subtrees")
            trees.append(Tree(*(listed("tree", part) for part in parts)))
        return cls(tuple(trees), regressors)
