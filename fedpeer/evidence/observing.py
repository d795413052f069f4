"""What is seen of a model: features of each stratum of D_c, and long vectors that tell of the shares.

With l the losses of the model and l0 those of the start, over the mean loss of an untrained model and cut off at
`LOSS_CAP`, and means over the samples of D_c of one stratum:

    loss, start         mean of l, of l0
    gain                mean of l0 - l
    rank                mean rank of l among all samples, each weighted so that a stratum counts as p^(c) has it
    log                 mean of ln(max(l, 0) + `_LOG_OFFSET`)
    spread              standard deviation of l

A classifier whose classes are the strata adds, with q the probabilities that it gives:

    own, accuracy       mean of q_i, share recognised, of stratum i's own samples
    elsewhere, mistaken mean of q_i, share taken for i, over the other strata
    log_elsewhere       mean of ln q_i over the other strata; start_elsewhere that of the start
    prior               softmax over i of log_elsewhere

A workload that predicts measured targets adds, with o and o0 the predictions of the model and of the start, over the
targets' deviation in D_c:

    residual, moved     mean of o - target, of o - o0
    turned              slope of o - o0 on the target: what lies beside a stratum pulls at its edge

A mean over one stratum's samples says nothing of how many of them a shadow was trained on, which a statistic across
strata would: shadows are observed on the samples of D_c that they have not seen.

Long vectors: `losses` (change of the mean loss, rank and log of every stratum), `outputs` (change of the mean output,
and of a classifier's mean probability, of every stratum; of measured targets what is moved and turned) and `update`
(sketched).
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from fedpeer.evidence.regression import micro
from fedpeer.evidence.sketch import Array, Sketcher
from fedpeer.learning.models import Weights
from fedpeer.learning.samples import Samples
from fedpeer.learning.strata import Codes
from fedpeer.learning.workloads.protocol import HasGradients, Judged, Workload, flat_change

#: Losses count at most this many times the mean loss of an untrained model: one wild sample must not decide a mean.
LOSS_CAP = 5.0

#: Log probabilities below this count as this: one wild sample must not decide a mean. e^-12 is 6e-6.
LOG_FLOOR = -12.0

#: Added to a loss, over the mean loss of an untrained model, before its logarithm.
_LOG_OFFSET = 0.02

#: A tensor is silent where the root mean square of its gradient is below this part of the median tensor's: what then
#: moves it is rounding, or an optimizer that divides rounding by itself. float64 has 2e-16.
_SILENT = 1e-9

GENERIC_FEATURES = ("loss", "gain", "rank", "log", "spread", "start")
CLASS_FEATURES = (
    "own", "accuracy", "log_elsewhere", "elsewhere", "mistaken", "start_elsewhere", "prior",
)  # fmt: skip

MEASURED_FEATURES = ("residual", "moved", "turned")

#: Features whose sorted values enter the degree.
SORTED_FEATURES = ("loss", "own", "log_elsewhere")


@dataclass(frozen=True, eq=False)
class Observation:
    """One model.

    Attributes:
        features: millionths, shape (S, m), in the order of `Observer.features`.
        vectors: long vectors by name.
        changes: length of each tensor's change over that of the whole change, in the order of `Observer.tensors`. No
            logarithm: a small tensor, such as an output's bias under a balanced mix, may hardly move, by chance, and
            then its logarithm has no bound.
        gains: mean of l0 - l of each stratum, as above, shape (S,).
        outputs: of the model on all of D_c, shape (n, K), or its losses, (n, 1), where it has no outputs.
        kept: the same shadow as one that took part before, where it is trained as such, too.
    """

    features: npt.NDArray[np.int64]
    vectors: Mapping[str, Array]
    changes: Array
    gains: Array
    outputs: npt.NDArray[np.float32]
    kept: "Observation | None" = None

    @property
    def finite(self) -> bool:
        return bool(np.isfinite(self.outputs).all() and np.isfinite(self.vectors["update"]).all())


class Observer:
    """Observes models that went out from one start.

    Args:
        workload: builds, trains and judges.
        start: the round's start model.
        validation: D_c, `codes` the stratum of each of its samples, `reference` p^(c) over them.
        strata_are_classes: whether stratum i is class i of the workload.
        sketch_seed: secret, so that nobody can aim at the sketch.
        silent: names of tensors that training does not really move: `silent_tensors`.

    Attributes:
        features: names of what is observed of a stratum.
        tensors: names of those that training moves.
        loss_scale: mean size of an untrained model's losses.
    """

    def __init__(
        self,
        workload: Workload,
        start: Weights,
        validation: Samples,
        codes: Codes,
        reference: Sequence[Fraction],
        *,
        strata_are_classes: bool,
        sketch_seed: int,
        silent: frozenset[str] = frozenset(),
    ) -> None:
        self._workload, self._start, self._validation, self._codes = workload, start, validation, codes
        self._reference = np.array([float(q) for q in reference])
        self._classes = strata_are_classes and workload.classes == len(reference)
        untrained = workload.judge(workload.build(0), validation).losses
        self.loss_scale = max(float(np.abs(untrained).mean()), np.finfo(np.float64).tiny)
        self._judged = self._cut(workload.judge(start, validation))
        self.tensors = tuple(name for name in workload.trainable if name not in silent)
        self._sketch = Sketcher(self.tensors, start, sketch_seed)
        self._targets = None if workload.classes is not None else _measured(validation.targets, self._judged)
        self.features = (
            *GENERIC_FEATURES,
            *(CLASS_FEATURES if self._classes else ()),
            *(MEASURED_FEATURES if self._targets is not None else ()),
        )

    def at(self, start: Weights) -> "Observer":
        """One of models that went out from another start."""
        moved = copy.copy(self)
        moved._start, moved._judged = start, self._cut(self._workload.judge(start, self._validation))
        return moved

    def sketch(self, weights: Weights) -> Array:
        """Of weights - start, without silent tensors."""
        return self._sketch(weights, self._start)

    def __call__(self, weights: Weights, seen: npt.NDArray[np.int64] | None = None) -> Observation:
        """What is seen of `weights`.

        Args:
            seen: the samples of D_c that they were trained on.
        """
        return self.observe(self._workload.judge(weights, self._validation), weights, seen)

    def observe(
        self, judged: Judged, weights: Weights, seen: npt.NDArray[np.int64] | None = None
    ) -> Observation:
        """As a call, of a model that has been judged on D_c."""
        unseen = np.ones(len(self._codes), dtype=bool)
        if seen is not None:
            unseen[seen] = False
        raw = judged.outputs if judged.outputs is not None else judged.losses[:, None]
        columns, vectors, gains = self._of(self._cut(judged), unseen)
        change = self._sketch(weights, self._start)
        length = float(np.linalg.norm(flat_change(self.tensors, weights, self._start)))
        changes = [
            float(np.linalg.norm(flat_change((name,), weights, self._start))) / max(length, 1e-300)
            for name in self.tensors
        ]
        rows = np.array([columns[name] for name in self.features]).T
        return Observation(
            np.array([[micro(x) for x in row] for row in rows.tolist()], dtype=np.int64),
            {**vectors, "update": change},
            np.array(changes),
            gains,
            raw.astype(np.float32),
        )

    def _cut(self, judged: Judged) -> Judged:
        """Losses over the untrained model's, and both they and log-probabilities finite and of a sensible size."""
        losses = np.nan_to_num(judged.losses / self.loss_scale, nan=LOSS_CAP)
        losses = np.clip(losses, -LOSS_CAP, LOSS_CAP)
        outputs = judged.outputs
        if outputs is not None and self._workload.classes is not None:
            outputs = np.maximum(np.nan_to_num(outputs, nan=LOG_FLOOR), LOG_FLOOR)
        return Judged(losses, outputs)

    def _of(
        self, judged: Judged, unseen: npt.NDArray[np.bool_]
    ) -> tuple[dict[str, Array], dict[str, Array], Array]:
        codes, strata = self._codes[unseen], len(self._reference)
        losses, before = judged.losses[unseen], self._judged.losses[unseen]
        members = np.bincount(codes, minlength=strata)
        counts = np.maximum(members, 1)

        def mean(values: Array) -> Array:
            return np.bincount(codes, weights=values, minlength=strata) / counts

        weights = (self._reference / counts)[codes]
        rank = mean(_weighted_ranks(losses, weights))
        level = mean(losses)
        columns = {
            "loss": level,
            "gain": mean(before - losses),
            "rank": rank,
            "log": mean(np.log(np.maximum(losses, 0) + _LOG_OFFSET)),
            "spread": np.sqrt(np.maximum(mean(losses**2) - level**2, 0)),
            "start": mean(before),
        }
        vectors = {"losses": np.concatenate([-columns["gain"], rank, columns["log"]])}
        if judged.outputs is not None and self._judged.outputs is not None:
            after, start = judged.outputs[unseen], self._judged.outputs[unseen]
            by_stratum = [codes == stratum for stratum in range(strata)]

            def means(values: Array) -> Array:
                return np.array([values[rows].mean(axis=0) for rows in by_stratum])

            moved = means(after) - means(start)
            vectors["outputs"] = moved.ravel()
            if self._workload.classes is not None:
                likely = means(np.exp(after))
                vectors["outputs"] = np.concatenate([moved.ravel(), (likely - means(np.exp(start))).ravel()])
                if self._classes:
                    taken = means(np.eye(strata)[after.argmax(axis=1)])
                    columns |= _of_classes(means(after), likely, taken, means(start))
            elif self._targets is not None:
                targets, scale = self._targets[unseen], self._targets.std(axis=0)
                scale = np.maximum(scale, np.finfo(np.float64).tiny)
                columns["residual"] = mean(((after - targets) / scale).mean(axis=1))
                change, target = ((part / scale).mean(axis=1) for part in (after - start, targets))
                off = target - mean(target)[codes]
                columns["moved"] = mean(change)
                columns["turned"] = mean(change * off) / np.maximum(mean(off**2), np.finfo(np.float64).tiny)
                vectors["outputs"] = np.concatenate([columns["moved"], columns["turned"]])
        return columns, vectors, columns["gain"]


def _of_classes(logs: Array, likely: Array, taken: Array, start_logs: Array) -> dict[str, Array]:
    """Features of a classifier of the strata, from means over each stratum's samples, shape (S, S)."""

    def elsewhere(means: Array) -> Array:
        result: Array = (means.sum(axis=0) - np.diagonal(means)) / (len(means) - 1)
        return result

    beliefs = elsewhere(logs)
    prior = np.exp(beliefs - beliefs.max())
    return {
        "own": np.diagonal(likely),
        "accuracy": np.diagonal(taken),
        "log_elsewhere": beliefs,
        "elsewhere": elsewhere(likely),
        "mistaken": elsewhere(taken),
        "start_elsewhere": elsewhere(start_logs),
        "prior": prior / prior.sum(),
    }


def _measured(targets: npt.NDArray[Any], judged: Judged) -> Array | None:
    """Targets in the form of the predictions, (n, K); None where they are no numbers of that form."""
    if judged.outputs is None or targets.dtype.kind not in "iuf" or targets.size != judged.outputs.size:
        return None
    found: Array = targets.reshape(judged.outputs.shape).astype(np.float64)
    return found


def _weighted_ranks(values: Array, weights: Array) -> Array:
    """The weight below each value, and half its own; weights sum to 1."""
    order = np.argsort(values, kind="stable")
    ranks = np.empty(len(values))
    ranks[order] = np.cumsum(weights[order]) - weights[order] / 2
    return ranks


def silent_tensors(workload: Workload, models: Sequence[Weights], samples: Samples) -> frozenset[str]:
    """Tensors whose gradient is nothing at each of `models`: the start, and one that was trained from it.

    A bias before a normalisation is one, at every model; a low-rank adapter's first factor is none, though its gradient
    is 0 at the start. A workload that tells no gradients has none.
    """
    if not isinstance(workload, HasGradients):
        return frozenset()
    found: list[frozenset[str]] = []
    for weights in models:
        sizes = dict(workload.gradient_sizes(weights, samples))
        if not sizes:
            return frozenset()
        least = _SILENT * float(np.median(list(sizes.values())))
        found.append(frozenset(name for name, size in sizes.items() if size <= least))
    return frozenset.intersection(*found) if found else frozenset()
