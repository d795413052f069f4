"""Shadows on workers of other machines: killed, slow, absent or strange, they change nothing but the time.

Scheduler and workers are processes of their own, over TLS, with the files that the operator's command makes.
"""

import hashlib
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coordinator.aggregation import aggregate
from coordinator.blobs import BlobStore, open_blobs
from coordinator.folder import StateFolder
from coordinator.packing import Packer, Unpacker
from coordinator.remote_workers import RemoteExecutor
from coordinator.worker_folders import make_worker_folder, open_workers
from fedpeer.evidence import EvidenceTask, ShadowEvidence
from fedpeer.evidence.fitting import MIN_SHADOWS
from fedpeer.learning.datasets import load_splits
from fedpeer.learning.models import initial_weights
from fedpeer.protocol.model_file import encode_model
from tests.fedpeer.evidence.population import RECIPE, UNIFORM, submission
from tests.integration.market import CONFIG, make_folder
from tests.object_stores import BUCKET, free_port, object_store, write_key

pytestmark = [pytest.mark.arithmetic, pytest.mark.long]

#: Seconds that processes get to start on a busy machine, importing torch.
PATIENCE = 120


@dataclass
class Place:
    """A coordinator's folder, the folder of its workers, and what runs from it."""

    folder: StateFolder
    worker: Path
    port: int
    resources: ExitStack
    scheduler: "subprocess.Popen[bytes] | None" = None
    workers: "subprocess.Popen[bytes] | None" = None

    @property
    def blobs(self) -> BlobStore:
        return open_blobs(self.folder.models, self.folder.config().s3, self.folder.path)

    def schedule(self) -> None:
        self.scheduler = self.run("schedule", "--listen", f"127.0.0.1:{self.port}")

    def work(self, processes: int = 2) -> None:
        self.workers = self.run("run", "--processes", str(processes), "--host", "127.0.0.1", ready=processes)

    def children(self) -> list[int]:
        """The worker processes."""
        assert self.workers is not None
        found = subprocess.run(
            ["ps", "-ww", "-o", "pid=,args=", "--ppid", str(self.workers.pid)],
            capture_output=True,
            text=True,
            check=True,
        )
        return [int(line.split()[0]) for line in found.stdout.splitlines() if "spawn_main" in line]

    def run(self, *words: str, ready: int = 1) -> "subprocess.Popen[bytes]":
        """Starts a command of `fedpeer worker`, and waits until so many of its processes are ready."""
        command = [sys.executable, "-m", "fedpeer", "worker", words[0], str(self.worker), *words[1:]]
        process = subprocess.Popen(
            command, stderr=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
        self.resources.callback(process.wait)
        self.resources.callback(process.kill)
        assert process.stderr is not None
        said = b""
        while ready:
            said += (line := process.stderr.readline())
            assert line, said.decode()
            ready -= line.startswith(b"ready at tls://")
        threading.Thread(target=process.stderr.read, daemon=True).start()
        return process

    def executor(self, wait_seconds: float = 600) -> RemoteExecutor:
        section = self.folder.config().workers.model_copy(update={"wait_seconds": wait_seconds})
        workers = open_workers(section, self.folder, self.blobs)
        return workers._executor  # type: ignore[attr-defined, no-any-return]  # of the workers that are remote


@contextmanager
def placed(path: Path, store: str = "", state: str = "state", device: str = "") -> Iterator[Place]:
    with ExitStack() as resources:
        path.mkdir(exist_ok=True)
        port, section = free_port(), ""
        if store:
            url = resources.enter_context(object_store(store, path / "store"))
            section = f'[s3]\nbucket = "{BUCKET}"\nendpoint = "{url}"\ncredentials = "s3.key"\n'
        workers = f'[workers]\nexecutor = "dask://127.0.0.1:{port}"\ndevice = "{device}"\n'
        folder = make_folder(path / state, CONFIG + workers + section)
        if store:
            write_key(folder.path)
        make_worker_folder(folder, path / "worker", "worker")
        yield Place(folder, path / "worker", port, resources)


@pytest.fixture(scope="module", params=["", pytest.param("moto", marks=pytest.mark.slow)])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Where a scheduler and two workers run, whatever the test before did to them."""
    with placed(tmp_path_factory.mktemp("place"), request.param) as made:
        made.schedule()
        made.work()
        yield made


@pytest.fixture(scope="module")
def task() -> EvidenceTask:
    splits = load_splits("digits", validation=600, test=100, seed=3)
    # Where a shadow is trained is at stake, not how well.
    return EvidenceTask.of_images(replace(RECIPE, epochs=1), splits.validation, UNIFORM)


def record(task: EvidenceTask, executor: Any, meanwhile: Any = lambda trained: None) -> dict[str, Any]:
    """A round's record, with shadows that the executor trains; `meanwhile` hears of each piece."""
    evidence = ShadowEvidence(
        task,
        seed=5,
        shadows=MIN_SHADOWS * 2,
        executor=executor,
        report=lambda trained, of: meanwhile(trained),
    )
    start = initial_weights(RECIPE.model, seed=1)
    ensemble = evidence.prepare(start, 1)
    moved = {name: array + 1 if array.dtype == np.float32 else array for name, array in start.items()}
    found = evidence.assess(ensemble, [submission("ann", moved, UNIFORM[0], order=1)])
    return found.record


@pytest.fixture(scope="module")
def alone(task: EvidenceTask) -> dict[str, Any]:
    """What this process alone comes to."""
    return record(task, None)


@pytest.mark.extended  # they do below, too, where they are killed meanwhile
def test_workers_come_to_what_this_machine_comes_to(
    place: Place, task: EvidenceTask, alone: dict[str, Any]
) -> None:
    with place.executor() as executor:
        assert record(task, executor) == alone
        assert executor.trouble == ""


@pytest.mark.extended  # test_evaluating.py has the same of an executor on this machine
def test_workers_look_at_submissions_and_average_them_as_this_machine_does(
    place: Place, task: EvidenceTask, tmp_path: Path
) -> None:
    start = initial_weights(RECIPE.model, seed=1)
    ensemble = ShadowEvidence(task, seed=5, shadows=MIN_SHADOWS * 2).prepare(start, 1)
    dice = np.random.default_rng(1)
    blobs, submissions = place.blobs, []
    for k in range(20):
        moved = {
            n: a + dice.normal(0, 0.01, a.shape).astype(a.dtype) if a.dtype == np.float32 else a
            for n, a in start.items()
        }
        content = encode_model(moved)
        digest = hashlib.sha256(content).digest()
        said = submission(f"p{k:02d}", moved, UNIFORM[0], order=k + 1)
        submissions.append(replace(said, model=blobs.put(content, digest), model_sha256=digest))
    parts = {s.participant_id: (s.model, 7 + s.order) for s in submissions if isinstance(s.model, Path)}

    def found(executor: Any) -> tuple[Any, bytes, list[float]]:
        table = ShadowEvidence(task, seed=5, executor=executor).measurements(ensemble)
        table.measure_all(submissions)
        harms = table.aggregate(list(parts)).harms(list(parts), executor)
        mean = aggregate(parts, tmp_path / "mean", executor=executor)
        return table.assess().record, mean, list(harms.values())

    here = found(None)
    with place.executor() as executor:
        assert found(executor) == here
        assert executor.trouble == ""
        os.kill(place.children()[0], signal.SIGKILL)
        assert found(executor) == here


@pytest.mark.extended
def test_a_worker_that_hangs_is_not_waited_for(
    place: Place, task: EvidenceTask, alone: dict[str, Any]
) -> None:
    with ExitStack() as resources:
        executor = resources.enter_context(place.executor(wait_seconds=5))
        stopped = []

        def stop(trained: int) -> None:
            if not stopped:
                stopped.extend(place.children())
                for pid in stopped:
                    os.kill(pid, signal.SIGSTOP)
                    resources.callback(os.kill, pid, signal.SIGCONT)

        assert record(task, executor, stop) == alone
        assert stopped


@pytest.mark.parametrize(
    "kills", [pytest.param(1, id="worker"), pytest.param(2, id="both", marks=pytest.mark.extended)]
)
def test_a_killed_worker_and_a_killed_scheduler_change_nothing(
    place: Place, task: EvidenceTask, alone: dict[str, Any], kills: int
) -> None:
    killed = []

    def kill(trained: int) -> None:
        if not killed:
            killed.append(place.children()[0])
            os.kill(killed[0], signal.SIGKILL)
        elif len(killed) < kills:
            assert place.scheduler is not None
            place.scheduler.kill()
            place.scheduler.wait()
            killed.append(place.scheduler.pid)
            place.schedule()

    with place.executor() as executor:
        assert record(task, executor, kill) == alone
        # And an error of the work is what it is here.
        with pytest.raises(ZeroDivisionError):
            executor.submit(divmod, 1, 0).result(PATIENCE)
    assert len(killed) == kills
    assert place.workers is not None
    assert place.workers.poll() is None, "workers wait for the next scheduler"


@pytest.mark.extended
def test_without_a_scheduler_the_round_waits_says_so_and_goes_on_here(
    tmp_path: Path, task: EvidenceTask, alone: dict[str, Any]
) -> None:
    with placed(tmp_path) as place, place.executor(wait_seconds=2) as executor:
        troubles = []
        assert record(task, executor, lambda trained: troubles.append(executor.trouble)) == alone
        assert re.match(rf"the scheduler at 127.0.0.1:{place.port} does not answer", troubles[0])


@pytest.mark.extended
def test_workers_that_train_in_stacks_come_to_what_this_machine_comes_to_in_stacks(
    tmp_path: Path, task: EvidenceTask
) -> None:
    together = replace(task, device="cpu")
    with placed(tmp_path, device="cpu") as place:
        place.schedule()
        place.work(1)
        with place.executor() as executor:
            assert record(together, executor) == record(together, None)
            assert executor.trouble == ""


def test_what_is_sent_holds_no_model_and_comes_out_as_it_went_in(tmp_path: Path) -> None:
    blobs = BlobStore(tmp_path / "models")
    model = {"w": np.arange(12, dtype=np.float32).reshape(3, 4), "b": np.array(7), "a": np.array([True])}
    images = np.random.default_rng(1).random((200, 3, 8, 8))
    turned = np.asfortranarray(np.arange(40_000, dtype=np.float64).reshape(200, 200))
    packer = Packer(blobs)
    file = blobs.put(b"a file", hashlib.sha256(b"a file").digest())
    other = tmp_path / "other"
    few = ["few", np.arange(3), file, other]
    content, digests = packer.pack(divmod, (model, {"x": images}, turned, few))
    files = sorted((tmp_path / "models").rglob("*.safetensors"))
    assert {bytes.fromhex(path.stem) for path in files} == digests
    assert len(digests) == 3
    assert str(file).encode() not in content
    assert model["w"].tobytes() not in content
    assert images.tobytes()[:100] not in content
    function, (got, samples, order, rest) = Unpacker(blobs).unpack(content)
    assert function is divmod
    assert list(got) == ["w", "b", "a"]
    for name, array in model.items():
        assert got[name].dtype == array.dtype
        assert got[name].shape == array.shape
        assert got[name].tobytes() == array.tobytes()
    assert samples["x"].tobytes() == images.tobytes()
    assert order.flags.f_contiguous
    np.testing.assert_array_equal(order, turned)
    np.testing.assert_array_equal(rest[1], np.arange(3))
    assert rest[2:] == [file, other]
    # A file that is another now, and one that is gone, are found.
    path = blobs.path(sorted(digests - {blobs.digest(file)})[0])
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    with pytest.raises(OSError, match="is damaged"):
        Unpacker(blobs).unpack(content)
    path.unlink()
    with pytest.raises(FileNotFoundError):
        Unpacker(blobs).unpack(content)
