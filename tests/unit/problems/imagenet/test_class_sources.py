"""Sources of classes: every kind of folder, recognised, read, and refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from neoteny.problems import ContinualImageNet
from neoteny.problems.data.datasets import DataError
from neoteny.problems.data.synthetic import Textures
from neoteny.problems.imagenet.batches import Batches
from neoteny.problems.imagenet.cifar import Cifar
from neoteny.problems.imagenet.classes import Arrays, Cached, ClassSource, Folders, Sheets, open_source
from support.class_folders import (
    COUNT,
    Trap,
    make_batches,
    make_cifar10,
    make_cifar100,
    make_npz_batches,
    some_images,
)
from support.shared_data import SHARED


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("NEOTENY_DATA", raising=False)
    return tmp_path / "cache" / "neoteny"


# Each maker writes a folder of a kind and returns the images of each class.


def make_sheets(folder: Path) -> dict[str, np.ndarray]:
    classes = {f"n{number:08d}": some_images(50, number) for number in (7, 3, 5)}
    for name, tiles in classes.items():
        sheet = tiles.reshape(2, 25, 32, 32, 3).transpose(0, 2, 1, 3, 4).reshape(64, 800, 3)
        Image.fromarray(sheet).save(folder / f"{name}.webp", lossless=True)
    rows = "".join(f"{label}\t{name}\twords, of {name}\n" for label, name in enumerate(classes))
    (folder / "classes.tsv").write_text("label\twnid\twords\n" + rows)
    return classes


def make_arrays(folder: Path) -> dict[str, np.ndarray]:
    classes = {f"class{number}": some_images(COUNT, number) for number in range(3)}
    for name, images in classes.items():
        np.save(folder / f"{name}.npy", images)
    return classes


def make_folders(folder: Path) -> dict[str, np.ndarray]:
    classes = {f"kind {number}": some_images(COUNT, number) for number in range(3)}
    for name, images in classes.items():
        (folder / name).mkdir()
        for number, image in enumerate(images):
            Image.fromarray(image).save(folder / name / f"{number}.png")
        (folder / name / "notes.txt").write_text("not an image")
    (folder / "empty").mkdir()
    return classes


KINDS = {
    "sheets": (make_sheets, Sheets),
    "arrays": (make_arrays, Arrays),
    "folders": (make_folders, Folders),
    "batches": (make_batches, Batches),
    "npz batches": (make_npz_batches, Batches),
    "cifar10": (make_cifar10, Cifar),
    "cifar100": (make_cifar100, Cifar),
}
each_kind = pytest.mark.parametrize("kind", KINDS)


@each_kind
def test_a_folder_is_recognised_and_gives_its_images(kind: str, tmp_path: Path) -> None:
    make, expected = KINDS[kind]
    folder = tmp_path / "classes"
    folder.mkdir()
    classes = make(folder)
    source = open_source(str(folder))
    assert isinstance(source, Cached)
    assert isinstance(source.source, expected)
    assert source.names == tuple(sorted(classes))
    for name, images in classes.items():
        assert source.count(name) == len(images)
        loaded = source.load(name)
        assert loaded.dtype == np.uint8
        assert np.array_equal(loaded, images)


@each_kind
def test_continual_imagenet_runs_on_it(kind: str, tmp_path: Path) -> None:
    import torch

    folder = tmp_path / "classes"
    folder.mkdir()
    KINDS[kind][0](folder)
    problem = ContinualImageNet(tasks=3, source=str(folder), train_images=4, test_images=2, batch_size=8, epochs=2)
    inputs, targets = problem.open().plan([0, 1], 2).batches(0, 2, torch.device("cpu"))
    assert inputs.shape == (2, 2, 8, 3, 32, 32)
    assert bool((targets.sum(-1) == 4).all())


@each_kind
def test_opened_twice_it_is_the_same_and_changed_it_is_another(kind: str, tmp_path: Path) -> None:
    folder = tmp_path / "classes"
    folder.mkdir()
    KINDS[kind][0](folder)
    first = open_source(str(folder)).fingerprint
    assert open_source(str(folder)).fingerprint == first
    victim = max((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    content = bytearray(victim.read_bytes())
    content[len(content) // 2] ^= 1
    victim.write_bytes(content + b"\0")
    assert _changed(folder, first)


def _changed(folder: Path, first: str) -> bool:
    try:
        return open_source(str(folder)).fingerprint != first
    except DataError:  # it is so broken that it cannot be opened
        return True


def test_the_synthetic_source_is_lazy_and_the_same_every_time() -> None:
    source = open_source("synthetic")
    assert len(source.names) == 40
    assert np.array_equal(source.load("c003"), Textures().load("c003"))
    assert not np.array_equal(source.load("c003"), source.load("c004"))
    assert {source.count(name) for name in source.names} == {60}


def test_nothing_that_looks_like_classes_says_what_was_expected(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(DataError, match=r"holds no classes. Expected classes.tsv .* or train_data_batch_1 .*\.npy"):
        open_source(str(tmp_path))
    with pytest.raises(ValueError, match=r"'imagenet200_32', 'imagenet32', .*'synthetic' or the path .*got 'imagenet'"):
        open_source("imagenet")
    with pytest.raises(DataError, match=r"imagenet32 is missing.*register"):
        open_source("imagenet32")


def test_a_cache_keeps_the_last_used_up_to_its_limit() -> None:
    class Counting:
        names = ("a", "b", "c")
        fingerprint = "x"
        loads = 0

        def count(self, name: str) -> int:
            return 1

        def load(self, name: str) -> np.ndarray:
            self.loads += 1
            return some_images(1)

    inner = Counting()
    source: ClassSource = Cached(inner, limit_bytes=2 * 3072)
    for name, loads in (("a", 1), ("b", 2), ("a", 2), ("c", 3), ("a", 3), ("b", 4), ("c", 5)):
        source.load(name)
        assert inner.loads == loads, name


# Sheets.


def test_a_sheet_that_is_missing_corrupt_or_of_another_size_is_named(tmp_path: Path) -> None:
    make_sheets(tmp_path)
    path = tmp_path / "n00000005.webp"
    whole = path.read_bytes()
    path.unlink()
    with pytest.raises(DataError, match=r"n00000005.webp is missing or corrupt, but classes.tsv names it"):
        open_source(str(tmp_path))
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"n00000005.webp is .*corrupt"):
        open_source(str(tmp_path)).load("n00000005")
    Image.new("RGB", (100, 64)).save(path)
    with pytest.raises(DataError, match="expected a sheet 800 pixels wide and a multiple of 32 high; found 100 by 64"):
        open_source(str(tmp_path))


def test_a_table_without_wnids_is_refused(tmp_path: Path) -> None:
    (tmp_path / "classes.tsv").write_text("label\tword\n0\tx\n")
    with pytest.raises(DataError, match="a column wnid"):
        open_source(str(tmp_path))


# Arrays.


def test_arrays_of_another_shape_or_type_are_refused(tmp_path: Path) -> None:
    for wrong in (np.zeros((5, 3, 32, 32), np.uint8), np.zeros((5, 32, 32, 3))):
        np.save(tmp_path / "one.npy", wrong)
        with pytest.raises(DataError, match=r"one.npy: expected uint8 \(images, 32, 32, 3\); found"):
            open_source(str(tmp_path))


def test_arrays_of_objects_are_never_unpickled(tmp_path: Path) -> None:
    np.save(tmp_path / "one.npy", np.array([Trap(tmp_path / "sprung")]), allow_pickle=True)
    with pytest.raises(DataError, match=r"one.npy is corrupt or not a plain array"):
        open_source(str(tmp_path))
    assert not (tmp_path / "sprung").exists()


# Folders.


def test_images_of_any_size_are_cropped_to_their_middle_and_reduced_by_area(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    wide = np.zeros((64, 128, 3), np.uint8)
    wide[:, 32:96] = np.kron(np.arange(32 * 32).reshape(32, 32) % 200, np.ones((2, 2)))[..., None]  # middle: 2x2 blocks
    wide[0, 32] = 8  # one of the four pixels of the first block
    Image.fromarray(wide).save(tmp_path / "a" / "wide.png")
    Image.fromarray(np.full((40, 40), 77, np.uint8)).save(tmp_path / "a" / "grey.png")
    grey, reduced = open_source(str(tmp_path)).load("a")
    assert (grey == 77).all()
    expected = np.arange(32 * 32).reshape(32, 32) % 200
    expected[0, 0] = 2  # the mean of 8, 0, 0, 0
    assert np.array_equal(reduced, np.repeat(expected[..., None], 3, -1))


def test_a_file_that_is_no_image_is_named(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "broken.jpg").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"broken.jpg is corrupt or not an image"):
        open_source(str(tmp_path)).load("a")


# Batches.


@pytest.mark.data
@pytest.mark.skipif(not (SHARED / "imagenet200_32").is_dir(), reason="needs the sheets of imagenet200_32")
def test_the_real_sheets_hold_200_classes_of_550_pictures() -> None:
    source = open_source("imagenet200_32", SHARED)
    assert len(source.names) == 200
    assert {source.count(name) for name in source.names} == {550}
    images = source.load("n01443537").astype(float)  # goldfish
    assert images.shape == (550, 32, 32, 3)
    red, _, blue = images.mean((0, 1, 2))
    assert red > blue + 20
    inside = np.abs(np.diff(images, axis=2)).mean()
    across = np.abs(images[1:, :, 0] - images[:-1, :, -1]).mean()
    assert inside < across / 2, "pixels of one tile are more alike than those of neighbouring tiles"
