"""CIFAR's binary files: read by name, and refused when they are not what they should be."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from neoteny.problems import LabelPermutedImages, RandomLabelImages
from neoteny.problems.data.datasets import DATASETS, DataError
from neoteny.problems.imagenet.cifar import Cifar, cifar_files
from neoteny.problems.imagenet.classes import open_source
from support.class_folders import make_cifar10, make_cifar100
from support.problem_streams import CPU


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NEOTENY_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def test_cifar_100_is_found_by_name_and_its_fine_labels_are_used(data: Path) -> None:
    (data / "cifar100").mkdir()
    make_cifar100(data / "cifar100")
    assert open_source("cifar100").names == ("03", "40", "99")
    problem = LabelPermutedImages(tasks=2, examples_per_task=9, source="cifar100", classes=3)
    inputs, targets = problem.open().plan([0], 1).batches(0, 9, CPU)
    assert inputs.shape == (9, 1, 1, 3, 32, 32)
    assert set(targets.flatten().tolist()) <= {0, 1, 2}


def test_cifar_10_by_name_needs_all_five_files_and_says_where_they_are(data: Path) -> None:
    (data / "cifar10").mkdir()
    make_cifar10(data / "cifar10")
    with pytest.raises(DataError, match=r"data_batch_3.bin is missing. Download the binary version"):
        open_source("cifar10")
    problem = RandomLabelImages(tasks=1, images_per_task=8, epochs=1, batch_size=4, source=str(data / "cifar10"))
    assert problem.open().plan([0], 0).steps == 2


def test_a_missing_set_says_how_to_get_it() -> None:
    for name in ("cifar10", "cifar100"):
        with pytest.raises(DataError, match=f"{name} is missing.*binary version.*folder {name}"):
            LabelPermutedImages(source=name, classes=10).open()
        assert not DATASETS[name].mirrors


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "found 0 bytes"),
        (bytes(3073 * 2 - 1), "expected records of 3,073 bytes, 1 for labels.*found 6,145 bytes"),
        (bytes([10]) + bytes(3072), "labels from 0 to 9; found 10"),
    ],
)
def test_a_corrupt_file_is_named(data: Path, content: bytes, message: str) -> None:
    make_cifar10(data)
    (data / "data_batch_2.bin").write_bytes(content)
    with pytest.raises(DataError, match=f"data_batch_2.bin is corrupt.*{message}"):
        open_source(str(data))


def test_records_of_cifar_10_are_not_taken_for_those_of_cifar_100(data: Path) -> None:
    make_cifar10(data)
    (data / "data_batch_1.bin").rename(data / "train.bin")
    (data / "data_batch_2.bin").unlink()
    with pytest.raises(DataError, match=r"train.bin is corrupt: expected records of 3,074 bytes"):
        Cifar(cifar_files(data))


def test_both_sets_in_one_folder_are_refused(data: Path) -> None:
    make_cifar10(data)
    make_cifar100(data)
    with pytest.raises(DataError, match="holds both CIFAR-10"):
        open_source(str(data))


@pytest.mark.parametrize("names", [("data_batch_1",), ("train", "meta")])
def test_the_pickled_version_is_not_opened(data: Path, names: tuple[str, ...]) -> None:
    for name in names:
        (data / name).write_bytes(pickle.dumps({"data": [1]}))
    with pytest.raises(DataError, match=r"version of CIFAR for Python, which is pickled. Place .*data_batch_1.bin"):
        open_source(str(data))


def test_more_classes_than_the_source_has_are_refused(data: Path) -> None:
    make_cifar10(data)
    with pytest.raises(ValueError, match=r"LabelPermutedImages: .* has 3 classes; got classes=10"):
        LabelPermutedImages(source=str(data), classes=10).open()
    with pytest.raises(ValueError, match=r"RandomLabelImages: images_per_task must be at most 18.*got 32"):
        RandomLabelImages(source=str(data), images_per_task=32).open()
