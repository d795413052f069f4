"""Every benchmark in turn, with the machine that it ran on: `make bench`. Takes some tens of minutes."""

import os
import platform
import subprocess
import sys

#: Module and arguments of each run.
RUNS = (
    ("benchmarks.mechanism",),
    ("benchmarks.ledger", "append"),
    ("benchmarks.ledger", "verify"),
    ("benchmarks.evidence",),
    ("benchmarks.workers",),
    ("benchmarks.participants",),
    ("benchmarks.device",),
    ("benchmarks.aggregation",),
    ("benchmarks.uploads",),
    ("benchmarks.rounds",),
    ("benchmarks.calls",),
    ("benchmarks.fronts",),
    ("benchmarks.fronts", "--pinned"),
    ("benchmarks.queueing",),
    ("benchmarks.console",),
)


def main() -> int:
    print(
        f"Python {platform.python_version()}, {platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    )
    failed = 0
    for module, *arguments in RUNS:
        print(f"\n== {module} {' '.join(arguments)}".rstrip(), flush=True)
        failed += subprocess.run([sys.executable, "-m", module, *arguments]).returncode != 0
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
