"""What evidence costs over the bare forward passes, in one run: `python -m benchmarks.evidence`.

The paper's MNIST CNN, D_c of 2,000 images, 100 submissions (`--submissions`). Baseline: every submission's forward
pass over D_c and nothing else. Evidence: features, sketches, likenesses, leave-one-out, verdicts. Shadow training is
timed apart, as a share of what the participants' own training takes. Processor time of one thread, so that other
work on the machine matters less. Images are random: their content does not change the cost.
"""

import argparse
import hashlib
import time
from decimal import Decimal
from fractions import Fraction

import numpy as np
import torch

from fedpeer.evidence import EvidenceTask, ShadowEvidence
from fedpeer.learning.datasets import LabelledData
from fedpeer.learning.models import initial_weights
from fedpeer.learning.partition import uniform_reference
from fedpeer.learning.training import log_probabilities, train
from fedpeer.protocol.submission import Submission
from mechanism.terms import Recipe

RECIPE = Recipe("mnist-cnn", 1, 256, "adam", Decimal("0.01"), 600)


def random_data(samples: int, seed: int) -> LabelledData:
    """Images whose brightest row tells the label, with noise: something to learn."""
    generator = np.random.default_rng(seed)
    labels = np.resize(np.arange(10), samples)
    images = generator.random((samples, 1, 28, 28), dtype=np.float32) * np.float32(0.5)
    images[np.arange(samples), 0, 2 * labels + 4] += np.float32(0.5)
    return LabelledData("random", images, labels, 10)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--submissions", type=int, default=100)
    arguments.add_argument("--shadows", type=int, default=30)
    given = arguments.parse_args()
    torch.set_num_threads(1)
    validation = random_data(2_000, 0)
    start = initial_weights(RECIPE.model, 0)
    task = EvidenceTask.of_images(RECIPE, validation, uniform_reference(10))
    evidence = ShadowEvidence(task, seed=0, shadows=given.shadows)

    began = time.process_time()
    ensemble = evidence.prepare(start, 1)
    shadows = time.process_time() - began

    began = time.process_time()
    trained = [train(start, random_data(600, 1 + k), RECIPE, seed=k) for k in range(4)]
    training = (time.process_time() - began) / len(trained) * given.submissions

    generator = np.random.default_rng(1)
    models = []
    for k in range(given.submissions):
        base = trained[k % len(trained)]
        models.append(
            {
                name: (array + generator.normal(0, 1e-3, array.shape)).astype(array.dtype)
                if array.dtype.kind == "f" and "running" not in name
                else array
                for name, array in base.items()
            }
        )
    submissions = [
        Submission(f"p{k:03d}", m, hashlib.sha256(bytes([k])).digest(), 600, Fraction(0), k)
        for k, m in enumerate(models)
    ]

    began = time.process_time()
    for model in models:
        log_probabilities(model, validation.images, RECIPE.model)
    forward = time.process_time() - began

    began = time.process_time()
    table = evidence.measurements(ensemble)
    for submission in submissions:
        table.measure(submission)
    found = table.assess()
    whole = time.process_time() - began

    names = [s.participant_id for s in submissions]
    began = time.process_time()
    table.aggregate(names).harms(names)
    influence = time.process_time() - began
    scored = sum(a.scored for a in found.assessments)
    total = whole + influence * (len(names) - scored) / len(names)  # as if all were

    print(f"{given.submissions} submissions of {sum(a.size for a in start.values()):,} weights, D_c of 2,000")
    print(f"bare forward passes    {forward:7.2f} s of processor time")
    print(f"evidence               {total:7.2f} s, {total / forward:.2f} times the forward passes")
    print(f"  of it leave-one-out  {influence:7.2f} s, {influence / forward:.2f} times")
    print(
        f"{given.shadows} shadows and a quarter flawed ones   {shadows:.1f} s, "
        f"{shadows / training:.2f} times the participants' own training"
    )


if __name__ == "__main__":
    main()
