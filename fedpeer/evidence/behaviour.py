"""How a model behaves on D_c, as integer features.

With q = softmax of the model's outputs and means over the samples of D_c of one label, for label i:

    loss              -mean_i ln q_i                       of its own samples
    accuracy          share of its own samples that are recognised
    own               mean_i q_i
    log_elsewhere     mean over the other labels j of mean_j ln q_i
    elsewhere         mean over the other labels j of mean_j q_i
    mistaken          mean over the other labels j of the share of j that is taken for i
    bias, weight_sum, weight_norm      change of the read-out's row i since the start
    start_own, start_elsewhere         mean_i ln q_i and log_elsewhere of the start
    prior             softmax over i of log_elsewhere: what a model believes of labels when it sees others

A model that has seen much of a label expects it elsewhere, too; that is what gives a label mix away. Global
features follow: the distance of the prior from p^(c) at three temperatures and of `elsewhere`, the mean of own
and of its logarithm, and the logarithm of each tensor's change. All are millionths, so that they can be logged
and computed with exactly.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from fedpeer.learning.datasets import LabelledData
from fedpeer.learning.models import Weights
from mechanism.settlement import MICRO

Array = npt.NDArray[np.float64]

CLASS_FEATURES = (
    "loss", "accuracy", "own", "log_elsewhere", "elsewhere", "mistaken", "bias", "weight_sum", "weight_norm",
    "start_own", "start_elsewhere", "prior",
)  # fmt: skip

#: Those whose sorted values enter the degree beside the shares. More of them brought nothing on digits.
SORTED_FEATURES = tuple(CLASS_FEATURES.index(name) for name in ("loss", "own", "log_elsewhere"))

#: Log probabilities below this count as this: one wild sample must not decide a mean. e^-12 is 6e-6.
LOG_FLOOR = -12.0

#: Features beyond this are cut off, so that their integers stay far below 53 bits.
FEATURE_LIMIT = 1e3

#: Temperatures at which the prior's distance from p^(c) is taken.
_TEMPERATURES = (0.5, 1.0, 2.0)

#: Global features before the changes of the tensors: the distances, and two means.
GLOBAL_FEATURES_BEFORE_CHANGES = len(_TEMPERATURES) + 3

#: Added to a probability before its logarithm, and to a norm before its own.
_SMALL_PROBABILITY, _SMALL_NORM = 0.02, 1e-6


@dataclass(frozen=True)
class Behaviour:
    """Features of one model, millionths, with the mean losses that the screens use.

    Attributes:
        class_features: one row a label, in the order of `CLASS_FEATURES`.
        global_features: see the module's text.
        class_losses: mean cross-entropy of each label, nats.
    """

    class_features: tuple[tuple[int, ...], ...]
    global_features: tuple[int, ...]
    class_losses: tuple[float, ...]


def behaviour(
    logs: npt.NDArray[np.float32],
    start_logs: npt.NDArray[np.float32],
    weights: Weights,
    start: Weights,
    data: LabelledData,
    reference: Sequence[Fraction],
) -> Behaviour:
    """Features of `weights`, whose log probabilities on `data` are `logs`; shape (n, I), both."""
    labels = data.classes
    means = _means_by_label(np.maximum(logs, LOG_FLOOR).astype(np.float64), data)
    start_means = _means_by_label(np.maximum(start_logs, LOG_FLOOR).astype(np.float64), data)
    probabilities = _means_by_label(np.exp(logs.astype(np.float64)), data)
    taken_for = _means_by_label(np.eye(labels)[logs.argmax(axis=1)], data)
    bias = (weights["output.bias"] - start["output.bias"]).astype(np.float64)
    readout = (weights["output.weight"] - start["output.weight"]).astype(np.float64)
    log_elsewhere = _elsewhere(means)
    own = np.diagonal(probabilities)
    columns = [
        -np.diagonal(means),
        np.diagonal(taken_for),
        own,
        log_elsewhere,
        _elsewhere(probabilities),
        _elsewhere(taken_for),
        bias,
        readout.sum(axis=1),
        np.linalg.norm(readout, axis=1),
        np.diagonal(start_means),
        _elsewhere(start_means),
        _softmax(log_elsewhere),
    ]
    target = np.array([float(p) for p in reference])
    overall = [_distance(_softmax(log_elsewhere / t), target) for t in _TEMPERATURES]
    overall += [_distance(columns[4] / max(columns[4].sum(), 1e-12), target)]
    overall += [float(own.mean()), float(np.log(own + _SMALL_PROBABILITY).mean())]
    overall += [float(np.log(norm + _SMALL_NORM)) for norm in tensor_changes(weights, start)]
    return Behaviour(
        class_features=tuple(tuple(micro(x) for x in row) for row in np.array(columns).T),
        global_features=tuple(micro(x) for x in overall),
        class_losses=tuple((-np.diagonal(means)).tolist()),
    )


def tensor_changes(weights: Weights, start: Weights) -> list[float]:
    """Euclidean norm of the change of each floating-point tensor, in name order."""
    return [
        float(np.linalg.norm((weights[name] - start[name]).astype(np.float64)))
        for name in sorted(start)
        if start[name].dtype.kind == "f"
    ]


def micro(value: float) -> int:
    """`value` in millionths, cut off at `FEATURE_LIMIT`; NaN counts as the limit, so that it never helps."""
    if np.isnan(value):
        return int(FEATURE_LIMIT) * MICRO
    return round(float(np.clip(value, -FEATURE_LIMIT, FEATURE_LIMIT)) * MICRO)


def _means_by_label(values: Array, data: LabelledData) -> Array:
    """Row j: the mean of `values` over the samples of label j; shape (I, I)."""
    sums = np.zeros((data.classes, values.shape[1]))
    np.add.at(sums, data.labels, values)
    return sums / np.bincount(data.labels, minlength=data.classes)[:, None]


def _elsewhere(means: Array) -> Array:
    """Column means without the diagonal."""
    result: Array = (means.sum(axis=0) - np.diagonal(means)) / (len(means) - 1)
    return result


def _softmax(values: Array) -> Array:
    exponentials = np.exp(values - values.max())
    result: Array = exponentials / exponentials.sum()
    return result


def _distance(p: Array, q: Array) -> float:
    return float(np.abs(p - q).sum() / 2)
