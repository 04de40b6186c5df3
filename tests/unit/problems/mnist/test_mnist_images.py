"""Images of digits: read from files of the published format, and refused."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from neoteny.problems import LabelPermutedMNIST, PermutedMNIST
from neoteny.problems.data.datasets import DataError
from neoteny.problems.mnist.images import open_digits, read_idx


def idx(values: np.ndarray) -> bytes:
    head = bytes([0, 0, 8, values.ndim]) + b"".join(size.to_bytes(4, "big") for size in values.shape)
    return head + values.astype(np.uint8).tobytes()


def write_digits(folder: Path, count: int = 300, ending: str = ".gz") -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(1)
    images, labels = random.integers(0, 256, (count, 28, 28)), random.integers(0, 10, count)
    folder.mkdir(parents=True, exist_ok=True)
    for name, values in (("train-images-idx3-ubyte", images), ("train-labels-idx1-ubyte", labels)):
        content = idx(values)
        (folder / f"{name}{ending}").write_bytes(gzip.compress(content) if ending else content)
    return images, labels


@pytest.mark.parametrize("ending", [".gz", ""])
def test_a_folder_of_idx_files_is_a_source(tmp_path: Path, ending: str) -> None:
    images, labels = write_digits(tmp_path, ending=ending)
    stream = PermutedMNIST(tasks=2, examples_per_task=300, source=str(tmp_path)).open()
    assert np.array_equal(stream.data.images.numpy(), images.reshape(300, 784))
    assert np.array_equal(stream.data.labels.numpy(), labels)
    assert stream.data is PermutedMNIST(tasks=2, examples_per_task=5, source=str(tmp_path)).open().data


def test_different_images_have_different_fingerprints(tmp_path: Path) -> None:
    write_digits(tmp_path / "a")
    write_digits(tmp_path / "b", count=301)
    found = {open_digits(str(tmp_path / name)).fingerprint for name in "ab"} | {open_digits("synthetic").fingerprint}
    assert len(found) == 3


def test_stand_ins_in_the_place_of_mnist_are_refused(cache: Path) -> None:
    write_digits(cache / "mnist")
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte.gz is corrupt: expected 9,912,422.*data fetch mnist"):
        PermutedMNIST().open()


def test_missing_mnist_names_the_file_its_checksum_and_the_command(cache: Path) -> None:
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte.gz \(sha256 440fcabf.*Run: neoteny data fetch mnist"):
        PermutedMNIST().open()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (gzip.compress(idx(np.zeros((3, 28, 28))))[:-20], "is corrupt"),
        (b"not gzip at all", "is corrupt"),
        (gzip.compress(b"\x00\x00\x0d\x03" + bytes(12)), "begins with 00 00 08; found 00 00 0d 03"),
        (gzip.compress(b""), "found nothing"),
        (
            gzip.compress(idx(np.zeros((3, 28, 28)))[:-5]),
            r"expected 2,352 bytes for the shape \(3, 28, 28\).*found 2,347",
        ),
        (gzip.compress(idx(np.zeros((3, 28, 28))) + b"x"), "found 2,353"),
    ],
    ids=["truncated", "not gzip", "wrong magic", "empty", "too short", "too long"],
)
def test_a_corrupt_idx_file_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    write_digits(tmp_path)
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message) as corrupt:
        read_idx(path)
    assert str(path) in str(corrupt.value)
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte.gz is corrupt.*Place "):
        open_digits(str(tmp_path))


def test_images_and_labels_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    write_digits(tmp_path)
    labels = tmp_path / "train-labels-idx1-ubyte.gz"
    for values, message in ((np.zeros(299), "expected 300 labels"), (np.full(300, 10), "labels from 0 to 9; found 10")):
        labels.write_bytes(gzip.compress(idx(values)))
        with pytest.raises(DataError, match=message):
            open_digits(str(tmp_path))
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(np.zeros((300, 27, 28)))))
    with pytest.raises(DataError, match=r"expected images of shape \(N, 28, 28\)"):
        open_digits(str(tmp_path))


def test_a_source_that_is_neither_a_name_nor_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"'mnist', 'synthetic' or the path of a folder .*got 'minst'"):
        PermutedMNIST(source="minst").open()
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte is missing. Place"):
        PermutedMNIST(source=str(tmp_path)).open()


def test_emnist_is_found_by_name_with_its_own_file_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEOTENY_DATA", str(tmp_path))
    folder = tmp_path / "emnist_balanced"
    images, _ = write_digits(folder)
    with pytest.raises(DataError, match=r"emnist-balanced-train-images-idx3-ubyte.gz is missing. Download EMNIST"):
        LabelPermutedMNIST(source="emnist_balanced", classes=47).open()
    labels = np.arange(300) % 47
    (folder / "train-images-idx3-ubyte.gz").rename(folder / "emnist-balanced-train-images-idx3-ubyte.gz")
    (folder / "emnist-balanced-train-labels-idx1-ubyte").write_bytes(idx(labels))
    stream = LabelPermutedMNIST(tasks=2, examples_per_task=300, source="emnist_balanced", classes=47).open()
    assert np.array_equal(stream.data.images.numpy(), images.reshape(300, 784))
    assert np.array_equal(stream.data.labels.numpy(), labels)
    with pytest.raises(ValueError, match=r"has 47 classes; got classes=10. Set classes=47"):
        LabelPermutedMNIST(source="emnist_balanced").open()
    with pytest.raises(ValueError, match=r"source must be 'mnist', 'synthetic' or .*got 'emnist_balanced'"):
        PermutedMNIST(source="emnist_balanced").open()
    (folder / "emnist-balanced-train-labels-idx1-ubyte").write_bytes(idx(labels)[:-1])
    with pytest.raises(DataError, match=r"labels-idx1-ubyte is corrupt: .*Download EMNIST"):
        LabelPermutedMNIST(source="emnist_balanced", classes=47).open()
