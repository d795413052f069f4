"""The learner's own data and first model: files of every kind that people bring are read, or refused in a sentence."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from coordinator.config import DataSection, TaskConfig
from coordinator.errors import MarketTaskError
from coordinator.learner_data import load_learner_data
from coordinator.opening import prepare_task
from fedpeer.protocol.model_file import encode_model

IMAGES = np.linspace(0, 1, 6 * 64).reshape(6, 1, 8, 8)
LABELS = np.array([0, 1, 2, 0, 1, 2])


def read(path: Path) -> tuple[int, ...]:
    return tuple(np.bincount(load_learner_data(DataSection(file=path)).validation.targets).tolist())


def stored(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


def test_labels_may_be_names_of_the_classes(tmp_path: Path) -> None:
    path = stored(
        tmp_path / "data.npz",
        images=IMAGES,
        labels=np.array(["owl", "cat", "cat", "dog", "cat", "owl"]),
        classes=np.array(["cat", "dog", "owl"]),
    )
    assert read(path) == (3, 1, 2)


def test_whole_numbers_of_any_type_are_labels(tmp_path: Path) -> None:
    for dtype in (np.int32, np.uint8, np.float64):
        assert read(stored(tmp_path / "data.npz", images=IMAGES, labels=LABELS.astype(dtype))) == (2, 2, 2)


ARRAYS: dict[str, tuple[dict[str, Any], str]] = {
    "measured": ({"labels": LABELS + 0.5}, "a label is 0.5; expected whole numbers"),
    "names without a list": ({"labels": np.array(list("abcabc"))}, "as the list of their names"),
    "a name too many": (
        {"labels": np.array(list("abcabd")), "classes": np.array(list("abc"))},
        "a label is 'd'",
    ),
    "half a class": ({"classes": np.array(3.5)}, "the classes are 3.5"),
    "classes of one name": ({"classes": np.array("cat")}, "the classes are 'cat'"),
    "too few classes": ({"classes": np.array(2)}, "labels run from 0 to 2; expected 0 to 1"),
    "a label without end": ({"labels": np.array([0, 1, 2, 0, 1, 10**12])}, "labels run from"),
    "classes without end": ({"classes": np.array(10**9)}, "at most 2000"),
    "not a number": ({"images": IMAGES * np.nan}, "384 values that are NaN"),
    "complex": ({"images": IMAGES + 1j}, "expected real numbers"),
    "texts": ({"images": np.array(list("abcdef"))}, "expected real numbers"),
    "flat": ({"images": IMAGES[:, 0]}, "samples, channels, height, width"),
    "fewer labels": ({"labels": LABELS[:4]}, "one label an image"),
    "nothing": ({"images": IMAGES[:0], "labels": LABELS[:0]}, "its labels are 0 of"),
    "objects": ({"labels": LABELS.astype(object)}, "an array of Python.s objects"),
}


@pytest.mark.parametrize("kind", ARRAYS)
def test_arrays_that_are_no_labelled_images(kind: str, tmp_path: Path) -> None:
    arrays, words = ARRAYS[kind]
    path = stored(tmp_path / "data.npz", **{"images": IMAGES, "labels": LABELS, **arrays})
    with pytest.raises(MarketTaskError, match=words) as raised:
        read(path)
    assert str(path) in str(raised.value)


@pytest.mark.parametrize(
    "kind", ["empty", "truncated", "damaged", "text", "one array", "half an array", "no labels"]
)
def test_files_that_are_no_npz(kind: str, tmp_path: Path) -> None:
    path = stored(tmp_path / "data.npz", images=IMAGES, labels=LABELS)
    whole = path.read_bytes()
    match kind:
        case "empty":
            path.write_bytes(b"")
        case "truncated":
            path.write_bytes(whole[: len(whole) // 2])
        case "damaged":
            path.write_bytes(whole[:300] + bytes(200) + whole[500:])
        case "text":
            path.write_text("0,1,2")
        case "one array" | "half an array":
            with path.open("wb") as file:
                np.save(file, IMAGES)
            if kind == "half an array":
                path.write_bytes(path.read_bytes()[:50])
        case "no labels":
            stored(path, images=IMAGES)
    with pytest.raises(
        MarketTaskError, match=r"is not an \.npz file with images, labels and classes"
    ) as raised:
        read(path)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (encode_model({"w": np.array([1, np.nan], np.float32)}), "1 values that are NaN or infinite"),
        (encode_model({"w": np.array([np.inf])}), "NaN or infinite"),
        (b"", "not a safetensors file"),
        (encode_model({"w": np.ones(5)})[:-3], "the file at"),
        (b"PK\x03\x04" + bytes(100), "not a safetensors file"),
    ],
)
def test_a_first_model_that_nobody_could_train(content: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / "first").write_bytes(content)
    config = TaskConfig.model_validate(
        {
            "id": "t", "Q": "1000", "phi": 300, "upsilon": 200, "reference": ["1/2", "1/2"], "rule": {"name": "paper"},
            "schedule": {"rounds": 2, "capacity": 4}, "recipe": {"model": "custom", "samples": 100},
            "initial_model": str(tmp_path / "first"),
        }
    )  # fmt: skip
    with pytest.raises(MarketTaskError, match=words):
        prepare_task(config, 0.0)


def test_what_is_held_out_is_read_as_the_learners_data_are(tmp_path: Path) -> None:
    numbers = {"code": np.array([1, 2, 3]), "late": np.array([0, 1, 1])}
    path = stored(tmp_path / "data.npz", **{**numbers, "code": np.array(["01", "x", "y"])})
    held = stored(tmp_path / "test.npz", **numbers)
    section = DataSection(file=path, test_file=held, inputs=["code"], target="late", classes=["0", "1"])
    given = load_learner_data(section)
    assert given.test is not None
    assert given.test.arrays["code"].tolist() == ["1", "2", "3"]
    section = DataSection(file=held, test_file=path, inputs=["code"], target="late", layout="named")
    with pytest.raises(
        MarketTaskError, match=r"the held-out samples do not go with D_c: the inputs.code are texts"
    ):
        load_learner_data(section)


def test_a_folder_of_images_is_walked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, grey in (("cat", 10), ("dog", 200)):
        (tmp_path / name).mkdir()
        Image.new("L", (4, 4), grey).save(tmp_path / name / "1.png")
        (tmp_path / name / "notes.txt").write_text("")
    walked: list[Any] = []
    walk = os.walk

    def counted(place: Path, **options: Any) -> Any:
        walked.append(place)
        return walk(place, **options)

    monkeypatch.setattr("fedpeer.learning.images.os.walk", counted)
    given = load_learner_data(DataSection(folder=tmp_path))
    assert len(given.validation) == 2
    assert "2 files that are left out" in given.notes[0]
    assert walked == [tmp_path / "cat", tmp_path / "dog"]
