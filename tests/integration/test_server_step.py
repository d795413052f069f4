"""A task whose server has momentum of its own: what the ledger says of it is computed again from the models alone."""

import hashlib
import json
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load

from coordinator.blobs import BlobStore
from coordinator.dry_round import prove
from coordinator.opening import prepare_task
from fedpeer.audit.sources import open_source
from fedpeer.protocol.model_file import encode_model, open_model
from mechanism.server_step import FedAdam
from tests.integration.market import (
    WEIGHTS,
    close,
    delivered,
    make_folder,
    model_like,
    open_task,
    running,
    task_config,
    verified,
)
from tests.integration.test_operations import command

NAMES = ("ann", "bob", "cyd")
RULE = FedAdam(Decimal("0.05"), tau=Decimal("0.01"))


async def test_who_has_the_models_computes_every_start_and_state_again_across_a_restart(
    tmp_path: Path,
) -> None:
    folder = make_folder(tmp_path / "state")
    asked = {"name": "fedadam", "rate": RULE.rate, "tau": RULE.tau}
    open_task(folder, task_config(tmp_path, schedule={"rounds": 3}, aggregation=asked))
    async with running(folder) as service:
        members = await delivered(service, NAMES)
        await members[0].until("TRAINING", round_=2)
        await close(members)
    async with running(folder) as service:
        members = [replace(client, address=service.market_address, _channel=None) for client in members]
        for round_ in (2, 3):
            await members[0].until("TRAINING", round_=round_)
            for number, client in enumerate(members):
                await client.submit(model_like(10 * round_ + number), round_)
        await members[0].until("CLOSED")
        await close(members)
    verified(folder)
    with ExitStack() as resources:
        source = open_source(folder.database_url(folder.config()), resources)
        entries = [json.loads(entry) for entry in source.entries()]
    logged = [e["body"] for e in entries if e["kind"] == "aggregation"]
    assert len(logged) == 3
    blobs = BlobStore(folder.models)
    start, state = flat(WEIGHTS), RULE.first_state(flat(WEIGHTS).size)
    for body in logged:
        first = 0 if body["round"] == 1 else 10 * body["round"]
        sent = [flat(load(model_like(first + number))) for number in range(3)]
        mean = sum(10 * model for model in sent) / 30
        moved, state = RULE.step(start, np.asarray(mean), state)
        start = flat(open_model(blobs.path(bytes.fromhex(body["model_sha256"]))).weights())
        np.testing.assert_array_equal(start, moved.astype(np.float32))
        kept = encode_model({"m": state[0], "v": state[1]})
        assert hashlib.sha256(kept).hexdigest() == body["state_sha256"]


def flat(weights: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[np.float64]:
    """All elements, in name order."""
    return np.concatenate([weights[name].astype(np.float64).ravel() for name in sorted(weights)])


async def test_a_step_that_leaves_the_contract_ends_the_task_with_refunds_and_says_why(
    tmp_path: Path,
) -> None:
    folder = make_folder(tmp_path / "state")
    # The dry round's models stand at the start, so that no step of theirs leaves the contract.
    contract, asked = {"max_norm": 1_000}, {"name": "fedavgm", "rate": 1_000_000}
    config = task_config(tmp_path, schedule={"rounds": 1}, contract=contract, aggregation=asked)
    [doubt] = prove(prepare_task(config, 0.0)).doubts
    assert "no step of fedavgm was tried" in doubt
    open_task(folder, config)
    async with running(folder) as service:
        members = await delivered(service, NAMES)
        await members[0].until("CANCELLED")
        await close(members)
    said = " ".join(command("status", "task", folder=folder).split())
    assert "a step of fedavgm that keeps the model's contract" in said
    assert verified(folder).counts.payments == 0
