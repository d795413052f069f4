"""Data sets come from the disk before the network, and split the same way for the same seed."""

import gzip
import struct
import subprocess
import sys
import urllib.request
from pathlib import Path

import numpy as np
import pytest

from fedpeer.learning import datasets
from fedpeer.learning.datasets import LabelledData, dataset_names, load_splits, stratified_split
from fedpeer.learning.errors import DataError, DatasetMissingError


def write_idx(path: Path, array: np.ndarray, compress: bool) -> None:
    magic = 2051 if array.ndim == 3 else 2049
    content = struct.pack(f">{1 + array.ndim}I", magic, *array.shape) + array.astype(np.uint8).tobytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content) if compress else content)


def write_fashion_mnist(folder: Path, compress: bool, shade: int) -> None:
    suffix = ".gz" if compress else ""
    for half, n in (("train", 60), ("t10k", 20)):
        write_idx(folder / f"{half}-images-idx3-ubyte{suffix}", np.full((n, 28, 28), shade), compress)
        write_idx(folder / f"{half}-labels-idx1-ubyte{suffix}", np.arange(n) % 10, compress)


def test_digits_split_into_disjoint_stratified_parts() -> None:
    splits = load_splits("digits", seed=1)
    parts = (splits.train, splits.validation, splits.test)
    assert [len(part) for part in parts] == [1797 - 400 - 360, 400, 360]
    whole, _ = datasets._read_digits(Path())
    together = np.concatenate([part.images.reshape(len(part), -1) for part in parts])
    assert len(np.unique(together, axis=0)) == len(np.unique(whole.images.reshape(len(whole), -1), axis=0))
    for part in parts:
        expected = np.array(whole.counts()) * len(part) / len(whole)
        assert np.abs(np.array(part.counts()) - expected).max() <= 2
    assert splits.train.images.dtype == np.float32
    assert splits.train.images.max() == 1


def test_the_same_seed_gives_the_same_samples_and_another_seed_others() -> None:
    first, again, other = (load_splits("digits", seed=seed) for seed in (3, 3, 4))
    assert np.array_equal(first.validation.images, again.validation.images)
    assert np.array_equal(first.train.labels, again.train.labels)
    assert not np.array_equal(first.validation.images, other.validation.images)


def test_a_split_uses_every_sample_once() -> None:
    labels = np.repeat(np.arange(3), (50, 5, 1)).astype(np.int64)
    images = np.arange(56, dtype=np.float32).reshape(-1, 1, 1, 1)
    parts = stratified_split(LabelledData("x", images, labels, 3), (20, 30, 6), seed=0)
    assert sorted(np.concatenate([part.images.ravel() for part in parts])) == list(range(56))


@pytest.mark.parametrize("sizes", [(0, 5), (57,), (30, 30), (-1,)])
def test_sizes_that_do_not_fit_are_refused(sizes: tuple[int, ...]) -> None:
    data = LabelledData("x", np.zeros((56, 1, 1, 1), np.float32), np.zeros(56, np.int64), 1)
    with pytest.raises(DataError, match="parts of"):
        stratified_split(data, sizes, seed=0)


def test_debians_files_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_fashion_mnist(tmp_path / "debian", compress=True, shade=51)
    monkeypatch.setattr(datasets, "DEBIAN_FASHION_MNIST", tmp_path / "debian")
    splits = load_splits("fashion-mnist", seed=0, validation=20, root=tmp_path / "empty")
    assert (len(splits.train), len(splits.validation), len(splits.test)) == (40, 20, 20)
    assert splits.train.images.shape == (40, 1, 28, 28)
    assert np.allclose(splits.train.images, 0.2)
    assert splits.validation.counts() == (2,) * 10


def test_torchvisions_own_folder_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_fashion_mnist(tmp_path / "debian", compress=True, shade=51)
    write_fashion_mnist(tmp_path / "FashionMNIST" / "raw", compress=False, shade=255)
    monkeypatch.setattr(datasets, "DEBIAN_FASHION_MNIST", tmp_path / "debian")
    splits = load_splits("fashion-mnist", seed=0, validation=20, root=tmp_path)
    assert np.allclose(splits.train.images, 1)


def cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every download fails at once: nothing listens on port 9 (discard) of this machine."""
    for variable in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(variable, "http://127.0.0.1:9")
    for variable in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    # urlopen keeps the proxies of its first call for the whole process.
    monkeypatch.setattr(urllib.request, "_opener", None)


@pytest.mark.parametrize("name", [name for name in dataset_names() if name != "digits"])
def test_without_data_and_network_one_sentence_names_two_ways(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasets, "DEBIAN_FASHION_MNIST", tmp_path / "absent")
    cut_off(monkeypatch)
    with pytest.raises(DatasetMissingError, match=r"Two ways to get it: .* or ") as refusal:
        load_splits(name, seed=0, root=tmp_path)
    assert name in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_truncated_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_fashion_mnist(tmp_path, compress=True, shade=51)
    victim = tmp_path / "t10k-labels-idx1-ubyte.gz"
    victim.write_bytes(gzip.compress(gzip.decompress(victim.read_bytes())[:-3]))
    monkeypatch.setattr(datasets, "DEBIAN_FASHION_MNIST", tmp_path)
    with pytest.raises(DatasetMissingError, match=r"t10k-labels-idx1-ubyte.gz is not a whole IDX file"):
        load_splits("fashion-mnist", seed=0, root=tmp_path / "empty")


def test_an_unknown_data_set_is_refused_with_the_known_ones() -> None:
    with pytest.raises(DataError, match="digits, mnist, fashion-mnist"):
        load_splits("imagenet", seed=0)


def test_labels_outside_the_classes_are_refused() -> None:
    with pytest.raises(DataError, match="labels run from 0 to 4; expected 0 to 2"):
        LabelledData("x", np.zeros((5, 1, 1, 1), np.float32), np.arange(5), 3)


def test_importing_data_sets_pulls_in_neither_torch_nor_scikit_learn() -> None:
    code = "import sys, fedpeer.learning.partition; print('torch' in sys.modules, 'sklearn' in sys.modules)"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.split() == ["False", "False"]


def test_digits_are_those_of_scikit_learn() -> None:
    from sklearn.datasets import load_digits

    from fedpeer.learning.datasets import _digits_table

    images, labels = load_digits(return_X_y=True)
    np.testing.assert_array_equal(_digits_table(), np.column_stack([images, labels]))


@pytest.mark.parametrize("left", ["nothing", "one file"])
def test_what_a_failed_download_leaves_does_not_hide_debians_files(
    left: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_fashion_mnist(tmp_path / "debian", compress=True, shade=51)
    raw = tmp_path / "data" / "FashionMNIST" / "raw"
    raw.mkdir(parents=True)
    if left == "one file":
        (raw / "train-images-idx3-ubyte.gz").write_bytes(b"half of it")
    monkeypatch.setattr(datasets, "DEBIAN_FASHION_MNIST", tmp_path / "debian")
    splits = load_splits("fashion-mnist", seed=0, validation=20, root=tmp_path / "data")
    assert np.allclose(splits.train.images, 0.2)


@pytest.mark.parametrize("name", ["fashion-mnist", "mnist", "cifar10"])
def test_a_failed_download_leaves_no_empty_folder(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasets, "DEBIAN_FASHION_MNIST", tmp_path / "absent")
    cut_off(monkeypatch)
    with pytest.raises(DatasetMissingError):
        load_splits(name, seed=0, root=tmp_path / "cache" / "data")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["empty", "five bytes", "no gzip", "damaged"])
def test_a_damaged_file_of_debians_is_named(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_fashion_mnist(tmp_path, compress=True, shade=51)
    victim = tmp_path / "t10k-images-idx3-ubyte.gz"
    whole = victim.read_bytes()
    victim.write_bytes(
        {
            "empty": b"",
            "five bytes": gzip.compress(b"\0\0\x08\x03\0"),
            "no gzip": b"<html>404</html>",
            "damaged": whole[:20] + bytes(byte ^ 0xFF for byte in whole[20:30]) + whole[30:],
        }[kind]
    )
    monkeypatch.setattr(datasets, "DEBIAN_FASHION_MNIST", tmp_path)
    with pytest.raises(
        DatasetMissingError, match=r"t10k-images-idx3-ubyte.gz (cannot be read|is not a whole)"
    ):
        load_splits("fashion-mnist", seed=0, root=tmp_path / "none")


def test_a_damaged_file_of_torchvisions_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = tmp_path / "FashionMNIST" / "raw"
    write_fashion_mnist(raw, compress=False, shade=255)
    (raw / "train-images-idx3-ubyte").write_bytes(b"\0\0\x08\x03\0")
    monkeypatch.setattr(datasets, "DEBIAN_FASHION_MNIST", tmp_path / "absent")
    with pytest.raises(DatasetMissingError, match="fashion-mnist is not in") as refusal:
        load_splits("fashion-mnist", seed=0, root=tmp_path)
    assert "\n" not in str(refusal.value)
