"""Flower's old server, run with Flower's own interpreter: PARTICIPANTS BYTES ROUNDS; prints seconds a round, and the
server's CPU seconds, as JSON.

`start_server` in this process; the clients are threads of one other process, as ours are tasks of one. No TLS, no
evaluation; a client sends back what it got.
"""

import json
import multiprocessing
import os
import socket
import sys
import threading
import time

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"

import flwr
import numpy as np
from flwr.client import NumPyClient, start_client
from flwr.common import ndarrays_to_parameters
from flwr.server import ServerConfig, start_server
from flwr.server.strategy import FedAvg


class Idle(NumPyClient):
    def get_parameters(self, config):
        raise AssertionError("the server has its own")

    def fit(self, parameters, config):
        return parameters, 10, {}


def clients(address: str, count: int) -> None:
    threads = [
        threading.Thread(
            target=start_client,
            kwargs={"server_address": address, "client": Idle().to_client(), "insecure": True},
            daemon=True,
        )
        for _ in range(count)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


class Timed(FedAvg):
    """Notes when each round begins, and when the last one ends: by the wall and by this process's CPU time."""

    def __init__(self, **options) -> None:
        super().__init__(**options)
        self.began: list[tuple[float, float]] = []
        self.ended = 0.0, 0.0

    def configure_fit(self, *arguments, **options):
        chosen = super().configure_fit(*arguments, **options)  # waits for the clients to be there
        self.began.append((time.perf_counter(), time.process_time()))
        return chosen

    def aggregate_fit(self, server_round, results, failures):
        assert not failures, failures
        found = super().aggregate_fit(server_round, results, failures)
        self.ended = time.perf_counter(), time.process_time()
        return found


def main() -> None:
    participants, size, rounds = map(int, sys.argv[1:])
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    crowd = multiprocessing.get_context("spawn").Process(target=clients, args=(address, participants))
    crowd.start()
    strategy = Timed(
        fraction_fit=1.0,
        fraction_evaluate=0.0,
        min_fit_clients=participants,
        min_available_clients=participants,
        initial_parameters=ndarrays_to_parameters([np.zeros(max(1, size // 4), np.float32)]),
    )
    start_server(server_address=address, config=ServerConfig(num_rounds=rounds), strategy=strategy)
    crowd.join(60)
    crowd.kill()
    assert len(strategy.began) == rounds
    seconds, cpu = (
        (end - begin) / rounds for end, begin in zip(strategy.ended, strategy.began[0], strict=True)
    )
    print(json.dumps({"seconds": seconds, "cpu": cpu, "flwr": flwr.__version__}))


if __name__ == "__main__":
    main()
