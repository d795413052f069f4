"""How well degrees are measured, workload by workload, on mixes that no shadow has.

tasks       the workloads, their data, strata and recipes
trial       one start: shadows, participants of foreign mixes, what was estimated
private     the same where models have noise, by epsilon
results     mean error, rank and coverage, beside what is expected
"""

from fedpeer.experiments.accuracy.results import GOALS, AccuracyResult
from fedpeer.experiments.accuracy.tasks import TASKS, AccuracyTask
from fedpeer.experiments.accuracy.trial import accuracy_cells

__all__ = ["GOALS", "TASKS", "AccuracyResult", "AccuracyTask", "accuracy_cells"]
