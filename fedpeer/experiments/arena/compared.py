"""Rules of other work, as scores in [0, 1] that the arena pays on: s_k f(Q / Upsilon), with no screen but the contract.

    kfca                agreement on predicted classes, less agreement by chance (Knowledge-Free Correlated Agreement,
                        arXiv 2605.04747): of categorical reports agreement is identity, so that no statistic of the
                        reports says what counts as agreeing, as it does in correlated agreement
    gauntlet            loss before less loss after a step by the model, rated (arXiv 2505.21684)
    cramer_von_mises    how near the distributions of what a model says are to those of the others (arXiv 2506.07272)

All look at the same part of D_c. They are written after the papers' text, not from their code, and where a paper needs
what a federation does not have, the nearest that it has stands in: `gauntlet` rates one round from equal priors by the
Plackett-Luce update of OpenSkill, and assigns no data, as participants have their own; `cramer_von_mises` compares what
models say on the same samples, as data are not shared.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from fedpeer.evidence import EvidenceTask
from fedpeer.evidence.errors import EvidenceError
from fedpeer.learning.samples import Weights
from fedpeer.learning.workloads.protocol import Judged
from fedpeer.protocol.submission import Submission

Array = npt.NDArray[np.float64]

#: Samples of D_c that models are judged on.
_SAMPLES = 256

#: OpenSkill's prior of a rating, mean and deviation, and its deviation of one performance.
_MEAN, _DEVIATION, _BETA = 25.0, 25.0 / 3, 25.0 / 6


class PartComparison:
    """How models do on one part of D_c, each judged once."""

    def __init__(self, task: EvidenceTask, start: Weights, seed: int) -> None:
        rows = np.random.default_rng([seed, 3]).permutation(len(task.validation))[:_SAMPLES]
        self.samples = task.validation.select(np.sort(rows))
        self.workload = task.workload
        self.start = self.workload.judge(start, self.samples)
        self._known: dict[bytes, Judged] = {}

    def __call__(self, submission: Submission) -> Judged:
        digest = submission.model_sha256
        if digest not in self._known:
            self._known[digest] = self.workload.judge(submission.weights(), self.samples)
        return self._known[digest]


def compared_scores(rule: str, probe: PartComparison, submissions: Sequence[Submission]) -> dict[str, str]:
    """Scores over the greatest, below 0 is 0; decimal strings by participant.

    Raises:
        EvidenceError: a rule on classes where the workload has none.
    """
    if not submissions:
        return {}
    raw = COMPARED_RULES[rule](probe, [probe(s) for s in submissions])
    greatest = float(raw.max())
    shares = np.maximum(raw, 0) / greatest if greatest > 0 else np.zeros(len(raw))
    return {s.participant_id: f"{share:.6f}" for s, share in zip(submissions, shares, strict=True)}


def _kfca(probe: PartComparison, judged: Sequence[Judged]) -> Array:
    """Mean over peers of P(same class | same input) - P(same class | two inputs)."""
    if probe.workload.classes is None:
        raise EvidenceError("the rule kfca pays on classes, and this task's model predicts none")
    reports = np.array([each.outputs.argmax(axis=1) for each in judged if each.outputs is not None])
    n, inputs = reports.shape
    shares = np.array([np.bincount(row, minlength=probe.workload.classes) for row in reports])
    scores = np.zeros(n)
    for k in range(n):
        same = (reports == reports[k]).sum(axis=1)
        crossed = (shares @ shares[k]) - same
        scores[k] = np.delete(same / inputs - crossed / (inputs * (inputs - 1)), k).mean() if n > 1 else 0
    return scores


def _gauntlet(probe: PartComparison, judged: Sequence[Judged]) -> Array:
    """(rating - least rating)^2, of how much each model takes off the loss."""
    gains = np.array([probe.start.losses.mean() - each.losses.mean() for each in judged])
    ratings = _rated(gains)
    return np.where(gains > 0, np.square(ratings - ratings.min()), 0.0)


def _rated(gains: Array) -> Array:
    """Mean rating after one contest in the order of `gains`, all from the prior.

    mu_k += (sigma^2 / c) (1 - sum_{q before or at k} 1/(places from q on)) with equal strengths, c^2 = n (sigma^2 +
    beta^2): Weng and Lin 2011, algorithm 4, Plackett-Luce.
    """
    n = len(gains)
    place = np.argsort(np.argsort(-gains, kind="stable"), kind="stable")
    c = np.sqrt(n * (_DEVIATION**2 + _BETA**2))
    left = np.cumsum(1 / np.arange(n, 0, -1))
    rated: Array = _MEAN + _DEVIATION**2 / c * (1 - left[place])
    return rated


def _cramer_von_mises(probe: PartComparison, judged: Sequence[Judged]) -> Array:
    """1 less the mean distance over outputs and peers, over that of distributions that do not overlap at all (1/3)."""
    said = [each.losses[:, None] if each.outputs is None else each.outputs for each in judged]
    scores = np.zeros(len(said))
    for k, own in enumerate(said):
        distances = [
            _distance(own[:, i], other[:, i])
            for j, other in enumerate(said)
            if j != k
            for i in range(own.shape[1])
        ]
        scores[k] = 1 - 3 * float(np.mean(distances)) if distances else 0.0
    return scores


def _distance(a: Array, b: Array) -> float:
    """Mean over the samples of both of (F_a - F_b)^2, the two-sample Cramer-von Mises statistic over its size."""
    both = np.concatenate([a, b])
    of_a = np.searchsorted(np.sort(a), both, side="right") / len(a)
    of_b = np.searchsorted(np.sort(b), both, side="right") / len(b)
    return float(np.square(of_a - of_b).mean())


COMPARED_RULES: Mapping[str, Callable[[PartComparison, Sequence[Judged]], Array]] = {
    "kfca": _kfca,
    "gauntlet": _gauntlet,
    "cramer_von_mises": _cramer_von_mises,
}
