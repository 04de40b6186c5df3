"""Sources of classes in batches: safe pickles, wrong content, the cache."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neoteny.problems.data.datasets import DataError
from neoteny.problems.imagenet.batches import ArrayUnpickler, read_batch
from neoteny.problems.imagenet.classes import open_source
from support.class_folders import Trap, make_batches, make_npz_batches, some_images


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("NEOTENY_DATA", raising=False)
    return tmp_path / "cache" / "neoteny"


@pytest.mark.parametrize("place", ["whole", "value", "label", "buffer"])
def test_a_malicious_pickle_is_refused_and_does_nothing(tmp_path: Path, place: str) -> None:
    trap = Trap(tmp_path / "sprung")
    data, labels = np.zeros((1, 3072), np.uint8), [1]
    content: Any = {
        "whole": trap,
        "value": {"data": data, "labels": labels, "extra": trap},
        "label": {"data": data, "labels": [trap]},
        "buffer": {"data": np.array([trap], object), "labels": labels},
    }[place]
    path = tmp_path / "train_data_batch_1"
    path.write_bytes(pickle.dumps(content))
    with pytest.raises(DataError, match=r"train_data_batch_1 .*refused"):
        open_source(str(tmp_path))
    assert not (tmp_path / "sprung").exists()
    pickle.loads(path.read_bytes())
    assert (tmp_path / "sprung").exists(), "the trap works on plain pickle"


@pytest.mark.parametrize(
    "call",
    [
        b"cposix\nsystem\n(S'true'\ntR.",
        b"cbuiltins\neval\n(S'1'\ntR.",
        b"cnumpy\nload\n(S'x'\ntR.",
        b"cnumpy.core.multiarray\n_reconstruct.__globals__\n.",
        b"\x80\x04\x8c\x15numpy.core.multiarray\x8c\x18_reconstruct.__globals__\x93.",
        b"c_codecs\nencode\n(S'x'\nS'zlib'\ntR.",
        b"cnumpy\ndtype\n(S'O8'\nI00\nI01\ntR.",
        b"cnumpy\ndtype\n(S'V8'\nI00\nI01\ntR.",
    ],
)
def test_the_unpickler_admits_nothing_but_arrays_of_numbers(call: bytes) -> None:
    import io

    with pytest.raises(pickle.UnpicklingError, match="refused"):
        ArrayUnpickler(io.BytesIO(call), encoding="latin1").load()


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("kind", [np.int64, ">i4"])
def test_pickles_of_every_protocol_order_and_byte_order_are_read(
    tmp_path: Path, protocol: int, order: Any, kind: Any
) -> None:
    data = np.asarray(some_images(4).reshape(4, -1), order=order)
    labels = np.array([1, 2, 1, 1000], kind)
    path = tmp_path / "batch"
    path.write_bytes(pickle.dumps({"data": data, "labels": labels}, protocol=protocol))
    read, answers = read_batch(path)
    assert np.array_equal(read, data)
    assert answers.dtype == np.int64
    assert answers.tolist() == [1, 2, 1, 1000]


def test_a_pickle_of_python_2_is_read(tmp_path: Path) -> None:
    """Written out by hand: bytes are BINSTRINGs there, and numpy's home is numpy.core.multiarray."""
    pixels = some_images(1).reshape(1, -1)
    raw = pixels.tobytes()
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntS'b'\ntR"
        b"(I1\n(I1\nI3072\ntcnumpy\ndtype\n(S'u1'\nI0\nI1\ntR(I3\nS'|'\nNNNI-1\nI-1\nI0\ntbI00\n"
        b"T" + len(raw).to_bytes(4, "little") + raw + b"tb"
    )
    (tmp_path / "batch").write_bytes(b"\x80\x02}(U\x04data" + array + b"U\x06labels(lI5\nau.")
    data, labels = read_batch(tmp_path / "batch")
    assert np.array_equal(data, pixels)
    assert labels.tolist() == [5]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"data": np.zeros((2, 3072), np.uint8), "labels": [1]}, r"expected data uint8 \(N, 3072\) and N whole labels"),
        ({"data": np.zeros((2, 3071), np.uint8), "labels": [1, 2]}, "expected data uint8"),
        ({"data": np.zeros((2, 3072)), "labels": [1, 2]}, "found float64"),
        ({"labels": [1, 2]}, "not a batch of images with data and labels"),
        ([1, 2], "not a batch of images with data and labels"),
    ],
)
def test_a_batch_of_something_else_is_refused(tmp_path: Path, content: Any, message: str) -> None:
    path = tmp_path / "train_data_batch_1"
    path.write_bytes(pickle.dumps(content))
    with pytest.raises(DataError, match=message):
        read_batch(path)


@pytest.mark.parametrize("ending", ["", ".npz"])
def test_a_truncated_batch_is_named_and_leaves_nothing_in_the_cache(tmp_path: Path, cache: Path, ending: str) -> None:
    (make_npz_batches if ending else make_batches)(tmp_path)
    path = tmp_path / f"train_data_batch_2{ending}"
    path.write_bytes(path.read_bytes()[:-3000])
    with pytest.raises(DataError, match="train_data_batch_2"):
        open_source(str(tmp_path))
    assert [entry.name for entry in cache.iterdir()] == [".lock"]


def test_batches_are_sorted_once_and_read_from_the_cache_afterwards(tmp_path: Path, cache: Path) -> None:
    folder = tmp_path / "classes"
    folder.mkdir()
    classes = make_batches(folder)
    source = open_source(str(folder))
    kept = cache / source.fingerprint
    assert sorted(path.name for path in kept.iterdir()) == ["images.npy", "starts.npy"]
    before = (kept / "images.npy").stat().st_mtime_ns
    assert np.array_equal(open_source(str(folder)).load("1000"), classes["1000"])
    assert (kept / "images.npy").stat().st_mtime_ns == before
