"""The learner's own data, from what a task file names to samples with strata.

    given = load_learner_data(section, folder, config.strata)    # D_c and what is held out
    strata = chosen_strata(config.strata, given, folder)               # what a stratum is, for the terms
    data = stratified(given, strata, names, folder)                    # with the stratum of each sample

Data sets that come with fedpeer, .npz, Parquet and CSV files and folders of images are read here. What a factory of the
operator's gives or counts is computed in a process of its own.
"""

import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.npyio import NpzFile

from coordinator.config import DataSection, StrataSection
from coordinator.errors import MarketTaskError
from coordinator.workload import folders_of
from fedpeer.learning.datasets import LabelledData, load_splits
from fedpeer.learning.errors import DataError
from fedpeer.learning.forms import formed, forms_of
from fedpeer.learning.images import class_files, class_folders, left_out, read_images
from fedpeer.learning.labels import Classes, class_count, class_names, real_inputs, whole_labels
from fedpeer.learning.learner_data import LearnerData
from fedpeer.learning.samples import Array, Samples, of_labelled, plain_samples
from fedpeer.learning.strata import Codes, beside_of, codes_of, column_of, quantiles_of, strata_of
from fedpeer.learning.tables import check_names, check_objects, layout_of, read_for, reason, samples_of
from mechanism.errors import FieldError
from mechanism.workload import MAX_STRATA, Coded, Columns, Labels, Strata, source_of


@dataclass(frozen=True, eq=False)
class Given:
    """What a [data] section gives.

    Attributes:
        name: for sentences.
        classes: the target's, by their number or names; None where it is measured, or whole numbers of which nothing
            more is said.
        columns: which columns are samples; None where it is no table.
        notes: what was left out, or may be meant otherwise, as sentences.
    """

    name: str
    validation: Samples
    test: Samples | None
    classes: Classes | None = None
    columns: Columns | None = None
    notes: tuple[str, ...] = ()

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes, where they have some."""
        return () if self.classes is None else class_names(self.classes) or ()


def load_learner_data(section: DataSection, folder: Path | None = None, strata: object = None) -> Given:
    """The learner's data that a task file names.

    Args:
        folder: where modules of factories are looked for.
        strata: as a task file or terms name them, for the columns that they need.

    Raises:
        LearningError: no such data set, it is not to be had, or a factory fails.
        MarketTaskError: a file or folder that cannot be used.
    """
    if section.dataset is not None:
        splits = load_splits(
            section.dataset,
            seed=section.seed,
            validation=section.validation,
            test=section.test,
            root=section.root,
        )
        found = splits.validation
        return Given(found.name, of_labelled(found), of_labelled(splits.test), found.classes)
    try:
        if section.folder is not None:
            given = _folder(section, section.folder)
        elif section.factory is not None:
            given = _factory(section, section.factory, folder)
        elif section.inputs:
            given = _table(section, strata)
        else:
            given = _images(section)
        return _alike(_held_out(given, section))
    except DataError as error:
        raise MarketTaskError(f"[data]: {error}") from None


def chosen_strata(asked: StrataSection | None, given: Given, folder: Path | None) -> Strata:
    """What a stratum is, with every edge and name fixed from D_c.

    Raises:
        MarketTaskError: D_c cannot be cut so.
        WorkloadError: a factory that is not there or fails.
    """
    if asked is None:
        if given.classes is None and given.validation.targets.dtype.kind not in "iub":
            raise MarketTaskError(
                "the target is measured, so that labels are no strata; write strata = "
                '{ quantiles = 5, of = "target" }, or name a column or a factory'
            )
        return Labels()
    data = given.validation
    try:
        if asked.quantiles is not None:
            values = data.targets if asked.of == "target" else data.column(asked.of)
            return quantiles_of(values, asked.quantiles, asked.of)
        if asked.column is not None:
            return column_of(asked.column, data.column(asked.column))
    except DataError as error:
        raise MarketTaskError(f"strata: {error}") from None
    from fedpeer.learning.strata import coded_by  # these import torch
    from fedpeer.learning.workloads.loading import FactorySource, apart

    assert asked.factory is not None, "the section has one kind"
    source = FactorySource(asked.factory, asked.options, folders_of(folder))
    names = tuple(asked.names or ())
    if not names:
        count = int(apart(asked.factory, coded_by, source, data).max()) + 1
        if count < 2:
            raise MarketTaskError(
                f"{asked.factory} gives all samples of D_c the stratum 0; expected 2 strata or more"
            )
        if count > MAX_STRATA:
            raise MarketTaskError(
                f"{asked.factory} gives strata up to {count - 1}; expected numbers from 0, for at most {MAX_STRATA}"
            )
        names = tuple(map(str, range(count)))
    return Coded(asked.factory, source_of(asked.options, source.files()), names)


def stratified(given: Given, strata: Strata, names: tuple[str, ...], folder: Path | None) -> LearnerData:
    """The data with the stratum of each sample of D_c.

    Raises:
        MarketTaskError: a sample that belongs to none.
        WorkloadError: a factory that is not there, is another, or fails.
    """
    of = strata_of(strata, names, folders_of(folder)).of
    try:
        if isinstance(strata, Coded):
            from fedpeer.learning.workloads.loading import apart  # it imports torch

            codes: Codes = apart(strata.factory, _steady, of, given.validation)
        else:
            codes = of(given.validation)
    except DataError as error:
        raise MarketTaskError(f"D_c cannot be cut into the strata: {error}") from None
    return LearnerData(given.name, given.validation, codes, len(names), given.test, given.notes)


def _steady(of: Callable[[Samples], Codes], samples: Samples) -> Codes:
    """What a factory's function gives. Raises DataError where a second call gives something else."""
    found = of(samples)
    if not np.array_equal(found, of(samples)):
        raise DataError(
            "a second call gives the same samples other strata, and everybody has to count alike; expected the same "
            "from every call: give random numbers a seed"
        )
    return found


def commit_validation(data: Samples | None, salt: bytes) -> bytes:
    """H(D_c): SHA-256 of `fedpeer validation set v2`, the salt, and for each array of the samples (`Samples.parts`)

        the canonical JSON text [name, type, shape] and the SHA-256 of its bytes

    in C order, little-endian; the type as NumPy writes it ("<f4"). A text is its length in bytes, eight of them, and
    its UTF-8, and the type of such an array is "text". Without D_c, of the words and the salt alone.
    """
    outer = hashlib.sha256(b"fedpeer validation set v2" + salt)
    for name, array in [] if data is None else data.parts():
        if array.dtype.kind == "U":
            kind, inner = "text", hashlib.sha256()
            for text in array.ravel().tolist():
                inner.update(len(text.encode()).to_bytes(8, "little") + text.encode())
        else:
            ordered = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
            kind, inner = ordered.dtype.str, hashlib.sha256(ordered.data)
        said = json.dumps([name, kind, list(array.shape)], separators=(",", ":"))
        outer.update(said.encode() + inner.digest())
    return outer.digest()


def _table(section: DataSection, strata: object) -> Given:
    """Named columns of a file."""
    beside, codes = beside_of(strata), codes_of(strata)
    assert section.file is not None, "inputs come with a file"
    if section.target is None:
        raise MarketTaskError("[data] names inputs and no target; expected target, the column that is learnt")
    inputs, target = tuple(section.inputs), section.target
    try:  # before anything is read
        Columns(inputs, target, section.layout or "array")
    except FieldError as error:
        raise FieldError(error.field.replace("columns", "data", 1), error.value, error.expected) from None
    arrays = read_for(section.file, inputs, target, section.classes, beside, codes)
    form = Columns(inputs, target, section.layout or layout_of(arrays, inputs))
    classes: Classes | None = section.classes
    if classes is None and arrays[target].dtype.kind == "U":
        check_names(f"the target {target}", arrays[target], "classes, where they are names")
        classes = _sorted_classes(arrays[target])
    test = None
    if section.test_file is not None:
        texts = [name for name in inputs if form.layout == "named" and arrays[name].dtype.kind == "U"]
        other = read_for(section.test_file, inputs, target, classes, beside, codes, texts=texts)
        try:
            test = samples_of(other, form, classes, beside)
        except DataError as error:
            raise DataError(f"{section.test_file} does not go with D_c: {error}") from None
    return Given(section.file.stem, samples_of(arrays, form, classes, beside), test, classes, form)


def _sorted_classes(targets: Array) -> tuple[str, ...]:
    if targets.ndim != 1:
        raise DataError(f"the target has {targets.shape[1:]} texts a sample; expected one, its class")
    found = tuple(sorted(set(targets.tolist())))
    if not 2 <= len(found) <= MAX_STRATA:
        raise DataError(f"the target has {len(found)} different texts; expected 2 to {MAX_STRATA} classes")
    return found


def _images(section: DataSection) -> Given:
    """Images, labels and perhaps classes of an .npz."""
    assert section.file is not None, "the section has one source"
    if section.file.suffix.lower() not in (".npz", ""):
        raise MarketTaskError(
            f'[data] names no columns of {section.file}; write inputs = ["..."] and target = "..." beside file'
        )
    samples, classes = _read_images_file(section.file, section.classes)
    test = None
    if section.test_file is not None:
        test, other = _read_images_file(section.test_file, section.classes)
        if other != classes:
            raise MarketTaskError(
                f"{section.test_file} has the classes {other!r:.120}, D_c {classes!r:.120}; expected the same, so "
                "write `classes` into both files, or data.classes into the task file"
            )
    return Given(section.file.stem, samples, test, classes)


def _folder(section: DataSection, folder: Path) -> Given:
    classes = tuple(section.classes or class_folders(folder))
    files = class_files(folder, classes)
    found, notes = read_images(folder, classes, files=files), left_out(folder, classes, files)
    empty = [
        name
        for name, held in zip(classes, np.bincount(found.targets, minlength=len(classes)), strict=True)
        if not held
    ]
    if empty and section.classes is None:
        raise DataError(
            f"{folder / empty[0]} has no image that can be read; expected some of each class: remove it where it is "
            f"none, or list data.classes{' (' + notes[0] + ')' if notes else ''}"
        )
    if section.test_folder is None:
        return Given(folder.name, found, None, classes, notes=notes)
    files = class_files(section.test_folder, classes)
    test = read_images(section.test_folder, classes, found.arrays[""].shape[1], files)
    notes += left_out(section.test_folder, classes, files)
    return Given(folder.name, found, test, classes, notes=notes)


def _factory(section: DataSection, factory: str, folder: Path | None) -> Given:
    from fedpeer.learning.brought import brought_samples  # these import torch
    from fedpeer.learning.workloads.loading import FactorySource, apart

    source = FactorySource(factory, section.options, folders_of(folder))
    first, second = apart(factory, brought_samples, source)
    classes: Classes | None = section.classes
    if classes is None and first.targets.dtype.kind == "U":
        classes = _sorted_classes(first.targets)
    made = [None if part is None else _checked(factory, part, classes) for part in (first, second)]
    assert made[0] is not None, "a factory gives D_c"
    return Given(factory, made[0], made[1], classes)


def _checked(factory: str, samples: Samples, classes: Classes | None) -> Samples:
    """Samples of a factory whose numbers are finite and whose targets are class numbers where there are classes."""
    try:
        samples = plain_samples(samples)
    except DataError as error:
        raise DataError(f"{factory} gives samples that cannot be used: {error}") from None
    for name, part in samples.parts():
        if part.dtype.kind not in "iufbU":
            todo = ": write dates as texts, as np.datetime_as_string does" if part.dtype.kind == "M" else ""
            raise DataError(f"{factory} gives {name} of {part.dtype}; expected numbers or texts{todo}")
        if part.dtype.kind == "f" and not np.isfinite(part).all():
            raise DataError(
                f"{factory} gives {name} with values that are NaN or infinite; expected finite numbers"
            )
    if not len(samples):
        raise DataError(f"{factory} gives no samples; expected at least one of each stratum")
    return samples if classes is None else replace(samples, targets=whole_labels(samples.targets, classes))


def _held_out(given: Given, section: DataSection) -> Given:
    """With a share of D_c held out, where the section asks for it."""
    if section.holdout is None:
        return given
    if given.test is not None:
        raise MarketTaskError(
            f"{given.name} has held-out samples already; expected no data.holdout beside them"
        )
    size = len(given.validation)
    held = round(float(section.holdout) * size)
    if not 0 < held < size:
        raise MarketTaskError(
            f"data.holdout is {section.holdout} of {size} samples; expected a share that leaves some on either side"
        )
    order = np.random.default_rng(section.seed).permutation(size)
    chosen, rest = np.sort(order[:held]), np.sort(order[held:])
    return replace(given, validation=given.validation.select(rest), test=given.validation.select(chosen))


def _alike(given: Given) -> Given:
    """With what is held out in the types of D_c, which both have to be fit for the terms."""
    forms = forms_of(given.validation)
    if given.test is None:
        return given
    try:
        return replace(given, test=formed(given.test, forms))
    except DataError as error:
        raise DataError(f"the held-out samples do not go with D_c: {error}") from None


def _read_images_file(path: Path, classes: Classes | None) -> tuple[Samples, Classes]:
    """Samples and classes from an .npz of `images`, `labels` and, where they are not 0 to the largest label, `classes`:
    their number, or their names, by which labels may then be written.

    Args:
        classes: those of the task file, in the place of the file's own.

    Raises:
        MarketTaskError: another file, a damaged one, or arrays that are not labelled images.
    """
    try:
        with path.open("rb") as file:
            stored = np.load(file, allow_pickle=False)
            if not isinstance(stored, NpzFile):
                raise MarketTaskError(
                    f"{path} is not an .npz file with images, labels and classes but one array, as np.save writes "
                    "it; write it with np.savez"
                )
            arrays = {name: stored[name] for name in ("images", "labels", "classes") if name in stored}
    except OSError as error:
        raise MarketTaskError(f"{path} cannot be read: {error.strerror or error}") from None
    except MarketTaskError:
        raise
    except Exception as error:  # a damaged file fails in as many ways as its formats have parts
        check_objects(path, error)
        raise MarketTaskError(
            f"{path} is not an .npz file with images, labels and classes, or it is damaged: {reason(error)}"
        ) from None
    if missing := {"images", "labels"} - arrays.keys():
        raise MarketTaskError(
            f"{path} is not an .npz file with images, labels and classes: it has no {' and no '.join(sorted(missing))}"
        )
    try:
        labels = arrays["labels"]
        if classes is None:
            classes = _classes(arrays["classes"]) if "classes" in arrays else _largest(labels) + 1
        count = class_count(classes)
        if count > MAX_STRATA:
            raise DataError(f"there are {count} classes; expected at most {MAX_STRATA}")
        images = real_inputs(arrays["images"], np.float32)
        found = LabelledData(path.stem, images, whole_labels(labels, classes), count)
        return of_labelled(found), class_names(classes) or count
    except DataError as error:
        raise MarketTaskError(f"{path} cannot be used: {error}") from None


def _classes(stored: Any) -> Any:
    """The number of classes, or their names, as an .npz has them."""
    return stored.item() if stored.size == 1 else stored.tolist()


def _largest(labels: Any) -> int:
    if labels.dtype.kind not in "iufb" or labels.size == 0:
        raise DataError(
            f"its labels are {labels.size} of {labels.dtype}, and it has no classes; expected whole numbers, or "
            "`classes` as the list of their names"
        )
    largest = float(labels.max())
    return int(min(max(largest, 1.0), MAX_STRATA - 1.0)) if math.isfinite(largest) else 1
