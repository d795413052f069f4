"""Samples from a folder of images: one sub-folder a class, as torchvision's ImageFolder reads it."""

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fedpeer.extras import missing
from fedpeer.learning.errors import DataError
from fedpeer.learning.samples import Samples
from fedpeer.terminal import counted

if TYPE_CHECKING:  # Pillow is an extra
    from PIL import Image

#: No pixel is larger where images are scaled, to 0 to 1 or to a deviation of 1.
LARGEST_PIXEL = 30.0

#: Suffixes of files that are read; `left_out` says which others are there.
_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".ppm", ".pgm", ".tif", ".tiff", ".webp")


#: Kinds of files that are left out, in a sentence.
_KINDS_NAMED = 4

#: Files and folders of file managers, archives and disks that have no dot before their names, in small letters.
_CLUTTER = frozenset(
    ("__macosx", "@eadir", "thumbs.db", "ehthumbs.db", "desktop.ini", "icon\r", "lost+found", "$recycle.bin")
)  # fmt: skip


def class_folders(folder: Path) -> tuple[str, ...]:
    """The names of the sub-folders, in order: the classes. Hidden ones, whose names begin with a dot, are none.

    Raises:
        DataError: no folder, or fewer than two sub-folders.
    """
    names = _sub_folders(folder)
    if len(names) < 2:
        raise DataError(f"{folder} has {len(names)} sub-folders; expected one for each of several classes")
    return names


def class_files(folder: Path, classes: Sequence[str]) -> list[list[Path]]:
    """All files of each class, in the order of their paths, without what is hidden. Raises DataError."""
    return [_files(folder / name) for name in classes]


def read_images(
    folder: Path, classes: Sequence[str], channels: int = 1, files: Sequence[Sequence[Path]] | None = None
) -> Samples:
    """Images of shape (n, channels, height, width), float32 in [0, 1], and their class numbers.

    One channel where all are grey and no more are asked for, else three: a palette counts as grey where its colours
    are. Files are taken in the order of their paths, without hidden ones and those in hidden folders; other files are
    passed over (`left_out`). Images are turned as their EXIF says.

    Args:
        classes: names of the sub-folders, in the order of their numbers; some of them may be absent.
        channels: 3, where grey images are to have three.
        files: `class_files`, where somebody has walked the folder.

    Raises:
        DataError: a sub-folder that is no class, no image at all, one that cannot be read, has several pages or is
            transparent in places, or two sizes.
    """
    if other := sorted(set(_sub_folders(folder)) - set(classes)):
        raise DataError(
            f"{folder} has the sub-folders {other!r:.120}, which are no classes; expected {classes!r:.120}"
        )
    try:
        from PIL import Image, ImageOps, UnidentifiedImageError
    except ImportError as error:
        raise DataError(f"{folder} cannot be read: {missing(error) or error}") from None
    images = [
        (file, label)
        for label, own in enumerate(class_files(folder, classes) if files is None else files)
        for file in own
        if file.suffix.lower() in _SUFFIXES
    ]
    if not images:
        raise DataError(f"{folder} has no image; expected some that end with {', '.join(_SUFFIXES)}")
    pixels = []
    for file, _ in images:
        try:
            # By name Pillow maps what is not compressed, and garbles a TIFF of those that its tags say to turn.
            with file.open("rb") as bytes_, Image.open(bytes_) as image:
                if image.mode.startswith(("I", "F")):
                    raise ValueError(  # Pillow would cut its values off at 255
                        f"it has more than 8 bits a value (mode {image.mode}); convert it, or use a factory"
                    )
                pages = getattr(image, "n_frames", 1)
                if pages > 1 and image.format != "MPO":  # a camera's JPEG with previews behind the picture
                    raise ValueError(f"it has {pages} pages; expected one: write each as a file of its own")
                pixels.append(_pixels(ImageOps.exif_transpose(image)))
        except UnidentifiedImageError:  # whose text names the open file
            raise DataError(
                f"{file} cannot be read as an image: it is none, or damaged from its first bytes; replace or remove it"
            ) from None
        except Exception as error:  # a damaged image fails in as many ways as there are formats
            raise DataError(
                f"{file} cannot be read as an image: {str(error).partition(chr(10))[0]}"
            ) from None
        if pixels[-1].shape[:2] != pixels[0].shape[:2]:
            size, first = (f"{p.shape[1]} x {p.shape[0]}" for p in (pixels[-1], pixels[0]))
            raise DataError(f"{file} is {size} pixels, {images[0][0]} is {first}; expected one size for all")
    if channels == 3 or any(p.ndim == 3 for p in pixels):
        pixels = [p if p.ndim == 3 else np.repeat(p[:, :, None], 3, axis=2) for p in pixels]
        stacked = np.stack(pixels).transpose(0, 3, 1, 2)
    else:
        stacked = np.stack(pixels)[:, None]
    labels = np.array([label for _, label in images], dtype=np.int64)
    return Samples(np.ascontiguousarray(stacked, dtype=np.float32) / np.float32(255), labels)


def left_out(
    folder: Path, classes: Sequence[str], files: Sequence[Sequence[Path]] | None = None
) -> tuple[str, ...]:
    """What of a folder is no sample to `read_images`, or looks as if it were meant otherwise, as sentences.

    Hidden files, and those of file managers, are not worth one. Arguments as of `read_images`; raises DataError as
    `class_folders`.
    """
    found = [file for own in (class_files(folder, classes) if files is None else files) for file in own]
    images = [file for file in found if file.suffix.lower() in _SUFFIXES]
    said = []
    if others := sorted(set(found) - set(images)):
        kinds = Counter(file.suffix.lower() or "without a suffix" for file in others)
        named = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common(_KINDS_NAMED))
        if len(kinds) > _KINDS_NAMED:
            named += ", and others"
        are = "is" if len(others) == 1 else "are"
        said.append(
            f"{folder} has {counted(len(others), 'file')} that {are} left out ({named}; the first is "
            f"{others[0].relative_to(folder)}): only what ends with {', '.join(_SUFFIXES)} is read."
        )
    if beside := [file for file in _entries(folder) if file.suffix.lower() in _SUFFIXES and file.is_file()]:
        said.append(
            f"{folder} has {counted(len(beside), 'image')} in no sub-folder, left out as of no class; the first is "
            f"{beside[0].name}."
        )
    deep = [file.relative_to(folder).parts for file in images]
    if deep and min(map(len, deep)) > 2 and len({parts[1] for parts in deep}) > 1:
        inner = ", ".join(sorted({parts[1] for parts in deep}))
        said.append(
            f"{folder} has its classes from the sub-folders {', '.join(classes):.120}, and no image right in them: all "
            f"are deeper, in {inner:.120}. If those are the classes, name the folder that has them."
        )
    return tuple(said)


def _sub_folders(folder: Path) -> tuple[str, ...]:
    return tuple(each.name for each in _entries(folder) if each.is_dir())


def _entries(folder: Path) -> list[Path]:
    """What a folder has, in order, without what is hidden. Raises DataError."""
    try:
        return sorted(each for each in folder.iterdir() if not _hidden(each.name))
    except OSError as error:
        raise DataError(f"{folder} cannot be read: {error.strerror or error}") from None


def _files(folder: Path) -> list[Path]:
    """The files below a folder, in order, without what is hidden; none where it is not there. Raises DataError."""

    def refuse(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            raise DataError(f"{error.filename} cannot be read: {error.strerror or error}")

    found = []
    for place, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = [name for name in folders if not _hidden(name)]
        found += [Path(place, name) for name in names if not _hidden(name)]
    return sorted(found)


def _hidden(name: str) -> bool:
    """Whether it is a file or folder of a file manager or an operating system, such as .thumbnails or ._a.jpg."""
    return name.startswith(".") or name.casefold() in _CLUTTER


def _pixels(image: "Image.Image") -> npt.NDArray[np.uint8]:
    """Bytes of shape (height, width) of a grey image, (height, width, 3) of another.

    Raises:
        ValueError: it is transparent in places, where its colours are whatever lies behind it.
    """
    if image.has_transparency_data:
        image = image.convert("LA" if image.mode in ("1", "L", "LA", "La") else "RGBA")
        if image.getchannel("A").getextrema() != (255, 255):
            raise ValueError("it is transparent in places; lay it on a background first")
    if image.mode in ("1", "L", "LA"):
        return np.asarray(image.convert("L"))
    palette = image.mode in ("P", "PA")
    found = np.asarray(image.convert("RGB"))
    return found[..., 0] if palette and bool((found == found[..., :1]).all()) else found
