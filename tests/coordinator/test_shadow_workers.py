"""Workers end with the process that started them, and are replaced where one was killed."""

import os
import signal
import subprocess
import sys
import textwrap
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
import torch

from coordinator.errors import ConfigError
from coordinator.shadow_workers import LocalWorkers, ShadowWorkers, check_device
from fedpeer.learning.samples import Samples
from mechanism.terms import Recipe

DIGITS = Recipe("digits-cnn", 5, 20, "adam", Decimal("0.003"), 150)
FASHION = Recipe("fashion-mnist-cnn", 5, 64, "adam", Decimal("0.001"), 500)

#: Seconds that processes get to start on a busy machine, importing torch, or to end.
PATIENCE = 120


def kill_oneself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_worker_fails_its_work_and_the_next_work_finds_new_ones() -> None:
    with ShadowWorkers(1) as workers:
        first = workers.submit(os.getpid).result(PATIENCE)
        lost = workers.submit(kill_oneself)
        assert isinstance(lost.exception(PATIENCE), Exception)
        assert workers.submit(os.getpid).result(PATIENCE) != first


@pytest.mark.parametrize(
    "pool",
    [
        "coordinator.shadow_workers.ShadowWorkers(1)",
        pytest.param("fedpeer.experiments.cells.local_executor(1)", marks=pytest.mark.extended),
    ],
)
def test_workers_end_with_a_parent_that_is_killed(pool: str, tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import os, time
            import coordinator.shadow_workers, fedpeer.experiments.cells

            if __name__ == "__main__":
                with {pool} as workers:
                    print(workers.submit(os.getpid).result(), flush=True)
                    time.sleep(600)
            """
        )
    )
    parent = subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert parent.stdout is not None
    assert int(parent.stdout.readline()) != parent.pid
    parent.kill()
    parent.wait()
    # The worker holds the other end of this pipe, too: reading ends when the last of them has ended.
    assert parent.stdout.read() == ""


def test_workers_that_serve_as_long_as_the_process_end_with_it_in_silence(tmp_path: Path) -> None:
    script = tmp_path / "process.py"
    script.write_text(
        textwrap.dedent(
            """
            import os
            from coordinator.shadow_workers import ShadowWorkers

            if __name__ == "__main__":
                os.kept = ShadowWorkers(1)  # in a module that Python takes apart after those of the pool
                print(os.kept.submit(os.getpid).result())
            """
        )
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, env=environment, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.strip().isdecimal()


def test_a_device_that_is_not_there_is_refused_before_anything_starts() -> None:
    check_device("")
    check_device("cpu")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    with pytest.raises(
        ConfigError, match=rf"workers\.device is 'cuda:{count}', and torch finds {count} CUDA device"
    ):
        check_device(f"cuda:{count}")


def images(side: int) -> Samples:
    return Samples(np.zeros((1, 1, side, side), np.float32), np.zeros(1, np.int64))


def test_small_rounds_are_trained_in_place_and_large_ones_by_workers() -> None:
    assert LocalWorkers().for_shadows(DIGITS, images(8), 125) is None
    assert LocalWorkers("cuda").for_shadows(FASHION, images(28), 125) is None  # one device trains all of them
    if len(os.sched_getaffinity(0)) > 1:
        assert isinstance(LocalWorkers().for_shadows(FASHION, images(28), 125), ShadowWorkers)
