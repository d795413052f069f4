"""A round's evidence: prepare the ensemble from the start model, measure submissions one at a time, assess them all.

    evidence = ShadowEvidence(validation, reference, recipe, seed)
    ensemble = evidence.prepare(start, round_)              # while the participants train
    found = evidence.assess(ensemble, submissions)          # found.assessments, found.record

Assessments follow from the record alone (`mechanism.evidence.assess`); `replay` does that again.
"""

import hashlib
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedpeer.evidence.behaviour import Behaviour, behaviour, micro
from fedpeer.evidence.errors import EvidenceError
from fedpeer.evidence.fitting import (
    ShadowEnsemble,
    change_spread,
    fit_evidence,
    improvement,
    log_changes,
    novelty,
)
from fedpeer.evidence.influence import PROBE_SAMPLES, Aggregate
from fedpeer.evidence.likeness import fit_likeness, label_mix
from fedpeer.evidence.shadows import ReportProgress, Shadow, ShadowContext, plan_shadows, train_shadows
from fedpeer.evidence.sketch import Array, Sketcher, cosine, without
from fedpeer.evidence.updates import directions
from fedpeer.learning.datasets import LabelledData, stratified_split
from fedpeer.learning.models import ARCHITECTURES, Weights, build
from fedpeer.learning.training import log_probabilities
from fedpeer.protocol.model_file import ModelFileError, open_model
from fedpeer.protocol.submission import Submission
from mechanism.baselines import CorrelatedAgreement, DeterminantMutualInformation, SharedPredictions
from mechanism.canonical import Json
from mechanism.errors import SettlementError
from mechanism.evidence import KEPT_BROADCASTS, EvidenceModel, Measurement, assess, is_twin
from mechanism.settlement import MICRO, Assessment
from mechanism.terms import Recipe

#: Sound shadows a round. Twice as many take a fifth off the mean error (docs/evidence.md).
SHADOWS = 100

#: Fewest samples of D_c of every label: a shadow is observed on those that it has not seen.
MIN_LABEL_SAMPLES = 10

#: Start models whose ensembles are kept: this round's, and the next one's while it is prepared ahead.
KEPT_ENSEMBLES = 2

#: Rules that pay on how well predicted labels agree, whatever the true ones are.
AGREEMENT_RULES: Mapping[str, CorrelatedAgreement | DeterminantMutualInformation] = {
    "correlated_agreement": CorrelatedAgreement(),
    "dmi": DeterminantMutualInformation(),
}

#: Rules that pay on a score of the evidence instead of a degree.
SCORED_RULES = ("leave_one_out", "shapley", "correlated_agreement", "dmi")

#: Log probabilities below this count as this when outputs are compared.
_OUTPUT_FLOOR = -12.0


@dataclass(frozen=True)
class Broadcast:
    """A model that the coordinator sent out before this round's start."""

    label: str
    model: Weights | Path

    def weights(self) -> Weights:
        return open_model(self.model).weights() if isinstance(self.model, Path) else self.model


@dataclass(frozen=True)
class RoundEvidence:
    """Assessments in participant-id order, and the record that they follow from."""

    assessments: tuple[Assessment, ...]
    record: dict[str, Json]


def replay(record: Mapping[str, Any]) -> tuple[Assessment, ...]:
    """The assessments of a logged record, computed again.

    Raises:
        FieldError: a record of another arithmetic or form.
    """
    return assess(
        EvidenceModel.from_record(record["model"]),
        [Measurement.from_record(m) for m in record["measurements"]],
    )


class ShadowEvidence:
    """Measures degrees on D_c.

    Args:
        validation: the scoring part of D_c. What is reported to participants is measured on other data.
        reference: p^(c), exact.
        recipe: the task's.
        seed: secret until the task is over: those who know it know the shadows.
        shadows: sound shadow models a round.
        executor: trains them; None trains them in the calling thread.
        validation_sha256: what the record names D_c by, such as the terms' commitment to it; a digest of it where
            empty.
        scores: other rules whose scores are wanted, of `SCORED_RULES`.
        report: takes how many shadows of a round are trained and of how many, from the thread that asked for them.

    Raises:
        EvidenceError: an architecture that is not registered, too few samples of a label, a reference that does
            not fit.
    """

    def __init__(
        self,
        validation: LabelledData,
        reference: Sequence[Fraction],
        recipe: Recipe,
        seed: int,
        *,
        shadows: int = SHADOWS,
        executor: Executor | None = None,
        validation_sha256: str = "",
        scores: Sequence[str] = (),
        report: ReportProgress = lambda trained, of: None,
    ) -> None:
        if recipe.model not in ARCHITECTURES:
            raise EvidenceError(
                f"shadow models need an architecture to train; the recipe names {recipe.model!r}, expected one of "
                f'{", ".join(ARCHITECTURES)}, or rule.name = "paper", which pays without evidence'
            )
        if len(reference) != validation.classes:
            raise EvidenceError(
                f"the reference has {len(reference)} labels and D_c {validation.classes}; expected the same"
            )
        fewest = min(validation.counts())
        if fewest < MIN_LABEL_SAMPLES:
            raise EvidenceError(
                f"D_c has {fewest} samples of label {validation.counts().index(fewest)}; expected at least "
                f"{MIN_LABEL_SAMPLES} of each"
            )
        self._validation = validation
        self._reference = tuple(reference)
        self._recipe = recipe
        self._seed = seed
        self._shadows = shadows
        self._executor = executor
        self._scores = tuple(scores)
        self._report = report
        self._ensembles: OrderedDict[tuple[str, str, int], ShadowEnsemble] = OrderedDict()
        self._trainable = tuple(name for name, _ in build(recipe.model, 0).named_parameters())
        probes = min(PROBE_SAMPLES, len(validation))
        if probes < len(validation):
            (part,) = stratified_split(numbered(validation), (probes,), seed)
            self._probe = np.sort(part.images.ravel().astype(np.int64))
        else:
            self._probe = np.arange(len(validation))
        self._validation_digest = validation_sha256 or data_digest(validation)

    def prepare(
        self, start: Weights, round_: int, history: Sequence[Broadcast] = (), start_sha256: str = ""
    ) -> ShadowEnsemble:
        """The ensemble of shadows around `start`; trained once for a start and round, then remembered.

        Args:
            start_sha256: what the record names the start by, such as its file's digest; that of its tensors where
                empty.
        """
        digest = weights_digest(start)
        names = (start_sha256 or digest, self._validation_digest)
        key = (digest, names[0], round_)
        if key in self._ensembles:
            self._ensembles.move_to_end(key)
            return self._ensembles[key]
        began = time.perf_counter()
        ensemble = self._train(start, digest, names, round_, history, began)
        self._ensembles[key] = ensemble
        while len(self._ensembles) > KEPT_ENSEMBLES:
            self._ensembles.popitem(last=False)
        return ensemble

    def assess(
        self, ensemble: ShadowEnsemble, submissions: Sequence[Submission], history: Sequence[Broadcast] = ()
    ) -> RoundEvidence:
        """Measures and assesses the submissions of a round.

        Args:
            ensemble: of the round's start model.
            submissions: in any order; each participant once.
            history: earlier broadcast models, oldest first.

        Raises:
            SettlementError: a participant twice.
        """
        names = [s.participant_id for s in submissions]
        if len(set(names)) != len(names):
            raise SettlementError(f"submissions come from {sorted(names)}; expected each participant once")
        measurements = self.measurements(ensemble, history)
        for submission in submissions:
            measurements.measure(submission)
        return measurements.assess()

    def measurements(
        self, ensemble: ShadowEnsemble, history: Sequence[Broadcast] = ()
    ) -> "RoundMeasurements":
        """An empty table of measurements, for a caller that assesses several sets of the same submissions."""
        return RoundMeasurements(ensemble, history, self._scores, self._seed)

    def _train(
        self,
        start: Weights,
        digest: str,
        names: tuple[str, str],
        round_: int,
        history: Sequence[Broadcast],
        began: float,
    ) -> ShadowEnsemble:
        context = ShadowContext(
            start=start,
            start_logs=log_probabilities(start, self._validation.images, self._recipe.model),
            validation=self._validation,
            probe=self._probe,
            reference=self._reference,
            recipe=self._recipe,
            trainable=self._trainable,
            sketch_seed=self._seed,
        )
        # The plans depend on the start, so that no round's shadows tell of another's.
        plans = plan_shadows(
            self._validation, self._reference, self._recipe, self._shadows, (self._seed, int(digest[:16], 16))
        )
        shadows = finite_shadows(train_shadows(context, plans, self._executor, self._report))
        sketcher = Sketcher(self._trainable, start, self._seed)
        public = public_directions(start, history, sketcher)
        accuracy = float((context.start_logs.argmax(axis=1) == self._validation.labels).mean())
        fitted = fit_evidence(shadows, self._reference, round_, names, accuracy, public)
        sound = [s for s in shadows if s.sound]
        sketches = np.array([s.sketch for s in sound])
        mean_update = sketches.mean(axis=0)
        mean_outputs = np.mean([np.maximum(s.outputs, _OUTPUT_FLOOR) for s in sound], axis=0)
        labels, mixes = self._validation.labels[self._probe], label_mix(fitted.shares)
        own_updates = directions(without(sketches, [mean_update]))
        own_outputs = np.array([distinct_outputs(s.outputs, mean_outputs, labels) for s in sound])
        return ShadowEnsemble(
            model=fitted.model,
            context=context,
            median_norm=float(np.median(np.linalg.norm(sketches, axis=1))),
            mean_update=mean_update,
            mean_outputs=mean_outputs,
            spread=change_spread(np.array([log_changes(s.behaviour) for s in sound])),
            sketcher=sketcher,
            updates=fitted.updates,
            update_likeness=fit_likeness(own_updates, mixes),
            output_likeness=fit_likeness(own_outputs, mixes),
            residuals=fitted.residuals,
            seconds=time.perf_counter() - began,
        )


class RoundMeasurements:
    """The submissions of one round: of each, its figures and what comparing it with others needs.

    Args:
        ensemble: of the round's start model.
        history: earlier broadcast models, oldest first.
        scores: other rules whose scores are wanted.
        seed: of the Shapley values' orders.
    """

    def __init__(
        self,
        ensemble: ShadowEnsemble,
        history: Sequence[Broadcast],
        scores: Sequence[str] = (),
        seed: int = 0,
    ) -> None:
        self._ensemble = ensemble
        self._scores = tuple(scores)
        self._seed = seed
        self._submissions: dict[str, Submission] = {}
        self._measured: dict[str, Measurement] = {}
        self._first: dict[bytes, str] = {}
        self._predictions: dict[str, npt.NDArray[np.int64]] = {}
        self._validation = ensemble.context.validation
        self._start = ensemble.context.start
        recent = list(history)[-KEPT_BROADCASTS:]
        self._directions = public_directions(self._start, recent, ensemble.sketcher)
        self._broadcasts = [b.label for b in recent]
        self._updates: dict[str, Array] = {}
        self._outputs: dict[str, npt.NDArray[np.float32]] = {}

    def measure(self, submission: Submission) -> None:
        """Takes the figures of one submission; its weights are freed again.

        A file that somebody else has sent, too, has the same figures to the last digit: they are taken once.
        """
        name = submission.participant_id
        self._submissions[name] = submission
        first = name if submission.fault else self._first.setdefault(submission.model_sha256, name)
        if first == name:
            self._measured[name] = self._alone(submission)
            return
        self._measured[name] = replace(
            self._measured[first],
            participant_id=name,
            claimed_degree=submission.claimed_degree,
            order=submission.order,
            samples=submission.samples,
        )
        if first in self._updates:
            self._updates[name], self._outputs[name] = self._updates[first], self._outputs[first]
            self._predictions[name] = self._predictions[first]

    def assess(self, names: Sequence[str] | None = None) -> RoundEvidence:
        """Assesses the submissions of `names` together, or all that were measured."""
        chosen = sorted(self._measured if names is None else names)
        measured = self._with_twins({name: self._measured[name] for name in chosen})
        measured = self._with_influence(measured)
        record: dict[str, Json] = {
            "model": self._ensemble.model.record(),
            "measurements": [measured[name].record() for name in chosen],
        }
        return RoundEvidence(assess(self._ensemble.model, list(measured.values())), record)

    def _with_influence(self, measured: Mapping[str, Measurement]) -> dict[str, Measurement]:
        """Adds harm, and the scores of other rules, for those who pass the screens so far."""
        passing = [
            a.participant_id for a in assess(self._ensemble.model, list(measured.values())) if a.scored
        ]
        harms = self.aggregate(passing).harms(passing)
        scores = self.scores(passing, harms)
        return {
            name: replace(m, harm=micro(harms[name]) if name in harms else None, scores=scores.get(name, {}))
            for name, m in measured.items()
        }

    def in_order(self, name: str) -> bool:
        """Whether a measured submission keeps the contract."""
        return not self._measured[name].fault

    def scores(
        self,
        names: Sequence[str],
        harms: Mapping[str, float] | None = None,
        rules: Sequence[str] | None = None,
    ) -> dict[str, dict[str, str]]:
        """Scores of other rules (those asked for at first), in [0, 1], decimal strings by participant and rule.

        Each is divided by the greatest of the round, so that the best earns f(Q / Upsilon); below 0 is 0.
        """
        wanted = self._scores if rules is None else rules
        raw: dict[str, dict[str, float]] = {}
        if "leave_one_out" in wanted:
            harms = self.aggregate(names).harms(names) if harms is None else harms
            raw["leave_one_out"] = {name: -harms.get(name, 0.0) for name in names}
        if "shapley" in wanted:
            raw["shapley"] = self.aggregate(names).shapley(names, self._start, self._seed)
        for rule, baseline in AGREEMENT_RULES.items():
            if rule in wanted:
                raw[rule] = self._agreement(names, baseline)
        found: dict[str, dict[str, str]] = {name: {} for name in names}
        for rule, values in raw.items():
            greatest = max(values.values(), default=0.0)
            for name, value in values.items():
                share = max(value, 0.0) / greatest if greatest > 0 else 0.0
                found[name][rule] = f"{share:.6f}"
        return found

    def _agreement(
        self, names: Sequence[str], baseline: CorrelatedAgreement | DeterminantMutualInformation
    ) -> dict[str, float]:
        """Mean score of each against all others, from the labels that they predict; nothing for one that is alone."""
        ordered = sorted(names)
        if len(ordered) < 2:
            return dict.fromkeys(ordered, 0.0)
        shared = SharedPredictions([self._predictions[n] for n in ordered], self._validation.classes)
        scores = baseline.scores(shared, np.random.default_rng(self._seed))
        return dict(zip(ordered, scores.tolist(), strict=True))

    def aggregate(self, names: Sequence[str]) -> Aggregate:
        """The weighted mean of the models of `names`, to be judged on the probe."""
        most = self._ensemble.context.recipe.samples
        return Aggregate(
            load=lambda name: self._submissions[name].weights(),
            samples={name: max(1, min(self._submissions[name].samples, most)) for name in names},
            layout=self._start,
            probe=self._validation.select(self._ensemble.context.probe),
            model=self._ensemble.context.recipe.model,
        )

    def _alone(self, submission: Submission) -> Measurement:
        """The figures of one submission, but for what compares it with others."""
        blank = Measurement(
            participant_id=submission.participant_id,
            model_sha256=submission.model_sha256.hex(),
            claimed_degree=submission.claimed_degree,
            order=submission.order,
            samples=submission.samples,
            fault=submission.fault,
        )
        if submission.fault:
            return blank
        try:
            weights = submission.weights()
        except (ModelFileError, OSError) as error:
            return replace(blank, fault=f"its file cannot be read ({error})")
        fault = contract_fault(weights, self._start)
        if fault:
            return replace(blank, fault=fault)
        ensemble, context = self._ensemble, self._ensemble.context
        logs = log_probabilities(weights, self._validation.images, context.recipe.model)
        if not np.isfinite(logs).all():
            return replace(blank, fault="its outputs on the validation set are not finite")
        found = behaviour(logs, context.start_logs, weights, self._start, self._validation, context.reference)
        update = ensemble.sketcher(weights, self._start)
        self._updates[submission.participant_id] = directions(without(update, [ensemble.mean_update]))
        self._predictions[submission.participant_id] = logs[context.probe].argmax(axis=1)
        self._outputs[submission.participant_id] = distinct_outputs(
            logs[context.probe], ensemble.mean_outputs, self._validation.labels[context.probe]
        )
        return self._figures(blank, found, update)

    def _figures(self, blank: Measurement, found: Behaviour, update: Array) -> Measurement:
        ensemble = self._ensemble
        scale = max(ensemble.median_norm, 1e-12)
        distances = [("this round", float(np.linalg.norm(update)))]
        distances += [
            (label, float(np.linalg.norm(update - d)))
            for label, d in zip(self._broadcasts, self._directions, strict=True)
        ]
        nearest, distance = min(distances, key=lambda pair: pair[1])
        own, mean = without(np.array([update, ensemble.mean_update]), self._directions)
        update_shares = ensemble.updates(update[None])[0].tolist()
        class_features = tuple(
            (*row, micro(p)) for row, p in zip(found.class_features, update_shares, strict=True)
        )
        shares = np.array(ensemble.model.degree.shares(class_features)) / MICRO
        return replace(
            blank,
            class_features=class_features,
            global_features=found.global_features,
            norm=micro(float(np.linalg.norm(update)) / scale),
            alignment=micro(cosine(own, mean)),
            novelty=micro(novelty(log_changes(found), ensemble.spread)),
            improvement=micro(improvement(found, shares)),
            echo_distance=micro(distance / scale),
            echo_cosine=micro(max((abs(cosine(update, d)) for d in self._directions), default=0.0)),
            nearest_broadcast=nearest,
        )

    def _with_twins(self, measured: Mapping[str, Measurement]) -> dict[str, Measurement]:
        """Adds to each measurement the submissions that are near enough to be copies of it."""
        names = sorted(self._updates.keys() & measured.keys())
        result = dict(measured)
        if not names:
            return result
        updates = np.array([self._updates[n] for n in names], dtype=np.float32)
        outputs = np.array([self._outputs[n] for n in names])
        ensemble = self._ensemble
        shares = [ensemble.model.degree.shares(measured[n].class_features) for n in names]
        mixes = label_mix(np.array(shares, dtype=np.float64))
        limits = ensemble.model.thresholds
        for i, name in enumerate(names):
            # One row at a time: memory stays linear in the number of participants.
            common = mixes @ mixes[i]
            by_update = ensemble.update_likeness(updates @ updates[i], common)
            by_output = ensemble.output_likeness(outputs @ outputs[i], common)
            near = zip(names, by_update, by_output, strict=True)
            twins = [
                (other, micro(float(w)), micro(float(o)))
                for other, w, o in near
                if other != name and is_twin(limits, micro(float(w)), micro(float(o)))
            ]
            result[name] = replace(result[name], twins=tuple(twins))
        return result


def finite_shadows(shadows: Sequence[Shadow]) -> list[Shadow]:
    """The shadows whose outputs are finite.

    Raises:
        EvidenceError: more than a tenth have diverged, so that the recipe is at fault.
    """
    finite = [s for s in shadows if np.isfinite(s.outputs).all() and np.isfinite(s.sketch).all()]
    lost = len(shadows) - len(finite)
    if lost > len(shadows) / 10:
        raise EvidenceError(
            f"{lost} of {len(shadows)} shadow models diverged under the task's recipe, as participants' models will; "
            "choose a smaller learning rate"
        )
    return finite


def distinct_outputs(
    logs: npt.NDArray[np.float32], mean: Array, labels: npt.NDArray[np.int64]
) -> npt.NDArray[np.float32]:
    """Log probabilities without what all models, and all samples of a label, have in common; unit length.

    Args:
        logs: of one model on the probe, shape (probes, I).
        mean: of the shadows' on it.
        labels: of the probe.
    """
    rest = np.maximum(logs, _OUTPUT_FLOOR) - mean
    rest = rest - rest.mean(axis=1, keepdims=True)
    for label in np.unique(labels):
        rest[labels == label] -= rest[labels == label].mean(axis=0)
    flat: npt.NDArray[np.float32] = directions(rest.ravel()).astype(np.float32)
    return flat


def public_directions(start: Weights, history: Sequence[Broadcast], sketcher: Sketcher) -> list[Array]:
    """Where each earlier broadcast model lies from the start, sketched: what anyone can compute."""
    return [sketcher(b.weights(), start) for b in list(history)[-KEPT_BROADCASTS:]]


def contract_fault(weights: Weights, start: Weights) -> str:
    """Why `weights` are not a model of the start's form; empty where they are."""
    if weights.keys() != start.keys():
        return f"its tensors are {sorted(weights)}, expected {sorted(start)}"
    for name, expected in start.items():
        array = weights[name]
        if array.shape != expected.shape or array.dtype != expected.dtype:
            return (
                f"tensor {name} is {array.dtype} of shape {array.shape}, expected {expected.dtype} of shape "
                f"{expected.shape}"
            )
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            return f"tensor {name} has a NaN or an infinity"
    return ""


def weights_digest(weights: Weights) -> str:
    """SHA-256 over names, types, shapes and bytes of the tensors in name order, hexadecimal."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        array = np.ascontiguousarray(weights[name])
        digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def data_digest(data: LabelledData) -> str:
    """SHA-256 over shape, images and labels, hexadecimal."""
    digest = hashlib.sha256(f"{data.images.shape} {data.classes}\n".encode())
    digest.update(np.ascontiguousarray(data.images).tobytes())
    digest.update(np.ascontiguousarray(data.labels).tobytes())
    return digest.hexdigest()


def numbered(data: LabelledData) -> LabelledData:
    """`data` with each sample's number in place of its image, so that a split of it says which were taken."""
    numbers = np.arange(len(data), dtype=np.float32).reshape(-1, 1, 1, 1)
    return LabelledData(data.name, numbers, data.labels, data.classes)
