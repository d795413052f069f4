"""Submissions looked at by an executor's workers come to the record that this process alone comes to, bit for bit."""

from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coordinator.shadow_workers import ShadowWorkers
from fedpeer.evidence import EvidenceTask, ShadowEvidence
from fedpeer.evidence.assessing import ShadowEnsemble
from fedpeer.evidence.fitting import MIN_SHADOWS
from fedpeer.evidence.measuring import CHECKS
from fedpeer.learning.datasets import load_splits
from fedpeer.learning.models import initial_weights
from fedpeer.protocol.model_file import encode_model
from fedpeer.protocol.submission import Submission
from tests.fedpeer.evidence.population import RECIPE, UNIFORM, honest_models, submission

pytestmark = pytest.mark.arithmetic


class Round:
    """A round whose shadows are trained once, and whose submissions are looked at by whom it is asked to."""

    def __init__(self, folder: Path) -> None:
        splits = load_splits("digits", validation=600, test=100, seed=3)
        self.task = EvidenceTask.of_images(RECIPE, splits.validation, UNIFORM)
        self.start = initial_weights(RECIPE.model, seed=1)
        self.ensemble: ShadowEnsemble = self.evidence(None).prepare(self.start, 1)
        self.submissions = []
        models = honest_models(splits, self.start, [Fraction(k, 12) for k in range(6)], 5)
        # A copy, one of another form, one that overflows, one in no file, and one that is no model.
        wrong = dict(list(self.start.items())[1:])
        wild = {n: a * np.float32(1e30) if a.dtype == np.float32 else a for n, a in self.start.items()}
        for k, weights in enumerate([*(w for _, w in models), models[0][1], wrong, wild]):
            content = encode_model(weights)
            file = folder / f"{k}.safetensors"
            file.write_bytes(content)
            said = submission(f"p{k}", weights, Fraction(1, 4), k + 1)
            digest = self.submissions[0].model_sha256 if k == len(models) else said.model_sha256
            self.submissions.append(replace(said, model=file, model_sha256=digest))
        broken = folder / "broken.safetensors"
        broken.write_bytes(b"no model")
        self.submissions.append(replace(submission("q0", {}, Fraction(0), 20), model=broken))
        self.submissions.append(submission("q1", models[1][1], Fraction(1, 4), 21))

    def evidence(self, executor: Executor | None) -> ShadowEvidence:
        return ShadowEvidence(self.task, seed=5, shadows=MIN_SHADOWS * 2, executor=executor)

    def record(
        self, executor: Executor | None, submissions: list[Submission] | None = None
    ) -> dict[str, Any]:
        return self.evidence(executor).assess(self.ensemble, submissions or self.submissions).record


@pytest.fixture(scope="module")
def round_(tmp_path_factory: pytest.TempPathFactory) -> Round:
    return Round(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def alone(round_: Round) -> dict[str, Any]:
    return round_.record(None)


class Counting(ThreadPoolExecutor):
    """Counts what it is given; every call from the `lost`-th on ends as one whose file cannot be read."""

    def __init__(self, lost: int = 10**9) -> None:
        super().__init__(1)
        self.given, self.lost = 0, lost

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        self.given += 1
        if self.given <= self.lost:
            return super().submit(fn, *args, **kwargs)
        gone: Future[Any] = Future()
        gone.set_exception(FileNotFoundError("the store lacks it just now"))
        return gone


@pytest.mark.extended
def test_other_processes_come_to_the_same_record(round_: Round, alone: dict[str, Any]) -> None:
    with ShadowWorkers(2) as workers:
        assert round_.record(workers) == alone


def test_models_are_looked_at_and_left_out_by_the_executor(round_: Round, alone: dict[str, Any]) -> None:
    measured: Any = alone["measurements"]
    faults = {m["participant_id"]: m["fault"] for m in measured if m["fault"]}
    assert faults.keys() == {"p7", "p8", "q0"}
    assert {m["participant_id"] for m in measured if m["harm"] is not None} >= {"p1", "p2", "q1"}
    with Counting() as workers:
        assert round_.record(workers) == alone
        # Nine files that are no copies, in pieces of eight, and shadows that check who looks alike; q1 is in no file.
        assert workers.given == 2 + 2 * CHECKS
    files = [s for s in round_.submissions if isinstance(s.model, Path)]
    with Counting() as workers:
        assert round_.record(workers, files) == round_.record(None, files)
        assert workers.given == 3  # and what the mean is without each


@pytest.mark.parametrize("lost", [0, 1])
def test_what_a_worker_cannot_read_is_no_fault_of_the_model(round_: Round, lost: int) -> None:
    files = [s for s in round_.submissions if isinstance(s.model, Path)]
    with Counting(lost) as workers:
        assert round_.record(workers, files) == round_.record(None, files)
        assert workers.given > lost
