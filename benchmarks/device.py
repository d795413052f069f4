"""A round's shadows one after another on the CPU, and together on a device: `make bench-gpu`.

python -m benchmarks.device [--device cuda] [--shadows 128]

Fashion-MNIST's CNN by the recipe of the paper, on random images of its size: their content does not change the cost.
Seconds by the wall, the first stack apart, in which kernels are loaded. Says by how much the weights differ.
"""

import argparse
import sys
import time
from decimal import Decimal

import numpy as np
import torch

from fedpeer.learning.arithmetic import arithmetic
from fedpeer.learning.models import initial_weights
from fedpeer.learning.samples import Samples
from fedpeer.learning.workloads.cnns import CnnWorkload
from fedpeer.learning.workloads.protocol import flat_change, train_all
from mechanism.terms import Recipe

RECIPE = Recipe("fashion-mnist-cnn", 5, 64, "adam", Decimal("0.001"), 500)

#: Models that are trained one after another.
ALONE = 4


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--shadows", type=int, default=128)
    parser.add_argument("--stacks", type=int, nargs="*", default=[8, 32, 128])
    given = parser.parse_args()
    if given.device.startswith("cuda") and not torch.cuda.is_available():
        print("torch finds no CUDA device on this machine; try --device cpu", file=sys.stderr)
        return
    workload, start = CnnWorkload(RECIPE.model), initial_weights(RECIPE.model, 0)
    dice = np.random.default_rng(0)

    def samples() -> Samples:
        labels = dice.integers(0, 10, RECIPE.samples)
        images = dice.random((RECIPE.samples, 1, 28, 28), dtype=np.float32)
        images[np.arange(RECIPE.samples), 0, 2 * labels + 4] += np.float32(0.5)
        return Samples(images, labels)

    parts, seeds = [samples() for _ in range(given.shadows)], list(range(given.shadows))
    began = time.perf_counter()
    alone = train_all(workload, start, parts[:ALONE], RECIPE, seeds[:ALONE])
    each = (time.perf_counter() - began) / ALONE
    print(
        f"{RECIPE.model}, {RECIPE.epochs} epochs of {RECIPE.samples}: {each * 1e3:.0f} ms one alone on one core"
    )
    print(", ".join(f"{name} {value}" for name, value in arithmetic(given.device).items()))
    for size in given.stacks:
        if size > given.shadows:
            continue
        train_all(workload, start, parts[:size], RECIPE, seeds[:size], given.device)
        began = time.perf_counter()
        made = []
        for first in range(0, given.shadows, size):
            chosen = slice(first, first + size)
            made += train_all(workload, start, parts[chosen], RECIPE, seeds[chosen], given.device)
        taken = (time.perf_counter() - began) / given.shadows
        apart = [
            float(np.linalg.norm(flat_change(workload.trainable, one, other)))
            / float(np.linalg.norm(flat_change(workload.trainable, one, start)))
            for one, other in zip(alone, made, strict=False)
        ]
        print(
            f"in stacks of {size}: {taken * 1e3:.1f} ms each, {each / taken:.1f} times as fast; weights apart by "
            f"{max(apart):.1e} of the change"
        )


if __name__ == "__main__":
    main()
