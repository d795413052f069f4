"""Counts over strata, as a claim states them: samples of each, in the reference's order.

    count(samples, terms)                        whatever the task's strata are
    count_labels(labels, classes)                each class a stratum
    count_quantiles(values, edges)               intervals of a measured target, or of a column
    count_column(values, names)                  the values of a column
    count_coded(samples, strata, folders)        what the factory of the terms' strata gives

    class Cats(Task):
        def prepare(self, terms): self.edges = terms.strata.edges
        def counts(self): return count_quantiles(self.weights_in_kg, self.edges)

Values that belong to no stratum are refused, each with a sentence.
"""

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np

from fedpeer.learning.labels import Classes, class_count, class_names
from fedpeer.learning.samples import Samples
from fedpeer.learning.strata import Codes, counts_over, strata_of
from mechanism.terms import Terms
from mechanism.workload import Coded, Column, Labels, Quantiles, Strata
from participant.adapters.fitting import refusing


def count(samples: Samples, terms: Terms, folders: Sequence[str] = ()) -> tuple[int, ...]:
    """Counts over the task's strata.

    Args:
        folders: where the module of a factory is looked for, before Python's own path.

    Raises:
        TaskError: samples that belong to no stratum, or a factory that is not here, or another here.
    """
    return _counted(samples, terms.strata, terms.strata_names, folders)


def codes(samples: Samples, terms: Terms, folders: Sequence[str] = ()) -> Codes:
    """The number of each sample's stratum, shape (n,). Arguments and errors as of `count`."""
    return _codes(samples, terms.strata, terms.strata_names, folders)


def count_labels(labels: Any, classes: Classes) -> tuple[int, ...]:
    """Args:
    labels: whole numbers from 0, or names of the classes.
    classes: their number, or their names in the reference's order.
    """
    with refusing():
        names = class_names(classes) or tuple(map(str, range(class_count(classes))))
    return _counted(_targets(labels), Labels(), names)


def count_quantiles(values: Any, edges: Sequence[float | Decimal]) -> tuple[int, ...]:
    """Args:
    values: one a sample, finite.
    edges: those of the terms' strata, ascending; there is one stratum more.
    """
    strata = Quantiles("target", tuple(Decimal(str(edge)) for edge in edges))
    return _counted(_targets(values), strata, strata.names(len(edges) + 1))


def count_column(values: Any, names: Sequence[str]) -> tuple[int, ...]:
    """Args:
    values: one a sample, texts or whole numbers.
    names: the values of the terms' strata, in their order.
    """
    column = np.asarray(values)
    samples = Samples(column, column, {"column": column})
    return _counted(samples, Column("column", tuple(names)), tuple(names))


def count_coded(samples: Samples, strata: Coded, folders: Sequence[str] = ()) -> tuple[int, ...]:
    """Args:
    strata: of the terms.
    folders: where the factory's module is looked for, before Python's own path.
    """
    return _counted(samples, strata, strata.strata, folders)


def _targets(values: Any) -> Samples:
    array = np.asarray(values)
    with refusing():
        return Samples(array, array)


def _counted(
    samples: Samples, strata: Strata, names: Sequence[str], folders: Sequence[str] = ()
) -> tuple[int, ...]:
    return counts_over(_codes(samples, strata, names, folders), len(names))


def _codes(samples: Samples, strata: Strata, names: Sequence[str], folders: Sequence[str]) -> Codes:
    with refusing():
        return strata_of(strata, names, folders).of(samples)
