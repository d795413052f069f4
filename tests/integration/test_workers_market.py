"""A market whose shadows workers elsewhere train: its evidence is the one that it would have come to alone."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpeer.learning.arithmetic import arithmetic
from fedpeer.testing import LocalMarket
from tests.chaos.test_worker_kills import placed
from tests.integration.test_own_workload_market import COUNTS, MODULE, Own, rows

pytestmark = [pytest.mark.arithmetic, pytest.mark.long]


def played(folder: Path, paths: Path) -> tuple[dict[str, Any], dict[str, int]]:
    """Plays a task from the state folder below `folder`, or a new one; its logged evidence model, and what it
    pays each."""
    terms = {
        "seed": 7,
        "rule": {"name": "verified", "peers": 3},
        "recipe": {
            "model": "table_models:mlp", "samples": 150, "epochs": 2, "batch_size": 30, "learning_rate": "0.01",
        },
        "data": {"file": "table.npz", "inputs": [f"x{j}" for j in range(4)], "target": "level"},
        "evidence": {"shadows": 14},
    }  # fmt: skip
    tasks = [Own(paths, counts, seed) for seed, counts in enumerate(COUNTS, 10)]
    with LocalMarket(
        [lambda task=task: task for task in tasks],  # type: ignore[misc]
        participants=len(tasks),
        rounds=1,
        terms=terms,
        effort=0.0,
        folder=folder,
        paths=paths,
    ) as market:
        reports = market.run()
        market.verify()
        openings = market.coordinator.operator(lambda operator: operator.openings())
    (found,) = (
        opening["model"] for name, opening in openings.by_id.items() if name.endswith("/round/1/evidence")
    )
    return dict(found), {name: report.paid_micro for name, report in reports.items()}


@pytest.mark.extended
def test_a_market_with_workers_logs_the_evidence_of_one_without_and_pays_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "table_models.py").write_text(MODULE)
    data = rows((100, 100, 100), 1)
    columns: dict[str, Any] = {f"x{j}": np.asarray(data.inputs)[:, j] for j in range(4)}
    np.savez(tmp_path / "table.npz", level=np.array(["low", "middle", "top"])[data.targets], **columns)
    with placed(tmp_path / "market", state="coordinator") as place:
        place.schedule()
        place.work(1)
        with monkeypatch.context() as changed:
            # This machine alone would not do.
            changed.setattr("coordinator.remote_workers.RemoteExecutor._do_here", None)
            found, paid = played(tmp_path / "market", tmp_path)
    assert found["computed_on"] == dict(arithmetic())
    assert sum(paid.values()) > 0
    assert (found, paid) == played(tmp_path / "alone", tmp_path), "the same seed gives the same payments"
