"""The very workload that a task's terms name, trained on the participant's own data.

WorkloadTask    samples as arrays, by columns, or from a file
SkewedTask      samples whose mix over the strata is skewed, and which effort brings toward the reference

    WorkloadTask("flights.parquet", folders=["models"])     # where the files of the terms' factory are
    WorkloadTask(images, labels)                            # for an architecture that comes with fedpeer
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedpeer.learning.errors import DataError
from fedpeer.learning.forms import formed, texts_among
from fedpeer.learning.images import LARGEST_PIXEL, class_files, left_out, read_images
from fedpeer.learning.labels import real_inputs, whole_labels
from fedpeer.learning.partition import LabelMix, draw_rows, even_rows, majority_minority, toward_reference
from fedpeer.learning.samples import Samples, held_samples, plain_samples
from fedpeer.learning.strata import beside_of, codes_of, named_of
from fedpeer.learning.tables import read_columns, read_samples, samples_of
from fedpeer.learning.workloads.loading import WorkloadSource
from fedpeer.learning.workloads.protocol import (
    Workload,
    loss_and_accuracy,
    train_reporting,
    trains_dp_sgd,
    unfollowed,
)
from mechanism.effort import EffortCurve, ExponentialEffort
from mechanism.terms import Terms
from mechanism.workload import Labels
from participant.adapters.counting import codes, count
from participant.adapters.fitting import check_finite, check_moved, differing, refusing, tried
from participant.adapters.following import keep, wished
from participant.errors import TaskError
from participant.task import Counts, Task, Trained, TrainingRound, Weights

_log = logging.getLogger("participant")


class WorkloadTask(Task):
    """Trains the workload of the terms: an architecture of fedpeer's, or the factory that they name.

    Subclass it and override `collect` to let effort improve the data; set `samples` there.

    Under the rule `verified` a model counts as trained by the recipe if it was trained on as many samples as that asks
    for. Of more samples so many are taken, each stratum by its share, the same in every round.

    Args:
        samples: inputs and targets together, as `Samples` or as the path of a file, whose columns the terms name; or
            the inputs alone: an array with a row a sample, or arrays by name, which may be the columns of a table.
        targets: beside inputs alone: a row a sample; measured numbers, or of a classifier the names of the terms'
            classes as texts, or their places among them, whole numbers from 0. In a file, other than an .npz of
            images, a number is a name.
        folders: where the factory's module is looked for, before Python's own path.
        seed: decides the order of training; the same seed gives the same model on the same machine.
        recipe: how one would rather train, such as {"epochs": 6}: parts of `mechanism.terms.Recipe`, followed as nearly
            as the terms allow.

    Attributes:
        samples: what it trains on; from `prepare` on `Samples`.

    Raises:
        TaskError: targets where there should be none, none where there should be, or of another length.
    """

    dp_sgd = True  # where its workload does, which `prepare` looks at

    def __init__(
        self,
        samples: Samples | str | Path | npt.ArrayLike | Mapping[str, npt.ArrayLike],
        targets: npt.ArrayLike | None = None,
        *,
        folders: Sequence[str | Path] = (),
        seed: int = 0,
        recipe: Mapping[str, Any] | None = None,
    ) -> None:
        self.wishes = wished(recipe)
        whole = isinstance(samples, Samples | str | Path)
        if whole != (targets is None):
            raise TaskError(
                "targets are given beside samples that have their own; leave them out"
                if whole
                else "inputs are given without targets; expected both, or the path of a file with both"
            )
        with refusing():
            self.samples: Any = samples if whole else held_samples(samples, targets)
        self.folders = tuple(str(folder) for folder in folders)
        self.seed = seed
        self._terms: Terms | None = None
        self._workload: Workload | None = None
        self._told = False

    def prepare(self, terms: Terms) -> None:
        """Refuses a task whose workload is not here or another here, data that do not fit, and a step that fails.

        One step of training is made on the first samples of a fresh model.
        """
        self._terms, self._workload = terms, _agreed(terms, self.folders)
        privacy = terms.recipe.privacy
        if privacy is not None and privacy.method == "dp-sgd" and not trains_dp_sgd(self._workload):
            raise TaskError(
                f"models are to be trained by DP-SGD, which the workload {terms.recipe.model} does not do; choose "
                'noise of your own with the method "update", or stay out',
                public="the workload does not train by DP-SGD",
            )
        if lacking := unfollowed(self._workload, terms.recipe):
            raise TaskError(
                f"the recipe has {', '.join(lacking)}, which the workload {terms.recipe.model} does not look at; tell "
                "the operator, or stay out"
            )
        recipe = keep(terms.recipe, self.wishes, say=True)
        start = self._workload.build(0)
        if names := differing(terms, start):
            raise TaskError(
                f"the task's models are not those of its workload {terms.recipe.model}: they differ at {names}; tell "
                "the operator, or bring a task of your own"
            )
        samples = self.samples = self._fitting(self.samples)
        codes(samples, terms, self.folders)
        few = samples.select(np.arange(min(len(samples), max(2, recipe.batch_size))))
        with tried(few.described()):
            made = self._workload.train(start, few, replace(recipe, epochs=1), 0)
            losses = self._workload.judge(made, few).losses
            if not np.isfinite(losses).all():
                raise TaskError(
                    "one step of training was tried before the claim and its loss is no finite number; look at the "
                    "data for values that are too large, and at the learning rate"
                )
        check_finite(made)

    def counts(self) -> Counts:
        chosen, held = self.data(1), len(self._fitting(self.samples))
        if len(chosen) < held and not self._told:
            _log.warning(
                "Of %d samples %d are trained on, as many as the recipe asks for.", held, len(chosen)
            )
        self._told = True
        return count(chosen, self.terms, self.folders)

    def data(self, round_: int) -> Samples:
        """What it trains on in a round."""
        del round_
        samples = self._fitting(self.samples)
        if self.terms.rule.name != "verified" or len(samples) <= self.terms.recipe.samples:
            return samples
        strata = codes(samples, self.terms, self.folders)
        return samples.select(even_rows(strata, self.terms.recipe.samples, np.random.default_rng(self.seed)))

    def training_samples(self) -> tuple[Any, Any, Mapping[str, Any]]:
        chosen = self.data(1)
        return chosen.inputs, chosen.targets, chosen.columns

    def train(self, weights: Weights, round: TrainingRound) -> Trained:  # noqa: A002 - as Task.train
        workload, samples = self.workload, self.data(round.number)
        recipe = keep(round.recipe, self.wishes)
        made = train_reporting(
            workload, weights, samples, recipe, round.seed(self.seed),
            lambda done: round.progress(done / recipe.epochs),
        )  # fmt: skip
        check_moved(weights, made, workload.trainable)
        return Trained(made, len(samples), judged(workload, made, samples))

    def metrics(self, weights: Weights) -> Mapping[str, float]:
        return judged(self.workload, weights, self._fitting(self.samples))

    @property
    def terms(self) -> Terms:
        """Those that it was prepared with."""
        if self._terms is None:
            raise TaskError("the terms are asked for before `prepare` has given them")
        return self._terms

    @property
    def workload(self) -> Workload:
        """That of the terms."""
        if self._workload is None:
            raise TaskError("the workload is asked for before `prepare` has given the terms")
        return self._workload

    def _fitting(self, samples: Any) -> Samples:
        """Samples as the workload takes them.

        Raises:
            TaskError: none at all, other types or shapes than the terms have, targets that are no classes, or numbers
                that are not finite.
        """
        with refusing():
            if not isinstance(samples, Samples):
                samples = read(Path(samples), self.terms)
            return fitted(samples, self.terms, self.workload.classes)


class SkewedTask(WorkloadTask):
    """One whose data start skewed to a stratum and move toward the reference with effort, for trials and examples.

    They start as a majority-minority mix of degree `degree`, and are at delta(e) = degree * exp(-rate * e). In each
    round they are drawn anew from the samples, without replacement where they last.

    Args:
        samples, targets, folders, seed, recipe: as of `WorkloadTask`; the seed decides the draw as well.
        majority: the stratum that its data are skewed to: its number, or its name.
        degree: delta(0); or
        share: the majority's share, which the paper calls delta.
        rate: of the effort curve, > 0.
        size: how many it trains on; default: what the recipe asks for.
    """

    def __init__(
        self,
        samples: Samples | str | Path | npt.ArrayLike | Mapping[str, npt.ArrayLike],
        targets: npt.ArrayLike | None = None,
        *,
        majority: int | str,
        degree: float | str | None = None,
        share: float | str | None = None,
        rate: float = 1.0,
        size: int | None = None,
        folders: Sequence[str | Path] = (),
        seed: int = 0,
        recipe: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(samples, targets, folders=folders, seed=seed, recipe=recipe)
        self.majority = majority
        self.degree = None if degree is None else Fraction(str(degree))
        self.share = None if share is None else Fraction(str(share))
        self.rate = rate
        self.size = size
        self.start: LabelMix | None = None
        self.mix: LabelMix | None = None

    def prepare(self, terms: Terms) -> None:
        """Refuses besides what `WorkloadTask` does a stratum of which there is no sample to draw."""
        super().prepare(terms)
        self._codes = codes(self.samples, terms, self.folders)
        names = terms.strata_names
        lacking = [
            name for i, name in enumerate(names) if terms.reference[i] and not (self._codes == i).any()
        ]
        if lacking:
            raise TaskError(
                f"the data have no sample of {', '.join(lacking):.200}; expected some of each stratum"
            )
        majority = names.index(self.majority) if self.majority in names else self.majority
        if not isinstance(majority, int):
            raise TaskError(f"there is no stratum {majority!r}; expected one of {', '.join(names):.200}")
        with refusing():
            self.start = self.mix = majority_minority(
                terms.reference, self.size or terms.recipe.samples,
                majority=majority, degree=self.degree, share=self.share,
            )  # fmt: skip

    def curve(self) -> EffortCurve:
        """delta(e) of these data."""
        return ExponentialEffort(float(self._prepared(self.start).degree), self.rate)

    def counts(self) -> Sequence[int]:
        return self._prepared(self.mix).counts

    def collect(self, effort: float) -> None:
        start = self._prepared(self.start)
        target = Fraction(float(self.curve().degree(effort)))
        self.mix = toward_reference(start, min(target, start.degree))

    def data(self, round_: int) -> Samples:
        """The same counts each time, other samples, as in the paper; where the terms have audits, the same samples."""
        generator = np.random.default_rng([self.seed, round_ if self.terms.audit is None else 0])
        samples: Samples = self.samples
        return samples.select(draw_rows(self._codes, self._prepared(self.mix).counts, generator))

    def _prepared(self, mix: LabelMix | None) -> LabelMix:
        if mix is None:
            raise TaskError("the task has no data before `prepare` has given it the terms")
        return mix


def judged(workload: Workload, weights: Weights, samples: Samples) -> dict[str, float]:
    """The mean loss and, of a classifier, the accuracy."""
    loss, accuracy = loss_and_accuracy(workload, workload.judge(weights, samples), samples.targets)
    return {"loss": loss} if accuracy is None else {"loss": loss, "accuracy": accuracy}


def _agreed(terms: Terms, folders: tuple[str, ...]) -> Workload:
    """The workload of the terms, once it is known to be the same here.

    Raises:
        TaskError: the terms name none, it cannot be loaded, or its files are others.
    """
    recipe = terms.recipe
    with refusing():
        source = WorkloadSource.of_recipe(recipe, folders)
        if source is None:
            raise TaskError(
                'the task\'s model is "custom", which names no workload; bring a task of your own, such as TorchTask'
            )
        workload = source.load()
    classes, strata = workload.classes, len(terms.reference)
    if isinstance(terms.strata, Labels) and classes not in (None, strata):
        raise TaskError(
            f"the workload {recipe.model} has {classes} classes, the task {strata}; tell the operator"
        )
    return workload


def read(path: Path, terms: Terms) -> Samples:
    """Samples from a table whose columns the terms name, from a folder of images, or from an .npz of `images` and
    `labels`.

    Raises:
        DataError: it cannot be read, or is none of what the task is trained on.
    """
    if path.is_dir():
        if terms.columns is not None:
            needed = ", ".join((*terms.columns.inputs, terms.columns.target))
            raise DataError(
                f"{path} is a folder, and the task reads a table; expected a file with {needed:.200}"
            )
        if not terms.classes:
            raise DataError(f"{path} is a folder, and the task has no class names to know its sub-folders by")
        channels = next((array.shape[0] for array in terms.arrays if len(array.shape) == 3), 1)
        files = class_files(path, terms.classes)
        samples = read_images(path, terms.classes, channels, files)
        for note in left_out(path, terms.classes, files):
            _log.warning("%s", note)
        return samples
    if terms.columns is not None:
        strata = terms.strata
        beside, codes, named = beside_of(strata), codes_of(strata), named_of(strata)
        texts = texts_among(terms.arrays)
        return read_samples(path, terms.columns, terms.classes or None, beside, codes, named, texts)
    if not path.suffix and not path.exists():
        raise DataError(f"{path} cannot be read: there is no such file or folder")
    if path.suffix.lower() != ".npz":
        raise DataError(
            f"{path} is no .npz, and the task names no columns of a table; expected images and labels in an .npz, a "
            "folder of images, or arrays"
        )
    arrays = read_columns(path, ("images", "labels"))
    return Samples(
        real_inputs(arrays["images"], np.float32), arrays["labels"]
    )  # as the learner's own are read


def fitted(samples: Samples, terms: Terms, classes: int | None) -> Samples:
    """Samples as the workload takes them: columns in its order, class names as numbers, types as D_c has them.

    Args:
        classes: of the workload.

    Raises:
        DataError: other columns, types or shapes, targets that are no classes, or numbers that are not finite.
    """
    if not len(samples):
        raise DataError("there are no samples; expected at least one to train on")
    # Of a table others than those may be whatever they are.
    needed = None if terms.columns is None else {*terms.columns.inputs, *beside_of(terms.strata)}
    samples = plain_samples(samples, needed)
    targets = samples.targets
    if names := terms.classes or classes:
        targets = whole_labels(targets, names)
    elif targets.dtype.kind not in "iufb":
        raise DataError(
            f"a target is {targets.ravel()[0].item()!r:.60}, and the task has no classes; expected numbers"
        )
    samples = _ordered(replace(samples, targets=targets), terms)
    if terms.arrays:
        samples = formed(samples, terms.arrays)
    for name, part in samples.parts():
        if part.dtype.kind == "f" and (bad := int(part.size - np.count_nonzero(np.isfinite(part)))):
            raise DataError(
                f"the {name} have {bad} values that are NaN or infinite; fill them in as the operator does, or leave "
                "such samples out"
            )
    inputs = samples.inputs
    highest = 0.0
    if terms.recipe.source is None and isinstance(inputs, np.ndarray) and inputs.dtype.kind in "iuf":
        highest = float(np.abs(inputs).max(initial=0))
    if highest > LARGEST_PIXEL:  # as the learner's own are held to
        raise DataError(
            f"the images have values up to {highest:g}; expected the learner's scale, 0 to 1 or a deviation of 1: "
            "divide by the largest value, which is 255 for bytes"
        )
    return samples


def _ordered(samples: Samples, terms: Terms) -> Samples:
    """With the columns that the workload reads, in its order; as they are where the terms name none."""
    inputs, columns = samples.inputs, terms.columns
    if columns is None:
        return samples
    said = ", ".join(columns.inputs)
    if isinstance(inputs, Mapping):
        if lacking := [name for name in columns.inputs if name not in inputs]:
            raise DataError(f"the inputs lack {', '.join(lacking):.200}; the task reads {said:.200}")
        made = samples_of({**inputs, columns.target: samples.targets}, columns)
        beside = {name: inputs[name] for name in beside_of(terms.strata) if name in inputs}
        return Samples(made.inputs, samples.targets, {**beside, **samples.columns})
    if columns.layout == "named":
        raise DataError(f"the inputs are one array; expected an array for each of {said:.200}")
    if len(columns.inputs) == 1 and inputs.ndim >= 2:  # a column of arrays, which stays as it is
        return samples
    if inputs.ndim != 2 or inputs.shape[1] != len(columns.inputs):
        raise DataError(
            f"the inputs have shape {inputs.shape}; expected (n, {len(columns.inputs)}), the columns being {said:.200}"
        )
    return samples
