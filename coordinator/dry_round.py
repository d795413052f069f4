"""A task is proved before it is offered: models are trained for it, held to the contract, measured, settled and merged.

Whatever fails here would fail in every round, after everyone has worked. What can be proved hangs on the task:

    D_c        scaled pixels, inputs that differ, more than one stratum
    recipe     two models that are trained by it, as participants will train, have moved and keep the contract
    targets    a model that is trained on a part of D_c knows the targets of the rest, and those of the held-out set
    round      three models are measured and judged, paid, merged and evaluated, by the code that does so in earnest

A "custom" model is known by its first model alone, of which the round takes copies. Where the
recipe is long, the round's models and shadows are trained by a shorter one: a proof takes seconds.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from os import sched_getaffinity
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from coordinator.aggregation import merge
from coordinator.config import EvidenceSection
from coordinator.derivation import chain_secret, evidence_seed
from coordinator.errors import CoordinatorError, MarketTaskError
from coordinator.opening import PreparedTask
from coordinator.scoring import RoundStart, Scored, Scorer, check_strata, judgement, make_scorer, merged_parts
from coordinator.shadow_workers import LocalWorkers
from coordinator.storage.tasks import TaskRow
from coordinator.workload import folder_of, runs_apart, workload_of
from fedpeer.learning.images import LARGEST_PIXEL
from fedpeer.learning.learner_data import LearnerData
from fedpeer.learning.samples import Samples
from fedpeer.learning.strata import counts_over
from fedpeer.protocol.faults import passes
from fedpeer.protocol.model_file import (
    ModelFileError,
    Weights,
    changed,
    check_model,
    file_digest,
    header,
    open_model,
    stored_block,
    stored_spec,
)
from fedpeer.protocol.submission import Submission
from mechanism.coverage import LEAST_SHADOWS
from mechanism.degree import noniid_degree
from mechanism.errors import FieldError
from mechanism.evidence import EvidenceModel
from mechanism.ledger import entries
from mechanism.lifecycle import needs_evidence
from mechanism.peers import Draw, round_seed
from mechanism.server_step import FedAvg
from mechanism.settlement import MICRO
from mechanism.terms import ModelContract, Recipe, Terms

if TYPE_CHECKING:  # it imports torch, which most tasks do without
    from fedpeer.learning.workloads.protocol import Judged, Workload

#: Accuracy on D_c above the share of its most frequent label from which a trained model is said to have learnt.
_MORE_THAN_CHANCE = 0.05

#: Standard deviations from which a model is said to know targets: labels at random reach them in a permutation test
#: (`label_signal`) once in 700 times, and so do losses in a paired test against a model of shuffled targets.
_SIGNAL = 3.0

#: Those that D_c must promise for the held-out set, before less than `_SIGNAL` there is sure to be its own fault.
_SURE_SIGNAL = 6.0

#: Part of the held-out images that may stand in D_c, too: large sets have a few twice.
_MOST_AGAIN = 0.1

#: Part of D_c that a model is trained on where no evidence says otherwise; it is judged on the rest.
_SEEN = 0.6

#: The round's participants: the fewest that are settled.
_NAMES = ("dry-1", "dry-2", "dry-3")

#: Sound shadows of the round, where the task's own rounds have as many. Flawed ones come on top.
_SHADOWS = 30

#: Of the half-width of a guess, from which on the shadows' interval is said to tell hardly anything. That of few
#: shadows is wide, since it holds with a confidence.
_HARDLY = 1.0

#: Numbers that the round's shadows see in training together, for which the recipe is cut: some seconds.
_NUMBERS = 3e6

#: Fewest samples that it is cut to, for each stratum.
_SAMPLES_PER_STRATUM = 4

#: `scarcity` below which shadows look more skewed than they are: 0.1 did by 0.08, 0.13 did not.
_SCARCE = 0.125

#: The least change by the whole recipe, of a model's own length. float32 holds seven digits of a weight.
_LEAST_CHANGE = 1e-6

#: Samples that are made up where a rule without evidence has no D_c.
_MADE_UP = 256

#: Takes what goes on, as words.
Say = Callable[[str], None]


@dataclass(frozen=True)
class _Learnt:
    """What a model learns of D_c.

    Attributes:
        accuracy: of the first model and of a trained one, on samples of D_c that the latter has not seen; None where
            unknown, or nothing is classified.
        loss: the same of their mean losses.
        chance: share of the most frequent label among those samples: what a constant guess is right in.
        doubts: what looks wrong and was not refused, as sentences.
    """

    accuracy: tuple[float, float] | None = None
    loss: tuple[float, float] | None = None
    chance: float = 0.0
    doubts: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Proof(_Learnt):
    """What the dry round showed, of what a model learns besides.

    Attributes:
        task: as it is to be opened: with no more shadows than its limit of seconds allows.
        training_seconds: that a model took by the recipe on one core here; None where none was trained.
        evidence_seconds: that the first round's evidence will take here, about; None under a rule without.
        round_seconds: that participants have for a round; evidence is made ready meanwhile.
        half_width: of the interval that a degree is known to, with the few shadows of the dry round; None where none is
            measured. A recipe that was cut knows less.
        shadows: sound ones of the dry round, of the task's first round and of each later one; None where none is
            measured.
        models: that are trained for the first round's evidence, and for that of a later one.
    """

    task: PreparedTask
    training_seconds: float | None
    evidence_seconds: float | None
    round_seconds: int
    half_width: float | None = None
    shadows: tuple[int, int, int] | None = None
    models: tuple[int, int] | None = None

    def sentence(self) -> str:
        """For the operator: the findings, and what looks wrong."""
        return " ".join([*self.findings(), *(f"LOOK AGAIN: {doubt}" for doubt in self.doubts)])

    def findings(self) -> list[str]:
        """What was proved and measured, as sentences; without doubts."""
        said = ["Proved in a dry round: models keep the contract, and are measured, paid and merged."]
        if self.training_seconds is not None:
            said.append(f"Training takes {_seconds(self.training_seconds)} on one core of this machine.")
        if self.accuracy is not None:
            said.append(
                "On samples of D_c that it has not seen the first model is right in "
                "{:.0%}, a trained one in {:.0%}.".format(*self.accuracy)
            )
        elif self.loss is not None:
            said.append(
                "On samples of D_c that it has not seen the first model's mean loss is "
                "{:.4g}, a trained one's {:.4g}.".format(*self.loss)
            )
        if self.half_width is not None and self.shadows is not None:
            dry, first, _ = self.shadows
            known = f"With {dry} shadows degrees are known to +-{self.half_width:.2f}, nine in ten"
            if first != dry:
                known += f"; the {first} of a round know them {'better' if first > dry else 'less well'}"
            said.append(f"{known}.")
        if self.evidence_seconds is not None:
            takes = f"The evidence of a round will take about {_seconds(self.evidence_seconds)} here"
            if self.shadows is not None and self.models is not None:
                takes += f", for {self.models[0]} trainings"
                if self.models[1] != self.models[0]:
                    takes += (
                        f", or {self.models[1]} in later rounds, which carry the shadows of earlier ones over"
                    )
            said.append(f"{takes}.")
            if self.evidence_seconds > self.round_seconds:
                said.append(
                    f"That is longer than a round, {_seconds(self.round_seconds)}: its payments wait for it. Fewer "
                    "shadows, fewer epochs or samples, or more cores take less."
                )
        return said


@dataclass(frozen=True)
class _TrainedModels:
    """Models that were trained by a recipe, with the degrees of what they were trained on, and how long one took.

    Attributes:
        seen: places of the samples of D_c that the first was trained on, repeats included.
    """

    models: tuple[Weights, ...]
    degrees: tuple[Fraction, ...]
    seconds: float
    seen: npt.NDArray[np.int64]


def prove(task: PreparedTask, say: Say = lambda text: None, *, accept_noise: bool = False) -> Proof:
    """Plays a dry round of a task that is about to be opened; writes to a temporary folder alone.

    Args:
        accept_noise: take data of which nothing can be learnt, and labels that look like noise.

    Raises:
        MarketTaskError: it cannot be scored: why, what was expected, and what to change.
        OSError: the temporary folder cannot be written, or the data read.
    """
    row, recipe = task.row, task.row.terms.recipe
    workload, measured = workload_of(recipe, folder_of(row.settings)), needs_evidence(row.terms.rule.name)
    if task.data is not None and workload is not None:
        _check_data(task.data, workload.classes is not None, runs_apart(recipe))
    if task.data is not None and measured:
        check_strata(task.data, row.terms)
    cut = _cut(recipe, task.data) if measured and task.data is not None else recipe
    section = EvidenceSection(**row.settings["evidence"])
    shadows = min(_SHADOWS, section.shadows)
    settings = {**row.settings, "evidence": {"shadows": shadows, "tricked": section.tricked}}
    dry = replace(row, terms=replace(row.terms, recipe=cut), settings=settings)
    scorer = make_scorer(
        dry, task.data, lambda trained, of: say(f"training shadow models: {trained} of {of}")
    )
    with TemporaryDirectory(prefix="fedpeer-dry-round-") as name:
        folder = Path(name)
        (path := folder / "start").write_bytes(task.initial_model)
        start = RoundStart(1, path, row.terms.initial_model, ())
        trained, learnt = None, _Learnt()
        if workload is not None and (task.data is not None or not runs_apart(recipe)):
            trained = _train(task, workload, start, recipe, 2, say)
            _check_trained(task, workload, start, trained.models, folder)
            if task.data is not None:
                learnt = _learnt(task, task.data, workload, start, trained, accept_noise, say)
        models = trained
        if workload is not None and trained is not None and cut is not recipe:
            models = _train(task, workload, start, cut, 3, say)
        say("measuring and settling a round of three")
        with _refusing("a round cannot be scored"):
            seconds, scored = _play(
                dry, scorer, start, _submissions(start, models, row.terms.contract, folder), folder
            )
    model = None
    if scored.evidence:
        model = EvidenceModel.from_record(cast("Mapping[str, Any]", scored.evidence["model"]))
    evidence, half_width = None, None if model is None else model.degree.half_width / MICRO
    counts, trained_for = None, None
    if measured and trained is not None:
        from fedpeer.evidence.planning import trainings  # imports torch

        share = section.tricked
        a_model = _model_seconds(task, shadows, trained.seconds, seconds, cut is recipe)
        task = _within_seconds(task, section, a_model)
        first, later = EvidenceSection(**task.row.settings["evidence"]).counts()
        many = row.terms.schedule.rounds > 1
        counts = shadows, first, later if many else first
        of_first = trainings(first, tricked=share)
        trained_for = of_first, trainings(later, tricked=share, later=True) if many else of_first
        evidence = of_first * a_model
    doubts = (() if task.data is None else task.data.notes) + learnt.doubts + _scarce(task, measured)
    doubts += _unknown(half_width, row.terms, shadows, cut is not recipe)
    doubts += _lenient(model, section.shadows) + _untried(row.terms, trained)
    doubts += () if counts is None else _uncounted(*counts[1:])
    return Proof(
        task=task,
        training_seconds=None if trained is None else trained.seconds,
        evidence_seconds=evidence,
        round_seconds=row.terms.schedule.round_seconds,
        half_width=half_width,
        shadows=counts,
        models=trained_for,
        **{**vars(learnt), "doubts": doubts},
    )


def _unknown(half_width: float | None, terms: Terms, shadows: int, cut: bool) -> tuple[str, ...]:
    """Where models hardly show their degrees: a guess in the middle of all degrees would be about as near."""
    guess = 0.9 * float(1 - min(terms.reference)) / 2
    if half_width is None or half_width <= _HARDLY * guess:
        return ()
    shorter = " by a shorter recipe" if cut else ""
    return (
        f"models hardly show what they were trained on: with {shadows} shadows{shorter} a degree is known to "
        f"+-{half_width:.2f}, and a guess in the middle to +-{guess:.2f}. Where strata do not change what is learnt, a "
        "task cannot be verified. Ask for more shadows, more samples or other strata.",
    )


def _lenient(model: EvidenceModel | None, shadows: int) -> tuple[str, ...]:
    """Where flawed shadows look like sound ones, or the limit that honest models pass at the stated rate lets most of
    them pass, too: there are so few.

    Args:
        model: of the dry round; it has as many shadows as the task where that has at most `_SHADOWS`.
    """
    if model is None or shadows > _SHADOWS:
        return ()
    if model.thresholds.quality_full <= 0:
        return (
            f"the screen of samples tells nothing: of {shadows} shadows those that were trained on a handful over and "
            "over, or on wrong targets, look like the others, and where they do nobody is paid less for either. "
            "Honest participants lose nothing by it. Ask for more shadows.",
        )
    # What nothing is paid at is the flawed ones' median, but where that is no lower than the limit of the sound ones.
    if model.thresholds.quality_none < model.thresholds.quality_full - 1:
        return ()
    return (
        f"so few shadows hardly tell samples: of models that were trained on a handful over and over, or on wrong "
        f"targets, half or more would be paid with {shadows}. Honest participants lose nothing by it. Ask for more "
        "shadows.",
    )


def _uncounted(first: int, later: int) -> tuple[str, ...]:
    """Where shadows are too few to read from a model how many distinct samples it was trained on."""
    if min(first, later) >= LEAST_SHADOWS:
        return ()
    when = "in any round" if max(first, later) < LEAST_SHADOWS else "in the rounds after the first"
    return (
        f"nobody's number of samples is read {when}: that takes {LEAST_SHADOWS} shadows in a round, and there are "
        f"{min(first, later)}. Who repeats some samples up to the recipe's number is paid as if all were distinct, "
        "unless a screen refuses the model. Raise evidence.shadows, and evidence.later where it is given.",
    )


def _scarce(task: PreparedTask, measured: bool) -> tuple[str, ...]:
    """Where D_c has too few samples of a stratum for shadows to look like participants."""
    if not measured or task.data is None:
        return ()
    from fedpeer.evidence.planning import scarcity  # imports torch

    counts, samples = task.data.counts(), task.row.terms.recipe.samples
    if scarcity(task.data.codes, samples) >= _SCARCE:
        return ()
    least = counts.index(min(counts))
    name = task.row.terms.strata_names[least]
    return (
        f"D_c has {counts[least]} samples of stratum {name}; expected at least {math.ceil(2 * _SCARCE * samples)} for "
        f"rounds of {samples} samples: shadows repeat the few that they have, and participants' degrees are read too "
        "high. Take more samples of it, or a smaller recipe.samples.",
    )


def _untried(terms: Terms, trained: _TrainedModels | None) -> tuple[str, ...]:
    """What the round could not try."""
    if trained is not None or isinstance(terms.aggregation, FedAvg):
        return ()
    return (
        f"how far models of this kind move is not known here, so no step of {terms.aggregation.name} was tried; one "
        "that leaves the contract ends the task with refunds, so begin with a small aggregation.rate.",
    )


def _check_data(data: LearnerData, classified: bool, own_scale: bool) -> None:
    """Raises MarketTaskError for samples from which nothing can be learnt about a model.

    Args:
        classified: whether targets are classes.
        own_scale: whether the workload is an operator's, which may scale images itself.
    """
    for name, part, codes in (
        ("D_c", data.validation, data.codes),
        ("the held-out set", data.test, None if data.test is None or not classified else data.test.targets),
    ):
        if part is None:
            continue
        present = [] if codes is None else np.unique(codes).tolist()
        if len(part) < 2 or (codes is not None and len(present) < 2):
            raise MarketTaskError(
                f"{name} has {len(part)} samples, of the labels {present}; expected samples of several labels: a model "
                "that knows one label would look right in all. Take samples of each"
            )
        if all((array == array[:1]).all() for array in part.arrays.values()):
            raise MarketTaskError(
                f"{name} has {len(part)} {_INPUTS} that are all the same; expected {_INPUTS} that differ: look at "
                "how the file was written"
            )
        for array in part.arrays.values():
            if own_scale or array.ndim != 4 or array.dtype.kind != "f":
                continue
            low, high = float(array.min()), float(array.max())
            whole = high - low > 1 and bool((array == np.floor(array)).all())
            if whole or max(-low, high) > LARGEST_PIXEL:
                raise MarketTaskError(
                    f"{name} has pixels from {low:g} to {high:g}; expected the scale on which participants train, 0 to "
                    "1 or a deviation of 1: divide by the largest value (255 for bytes) before the file is written"
                )
    if data.test is not None and (mine := _shapes(data.test)) != (theirs := _shapes(data.validation)):
        raise MarketTaskError(f"the held-out {_INPUTS} are {mine}, those of D_c {theirs}; expected the same")


#: What samples are called in sentences.
_INPUTS = "inputs"


def _shapes(samples: Samples) -> str:
    """The shape of one sample, in words."""
    shapes = {name: list(array.shape[1:]) for name, array in samples.arrays.items()}
    return str(shapes.get("", shapes))


def _cut(recipe: Recipe, data: LearnerData) -> Recipe:
    """The recipe, or a shorter one where the round's shadows would take long by it."""
    most = _NUMBERS / (_SHADOWS * max(1, data.validation.width))
    if recipe.epochs * recipe.samples <= most:
        return recipe
    least = min(recipe.samples, max(int(most), _SAMPLES_PER_STRATUM * data.strata))
    return replace(recipe, epochs=1, samples=least, batch_size=min(recipe.batch_size, least))


def _train(
    task: PreparedTask, workload: "Workload", start: RoundStart, recipe: Recipe, count: int, say: Say
) -> _TrainedModels:
    """Models that are trained as participants train, the first on what is nearest to the reference."""
    from fedpeer.learning.workloads.protocol import train_sent  # imports torch

    weights, models, taken = open_model(start.model).weights(), [], []
    with _refusing(
        "models cannot be trained by the recipe", "change [recipe] in the task file, or mend the workload"
    ):
        samples, degrees, seen = _samples(task, recipe, count)
        for number, data in enumerate(samples, 1):
            say(f"training model {number} of {count}")
            began = time.perf_counter()
            models.append(train_sent(workload, weights, data, recipe, number))
            taken.append(time.perf_counter() - began)
    return _TrainedModels(tuple(models), degrees, min(taken), seen)


def _samples(
    task: PreparedTask, recipe: Recipe, count: int
) -> tuple[list[Samples], tuple[Fraction, ...], npt.NDArray[np.int64]]:
    """What the dry participants have: for evidence as its shadows have it, the whole range of degrees; else any.

    Returns:
        their samples and degrees, and the places in D_c of the samples that the first has.
    """
    terms = task.row.terms
    if task.data is None:
        made = [_made_up(recipe, number) for number in range(count)]
        degrees = [
            noniid_degree(np.bincount(s.targets, minlength=len(terms.reference)).tolist(), terms.reference)
            for s in made
        ]
        return made, tuple(degrees), np.array([], dtype=np.int64)
    data, codes = task.data.validation, task.data.codes
    if needs_evidence(terms.rule.name):
        from fedpeer.evidence.planning import plan_shadows  # imports torch

        plans = plan_shadows(
            codes,
            terms.reference,
            recipe.samples,
            min(_SHADOWS, int(task.row.settings["evidence"]["shadows"])),
            (evidence_seed(task.row.root),),
        )
        sound = sorted((plan for plan in plans if plan.sound), key=lambda plan: plan.mix.degree)
        chosen = [sound[k * (len(sound) - 1) // (count - 1)].rows for k in range(count)]
    else:
        generator = np.random.default_rng(evidence_seed(task.row.root))
        seen = generator.permutation(len(data))[: max(1, int(_SEEN * len(data)))]
        chosen = [generator.choice(seen, recipe.samples) for _ in range(count)]
    degrees = [noniid_degree(counts_over(codes[rows], task.data.strata), terms.reference) for rows in chosen]
    return [data.select(rows) for rows in chosen], tuple(degrees), chosen[0]


def _made_up(recipe: Recipe, seed: int) -> Samples:
    """Noise with labels, on which an architecture's recipe can be tried without D_c."""
    from fedpeer.learning.models import architecture  # imports torch

    form, size = architecture(recipe.model), min(recipe.samples, _MADE_UP)
    images = np.random.default_rng(seed).random((size, *form.image), dtype=np.float32)
    return Samples(images, np.arange(size, dtype=np.int64) % form.classes)


def _check_trained(
    task: PreparedTask, workload: "Workload", start: RoundStart, models: Sequence[Weights], folder: Path
) -> None:
    """Holds models to what a submission is held to.

    Raises:
        MarketTaskError: participants' models would be refused, or nothing has moved.
    """
    terms = task.row.terms
    before, rate = open_model(start.model).weights(), terms.recipe.learning_rate
    for model in models:
        (path := folder / "trained").write_bytes(_encoded(model, terms.contract))
        try:
            check_model(path, terms.contract)
        except ModelFileError as error:
            raise MarketTaskError(
                f"a model that is trained by the recipe is refused, as participants' models would be: {error}; "
                f"{_largest(model)}expected one that keeps the contract: recipe.learning_rate is {rate}, choose a "
                "smaller one, scale inputs whose values are large, or set a larger contract.max_norm"
            ) from None
        # Only of finite weights: NaN is no change either.
        if not changed([(model[name], before[name]) for name in workload.trainable], _LEAST_CHANGE):
            raise MarketTaskError(
                f"a model that is trained by the recipe moves by less than {_LEAST_CHANGE:g} of its length, which "
                f"float32 weights hardly hold; expected a training that teaches: recipe.learning_rate is {rate}, "
                "choose a larger one, or more epochs"
            )


def _largest(model: Weights) -> str:
    """Which tensor makes most of a model's length, in words; nothing where it has no finite one."""
    lengths = {name: float(np.linalg.norm(array.astype(np.float64))) for name, array in model.items()}
    name = max(lengths, key=lambda each: lengths[each])
    return f"most of it is tensor {name}, {lengths[name]:.6g}; " if math.isfinite(lengths[name]) else ""


def _learnt(
    task: PreparedTask,
    data: LearnerData,
    workload: "Workload",
    start: RoundStart,
    trained: _TrainedModels,
    accept_noise: bool,
    say: Say,
) -> _Learnt:
    """What the first of the trained models knows of samples that it has not seen, of D_c and of the held-out set.

    Raises:
        MarketTaskError: outputs that are not finite; under a rule with evidence, nothing of D_c is learnt; what is
            learnt of D_c does not hold on the held-out set, although it has samples enough to show that. The latter two
            not with `accept_noise`.
    """
    recipe = task.row.terms.recipe
    unseen = data.validation.select(np.setdiff1d(np.arange(len(data.validation)), trained.seen))
    begun = open_model(start.model).weights()
    with _refusing("models cannot be judged on D_c"):
        finite = all(
            np.isfinite(workload.judge(each, data.validation).losses).all()
            for each in (begun, *trained.models)
        )
    if not finite:
        raise MarketTaskError(
            "the outputs of the first model, or of one that is trained by the recipe, on D_c are NaN or infinite; "
            f"expected finite ones: recipe.learning_rate is {recipe.learning_rate}, choose a smaller one, and look at "
            "the first model"
        )
    classified = workload.classes is not None and workload.judge(begun, unseen).outputs is not None
    known = _knowing(task, data, workload, begun, trained, classified, say)
    before, (after, signal) = _figure(workload, begun, unseen), known(unseen)
    chance = 0.0
    doubts: list[str] = []

    def doubt(text: str, certain: bool) -> None:
        if certain and not accept_noise:
            raise MarketTaskError(f"{text} `open --accept-noise` opens the task all the same")
        doubts.append(text)

    if classified:
        chance = float(np.bincount(unseen.targets).max()) / len(unseen)
    if signal < _SIGNAL:
        if classified:
            found = (
                f"it is right in {after:.0%}, a constant guess in {chance:.0%}, and a permutation test gives "
                f"{signal:.1f} standard deviations where at least {_SIGNAL:g} are expected"
            )
        else:
            found = (
                f"its mean loss is {after:.4g}, {signal:.1f} standard deviations better than that of a model that is "
                f"trained on the same inputs with shuffled targets, where at least {_SIGNAL:g} are expected"
            )
        what = "labels" if classified else "targets"
        doubt(
            f"a model that is trained by the recipe on a part of D_c knows nothing of the {what} of the other "
            f"{len(unseen)} samples: {found}. Evidence on such data can say nothing of anybody. Are the {what} those "
            f"of the {_INPUTS}? If they are, the recipe is too short: give it more epochs or samples, or a larger "
            "learning rate.",
            needs_evidence(task.row.terms.rule.name),
        )
    elif classified and after < chance + _MORE_THAN_CHANCE:
        doubt(
            f"a constant guess is right in {chance:.0%}, hardly less. Are the labels those of the inputs, and is the "
            "recipe long enough?",
            False,
        )
    if data.test is not None and signal >= _SIGNAL:
        with _refusing("models cannot be judged on the held-out set"):
            right, held = known(data.test)
        promised = signal * (len(data.test) / len(unseen)) ** 0.5
        if held < max(_SIGNAL, promised / 2 if promised >= _SURE_SIGNAL else 0):
            shown = (
                f"of its {len(data.test)} samples the same model is right in {right:.0%}, and the permutation test"
                if classified
                else f"on its {len(data.test)} samples the same model's mean loss is {right:.4g}, and the paired test"
            )
            doubt(
                f"the held-out set is not like D_c: {shown} gives {held:.1f} standard deviations where D_c promises "
                f"{promised:.1f}. Figures that are reported on it would mean little. Are its targets those of its "
                "inputs, in the same order of classes, and its inputs scaled as those of D_c?",
                held < _SIGNAL and promised >= _SURE_SIGNAL,
            )
    if data.test is not None:
        own = set(_row_digests(data.validation))
        again = sum(row in own for row in _row_digests(data.test))
        if again > _MOST_AGAIN * len(data.test):
            doubt(
                f"{again} of the {len(data.test)} held-out {_INPUTS} stand in D_c, too, so that they are not held out: "
                "take other samples.",
                False,
            )
    if classified:
        return _Learnt((before, after), None, chance, tuple(doubts))
    return _Learnt(None, (before, after), 0.0, tuple(doubts))


def _figure(workload: "Workload", weights: Weights, samples: Samples) -> float:
    """Accuracy of a classifier, mean loss of any other model."""
    return _figure_of(workload, workload.judge(weights, samples), samples)


def _figure_of(workload: "Workload", judged: "Judged", samples: Samples) -> float:
    from fedpeer.learning.workloads.protocol import loss_and_accuracy  # imports torch

    loss, accuracy = loss_and_accuracy(workload, judged, samples.targets)
    return loss if accuracy is None else accuracy


def _knowing(
    task: PreparedTask,
    data: LearnerData,
    workload: "Workload",
    begun: Weights,
    trained: _TrainedModels,
    classified: bool,
    say: Say,
) -> Callable[[Samples], tuple[float, float]]:
    """What tells of samples how the first of the trained models does, and how sure it is that it knows them.

    A classifier is held to a permutation test. Of any other model losses are all that there is: it is held against one
    that is trained on the same inputs with their targets shuffled, which learns how targets are distributed, and
    nothing of what they hang on. In standard deviations, z = mean(d) / (sd(d) / sqrt n), d the difference of a
    sample's two losses.
    """
    from fedpeer.learning.workloads.protocol import train_sent  # imports torch

    first = trained.models[0]
    if classified:

        def accuracy_and_signal(part: Samples) -> tuple[float, float]:
            from fedpeer.learning.training import label_signal  # imports torch

            judged = workload.judge(first, part)
            assert judged.outputs is not None, "a classifier has them"
            return _figure_of(workload, judged, part), label_signal(judged.outputs, part.targets)

        return accuracy_and_signal
    say("training a model on shuffled targets")
    generator = np.random.default_rng(evidence_seed(task.row.root))
    shuffled = data.validation.select(
        trained.seen, data.validation.targets[generator.permutation(trained.seen)]
    )
    with _refusing(
        "models cannot be trained by the recipe", "change [recipe] in the task file, or mend the workload"
    ):
        blind = train_sent(workload, begun, shuffled, task.row.terms.recipe, 1)

    def better(part: Samples) -> tuple[float, float]:
        own = workload.judge(first, part).losses
        gains = workload.judge(blind, part).losses - own
        spread = float(gains.std())
        z = float(gains.mean()) / (spread / len(gains) ** 0.5) if spread else 0.0
        return float(own.mean()), z

    return better


def _row_digests(samples: Samples) -> list[int]:
    """A number for each sample's inputs, equal where they are."""
    return [
        hash(tuple(array[row].tobytes() for array in samples.arrays.values())) for row in range(len(samples))
    ]


def _encoded(model: Weights, contract: ModelContract) -> bytes:
    """A model as a participant writes it, in the types that the contract asks for."""
    wanted = {spec.name: spec for spec in contract.tensors}
    specs = [stored_spec(name, model[name], wanted.get(name)) for name in sorted(model)]
    return header(specs) + b"".join(stored_block(model[spec.name], spec.dtype) for spec in specs)


def _submissions(
    start: RoundStart, trained: _TrainedModels | None, contract: ModelContract, folder: Path
) -> list[Submission]:
    """What the dry participants send: what was trained, the last of it again where that is too little; or the start."""
    made = []
    for number, name in enumerate(_NAMES):
        path, degree = start.model, Fraction(0)
        if trained is not None:
            chosen = min(number, len(trained.models) - 1)
            (path := folder / name).write_bytes(_encoded(trained.models[chosen], contract))
            degree = trained.degrees[chosen]
        made.append(Submission(name, path, file_digest(path), 1, degree, number + 1))
    return made


def _play(
    row: TaskRow, scorer: Scorer, start: RoundStart, submissions: Sequence[Submission], folder: Path
) -> tuple[float, Scored]:
    """Scores, settles, merges and evaluates a round; the seconds that its evidence took, and what it says.

    Raises:
        MarketTaskError: nobody would be paid.
    """
    terms = row.terms
    began = time.perf_counter()
    scorer.prepare(start)
    seconds = time.perf_counter() - began
    scored = scorer.score(start, submissions)
    if not any(assessment.scored for assessment in scored.assessments):
        raise MarketTaskError(
            f"three models that are trained as the recipe says would all be refused: {_why(scored)}; expected some to "
            "be paid: look at D_c and at [recipe] in the task file"
        )
    draw = Draw(
        round_seed(chain_secret(row.root), terms.schedule.rounds, 1),
        {s.participant_id: s.model_sha256 for s in submissions},
    )
    _, settled = entries.settlement_entries(terms, 1, draw, scored.assessments, {})
    for entry in (*judgement(terms, 1, scored.assessments, scored.evidence), *settled):
        entry.data  # noqa: B018 - it is built here, and its size is checked
    mean = folder / "mean"
    parts = merged_parts(scored, submissions, terms.recipe.samples)
    merge(parts, terms.aggregation, terms.contract, start.model, None, mean, folder / "state")
    check_model(mean, terms.contract)
    scorer.evaluate(mean)
    return seconds, scored


def _why(scored: Scored) -> str:
    """The first reason why the first model is not scored."""
    verdicts = scored.assessments[0].verdicts
    return next((verdict.explanation for verdict in verdicts if not verdict.passed), "no reason is given")


def _within_seconds(task: PreparedTask, section: EvidenceSection, a_model: float) -> PreparedTask:
    """The task with as many shadows as its limit of seconds allows. Raises MarketTaskError: too few.

    Args:
        a_model: seconds for each model that a round's evidence trains.
    """
    if section.seconds is None:
        return task
    kept = section.within(
        int(section.seconds / a_model),
        f"evidence.seconds is {section.seconds:g}",
        lambda models: f"{math.ceil(models * a_model)} on this machine",
    )
    settings = {**task.row.settings, "evidence": kept.model_dump(mode="json")}
    return replace(task, row=replace(task.row, settings=settings))


def _model_seconds(task: PreparedTask, dry: int, training: float, prepared: float, whole: bool) -> float:
    """About how long a round's evidence takes here, for each model that it trains.

    Args:
        dry: sound shadows of the dry round.
        training: seconds of one model's by the recipe.
        prepared: seconds of the dry round's evidence.
        whole: whether its shadows were trained by the whole recipe.
    """
    from fedpeer.evidence.planning import trainings  # imports torch

    assert task.data is not None, "evidence has D_c"
    recipe, section = task.row.terms.recipe, EvidenceSection(**task.row.settings["evidence"])
    shadows = section.shadows
    seconds = prepared / trainings(dry, tricked=section.tricked) + (0 if whole else training)
    pooled = LocalWorkers().for_shadows(recipe, task.data.validation, shadows) is not None
    return seconds / (len(sched_getaffinity(0)) if pooled else 1)


@contextmanager
def _refusing(what: str, do: str = "look at [recipe] and [data] in the task file") -> Iterator[None]:
    """What fails lastingly inside becomes one sentence; a full disk and its like stay what they are."""
    try:
        yield
    except CoordinatorError:
        raise
    except Exception as error:
        if passes(error):
            raise
        ours = type(error).__module__.partition(".")[0] in ("coordinator", "fedpeer", "mechanism")
        why = str(error) if ours else f"{type(error).__name__}: {error}"
        if isinstance(error, FieldError) and error.field.startswith("aggregation"):
            do = "change [aggregation] in the task file"
        raise MarketTaskError(f"{what}, and it would fail so in every round: {why}; {do}") from error


def _seconds(seconds: float) -> str:
    """ "0.4 s", "12 s", "3 min", "2.5 h"."""
    if seconds < 60:
        return f"{seconds:.2g} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
