"""A round's evidence: prepare the ensemble from the start model, measure submissions one at a time, assess them all.

    evidence = ShadowEvidence(task, seed)
    ensemble = evidence.prepare(start, round_)              # while the participants train
    found = evidence.assess(ensemble, submissions)          # found.assessments, found.record

Assessments follow from the record alone (`mechanism.evidence.assess`); `replay` does that again.
"""

import copy
import hashlib
from collections import OrderedDict
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedpeer.evidence.comparing import Left, likeness, perhaps_linked, suspected
from fedpeer.evidence.errors import EvidenceError
from fedpeer.evidence.evaluating import all_looked_at, contract_fault, looked_at
from fedpeer.evidence.influence import Aggregate
from fedpeer.evidence.likeness import mix_of
from fedpeer.evidence.measuring import (
    CARRIED_ROUNDS,
    SHADOWS,
    Ensemble,
    EvidenceTask,
    ModelMeasurement,
    Report,
    Shadows,
    checked,
    prepare_ensemble,
    prepare_shadows,
)
from fedpeer.evidence.observing import Observation
from fedpeer.evidence.regression import micro
from fedpeer.evidence.retraining import retraining_differences
from fedpeer.evidence.sent import Broadcast, SentModels
from fedpeer.learning.arithmetic import one_blas_thread
from fedpeer.learning.models import Weights, weights_digest
from fedpeer.learning.samples import Samples
from fedpeer.protocol.model_file import ModelFileError
from fedpeer.protocol.submission import Submission
from mechanism.baselines import CorrelatedAgreement, DeterminantMutualInformation, SharedPredictions
from mechanism.canonical import Json
from mechanism.errors import SettlementError
from mechanism.evidence import (
    KEPT_BROADCASTS,
    ONE_MODEL,
    EvidenceModel,
    Measurement,
    Overlaps,
    assess,
    first_of,
)
from mechanism.settlement import Assessment

#: Start models whose ensembles are kept: this round's, and the next one's while it is prepared ahead.
KEPT_ENSEMBLES = 2

#: Rules that pay on how well predicted labels agree, whatever the true ones are.
AGREEMENT_RULES: Mapping[str, CorrelatedAgreement | DeterminantMutualInformation] = {
    "correlated_agreement": CorrelatedAgreement(),
    "dmi": DeterminantMutualInformation(),
}

#: Rules that pay on a score of the evidence instead of a degree.
SCORED_RULES = ("leave_one_out", "shapley", "correlated_agreement", "dmi")


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


@dataclass(frozen=True)
class ShadowEnsemble:
    """The shadows of one round.

    Attributes:
        task: what they were trained for.
        start: the round's start model; start_sha256 what the record names it by, validation_sha256 D_c.
        ensemble: what they say.
    """

    task: EvidenceTask
    round: int
    start: Weights
    start_sha256: str
    validation_sha256: str
    ensemble: Ensemble

    def model(self, submissions: int) -> EvidenceModel:
        """What the verdicts on so many submissions rest on, as logged."""
        return self.ensemble.model(self.round, self.start_sha256, self.validation_sha256, submissions)


class ShadowEvidence:
    """Measures degrees on D_c.

    Args:
        task: workload, recipe and the scoring part of D_c. What is reported to participants is measured on other data.
        seed: secret until the task is over: those who know it know the shadows.
        shadows: sound shadow models a round.
        later: sound shadow models of a round after others, which carries over those of the last `CARRIED_ROUNDS`
            different starts before it; None: as many as in any other, and none are carried over.
        executor: trains them; None trains them in the calling thread.
        validation_sha256: what the record names D_c by, such as the terms' commitment to it; a digest of it where
            empty.
        scores: other rules whose scores are wanted, of `SCORED_RULES`.
        report: takes how many shadows of a round are trained and of how many, from the thread that asked for them.

    Raises:
        EvidenceError: a rule on agreement where the workload has no classes.
    """

    def __init__(
        self,
        task: EvidenceTask,
        seed: int,
        *,
        shadows: int = SHADOWS,
        later: int | None = None,
        executor: Executor | None = None,
        validation_sha256: str = "",
        scores: Sequence[str] = (),
        report: Report = lambda trained, of: None,
    ) -> None:
        check_scores(task, scores)
        self._task = task
        self._seed = seed
        self._shadows = shadows
        self._later = later
        self._executor = executor
        self._scores = tuple(scores)
        self._report = report
        self._ensembles: OrderedDict[tuple[str, str, int], ShadowEnsemble] = OrderedDict()
        self._trained: OrderedDict[tuple[str, int], Shadows] = OrderedDict()
        self._validation_digest = validation_sha256 or samples_digest(task.validation)

    def prepare(
        self, start: Weights, round_: int, history: Sequence[Broadcast] = (), start_sha256: str = ""
    ) -> ShadowEnsemble:
        """The ensemble of shadows around `start`; trained once for a start and round, then remembered.

        Args:
            history: models that were sent out before, oldest first; all of them where shadows are carried over.
            start_sha256: what the record names the start by, such as its file's digest; that of its tensors where
                empty.
        """
        digest = weights_digest(start)
        named = start_sha256 or digest
        key = (digest, named, round_)
        if key in self._ensembles:
            self._ensembles.move_to_end(key)
            return self._ensembles[key]
        before = [broadcast.weights() for broadcast in latest(history)]
        carried = self._carried(digest, before, complete=len(before) == len(history))
        count = self._later if carried and self._later else self._shadows
        ensemble = prepare_ensemble(
            self._task,
            start,
            self._seed,
            history=before,
            part=1 / len(history[-1].merged) if history and history[-1].merged else 0.0,
            shadows=count,
            carried=carried,
            executor=self._executor,
            report=self._report,
        )
        self._keep(digest, count, ensemble.shadows)
        found = ShadowEnsemble(self._task, round_, start, named, self._validation_digest, ensemble)
        self._ensembles[key] = found
        while len(self._ensembles) > KEPT_ENSEMBLES:
            self._ensembles.popitem(last=False)
        return found

    def _carried(self, digest: str, before: Sequence[Weights], *, complete: bool) -> list[Shadows]:
        """Those of the latest other starts, oldest first; trained again where they are not remembered.

        Args:
            digest: of the round's start.
            before: the latest models that were sent out, oldest first; `complete`: no other was before.
        """
        if self._later is None:
            return []
        starts: dict[str, Weights] = {}
        for weights in before:
            starts.setdefault(weights_digest(weights), weights)
        first = next(iter(starts), None) if complete else None
        found = []
        for name in [name for name in starts if name != digest][-CARRIED_ROUNDS:]:
            count = self._shadows if name == first else self._later
            if (name, count) not in self._trained:
                made = prepare_shadows(
                    self._task,
                    starts[name],
                    self._seed,
                    shadows=count,
                    executor=self._executor,
                    report=self._report,
                )
                self._keep(name, count, made)
            found.append(self._trained[name, count])
        return found

    def _keep(self, digest: str, count: int, shadows: Shadows) -> None:
        self._trained[digest, count] = shadows
        self._trained.move_to_end((digest, count))
        while len(self._trained) > CARRIED_ROUNDS + 1:
            self._trained.popitem(last=False)

    def remeasure(
        self, ensemble: ShadowEnsemble, weights: Weights, history: Sequence[Broadcast] = ()
    ) -> tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]:
        """What an audit by re-training rests on: the features of re-trained weights, and the differences of shadows.

        Raises:
            ModelFileError: weights that are no model of the start's form, or whose outputs are not finite.
            EvidenceError: as `retraining_differences`.
        """
        if fault := contract_fault(weights, ensemble.start):
            raise ModelFileError(fault)
        judged = self._task.workload.judge(weights, self._task.validation)
        if not np.isfinite(judged.losses).all():
            raise ModelFileError("its losses on the validation set are not finite")
        features = ensemble.ensemble.of(ensemble.ensemble.observer.observe(judged, weights)).features
        return tuple(tuple(row) for row in features.tolist()), self.differences(ensemble, history)

    def differences(self, ensemble: ShadowEnsemble, history: Sequence[Broadcast] = ()) -> tuple[int, ...]:
        """How far two trainings on the same samples are apart, one a sound shadow (`retraining_differences`)."""
        before = [broadcast.weights() for broadcast in latest(history)]
        carried = self._carried(weights_digest(ensemble.start), before, complete=len(before) == len(history))
        return retraining_differences(
            self._task, ensemble.start, ensemble.ensemble, carried, self._executor, self._report
        )

    def assess(
        self, ensemble: ShadowEnsemble, submissions: Sequence[Submission], history: Sequence[Broadcast] = ()
    ) -> RoundEvidence:
        """Measures and assesses the submissions of a round.

        Args:
            ensemble: of the round's start model.
            submissions: in any order; each participant once.
            history: earlier broadcast models, oldest first: those that the ensemble was prepared with.

        Raises:
            SettlementError: a participant twice.
        """
        names = [s.participant_id for s in submissions]
        if len(set(names)) != len(names):
            raise SettlementError(f"submissions come from {sorted(names)}; expected each participant once")
        measurements = self.measurements(ensemble, history)
        measurements.measure_all(submissions)
        return measurements.assess()

    def measurements(
        self, ensemble: ShadowEnsemble, history: Sequence[Broadcast] = ()
    ) -> "RoundMeasurements":
        """An empty table of measurements, for a caller that assesses several sets of the same submissions."""
        return RoundMeasurements(ensemble, history, self._scores, self._seed, self._executor)


class RoundMeasurements:
    """The submissions of one round: of each, its figures and what comparing it with others needs.

    Args:
        ensemble: of the round's start model.
        history: earlier broadcast models, oldest first.
        scores: other rules whose scores are wanted.
        seed: of the ensemble, and of the Shapley values' orders.
        executor: looks at models in files; None: all are looked at here, one after another.
    """

    def __init__(
        self,
        ensemble: ShadowEnsemble,
        history: Sequence[Broadcast],
        scores: Sequence[str] = (),
        seed: int = 0,
        executor: Executor | None = None,
    ) -> None:
        self._of, self._ensemble = ensemble, ensemble.ensemble
        self._scores = tuple(scores)
        self._seed = seed
        self._executor = executor
        self._submissions: dict[str, Submission] = {}
        self._measured: dict[str, Measurement] = {}
        self._first: dict[bytes, str] = {}
        self._seen: dict[str, _Comparable] = {}
        self._sent = SentModels(self._ensemble.observer, latest(history))

    def fork(self, without: Collection[str] = ()) -> "RoundMeasurements":
        """A table with what was measured so far, but of `without`: what is added to it does not change this one."""
        gone, other = set(without), copy.copy(self)
        other._submissions = {name: each for name, each in self._submissions.items() if name not in gone}
        other._measured = {name: each for name, each in self._measured.items() if name not in gone}
        other._seen = {name: each for name, each in self._seen.items() if name not in gone}
        other._first = {digest: name for digest, name in self._first.items() if name not in gone}
        return other

    def measure_all(self, submissions: Sequence[Submission]) -> None:
        """`measure` of each, in their order, side by side where there is an executor."""
        known, files = set(self._first), {}
        for submission in submissions:
            if not submission.fault and submission.model_sha256 not in known:
                known.add(submission.model_sha256)
                if isinstance(submission.model, Path):
                    files[submission.participant_id] = submission.model
        found: Iterator[Observation | str | None] = repeat(None)
        if self._executor is not None:
            found = all_looked_at(
                self._of.task, self._ensemble.observer, self._of.start, list(files.values()), self._executor
            )
        with one_blas_thread():  # as where others look at them
            for submission in submissions:
                self.measure(submission, next(found) if submission.participant_id in files else None)

    def measure(self, submission: Submission, seen: Observation | str | None = None) -> None:
        """Takes the figures of one submission; its weights are freed again.

        A file that somebody else has sent, too, has the same figures to the last digit: they are taken once.

        Args:
            seen: of its model, or why that breaks the contract, where it has been looked at.
        """
        name = submission.participant_id
        self._submissions[name] = submission
        first = name if submission.fault else self._first.setdefault(submission.model_sha256, name)
        if first == name:
            self._measured[name] = self._alone(submission, seen)
            return
        self._measured[name] = replace(
            self._measured[first],
            participant_id=name,
            claimed_degree=submission.claimed_degree,
            order=submission.order,
            samples=submission.samples,
        )
        if first in self._seen:
            self._seen[name] = self._seen[first]

    def assess(
        self, names: Sequence[str] | None = None, harmful: Container[str] | None = None
    ) -> RoundEvidence:
        """Assesses the submissions of `names` together, or all that were measured.

        Args:
            harmful: whose harm alone is taken, where nobody asks for what others are paid; None: everybody's.
        """
        chosen = sorted(self._measured if names is None else names)
        model = self._of.model(len(chosen))
        measured = {name: self._measured[name] for name in chosen}
        passing = [a.participant_id for a in assess(model, list(measured.values())) if a.scored]
        with one_blas_thread():  # as others who measure again
            measured = self._with_twins(measured, model, passing)
        measured = self._with_influence(measured, passing, harmful)
        record: dict[str, Json] = {
            "model": model.record(),
            "measurements": [measured[name].record() for name in chosen],
        }
        return RoundEvidence(assess(model, list(measured.values())), record)

    def _with_influence(
        self, measured: Mapping[str, Measurement], passing: Sequence[str], harmful: Container[str] | None
    ) -> dict[str, Measurement]:
        """Adds harm, and the scores of other rules, of those who are scored."""
        harms = self.aggregate(passing).harms(passing, self._executor, harmful)
        scores = self.scores(passing, harms if harmful is None else None)
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
        check_scores(self._of.task, wanted)
        raw: dict[str, dict[str, float]] = {}
        if "leave_one_out" in wanted:
            harms = self.aggregate(names).harms(names, self._executor) if harms is None else harms
            raw["leave_one_out"] = {name: -harms.get(name, 0.0) for name in names}
        if "shapley" in wanted:
            raw["shapley"] = self.aggregate(names).shapley(names, self._of.start, self._seed)
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
        classes = self._of.task.workload.classes
        assert classes is not None, "the rule was refused"
        shared = SharedPredictions([self._predictions(n) for n in ordered], classes)
        scores = baseline.scores(shared, np.random.default_rng(self._seed))
        return dict(zip(ordered, scores.tolist(), strict=True))

    def _predictions(self, name: str) -> npt.NDArray[np.int64]:
        """Of what participants' models are asked: the probe."""
        predicted = self._seen[name].predicted
        assert predicted is not None, "the rule was refused"
        return predicted

    def aggregate(self, names: Sequence[str]) -> Aggregate:
        """The weighted mean of the models of `names`, to be judged on the probe."""
        task = self._of.task
        return Aggregate(
            load=lambda name: self._submissions[name].weights(),
            files={name: file for name in names if isinstance(file := self._submissions[name].model, Path)},
            samples={
                name: max(1, min(self._submissions[name].samples, task.recipe.samples)) for name in names
            },
            layout=self._of.start,
            probe=task.validation.select(self._ensemble.comparison.probe.rows),
            workload=task.workload,
            scale=self._ensemble.observer.loss_scale,
        )

    def _alone(self, submission: Submission, seen: Observation | str | None) -> Measurement:
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
        ensemble, task = self._ensemble, self._of.task
        if seen is None:
            try:
                weights = submission.weights()
            except (ModelFileError, OSError) as error:
                return replace(blank, fault=f"its file cannot be read ({error})")
            seen = looked_at(task, ensemble.observer, self._of.start, weights)
        if isinstance(seen, str):
            return replace(blank, fault=seen)
        found = ensemble.of(seen, self._sent.directions, self._sent.without(submission.participant_id))
        predicted = None
        if task.workload.classes is not None:
            predicted = seen.outputs[ensemble.comparison.probe.rows].argmax(axis=1)
        left = ensemble.comparison.left(seen, found.shares)
        self._seen[submission.participant_id] = _Comparable(left, found.shares, seen.gains, predicted)
        return self._figures(blank, found)

    def _figures(self, blank: Measurement, found: ModelMeasurement) -> Measurement:
        figures = found.figures
        return replace(
            blank,
            features=tuple(tuple(row) for row in found.features.tolist()),
            norm=micro(figures.norm),
            alignment=micro(figures.alignment),
            novelty=micro(figures.novelty),
            improvement=micro(figures.improvement),
            echo_distance=micro(figures.echo_distance),
            echo_cosine=micro(figures.echo_cosine),
            straying=micro(found.straying),
            length=micro(found.length),
            nearest_broadcast=("this round", *self._sent.labels)[figures.nearest + 1],
        )

    def _with_twins(
        self, measured: Mapping[str, Measurement], model: EvidenceModel, passing: Sequence[str]
    ) -> dict[str, Measurement]:
        """Adds to the first who has sent each model the twins of it, and the group, of those who are scored."""
        names = sorted(first_of(measured[name] for name in passing).values())
        if not names:
            return dict(measured)
        seen, comparison = [self._seen[name] for name in names], self._ensemble.comparison
        left, mixes = [each.left for each in seen], np.array([each.mix for each in seen])
        near = list(perhaps_linked(left, mixes, comparison.common, model.likeness))
        found, pairs = dict(measured), []
        for members, outside in suspected(left, mixes, near, comparison, model.likeness):
            outside = self._checked([seen[k] for k in members], outside)
            for k in members:
                found[names[k]] = replace(found[names[k]], group=names[members[0]], outside=micro(outside))
            pairs += [(names[k], names[j]) for k in members for j in members if j < k]
        for own, other in ((names[k], names[j]) for k, j in near):
            # One of a group and one outside are held against what the mixes of the group have in common, too.
            alike, r = self._likeness(own, other)
            usual = model.likeness.usual(r)[0] + max(found[own].outside, found[other].outside, 0)
            if found[own].group != found[other].group and (
                alike >= ONE_MODEL or alike - usual >= model.likeness.link
            ):
                pairs.append((own, other))
        overlaps = Overlaps(model, self._naming({name: found[name] for name in passing}, pairs))
        members_of: dict[str, list[str]] = {}
        for name in names:
            if name in overlaps.clusters:
                members_of.setdefault(overlaps.clusters[name], []).append(name)
        within = [
            (own, other) for each in members_of.values() for k, own in enumerate(each) for other in each[:k]
        ]
        # A set of which nobody is linked says nothing.
        linked = {found[name].group for name in overlaps.clusters}
        found = {
            name: m if m.group in linked else replace(m, group="", outside=0) for name, m in found.items()
        }
        return self._naming(found, within, overlaps)

    def _likeness(self, own: str, other: str) -> tuple[int, int]:
        """Of two models, and r, millionths."""
        one, two = self._seen[own], self._seen[other]
        alike = float(likeness(one.left, two.left[0][None], two.left[1][None])[0])
        return micro(alike), micro(
            float(self._ensemble.comparison.common(one.mix[None], two.mix[None])[0, 0])
        )

    def _checked(self, members: Sequence["_Comparable"], outside: float) -> float:
        """u of a set, as `fedpeer.evidence.comparing` has it, from that of the round's pairs."""
        of = self._of
        shares, gains = (np.array([getattr(each, name) for each in members]) for name in ("shares", "gains"))
        alike = checked(of.task, of.start, self._ensemble, shares, gains, self._seed, self._executor)
        if alike is None:
            return outside
        usual = self._ensemble.comparison.usual(np.array([each.mix for each in members]))
        return min(outside, 0.0) + alike - usual

    def _naming(
        self,
        measured: Mapping[str, Measurement],
        pairs: Iterable[tuple[str, str]],
        overlaps: Overlaps | None = None,
    ) -> dict[str, Measurement]:
        """The measurements with both of each pair naming the other, with one likeness and one r.

        Args:
            overlaps: names only who is of one group, or more alike than models of other samples are: others have
                nothing in common.
        """
        twins: dict[str, list[tuple[str, int, int]]] = {}
        for own, other in pairs:
            alike, r = self._likeness(own, other)
            if overlaps is None or overlaps.one_group(own, other) or overlaps.part(own, other, alike, r):
                twins.setdefault(own, []).append((other, alike, r))
                twins.setdefault(other, []).append((own, alike, r))
        return {name: replace(m, twins=tuple(sorted(twins.get(name, ())))) for name, m in measured.items()}


@dataclass(frozen=True)
class _Comparable:
    """What comparing a submission with others needs.

    Attributes:
        left: of its update and outputs, beyond what its mix explains.
        shares: of the strata, as estimated; gains: on them.
        predicted: the class that it gives to each sample of the probe; None without classes.
    """

    left: Left
    shares: npt.NDArray[np.float64]
    gains: npt.NDArray[np.float64]
    predicted: npt.NDArray[np.int64] | None

    @property
    def mix(self) -> npt.NDArray[np.float64]:
        return mix_of(self.shares)


def check_scores(task: EvidenceTask, rules: Sequence[str]) -> None:
    """Raises EvidenceError for rules that need classes where the workload has none."""
    impossible = sorted(set(rules) & AGREEMENT_RULES.keys())
    if impossible and task.workload.classes is None:
        raise EvidenceError(
            f"the rule {' and '.join(impossible)} pays on classes that models agree on, and this task's model predicts "
            "none; choose another rule"
        )


def latest(history: Sequence[Broadcast]) -> list[Broadcast]:
    """Those of the earlier broadcast models that submissions are held against."""
    return list(history)[-KEPT_BROADCASTS:]


def samples_digest(samples: Samples) -> str:
    """SHA-256 over names, types, shapes and bytes of inputs and targets, hexadecimal."""
    inputs = samples.inputs if isinstance(samples.inputs, Mapping) else {"inputs": samples.inputs}
    digest = hashlib.sha256()
    for name, array in (*sorted(inputs.items()), ("targets", samples.targets)):
        digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
