"""Federated averaging without evaluation; writes when each round began and the last one ended."""

import json
import time
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

app = ServerApp()


class Timed(FedAvg):
    def __init__(self, **options) -> None:
        super().__init__(**options)
        self.began: list[float] = []
        self.ended = 0.0

    def configure_train(self, *arguments, **options):
        chosen = super().configure_train(*arguments, **options)  # waits for the nodes to be there
        self.began.append(time.monotonic())
        return chosen

    def aggregate_train(self, server_round, replies):
        found = super().aggregate_train(server_round, replies)
        self.ended = time.monotonic()
        return found


@app.main()
def main(grid: Grid, context: Context) -> None:
    given = context.run_config
    participants, rounds = int(given["participants"]), int(given["rounds"])
    strategy = Timed(
        fraction_train=1.0,
        fraction_evaluate=0.0,
        min_train_nodes=participants,
        min_available_nodes=participants,
    )
    arrays = ArrayRecord([np.zeros(max(1, int(given["bytes"]) // 4), np.float32)])
    strategy.start(grid=grid, initial_arrays=arrays, num_rounds=rounds)
    result = {"rounds": len(strategy.began), "seconds": (strategy.ended - strategy.began[0]) / rounds}
    path = Path(str(given["result"]))
    path.with_suffix(".new").write_text(json.dumps(result))
    path.with_suffix(".new").replace(path)
