"""A round's shadows on one process of Dask's workers and on two, in turn.

python -m benchmarks.workers [--shadows 64] [--epochs 10] [--repeat 3]

The machine must have two cores free, or the ratio says what the others left. Each worker has a core of its own; where
there are two cores, the coordinator and the scheduler share them. CPU seconds by process say how much that is, and what
two cores allow at most: the time with one worker over half of all CPU time with two.
"""

import argparse
import os
import statistics
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks.serving import cpu_seconds
from coordinator.remote_workers import RemoteExecutor
from fedpeer.evidence.measuring import EvidenceTask, prepare_shadows
from fedpeer.learning.datasets import load_splits
from fedpeer.learning.models import initial_weights
from tests.chaos.test_worker_kills import Place, children, placed
from tests.fedpeer.evidence.population import RECIPE, UNIFORM


@dataclass
class Setting:
    """So many workers with their scheduler; what each run took, by the wall and of CPU by kind of process."""

    place: Place
    workers: list[int]
    executor: RemoteExecutor
    seconds: list[float] = field(default_factory=list)
    cpu: list[dict[str, float]] = field(default_factory=list)

    def run(self, task: EvidenceTask, seed: int, shadows: int, *, timed: bool = True) -> None:
        before, began = self._cpu(), time.perf_counter()
        prepare_shadows(
            task, initial_weights(RECIPE.model, seed=1), seed, shadows=shadows, executor=self.executor
        )
        if timed:
            self.seconds.append(time.perf_counter() - began)
            self.cpu.append({kind: now - before[kind] for kind, now in self._cpu().items()})

    def _cpu(self) -> dict[str, float]:
        assert self.place.scheduler is not None
        return {
            "coordinator": time.process_time(),
            "scheduler": cpu_seconds(self.place.scheduler.pid),
            "workers": sum(map(cpu_seconds, self.workers)),
        }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shadows", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--repeat", type=int, default=3)
    given = parser.parse_args()
    splits = load_splits("digits", validation=600, test=100, seed=3)
    task = EvidenceTask.of_images(replace(RECIPE, epochs=given.epochs), splits.validation, UNIFORM)
    with ExitStack() as resources:
        folder = Path(resources.enter_context(tempfile.TemporaryDirectory()))
        settings = {}
        for count in (1, 2):
            place = resources.enter_context(placed(folder / str(count)))
            place.schedule()
            workers = []
            for core in sorted(os.sched_getaffinity(0))[:count]:
                workers += children(place.work(1))
                os.sched_setaffinity(workers[-1], {core})
            settings[count] = Setting(place, workers, place.executor())
            settings[count].run(task, 0, 32, timed=False)  # each reads D_c once
        for repeat in range(given.repeat):
            for setting in settings.values():
                setting.run(task, 1 + repeat, given.shadows)
    for count, setting in settings.items():
        cpu = {kind: statistics.median(run[kind] for run in setting.cpu) for kind in setting.cpu[0]}
        words = ", ".join(f"{kind} {seconds:.2f}" for kind, seconds in cpu.items())
        print(f"{count} workers: {statistics.median(setting.seconds):.2f} s; CPU seconds: {words}")
    one, two = (statistics.median(setting.seconds) for setting in settings.values())
    most = one / statistics.median(sum(run.values()) / 2 for run in settings[2].cpu)
    print(f"{given.shadows} shadows: ratio {one / two:.2f}, of {most:.2f} that two cores allow")


if __name__ == "__main__":
    main()
