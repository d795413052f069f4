"""One participant's script in a process of its own, in a market with two others."""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import numpy as np

from participant.adapters.numpy import FunctionTask
from tests.integration.market import verified
from tests.integration.serving import served

SCRIPT = Path(__file__).with_name("training_script.py")
WEIGHTS = {"weight": np.ones((4, 3), np.float32)}


def paid_in_a_market(
    folder: Path,
    run: Callable[[Path, str], CompletedProcess[str]],
    weights: dict[str, Any] = WEIGHTS,
    reference: Sequence[str] = ("1/4",) * 4,
    counts: Sequence[int] = (10,) * 4,
) -> CompletedProcess[str]:
    """Plays a task in which `run(state folder, market)` is one of three participants, and asks that it was paid."""
    with served(folder / "coordinator") as coordinator:
        coordinator.open(weights=weights, reference=list(reference))
        peers = [coordinator.participant(name, folder) for name in ("b", "c")]
        threads = [
            threading.Thread(target=peer.run, args=(moving(number, counts), "task"), kwargs={"effort": 0.0})
            for number, peer in enumerate(peers, 1)
        ]
        for thread in threads:
            thread.start()
        done = run(coordinator.enrol("a", folder / "state"), coordinator.market)
        assert done.returncode == 0, done.stderr
        for thread in threads:
            thread.join(60)
        for peer in peers:
            peer.close()
        assert coordinator.operator(lambda operator: operator.task("task")).row.state.value == "CLOSED"
        assert verified(coordinator.folder).balances["payable:a"].holds > 0
    return done


def moving(step: int, counts: Sequence[int]) -> FunctionTask:
    return FunctionTask(
        lambda weights, _: {n: a + np.float32(step) for n, a in weights.items()}, list(counts)
    )
