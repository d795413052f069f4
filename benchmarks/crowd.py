"""A task of many participants over TLS, each with a certificate and a connection of its own, against one of few.

python -m benchmarks.crowd [--sizes 1000 10000] [--rounds 1]

Participants are clients of the protocol in four processes, with a small model and no evidence (rule "paper"); the task
ends and its ledger is verified. Printed are the seconds that all of it takes, and the CPU time of the coordinator's
process and the peak of its memory; both also as what each participant adds to a task of a tenth of the first size, so
that what the process has anyhow is not counted.
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
    few = given.sizes[0] // 10
    found: dict[int, dict[str, float]] = {}
    for size in (few, *given.sizes):
        with tempfile.TemporaryDirectory() as folder:
            found[size] = run_crowd(Path(folder), size, given.rounds)
        print(f"{size} participants: {found[size]}", flush=True)
    first = given.sizes[0]

    def beyond(figure: str, size: int) -> float:
        """What each of those beyond the few has added to a figure."""
        return (found[size][figure] - found[few][figure]) / (size - few)

    for size in given.sizes:
        each = {
            "ms": (found[size]["seconds"] / size * 1e3, found[first]["seconds"] / first * 1e3),
            "ms CPU": (found[size]["cpu_seconds"] / size * 1e3, found[first]["cpu_seconds"] / first * 1e3),
            "ms CPU more": tuple(beyond("cpu_seconds", of) * 1e3 for of in (size, first)),
            "KiB more": tuple(beyond("peak_mib", of) * 1024 for of in (size, first)),
        }
        said = ", ".join(f"{one:.1f} {unit} ({one / base:.2f})" for unit, (one, base) in each.items())
        print(f"{size} participants, {given.rounds} rounds, each, and over that at {first}: {said}")


if __name__ == "__main__":
    main()
