"""A round's shadows on one process of Dask's workers and on two, in turn.

python -m benchmarks.workers [--shadows 64] [--repeat 3]

The machine must have two cores free, or the ratio says what the others left.
"""

import argparse
import os
import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from fedpeer.evidence.measuring import EvidenceTask, prepare_shadows
from fedpeer.learning.datasets import load_splits
from fedpeer.learning.models import initial_weights
from tests.chaos.test_worker_kills import children, placed
from tests.fedpeer.evidence.population import RECIPE, UNIFORM


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shadows", type=int, default=64)
    parser.add_argument("--repeat", type=int, default=3)
    given = parser.parse_args()
    splits = load_splits("digits", validation=600, test=100, seed=3)
    task = EvidenceTask.of_images(RECIPE, splits.validation, UNIFORM)
    start = initial_weights(RECIPE.model, seed=1)
    seconds: dict[int, list[float]] = {1: [], 2: []}
    with ExitStack() as resources:
        folder = Path(resources.enter_context(tempfile.TemporaryDirectory()))
        executors = {}
        for count in seconds:
            place = resources.enter_context(placed(folder / str(count)))
            place.schedule()
            for core in sorted(os.sched_getaffinity(0))[:count]:
                os.sched_setaffinity(children(place.work(1))[0], {core})
            executors[count] = place.executor()
            prepare_shadows(task, start, 0, shadows=32, executor=executors[count])  # each reads D_c once
        for repeat in range(given.repeat):
            for count, executor in executors.items():
                began = time.perf_counter()
                prepare_shadows(task, start, 1 + repeat, shadows=given.shadows, executor=executor)
                seconds[count].append(time.perf_counter() - began)
    one, two = (statistics.median(found) for found in seconds.values())
    print(f"{given.shadows} shadows: one worker {one:.2f} s, two {two:.2f} s; ratio {one / two:.2f}")


if __name__ == "__main__":
    main()
