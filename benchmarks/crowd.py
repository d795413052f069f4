"""A task of many participants over TLS, each with a certificate and a connection of its own, against one of few.

python -m benchmarks.crowd [--sizes 1000 10000] [--rounds 1]

Participants are clients of the protocol in four processes, with a small model and no evidence (rule "paper"); the task
ends and its ledger is verified. CPU time of the coordinator's process, and the peak of its memory, less those of a task
of a tenth of the first size, so that what the process has anyhow is not counted.
"""

import argparse
import tempfile
from pathlib import Path

from tests.load.test_crowd import run_crowd


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", type=int, nargs="*", default=[1_000, 10_000])
    parser.add_argument("--rounds", type=int, default=1)
    given = parser.parse_args()
    few, found = given.sizes[0] // 10, {}
    for size in (few, *given.sizes):
        with tempfile.TemporaryDirectory() as folder:
            found[size] = run_crowd(Path(folder), size, given.rounds)
        print(f"{size} participants: {found[size]}", flush=True)
    base, first = found[few], found[given.sizes[0]]
    for size in given.sizes:
        cpu = (found[size]["cpu_seconds"] - base["cpu_seconds"]) / (size - few)
        memory = (found[size]["peak_mib"] - base["peak_mib"]) / (size - few)
        ratios = (
            cpu / ((first["cpu_seconds"] - base["cpu_seconds"]) / (given.sizes[0] - few)),
            memory / ((first["peak_mib"] - base["peak_mib"]) / (given.sizes[0] - few)),
        )
        print(
            f"{size} participants, {given.rounds} rounds: {cpu * 1e3:.1f} ms CPU and {memory * 1024:.0f} KiB each; "
            f"ratios {ratios[0]:.2f} and {ratios[1]:.2f}"
        )


if __name__ == "__main__":
    main()
