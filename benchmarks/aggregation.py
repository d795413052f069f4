"""The mean of a round's models: many small tensors beside the same bytes in one tensor.

python -m benchmarks.aggregation [--tensors 20000] [--participants 16]
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from coordinator.aggregation import aggregate
from fedpeer.protocol.model_file import Weights, encode_model

REPEATS = 5

#: Elements of each of the small tensors.
ELEMENTS = 16


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tensors", type=int, default=20_000)
    parser.add_argument("--participants", type=int, default=16)
    given = parser.parse_args()
    small = {f"t{i:05d}": np.full(ELEMENTS, i, np.float32) for i in range(given.tensors)}
    whole = {"t": np.concatenate(list(small.values()))}
    many, one = [], []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(REPEATS):  # in turn, so that a busy moment of the machine meets both
            many.append(measured(Path(folder), small, given.participants))
            one.append(measured(Path(folder), whole, given.participants))
    ours, baseline = statistics.median(many), statistics.median(one)
    print(
        f"{given.participants} models of {given.tensors} tensors: {ours:.3f} s; of one tensor with the same bytes: "
        f"{baseline:.3f} s; ratio {ours / baseline:.1f}; {1000 * ours / given.participants:.1f} ms a model"
    )


def measured(folder: Path, model: Weights, participants: int) -> float:
    """Seconds of one mean."""
    content = encode_model(model)
    parts = {}
    for i in range(participants):
        path = folder / f"p{i}"
        path.write_bytes(content)
        parts[f"p{i}"] = path, i + 1
    began = time.perf_counter()
    aggregate(parts, folder / "mean")
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
