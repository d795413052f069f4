"""Labelled images, from the disk before the network, and their deterministic splits.

    digits           8 x 8 grey, 10 classes, 1,797 samples; ships with scikit-learn, so it always works
    mnist            28 x 28 grey, 10 classes, 60,000 + 10,000
    fashion-mnist    28 x 28 grey, 10 classes, 60,000 + 10,000
    cifar10          32 x 32 colour, 10 classes, 50,000 + 10,000
    cifar100-coarse  32 x 32 colour, the 20 super-classes of CIFAR-100, 50,000 + 10,000

The data folder is the argument `root`, else the environment variable FEDPEER_DATA, else ~/.cache/fedpeer/data.
Below it lies torchvision's own layout (FashionMNIST/raw, MNIST/raw, cifar-10-batches-py, cifar-100-python).
Fashion-MNIST is also read from the files of Debian's package dataset-fashion-mnist. Installed extensions add others
(`fedpeer.extensions`).
"""

import contextlib
import gzip
import importlib.util
import io
import math
import os
import pickle
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedpeer.extensions import DATASETS, extension, extension_names
from fedpeer.learning.errors import DataError, DatasetMissingError
from mechanism.errors import kind_of

#: Where Debian's package dataset-fashion-mnist puts its four gzipped IDX files.
DEBIAN_FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")

#: Environment variable that names the data folder.
DATA_VARIABLE = "FEDPEER_DATA"

#: Magic numbers of the IDX format: unsigned bytes in three dimensions (images) and in one (labels).
_IDX_IMAGES, _IDX_LABELS = 2051, 2049


@dataclass(frozen=True, eq=False)
class LabelledData:
    """Images with their labels.

    Attributes:
        name: the data set that they come from.
        images: float32, shape (n, channels, height, width), in [0, 1].
        labels: int64, shape (n,), in [0, classes).
        classes: number of labels I.

    Raises:
        DataError: shapes, types or labels that do not fit.
    """

    name: str
    images: npt.NDArray[np.float32]
    labels: npt.NDArray[np.int64]
    classes: int

    def __post_init__(self) -> None:
        if self.images.dtype != np.float32 or self.images.ndim != 4:
            raise DataError(
                f"images are {self.images.dtype} of shape {self.images.shape}; "
                "expected float32 of shape (samples, channels, height, width)"
            )
        if self.labels.dtype != np.int64 or self.labels.shape != self.images.shape[:1]:
            raise DataError(
                f"labels are {self.labels.dtype} of shape {self.labels.shape}; "
                f"expected int64 of shape ({len(self.images)},), one label an image"
            )
        if len(self.labels) and not (self.labels.min() >= 0 and self.labels.max() < self.classes):
            raise DataError(
                f"labels run from {self.labels.min()} to {self.labels.max()}; expected 0 to {self.classes - 1}"
            )

    def __len__(self) -> int:
        return len(self.labels)

    def counts(self) -> tuple[int, ...]:
        """Samples of each label, length I."""
        return tuple(int(n) for n in np.bincount(self.labels, minlength=self.classes))

    def select(self, indices: npt.NDArray[np.int64]) -> "LabelledData":
        """The samples at `indices`, in that order."""
        return LabelledData(self.name, self.images[indices], self.labels[indices], self.classes)


@dataclass(frozen=True)
class Splits:
    """Three disjoint parts of a data set: what participants draw from, the learner's D_c, what nobody trains on."""

    train: LabelledData
    validation: LabelledData
    test: LabelledData


@dataclass(frozen=True)
class _Source:
    """How one data set is read, and the default sizes of D_c and of a test part that is split off; 0: a fifth."""

    read: Callable[[Path], tuple[LabelledData, LabelledData | None]]
    validation: int = 0
    test: int = 0


def data_folder(root: Path | str | None = None) -> Path:
    """The folder that data sets are read from and downloaded to."""
    if root is not None:
        return Path(root)
    if named := os.environ.get(DATA_VARIABLE):
        return Path(named)
    return home_folder() / ".cache" / "fedpeer" / "data"


def home_folder() -> Path:
    """The user's own folder."""
    try:
        return Path.home()
    except RuntimeError:  # no HOME, and a user that the system does not know: as container platforms have it
        return Path("/")


def load_splits(
    name: str,
    *,
    seed: int,
    validation: int | None = None,
    test: int | None = None,
    root: Path | str | None = None,
) -> Splits:
    """The data set `name`, split by `seed`; each part has the labels in the proportions of the whole.

    D_c (`validation`) is taken from the training half. The test part is taken from the data set's own test
    half, or from the whole where it has none (digits).

    Args:
        name: one of `dataset_names()`.
        seed: decides the splits; the same seed gives the same samples in the same order.
        validation: samples of D_c (default 400 for digits, 2,000 for the others).
        test: samples of the test part (default 360 for digits, all of the test half for the others).
        root: the data folder; see the module's text.

    Raises:
        DatasetMissingError: neither on the disk nor to be downloaded.
        DataError: an unknown name, or more samples wanted than there are.
    """
    source = _source(name)
    whole, held_out = source.read(data_folder(root))
    fifth = len(whole) // 5
    first = source.validation or fifth if validation is None else validation
    if held_out is None:
        second = source.test or fifth if test is None else test
        parts = stratified_split(whole, (first, second, len(whole) - first - second), seed)
        return Splits(train=parts[2], validation=parts[0], test=parts[1])
    parts = stratified_split(whole, (first, len(whole) - first), seed)
    if test is not None:
        (held_out,) = stratified_split(held_out, (test,), seed)
    return Splits(train=parts[1], validation=parts[0], test=held_out)


def dataset_names() -> tuple[str, ...]:
    """The names that `load_splits` takes."""
    return (*_SOURCES, *extension_names(DATASETS))


def stratified_split(data: LabelledData, sizes: Sequence[int], seed: int) -> tuple[LabelledData, ...]:
    """Disjoint parts of `data` of the given sizes, each with the label proportions of the whole.

    A part's count of a label is its share rounded by largest remainder, so it is off by less than one sample
    where the other parts leave enough. Inside a part the order is random.

    Args:
        sizes: samples of each part; together at most len(data).
        seed: the same seed gives the same parts.

    Raises:
        DataError: a size that is negative, none at all, or sizes that together exceed the data.
    """
    if any(size <= 0 for size in sizes) or sum(sizes) > len(data):
        raise DataError(
            f"parts of {list(sizes)} samples were asked of {len(data)}; expected sizes of at least 1 "
            f"that sum to at most {len(data)}"
        )
    generator = np.random.default_rng(seed)
    by_label = [generator.permutation(np.flatnonzero(data.labels == label)) for label in range(data.classes)]
    available = np.array(data.counts(), dtype=np.int64)
    used = np.zeros(data.classes, dtype=np.int64)
    parts = []
    for size in sizes:
        counts = _proportional_counts(available, used, size)
        chosen = [
            members[start : start + count]
            for members, start, count in zip(by_label, used, counts, strict=True)
        ]
        parts.append(data.select(generator.permutation(np.concatenate(chosen))))
        used += counts
    return tuple(parts)


def _proportional_counts(
    available: npt.NDArray[np.int64], used: npt.NDArray[np.int64], size: int
) -> npt.NDArray[np.int64]:
    """`size` samples in the proportions of `available`, at most what is not yet `used`."""
    total = int(available.sum())
    left = available - used
    counts: npt.NDArray[np.int64] = np.minimum(available * size // total, left)
    # Largest remainder first, ties by label; a label that has run out passes its sample on.
    order = np.argsort(-(available * size % total), kind="stable")
    while counts.sum() < size:
        for label in order:
            if counts.sum() < size and counts[label] < left[label]:
                counts[label] += 1
    return counts


def _source(name: str) -> _Source:
    if name in _SOURCES:
        return _SOURCES[name]
    if name not in dataset_names():
        raise DataError(f"there is no data set {name!r}; expected one of {', '.join(dataset_names())}")
    return _Source(lambda _: _read_extension(name))


def _read_extension(name: str) -> tuple[LabelledData, LabelledData | None]:
    """A data set of an installed extension.

    Raises:
        DataError: it cannot be loaded, fails, or gives something else.
    """
    try:
        made = extension(DATASETS, name)()
    except DataError:
        raise
    except Exception as error:
        raise DataError(f"the data set {name} cannot be read: {type(error).__name__}: {error}") from error
    match made:
        case (LabelledData() as whole, LabelledData() | None as held_out):
            return whole, held_out
    raise DataError(
        f"the data set {name} gives {kind_of(made)}; expected (whole, held-out or None), both LabelledData"
    )


def _read_digits(root: Path) -> tuple[LabelledData, LabelledData | None]:
    table = _digits_table()
    # Sixteen grey levels above black.
    pixels = (table[:, :-1].astype(np.float32) / np.float32(16)).reshape(-1, 1, 8, 8)
    return LabelledData("digits", pixels, table[:, -1].astype(np.int64), 10), None


def _digits_table() -> npt.NDArray[np.float64]:
    """scikit-learn's digits, shape (1797, 65): 64 pixels and the label.

    Read from its file where that is in its usual place: importing sklearn.datasets costs over a second of CPU in
    every process of a market.
    """
    found = importlib.util.find_spec("sklearn")
    places = list(found.submodule_search_locations or ()) if found is not None else []
    files = [
        file for place in places if (file := Path(place) / "datasets" / "data" / "digits.csv.gz").is_file()
    ]
    if files:
        with gzip.open(files[0], "rt") as lines:
            return np.loadtxt(lines, delimiter=",", dtype=np.float64)
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    return np.column_stack([images, labels])


def _read_fashion_mnist(root: Path) -> tuple[LabelledData, LabelledData | None]:
    if _has_fashion_mnist(root / "FashionMNIST" / "raw") or not DEBIAN_FASHION_MNIST.is_dir():
        return _read_torchvision("fashion-mnist", "FashionMNIST", root)
    train, test = (_read_idx("fashion-mnist", DEBIAN_FASHION_MNIST, half) for half in ("train", "t10k"))
    return train, test


def _has_fashion_mnist(folder: Path) -> bool:
    """Whether all four files are there, unpacked or not: a download that failed leaves less."""
    names = [
        f"{half}-{kind}" for half in ("train", "t10k") for kind in ("images-idx3-ubyte", "labels-idx1-ubyte")
    ]
    return all((folder / name).is_file() or (folder / f"{name}.gz").is_file() for name in names)


def _read_idx(name: str, folder: Path, half: str) -> LabelledData:
    """One half of an MNIST-like data set from gzipped IDX files."""
    raw: dict[int, npt.NDArray[np.uint8]] = {}
    for suffix, magic in (("images-idx3-ubyte.gz", _IDX_IMAGES), ("labels-idx1-ubyte.gz", _IDX_LABELS)):
        path = folder / f"{half}-{suffix}"
        try:
            content = gzip.decompress(path.read_bytes())
        except (OSError, EOFError, zlib.error) as error:
            raise DatasetMissingError(f"{path} cannot be read ({error}). {_two_ways(name)}") from error
        dimensions = 3 if magic == _IDX_IMAGES else 1
        size = 4 + 4 * dimensions
        header = np.frombuffer(content[:size].ljust(size, b"\0"), dtype=">u4")
        if header[0] != magic or len(content) != size + math.prod(int(n) for n in header[1:]):
            raise DatasetMissingError(f"{path} is not a whole IDX file. {_two_ways(name)}")
        raw[magic] = np.frombuffer(content, np.uint8, offset=header.nbytes).reshape(header[1:])
    return _scaled(name, raw[_IDX_IMAGES][:, None], raw[_IDX_LABELS], 10)


def _read_torchvision(name: str, kind: str, root: Path) -> tuple[LabelledData, LabelledData | None]:
    halves = []
    for train in (True, False):
        stored = _torchvision_half(name, kind, root, train)
        images, labels = np.asarray(stored.data), stored.targets
        # Grey images come as (n, h, w), colour ones as (n, h, w, c).
        images = images[:, None] if images.ndim == 3 else images.transpose(0, 3, 1, 2)
        if kind == "CIFAR100":
            # torchvision gives the hundred fine labels; the coarse ones lie in the same, now verified, file.
            file = Path(stored.root) / stored.base_folder / ("train" if train else "test")
            labels = pickle.loads(file.read_bytes(), encoding="latin1")["coarse_labels"]
        halves.append(_scaled(name, images, np.asarray(labels), 20 if kind == "CIFAR100" else 10))
    return halves[0], halves[1]


def _torchvision_half(name: str, kind: str, root: Path, train: bool) -> Any:
    """torchvision's data set object, from the disk, else from the network.

    Raises:
        DatasetMissingError: not there, and the download failed.
    """
    from torchvision import datasets  # seconds of import that only these data sets need

    reader = getattr(datasets, kind)
    # What torchvision raises at a damaged file depends on where it is damaged.
    with contextlib.suppress(Exception):
        return reader(root=str(root), train=train, download=False)
    made = [f for f in (root / kind / "raw", root / kind, root, *root.parents) if not f.exists()]
    try:  # not on the disk, or not whole: fetch it
        # torchvision prints its progress; standard output belongs to the command that called.
        with contextlib.redirect_stdout(io.StringIO()):
            return reader(root=str(root), train=train, download=True)
    except Exception as error:
        _remove_empty(made)
        reason = str(error).strip().splitlines()
        raise DatasetMissingError(
            f"{name} is not in {root} and could not be downloaded "
            f"({reason[-1] if reason else type(error).__name__}). {_two_ways(name)}"
        ) from error


def _remove_empty(made: list[Path]) -> None:
    """Removes the folders that a failed download has made and left empty, the innermost first."""
    for folder in made:
        with contextlib.suppress(OSError):  # not empty: part of a file came, or another process downloads
            folder.rmdir()


def _two_ways(name: str) -> str:
    folder = {
        "fashion-mnist": "FashionMNIST/raw",
        "mnist": "MNIST/raw",
        "cifar10": "cifar-10-batches-py",
        "cifar100-coarse": "cifar-100-python",
    }[name]
    other = (
        "install Debian's package dataset-fashion-mnist"
        if name == "fashion-mnist"
        else f"put torchvision's files into the folder {folder} below the one that {DATA_VARIABLE} names"
    )
    return f"Two ways to get it: run once with a connection to the Internet, or {other}."


def _scaled(name: str, images: npt.NDArray[np.uint8], labels: npt.NDArray[Any], classes: int) -> LabelledData:
    pixels = np.ascontiguousarray(images, dtype=np.float32) / np.float32(255)
    return LabelledData(name, pixels, labels.astype(np.int64), classes)


_SOURCES: dict[str, _Source] = {
    "digits": _Source(_read_digits, validation=400, test=360),
    "mnist": _Source(partial(_read_torchvision, "mnist", "MNIST"), validation=2_000),
    "fashion-mnist": _Source(_read_fashion_mnist, validation=2_000),
    "cifar10": _Source(partial(_read_torchvision, "cifar10", "CIFAR10"), validation=2_000),
    "cifar100-coarse": _Source(partial(_read_torchvision, "cifar100-coarse", "CIFAR100"), validation=2_000),
}
