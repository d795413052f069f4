"""Estimators of label distributions of other work, on the starts, shadows and participants of ours.

    ldia        the change of the output layer, through a network that shadows have taught (Label distribution inference
                attack, Gu and Bai 2023, J. Information Security and Applications 74)
    rlu         least squares from the change of the output's bias, through how sure the model is of wrong classes
                (Recovering labels from local updates, arXiv 2405.00955)
    whispers    how accuracy and loss of each class change, through a network that shadows have taught (Whispers of
                data, arXiv 2504.21436)

Written after the papers' text, for classifiers whose classes are the strata. Shadows are the same for all; `rlu` needs
none. Its mean error on wrong classes is taken of the start and of the model that came back, where the paper simulates
the epochs between. The number of samples is known here, so that nothing is said of the papers' estimates of it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.optimize import nnls
from scipy.stats import spearmanr
from torch import nn

from fedpeer.evidence.measuring import begin_ensemble
from fedpeer.experiments.accuracy.tasks import TASKS
from fedpeer.experiments.accuracy.trial import Observed, Trial
from fedpeer.experiments.cells import Cell, Record
from fedpeer.experiments.errors import ExperimentError
from fedpeer.learning.samples import Weights
from fedpeer.learning.workloads.protocol import Workload, train_all
from mechanism.settlement import MICRO

Array = npt.NDArray[Any]

#: Of the networks: width of the hidden layer, passes, and the share of the weights that each step takes off.
_WIDTH, _PASSES, _DECAY = 64, 400, 1e-3

#: Tasks whose strata are the classes of a model with an output bias.
ESTIMATED_TASKS = ("digits", "flights-mlp", "flights-softmax", "text-head")


@dataclass(frozen=True, eq=False)
class _Data:
    """What an estimator is given.

    Attributes:
        start, models, shadows: weights; shares: of the shadows' strata, (n, S).
        trial: what they come from.
    """

    trial: Trial
    models: Sequence[Weights]
    shadows: Sequence[Weights]
    shares: Array


def estimator_cells(tasks: Sequence[str], seeds: Sequence[int], shadows: int) -> list[Cell]:
    """One cell a task, start and seed."""
    return [
        Cell(
            "estimators",
            {"task": task, "seed": seed, "start": start, "shadows": shadows, "participants": 48},
            priority,
        )
        for priority, task in enumerate(tasks)
        for start in ("fresh", "half")
        for seed in seeds
    ]


def estimator_cell(parameters: Record, device: str) -> Record:
    """True degrees of participants, and what each estimator says: {"degree": [...], "estimates": {E: [...]}}."""
    task = TASKS[parameters["task"]]
    trial = Trial(task, int(parameters["seed"]), task.warm if parameters["start"] == "half" else 0)
    mixes, models = trial.participants(int(parameters["participants"]))
    evidence, count = trial.evidence, int(parameters["shadows"])
    plans, observer = begin_ensemble(evidence, trial.start, trial.seed, count)
    plans = [plan for plan in plans if not plan.repeated]
    held = evidence.validation
    samples = [held.select(plan.rows, held.targets[plan.targets_from]) for plan in plans]
    trained = train_all(trial.workload, trial.start, samples, trial.recipe, [plan.seed for plan in plans])
    seen = [observer(weights, plan.rows) for plan, weights in zip(plans, trained, strict=True)]
    ensemble = Observed(observer, plans, seen).ensemble(evidence, count)
    sound = [k for k, plan in enumerate(plans) if plan.sound]
    shares = np.array([[float(p) for p in plans[k].mix.distribution] for k in sound])
    data = _Data(trial, models, [trained[k] for k in sound], shares)
    reference = np.array([float(q) for q in trial.reference])
    estimates = {
        name: (np.abs(estimate(data) - reference).sum(axis=1) / 2).tolist()
        for name, estimate in ESTIMATORS.items()
    }
    estimates["fedpeer"] = [ensemble.measure(model).degree_micro / MICRO for model in models]
    return {"degree": [float(mix.degree) for mix in mixes], "estimates": estimates}


def estimator_figures(results: Sequence[tuple[Cell, Record]]) -> dict[str, Any]:
    """{"TASK START": {ESTIMATOR: {"error", "bias", "rank", "starts"}}}: errors over all participants, ranks the mean
    over starts."""
    found: dict[str, Any] = {}
    for cell, record in results:
        place = found.setdefault(f"{cell.parameters['task']} {cell.parameters['start']}", {})
        true = np.array(record["degree"])
        for name, estimated in record["estimates"].items():
            off = np.array(estimated) - true
            row = place.setdefault(name, {"error": [], "bias": [], "rank": []})
            row["error"].append(float(np.abs(off).mean()))
            row["bias"].append(float(off.mean()))
            row["rank"].append(float(spearmanr(estimated, true).statistic))
    return {
        key: {
            name: {**{k: round(float(np.mean(v)), 4) for k, v in row.items()}, "starts": len(row["error"])}
            for name, row in place.items()
        }
        for key, place in found.items()
    }


def _output_layer(workload: Workload, start: Weights) -> tuple[str, str]:
    """Names of the output's weight and bias.

    Raises:
        ExperimentError: there are none.
    """
    classes = workload.classes
    biases = [n for n in workload.trainable if start[n].shape == (classes,)]
    matrices = [n for n in workload.trainable if start[n].ndim == 2 and start[n].shape[0] == classes]
    if not biases or not matrices:
        raise ExperimentError(
            "estimators of label distributions need a classifier with an output layer and its bias"
        )
    return matrices[-1], biases[-1]


def _ldia(data: _Data) -> Array:
    weight, bias = _output_layer(data.trial.workload, data.trial.start)

    def features(models: Sequence[Weights]) -> Array:
        start = data.trial.start
        return np.array(
            [np.concatenate([(m[n] - start[n]).ravel() for n in (weight, bias)]) for m in models],
            dtype=np.float64,
        )

    return _taught(features(data.shadows), data.shares, features(data.models))


def _whispers(data: _Data) -> Array:
    def features(models: Sequence[Weights]) -> Array:
        before = _by_class(data.trial, data.trial.start)
        return np.array([_by_class(data.trial, model) - before for model in models])

    return _taught(features(data.shadows), data.shares, features(data.models))


def _by_class(trial: Trial, weights: Weights) -> Array:
    """Loss and accuracy on each class of D_c, (2 S,)."""
    evidence = trial.evidence
    judged = trial.workload.judge(weights, evidence.validation)
    assert judged.outputs is not None, "a classifier has outputs"
    right = judged.outputs.argmax(axis=1) == evidence.validation.targets
    rows = [evidence.codes == s for s in range(evidence.strata)]
    return np.array([judged.losses[r].mean() for r in rows] + [right[r].mean() for r in rows])


def _taught(shadows: Array, shares: Array, models: Array) -> Array:
    """Shares that a network with one hidden layer tells, least in Kullback-Leibler divergence on the shadows."""
    mean, scale = shadows.mean(axis=0), shadows.std(axis=0) + 1e-9
    x, y, asked = (
        torch.from_numpy(np.asarray(a, dtype=np.float32))
        for a in ((shadows - mean) / scale, shares, (models - mean) / scale)
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = nn.Sequential(
            nn.Linear(x.shape[1], _WIDTH), nn.ReLU(), nn.Linear(_WIDTH, y.shape[1]), nn.LogSoftmax(1)
        )
        optimizer = torch.optim.Adam(network.parameters(), 3e-3, weight_decay=_DECAY)
        for _ in range(_PASSES):
            optimizer.zero_grad()
            nn.functional.kl_div(network(x), y, reduction="batchmean").backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        with torch.inference_mode():
            estimated: Array = network(asked).exp().double().numpy()
    return estimated


def _rlu(data: _Data) -> Array:
    """The bias of class c moves by sum_j n_j (1[j = c] - e_jc), e_jc the mean probability of c for samples of class j,
    times what the optimizer makes of it: n >= 0 by least squares, over its sum."""
    trial = data.trial
    _, bias = _output_layer(trial.workload, trial.start)
    before, found = _confidence(trial, trial.start), []
    for model in data.models:
        sure = (before + _confidence(trial, model)) / 2
        counts, _ = nnls((np.eye(len(sure)) - sure).T, (model[bias] - trial.start[bias]).astype(np.float64))
        total = counts.sum()
        found.append(counts / total if total > 0 else np.full(len(sure), 1 / len(sure)))
    return np.array(found)


def _confidence(trial: Trial, weights: Weights) -> Array:
    """e_jc, (S, S)."""
    evidence = trial.evidence
    judged = trial.workload.judge(weights, evidence.validation)
    assert judged.outputs is not None, "a classifier has outputs"
    sure = np.exp(judged.outputs)
    return np.array([sure[evidence.codes == s].mean(axis=0) for s in range(evidence.strata)])


ESTIMATORS: Mapping[str, Callable[[_Data], Array]] = {"ldia": _ldia, "rlu": _rlu, "whispers": _whispers}
