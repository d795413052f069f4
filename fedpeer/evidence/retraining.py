"""How far two trainings on the same samples may be apart: what an audit by re-training is held against.

Each sound shadow of the round is trained once more by a second seed, and by the recipe itself, as auditors train, where
terms allow variations of it. Both of its models are measured by maps that are
fitted without it, as a submission and its re-training are measured by maps that have seen neither:

    difference = v(second training) - v(first)

Sources: Vovk 2015, cross-conformal predictors; `mechanism.audit` for what is made of the differences.
"""

from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import replace

import numpy as np

from fedpeer.evidence.errors import EvidenceError
from fedpeer.evidence.fitting import fit_maps
from fedpeer.evidence.measuring import Ensemble, EvidenceTask, Report, Shadows, joined_tables, observe_all
from fedpeer.evidence.regression import folds, micro
from fedpeer.learning.models import Weights

#: Parts of the shadows that are held out in turn.
_CHECK_FOLDS = 10

#: Separates the seed of a second training from that of the first.
_SECOND = 8


def retraining_differences(
    task: EvidenceTask,
    start: Weights,
    ensemble: Ensemble,
    carried: Sequence[Shadows] = (),
    executor: Executor | None = None,
    report: Report = lambda trained, of: None,
) -> tuple[int, ...]:
    """One difference a sound shadow of the round, millionths.

    Args:
        ensemble: of `start`; carried: as it was prepared with.

    Raises:
        EvidenceError: a second training that diverged, as too few did before.
    """
    shadows = ensemble.shadows
    again = observe_all(
        task,
        ensemble.observer,
        start,
        [replace(plan, seed=plan.seed ^ _SECOND, recipe=None) for plan in shadows.plans],
        executor=executor,
        report=report,
    )
    if not all(each.finite for each in again):
        raise EvidenceError("a shadow model diverged at its second training; nothing can be compared with it")
    earlier = joined_tables([each for each in carried if each.tensors == shadows.tensors])
    first, second = shadows.table, shadows.table.seen_as(again)
    found = np.empty(len(first.degrees))
    for rest, fold in folds(first.groups, _CHECK_FOLDS):
        maps, *_ = fit_maps(first.rows(rest).joined(earlier))
        found[fold] = maps.estimates(second.rows(fold)) - maps.estimates(first.rows(fold))
    return tuple(micro(each) for each in found.tolist())
