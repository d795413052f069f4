"""The data, a stub: three overlapping clouds of points. Put your own in its place."""

import numpy as np

CLASSES = 3


def load(participant):
    """Inputs (n, 2) and labels (n,) of one participant; the higher its number, the more it has of one label."""
    generator = np.random.default_rng(participant)
    counts = [50 + 100 * participant, 50, 50]
    labels = np.repeat(np.arange(CLASSES), counts)
    centres = np.array([[0.0, 2.0], [-2.0, -1.0], [2.0, -1.0]])
    inputs = centres[labels] + generator.normal(size=(len(labels), 2))
    return inputs.astype(np.float32), labels
