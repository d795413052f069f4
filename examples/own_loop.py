"""Your own training loop. Arguments: state folder, market address, task id."""

import sys

import numpy as np
from sklearn.datasets import load_digits

from participant import Participant, WrongRoundError

images, labels = load_digits(return_X_y=True)
inputs, targets = images / 16, np.eye(10)[labels]

state, market, task_id = sys.argv[1:]
with Participant(state, market) as me:
    joined = me.join(task_id)
    print("reference", [str(p) for p in joined.terms.reference], "Q", joined.terms.Q)
    joined.claim(effort=0.0, counts=np.bincount(labels, minlength=10))
    for round in joined.rounds():
        weights = round.weights()
        for _ in range(20):
            logits = inputs @ weights["weight"].T + weights["bias"]
            shares = np.exp(logits - logits.max(axis=1, keepdims=True))
            error = (shares / shares.sum(axis=1, keepdims=True) - targets) / len(labels)
            weights["weight"] -= (0.5 * error.T @ inputs).astype(np.float32)
            weights["bias"] -= (0.5 * error.sum(axis=0)).astype(np.float32)
        try:
            round.submit(weights, samples=len(labels))
        except WrongRoundError as error:
            print(error)  # too late; the next round comes
    for line in joined.report().rounds:
        print(line.number, line.settlement.paid if line.settlement else line.missed)
