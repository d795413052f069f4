"""A start's ensemble of shadows, and what it says of a model.

ensemble = prepare_ensemble(task, start, seed)
found = ensemble.measure(weights)
found.degree_micro, found.lower_micro, found.upper_micro, found.failed
"""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from fedpeer.evidence.comparing import Anchor, Comparison, fit_comparison
from fedpeer.evidence.errors import EvidenceError
from fedpeer.evidence.fitting import Fitted, ShadowTable, fit_degree
from fedpeer.evidence.levelling import Levels, fit_level
from fedpeer.evidence.observing import Observation, Observer, silent_tensors
from fedpeer.evidence.planning import Plan, calmer, plan_checks, plan_shadows, variations, varying
from fedpeer.evidence.regression import Line, micro
from fedpeer.evidence.screening import SCORES, Figures, Screens, fit_screens
from fedpeer.evidence.sketch import Array
from fedpeer.evidence.straying import Straying, Taught, fit_times, times_seen
from fedpeer.evidence.tricks import TRICKS, Held
from fedpeer.learning.arithmetic import arithmetic, one_blas_thread
from fedpeer.learning.datasets import LabelledData
from fedpeer.learning.models import ARCHITECTURES, Weights, weights_digest
from fedpeer.learning.partition import rounded_counts
from fedpeer.learning.samples import Samples, of_labelled
from fedpeer.learning.strata import Codes, reference_over
from fedpeer.learning.workloads.loading import WorkloadSource
from fedpeer.learning.workloads.protocol import NewWeights, Workload, in_stacks, sent, train_all
from mechanism.canonical import canonical_digest
from mechanism.evidence import EvidenceModel, QualityMap
from mechanism.settlement import MICRO
from mechanism.terms import Recipe, Rule

#: Sound shadows a round, where nothing else is asked for.
SHADOWS = 100

#: Rounds whose shadows are carried over, at most.
CARRIED_ROUNDS = 3

#: Shadows in one call of the executor, at most: a few seconds of work.
CHUNK = 8

#: A call has at most one in so many of the shadows that are left, so that the last calls are short and workers end at
#: about the same time.
_LEFT = 16

#: Shadows that train together on a device. How they are rounded hangs on how many they are, so it is one number.
STACK = 32

#: Part of a round's shadow models that must not diverge; with fewer its recipe is no good.
LEAST_FINITE = 0.9

#: Part of a participant in the mean below which the start hardly remembers its samples.
LEAST_PART = 0.05

#: Shadows of either half that show what mixes have in common, before models of them are linked: sixteen pairs.
CHECKS = 4

#: Fewest samples of D_c of every stratum: each half needs some to train on and the rest to observe on.
MIN_STRATUM_SAMPLES = 10

#: Takes how many shadows are trained, and of how many.
Report = Callable[[int, int], None]


@dataclass(frozen=True, eq=False)
class EvidenceTask:
    """What evidence is taken of. It travels to the executor's workers, so that its workload must be picklable there.

    Attributes:
        workload: builds, trains and judges.
        recipe: the task's.
        validation: D_c.
        codes: the stratum of each of its samples.
        strata: S.
        strata_are_classes: whether stratum i is class i of the workload.
        reference: p^(c) over the strata; that of D_c where it is left out.
        whole_from: distinct samples from which a weight is whole, over the recipe's (`mechanism.coverage`).
        device: of torch, on which shadows train together; empty: one after another on the CPU. They agree with those
            as trainings on two kinds of processor agree (`fedpeer.learning.workloads.stacks`).
        tricked: tricked shadows for each sound one.

    Raises:
        EvidenceError: too few samples of a stratum, or a reference over another number of strata.
    """

    workload: Workload
    recipe: Recipe
    validation: Samples
    codes: Codes
    strata: int
    strata_are_classes: bool
    reference: tuple[Fraction, ...] = ()
    whole_from: Fraction = Fraction(Rule.whole_from)
    device: str = ""
    tricked: float = 0.0

    def __post_init__(self) -> None:
        counts = np.bincount(self.codes, minlength=self.strata)
        if len(counts) > self.strata or len(self.reference) not in (0, self.strata):
            raise EvidenceError(
                f"the reference has {len(self.reference) or self.strata} strata and D_c {len(counts)}; expected the "
                "same"
            )
        if counts.min() < MIN_STRATUM_SAMPLES:
            raise EvidenceError(
                f"D_c has {counts.min()} samples of stratum {counts.argmin()}; expected at least {MIN_STRATUM_SAMPLES} "
                "of each"
            )
        if not self.reference:
            object.__setattr__(self, "reference", reference_over(self.codes, self.strata))

    @property
    def computed_on(self) -> Mapping[str, str]:
        """What the shadows' rounding depends on (`fedpeer.learning.arithmetic`)."""
        return arithmetic(self.device if in_stacks(self.workload, self.recipe) else "")

    @classmethod
    def of_images(
        cls, recipe: Recipe, data: LabelledData, reference: tuple[Fraction, ...] = ()
    ) -> "EvidenceTask":
        """Of the architecture that `recipe` names, on labelled images; the labels are the strata.

        Raises:
            EvidenceError: no such architecture, and as above.
        """
        if recipe.model not in ARCHITECTURES:
            raise EvidenceError(
                f"shadow models need an architecture to train; the recipe names {recipe.model!r}, expected one of "
                f'{", ".join(ARCHITECTURES)}, or rule.name = "paper", which pays without evidence'
            )
        return cls(
            WorkloadSource.of_architecture(recipe.model).load(),
            recipe,
            of_labelled(data),
            data.labels,
            data.classes,
            strata_are_classes=True,
            reference=reference,
        )

    def observer(self, start: Weights, seed: int, silent: frozenset[str] = frozenset()) -> Observer:
        return Observer(
            self.workload,
            start,
            self.validation,
            self.codes,
            self.reference,
            strata_are_classes=self.strata_are_classes,
            sketch_seed=seed,
            silent=silent,
        )


@dataclass(frozen=True, eq=False)
class ModelMeasurement:
    """What the evidence says of one model.

    Attributes:
        features: all that the degree follows from, millionths, (S, m).
        degree_micro, lower_micro, upper_micro: the estimate and its interval, millionths.
        shares: of the strata, as estimated, (S,).
        figures: what the tests look at.
        straying, length: how far it lies from what other models span, and how long it is (`fedpeer.evidence.straying`).
        quality: about 1 for a model of enough distinct samples with right targets, 0 for one without; in [0, 1].
        failed: those of `screening.SCORES` that are beyond their limit, and "samples".
    """

    features: npt.NDArray[np.int64]
    degree_micro: int
    lower_micro: int
    upper_micro: int
    shares: Array
    figures: Figures
    straying: float
    length: float
    quality: float
    failed: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Shadows:
    """Trained and observed sound, repeated and tricked shadows of one start, as later rounds carry them over.

    Attributes:
        tensors: that were looked at; updates of others are not comparable.
        plans: of the table's rows.
        repeated: the repeated ones, if any; tricked: those, if any.
        beside: straying and length of the sound, then of the repeated, then of the tricked ones, (n, 2).
        times: how often each of the sound and the repeated ones saw its samples, (n,); family: as `straying.Taught` has
            it, (n,).
    """

    table: ShadowTable
    tensors: tuple[str, ...]
    repeated: ShadowTable | None
    tricked: ShadowTable | None
    beside: Array
    times: Array
    family: npt.NDArray[np.int64]
    plans: tuple[Plan, ...]

    def taught(self, fitted: Fitted, z: Array) -> Taught:
        """What they teach of distinct samples; z: regressors of the sound ones by the maps of `fitted`.

        Anchors teach nothing of it: they have a quarter of D_c, and where that is small see each sample so often that
        lines through them are off by as much as a repeated half moves the others.
        """
        if self.repeated is not None:
            features = fitted.maps.of_shadows(self.repeated)
            shares = fitted.maps.shadow_shares(features)
            z = np.concatenate([z, self.repeated.z(features, shares)])
        anchors = [place for place, plan in enumerate(self.plans) if plan.anchor is not None]
        others = np.setdiff1d(np.arange(len(self.times)), anchors)
        return Taught(z, self.beside[: len(z)], self.times, self.family).rows(others)

    def levels(self, fitted: Fitted, z: Array) -> Levels:
        """What they teach of filled up data; z as above. There must be tricked ones."""
        assert self.tricked is not None
        features = fitted.maps.of_shadows(self.tricked)
        read = self.tricked.z(features, fitted.maps.shadow_shares(features))
        sound = np.column_stack([z, self.beside[: len(z)]])
        alone = np.array([plan.anchor is None for plan in self.plans])
        tricked = np.column_stack([read, self.beside[-len(read) :]])
        return Levels(sound[alone], tricked, self.table.degrees[alone])


@dataclass(frozen=True, eq=False)
class Ensemble:
    """What the shadows of one start say.

    Attributes:
        observer: of models from that start.
        shadows: its own sound ones.
        carried: how many sound ones of earlier rounds joined the fit.
        fitted: maps, in units and in integers.
        screens: tests.
        comparison: of models with one another.
        lacking: gain on a stratum below which a model is taken to have no samples of it.
        straying: what the sound shadows span; times: lines to how often a model saw each of its samples, with tricked
            shadows the last of them to whether its data are filled up.
        shadows_sha256: digest over counts, halves and observed features of every shadow.
        computed_on: as of `EvidenceTask`.
        seconds: that planning, training and fitting took.
    """

    observer: Observer
    shadows: Shadows
    carried: int
    fitted: Fitted
    screens: Screens
    comparison: Comparison
    lacking: float
    straying: Straying
    times: tuple[Line, ...]
    shadows_sha256: str
    computed_on: Mapping[str, str]
    seconds: float

    def measure(self, weights: Weights, public: Sequence[Array] = ()) -> ModelMeasurement:
        """Of a model that was trained on samples of nobody's."""
        return self.of(self.observer(weights), public)

    def of(
        self, seen: Observation, public: Sequence[Array] = (), others: Sequence[Array] | None = None
    ) -> ModelMeasurement:
        """Of what was seen of one.

        Args:
            public: directions to earlier models that were sent out.
            others: these without its own part in them; as they are where left out.
        """
        maps, model = self.fitted.maps, self.fitted.model
        observed = seen.features[None] / MICRO
        vectors = {name: part[None] for name, part in seen.vectors.items()}
        features = np.rint(maps.features(observed, vectors, model.reference)[0] * MICRO).astype(np.int64)
        rows = features.tolist()
        z = model.regressors(rows)
        degree = model.degree_of(z)
        shares = np.array(model.shares(rows)) / MICRO
        quality = float(np.clip(self.screens.quality(np.array(z) / MICRO), 0, 1))
        figures = self.screens.figures(seen, shares, public, others)
        over = figures.scores() > self.screens.limits()
        failed = [name for name, fails in zip(SCORES, over, strict=True) if fails]
        if quality < self.screens.least_quality and degree < micro(self.screens.flawed_degree):
            failed.append("samples")
        ((straying, length),) = self.straying(seen.vectors["update"][None]).tolist()
        return ModelMeasurement(
            features,
            degree,
            max(degree - model.half_width, 0),
            min(degree + model.half_width, MICRO),
            shares,
            figures,
            straying,
            length,
            quality,
            tuple(failed),
        )

    def model(
        self, round_: int, start_sha256: str, validation_sha256: str, submissions: int
    ) -> EvidenceModel:
        """Maps and limits in integers, for a round of so many submissions."""
        return EvidenceModel(
            round=round_,
            start_sha256=start_sha256,
            validation_sha256=validation_sha256,
            shadows_sha256=self.shadows_sha256,
            shadows=len(self.shadows.table.degrees),
            carried=self.carried,
            degree=self.fitted.model,
            quality=self.screens.quality_map(),
            thresholds=self.screens.thresholds(),
            likeness=self.comparison.map(submissions),
            distinct=tuple(QualityMap(*line.nano()) for line in self.times),
            computed_on=dict(self.computed_on),
        )


@dataclass(frozen=True, eq=False)
class Past:
    """The round before: what it started from, and a participant's part in the mean of what came back."""

    start: Weights
    part: float


def prepare_ensemble(
    task: EvidenceTask,
    start: Weights,
    seed: int,
    *,
    history: Sequence[Weights] = (),
    part: float = 0.0,
    shadows: int = SHADOWS,
    carried: Sequence[Shadows] = (),
    executor: Executor | None = None,
    report: Report = lambda trained, of: None,
) -> Ensemble:
    """Trains shadows from `start` and fits what they support.

    Args:
        seed: secret until the task is over: those who know it know the shadows.
        history: models that were sent out before.
        part: of a participant in the mean of the round before.
        shadows: sound ones; `planning.trainings` has how many models are trained for them.
        carried: of earlier rounds, with the same `task` and `seed`.
        executor: trains them, where the task can be sent to it; None trains them here.

    Raises:
        EvidenceError: too few shadows, or more than a tenth of them diverged.
    """
    began = time.perf_counter()
    plans, observer = begin_ensemble(task, start, seed, shadows)
    past = Past(history[-1], part) if history and part >= LEAST_PART else None
    seen = observe_all(task, observer, start, plans, past, executor, report)
    public = [observer.sketch(model) for model in history]
    return fit_ensemble(task, observer, plans, seen, public, carried, seed=seed, began=began)


def prepare_shadows(
    task: EvidenceTask,
    start: Weights,
    seed: int,
    *,
    shadows: int = SHADOWS,
    executor: Executor | None = None,
    report: Report = lambda trained, of: None,
) -> Shadows:
    """The sound, repeated and tricked shadows that `prepare_ensemble` trains: what a later round carries over."""
    plans, observer = begin_ensemble(task, start, seed, shadows)
    plans = [plan for plan in plans if plan.sound or plan.repeated or plan.trick]
    seen = observe_all(task, observer, start, plans, None, executor, report)
    pairs = [(plan, each) for plan, each in zip(plans, seen, strict=True) if each.finite]
    return _shadows(task, observer, pairs)[0]


def observe_all(
    task: EvidenceTask,
    observer: Observer,
    start: Weights,
    plans: Sequence[Plan],
    past: Past | None = None,
    executor: Executor | None = None,
    report: Report = lambda trained, of: None,
) -> list[Observation]:
    """The shadows of `plans`, trained here or by the executor."""
    chunks = [plans[i : i + STACK] for i in range(0, len(plans), STACK)] if task.device else portions(plans)
    seen: list[Observation] = []
    if executor is None:
        for chunk in chunks:
            seen += observe_plans(task, observer, start, chunk, past)
            report(len(seen), len(plans))
    else:
        for future in [executor.submit(observe_plans, task, observer, start, c, past) for c in chunks]:
            seen += future.result()
            report(len(seen), len(plans))
    return seen


def portions(plans: Sequence[Plan]) -> list[Sequence[Plan]]:
    """`plans` in calls of the executor, the longest first: guided self-scheduling.

    Source: Polychronopoulos and Kuck, "Guided Self-Scheduling", IEEE Transactions on Computers 36 (12), 1987.
    """
    found = []
    while plans:
        size = min(CHUNK, -(-len(plans) // _LEFT))
        found.append(plans[:size])
        plans = plans[size:]
    return found


def begin_ensemble(
    task: EvidenceTask, start: Weights, seed: int, shadows: int
) -> tuple[list[Plan], Observer]:
    """What is to be trained from `start`, and what looks at it; as `prepare_ensemble`."""
    # The plans depend on the start, so that no round's shadows tell of another's.
    seeds = (seed, int(weights_digest(start)[:16], 16))
    plans = plan_shadows(task.codes, task.reference, task.recipe.samples, shadows, seeds, task.tricked)
    plans = varying(plans, task.recipe, seeds)
    first = _trained(task, start, plans[:1])
    silent = silent_tensors(task.workload, [start, *first], task.validation)
    observer = task.observer(start, seed, silent)
    return plans, observer


def fit_ensemble(
    task: EvidenceTask,
    observer: Observer,
    plans: Sequence[Plan],
    seen: Sequence[Observation],
    public: Sequence[Array] = (),
    carried: Sequence[Shadows] = (),
    *,
    seed: int = 0,
    began: float | None = None,
) -> Ensemble:
    """What observed shadows support. Raises EvidenceError as `prepare_ensemble`.

    Args:
        public: directions from the start to earlier models that were sent out.
        carried: of earlier rounds; those of other tensors are left out.
        seed: of the samples on which outputs are compared.
        began: when the work began, by `time.perf_counter`.
    """
    began = time.perf_counter() if began is None else began
    finite = [(plan, each) for plan, each in zip(plans, seen, strict=True) if each.finite]
    if len(finite) < LEAST_FINITE * len(plans):
        raise EvidenceError(
            f"{len(plans) - len(finite)} of {len(plans)} shadow models diverged under the task's recipe, as "
            "participants' models will; choose a smaller learning rate"
        )
    sound = [pair for pair in finite if pair[0].sound]
    flawed = [pair for pair in finite if pair[0].flawed]
    shadows, straying = _shadows(task, observer, finite)
    table = shadows.table
    carried = [each for each in carried if each.tensors == observer.tensors]
    earlier = joined_tables(carried)
    fitted = fit_degree(table, earlier)
    other = _table(flawed, observer.features, task.reference) if flawed else None
    honest = [each for _, each in sound]
    distinct = np.array([len(np.unique(plan.rows)) for plan, _ in sound]) / task.recipe.samples
    comparison = fit_comparison(
        honest,
        fitted.shares,
        table.halves,
        task.codes,
        _anchors(finite),
        samples=task.recipe.samples,
        classifier=task.workload.classes is not None,
        seed=seed,
        variations=variations([plan for plan, _ in sound], task.recipe),
        distinct=distinct,
    )
    kept = [(place, each.kept) for place, (_, each) in enumerate(sound) if each.kept is not None]
    return Ensemble(
        observer,
        shadows,
        0 if earlier is None else len(earlier.degrees),
        fitted,
        fit_screens(honest, fitted, table, other, public, kept, distinct),
        comparison,
        least_gain(np.array([each.gains for each in honest]), table.shares, task.reference),
        straying,
        _times(task, fitted, shadows, carried),
        _shadows_digest(finite),
        task.computed_on,
        time.perf_counter() - began,
    )


def checked(
    task: EvidenceTask,
    start: Weights,
    ensemble: Ensemble,
    shares: Array,
    gains: Array,
    seed: int,
    executor: Executor | None = None,
) -> float | None:
    """How alike models are that show these shares and have no sample in common, as `Comparison.alike` has it: `CHECKS`
    shadows of their mixes on samples of either half of D_c. None where no such pair is finite.

    Args:
        shares: of the strata as estimated, of at least two models, (n, S); gains: on them (`Observation`), (n, S). A
            stratum on which one gains less than `Ensemble.lacking` is taken for one that it lacks, any other for one
            of which it has a tenth of the reference's share at least: the first samples of a stratum count most, and
            estimates of none and of few overlap.
        seed: of the ensemble.
    """
    chosen = np.unique(np.linspace(0, len(shares) - 1, CHECKS).round().astype(np.int64))
    mixes = [
        counts
        for k in chosen.tolist()
        if (counts := _shown(task, shares[k].tolist(), gains[k].tolist(), ensemble.lacking))
    ]
    if not mixes:
        return None
    seeds = (seed, int(weights_digest(start)[:16], 16))
    plans = plan_checks(task.codes, task.reference, mixes, CHECKS, seeds)
    seen = observe_all(task, ensemble.observer, start, plans, None, executor)
    finite = [
        (k // 2 % len(mixes), plan, each)
        for k, (plan, each) in enumerate(zip(plans, seen, strict=True))
        if each.finite
    ]
    pairs = [(plan, each) for _, plan, each in finite]
    if len({plan.half for plan, _ in pairs}) < 2:
        return None
    table = _table(pairs, ensemble.observer.features, task.reference)
    estimated = ensemble.fitted.maps.shadow_shares(ensemble.fitted.maps.of_shadows(table))
    comparison = ensemble.comparison
    left = [comparison.left(each, row, plan.half) for (plan, each), row in zip(pairs, estimated, strict=True)]
    distinct = np.array([len(np.unique(plan.rows)) for plan, _ in pairs]) / task.recipe.samples
    return comparison.alike(left, table.halves, distinct, np.array([mix for mix, *_ in finite]))


def _shown(
    task: EvidenceTask, shares: Sequence[float], gains: Sequence[float], lacking: float
) -> tuple[int, ...] | None:
    """The counts of the recipe's samples that a model shows, as `checked` has them; None where it lacks all strata."""
    kept = [
        max(Fraction(share), q / 10) if gain >= lacking else Fraction(0)
        for share, gain, q in zip(shares, gains, task.reference, strict=True)
    ]
    total = sum(kept)
    return rounded_counts([share / total for share in kept], task.recipe.samples) if total else None


def least_gain(gains: Array, shares: Array, reference: Sequence[Fraction]) -> float:
    """The gain on a stratum between those of shadows that lack it and of shadows that have little of it: in the middle
    of the medians, and without either less than any.

    Args:
        gains, shares: of the strata, (n, S); little is a quarter of the reference's share to all of it.
    """
    q = np.array([float(p) for p in reference])
    lacking, little = gains[shares == 0], gains[(shares >= q / 4) & (shares <= q)]
    if not (len(lacking) and len(little)):
        return -np.inf
    return float(np.median(lacking) + np.median(little)) / 2


def joined_tables(carried: Sequence[Shadows]) -> ShadowTable | None:
    """What a round's maps are fitted on beside its own sound shadows: those of earlier rounds, of the same tensors."""
    earlier = None
    for each in carried:
        earlier = each.table.joined(earlier)
    return earlier


def _shadows(
    task: EvidenceTask, observer: Observer, pairs: Sequence[tuple[Plan, Observation]]
) -> tuple[Shadows, Straying]:
    """What later rounds carry over of these shadows, and what they span."""
    sound = [pair for pair in pairs if pair[0].sound]
    repeated = [pair for pair in pairs if pair[0].repeated]
    table = _table(sound, observer.features, task.reference)
    straying = Straying.of(table.vectors["update"], table.halves)
    beside = [straying.of_half(table.vectors["update"], table.halves)]
    again = _table(repeated, observer.features, task.reference) if repeated else None
    if again is not None:
        beside.append(straying.of_half(again.vectors["update"], again.halves))
    taught = [*sound, *repeated]
    times = np.array([times_seen(plan.rows, task.codes) for plan, _ in taught])
    family = np.array([plan.family for plan, _ in taught])
    plans = tuple(plan for plan, _ in sound)
    tricked = [pair for pair in pairs if pair[0].trick]
    of_tricks = _table(tricked, observer.features, task.reference) if tricked else None
    if of_tricks is not None:
        beside.append(straying.of_half(of_tricks.vectors["update"], of_tricks.halves))
    made = Shadows(table, observer.tensors, again, of_tricks, np.concatenate(beside), times, family, plans)
    return made, straying


def _times(
    task: EvidenceTask, fitted: Fitted, shadows: Shadows, carried: Sequence[Shadows]
) -> tuple[Line, ...]:
    """Lines to how often a model saw each of its samples, and to whether its data are filled up."""
    before, first = [], len(fitted.carried)
    for each in carried:
        # The last that were carried over come first.
        first -= len(each.table.degrees)
        before.append((each, fitted.carried[first : first + len(each.table.degrees)]))
    columns = len(shadows.table.sorted_columns)
    taught = [each.taught(fitted, z) for each, z in before]
    lines = fit_times(shadows.taught(fitted, fitted.z), taught, len(task.reference), columns, task.whole_from)
    if shadows.tricked is None:
        return lines
    levels = [each.levels(fitted, z) for each, z in before if each.tricked is not None]
    return lines + fit_level(shadows.levels(fitted, fitted.z), levels, task.whole_from)


def observe_plans(
    task: EvidenceTask, observer: Observer, start: Weights, plans: Sequence[Plan], past: Past | None = None
) -> list[Observation]:
    """Trains the shadows of `plans` and observes each on the samples of D_c that it has not seen.

    The same wherever it is done, by one arithmetic (`fedpeer.learning.arithmetic`), however many cores are there.

    Args:
        past: lets some be participants that took part in the round before, too.
    """
    with one_blas_thread():
        seen = [
            observer(weights, plan.rows)
            for plan, weights in zip(plans, _trained(task, start, plans), strict=True)
        ]
        if past is None:
            return seen
        return [
            replace(each, kept=_keeping(task, observer, start, plan, past)) if plan.keeps else each
            for plan, each in zip(plans, seen, strict=True)
        ]


def _keeping(task: EvidenceTask, observer: Observer, start: Weights, plan: Plan, past: Past) -> Observation:
    """A shadow as one that was trained on the same samples in the round before and stood in the mean.

    Its start is the round's, in which one of the participants is replaced by it.
    """
    (before,) = _trained(task, past.start, [replace(plan, seed=plan.seed ^ 1)])
    mine = dict(start)
    for name in task.workload.trainable:
        mine[name] = ((1 - past.part) * start[name] + past.part * before[name]).astype(start[name].dtype)
    (weights,) = _trained(task, mine, [replace(plan, seed=plan.seed ^ 2)])
    return observer.at(mine)(weights, plan.rows)


def _trained(task: EvidenceTask, start: Weights, plans: Sequence[Plan]) -> list[NewWeights]:
    """By their recipes and tricks; those of one recipe at a time, which may train together."""
    found: dict[int, NewWeights] = {}
    by_recipe: dict[Recipe, list[int]] = {}
    for place, plan in enumerate(plans):
        recipe, samples = calmer(plan.recipe or task.recipe, plan.family), _samples(task, plan)
        if not plan.trick:
            by_recipe.setdefault(recipe, []).append(place)
            continue
        held = Held(samples, task.codes[plan.rows], task.reference)
        model = TRICKS[plan.trick].trained(task.workload, start, held, recipe, plan.seed)
        found[place] = sent(start, model, recipe, plan.seed)
    for recipe, places in by_recipe.items():
        parts, seeds = (
            [_samples(task, plans[place]) for place in places],
            [plans[place].seed for place in places],
        )
        models = train_all(task.workload, start, parts, recipe, seeds, task.device)
        found.update(zip(places, models, strict=True))
    return [found[place] for place in range(len(plans))]


def _samples(task: EvidenceTask, plan: Plan) -> Samples:
    return task.validation.select(plan.rows, task.validation.targets[plan.targets_from])


def _table(
    pairs: Sequence[tuple[Plan, Observation]], names: Sequence[str], reference: tuple[Fraction, ...]
) -> ShadowTable:
    shares = np.array([[float(p) for p in plan.mix.distribution] for plan, _ in pairs])
    halves = np.array([plan.half for plan, _ in pairs])
    # The two of an anchor have one mix: neither says what is known without it of the other.
    groups = np.array(
        [k if plan.anchor is None else len(pairs) + plan.anchor for k, (plan, _) in enumerate(pairs)]
    )
    # Repeated, flawed and tricked ones teach no map from features as observed, whatever their targets.
    wrong = np.array([plan.wrong if plan.sound else 0.0 for plan, _ in pairs])
    return ShadowTable.of([each for _, each in pairs], names, shares, halves, groups, reference, wrong)


def _anchors(pairs: Sequence[tuple[Plan, Observation]]) -> list[Anchor]:
    """Those of which no shadow has diverged."""
    by_number: dict[int, list[tuple[Plan, Observation]]] = {}
    for plan, each in pairs:
        if plan.anchor is not None:
            by_number.setdefault(plan.anchor, []).append((plan, each))
    anchors = []
    for number, members in by_number.items():
        if len(members) == 3 - number % 2:
            plans = [plan for plan, _ in members]
            mix = np.array([float(p) for p in plans[0].mix.distribution])
            distinct = min(len(np.unique(plan.rows)) for plan in plans)
            anchors.append(Anchor(mix, plans[0].half, distinct, tuple(each for _, each in members)))
    return anchors


def _shadows_digest(pairs: Sequence[tuple[Plan, Observation]]) -> str:
    """SHA-256 over what every shadow was, and what was observed of it."""
    return canonical_digest(
        [
            {
                "counts": list(plan.mix.counts),
                "half": plan.half,
                "sound": plan.sound,
                "features": each.features.tolist(),
            }
            for plan, each in pairs
        ]
    ).hex()
