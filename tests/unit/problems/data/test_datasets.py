"""Datasets: found, described and checked."""

from __future__ import annotations

import hashlib
import os
import pickle
import sys
from pathlib import Path

import pytest

from neoteny.problems.data import datasets, files
from neoteny.problems.data.datasets import DATASETS, DataError, Dataset, describe, fetch, find
from neoteny.problems.data.texts import fetch_with_progress, list_text
from support.data_server import CONTENT, SECOND
from support.shared_data import SHARED

# Finding and describing.


def test_folders_are_searched_in_order_and_a_corrupt_copy_does_not_hide_a_good_one(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch("tiny")
    fetch("tiny", tmp_path / "environment")
    fetch("tiny", tmp_path / "given")
    assert find("tiny") == tiny
    monkeypatch.setenv("NEOTENY_DATA", str(tmp_path / "environment"))
    assert find("tiny") == tmp_path / "environment" / "tiny"
    assert find("tiny", tmp_path / "given") == tmp_path / "given" / "tiny"
    (tmp_path / "environment" / "tiny" / "second.bin").write_bytes(b"no")
    assert find("tiny") == tiny


def test_describe_tells_good_corrupt_incomplete_and_missing(tiny: Path) -> None:
    def state() -> tuple[str, str]:
        row = next(row for row in describe() if row.dataset.name == "tiny")
        return row.state, row.fault

    assert state()[0] == "missing"
    fetch("tiny")
    assert state() == ("good", "")
    row = next(row for row in describe() if row.dataset.name == "tiny")
    assert (row.folder, row.size_bytes, row.dataset.terms) == (tiny, len(CONTENT) + len(SECOND), "none")
    (tiny / "first.bin").write_bytes(CONTENT[:-1])
    assert state()[0] == "corrupt"
    assert "expected 700,000 bytes" in state()[1]
    (tiny / "first.bin").unlink()
    assert state()[0] == "incomplete"
    assert "neoteny data fetch tiny" in state()[1]


def test_the_printed_list_shows_every_dataset_and_how_to_mend_it(tiny: Path) -> None:
    fetch("tiny")
    text = list_text()
    lines = {line.split()[0]: line for line in text.split("\n\n")[0].splitlines()}
    assert set(DATASETS) <= set(lines)
    assert lines["tiny"].split() == ["tiny", "good", "0.7", "MB", "none", str(tiny)]
    assert lines["mnist"].split()[1:3] == ["missing", "-"]
    assert "CC BY-SA 3.0" in lines["mnist"]
    assert "Run: neoteny data fetch mnist" in text
    assert str(tiny.parent) in text


def test_a_printed_download_names_every_file_once_and_the_folder(
    tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fetch_with_progress("tiny") == f"tiny is in {tiny}; its checksums are right."
    assert capsys.readouterr().err == "first.bin: 0.7 MB\nsecond.bin: 0.0 MB\n"


def test_a_download_at_a_terminal_shows_bars(
    tiny: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TERM", "xterm")
    fetch_with_progress("tiny")
    shown = capsys.readouterr().err
    assert "first.bin" in shown
    assert "700.0/700.0 kB" in shown


def test_every_known_dataset_has_terms_and_a_way_to_get_it() -> None:
    assert {"mnist", "imagenet200_32", "imagenet32"} <= set(DATASETS)
    for name, dataset in DATASETS.items():
        assert dataset.name == name
        assert dataset.terms
        assert bool(dataset.mirrors) != bool(dataset.obtain)
        assert all(len(file.sha256) == 64 for file in dataset.files)
        if dataset.mirrors:  # nothing is downloaded that cannot be verified
            assert dataset.files
            assert not dataset.unchecked
            assert dataset.digest is None
        assert all(mirror.startswith("https://") and mirror.endswith("/") for mirror in dataset.mirrors)


def test_what_cannot_be_downloaded_says_how_to_get_it(cache: Path) -> None:
    with pytest.raises(DataError, match=r"register at https://image-net.org"):
        fetch("imagenet32")
    with pytest.raises(ValueError, match=r"no dataset 'minst'. Did you mean 'mnist'"):
        fetch("minst")


def test_digests_of_many_files_are_checked(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = cache / "many"
    folder.mkdir(parents=True)
    for name in ("a.webp", "b.webp"):
        (folder / name).write_bytes(name.encode())
    expected = datasets.digest_of(sorted(folder.glob("*.webp")))
    lines = "".join(f"{hashlib.sha256(name.encode()).hexdigest()}  {name}\n" for name in ("a.webp", "b.webp"))
    assert expected == hashlib.sha256(lines.encode()).hexdigest()
    known = Dataset("many", "classes", "x", "y", unchecked=("note",), digest=("*.webp", 2, expected), obtain="ask")
    monkeypatch.setitem(DATASETS, "many", known)
    with pytest.raises(DataError, match=r"note is missing. ask"):
        find("many")
    (folder / "note").write_bytes(b"")
    assert find("many") == folder
    (folder / "b.webp").write_bytes(b"other")
    with pytest.raises(DataError, match=f"corrupt: expected digest {expected}"):
        find("many")
    (folder / "b.webp").unlink()
    with pytest.raises(DataError, match="expected 2 files"):
        find("many")


def test_checksums_are_read_once_and_again_after_a_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"one")
    first = files.checksum(path)
    monkeypatch.setattr(Path, "open", lambda *_, **__: pytest.fail("read again"))
    assert files.checksum(path) == first
    monkeypatch.undo()
    path.write_bytes(b"two")
    os.utime(path, ns=(1, 1))
    assert files.checksum(path) == hashlib.sha256(b"two").hexdigest()


def test_a_data_error_survives_the_way_from_another_process() -> None:
    assert str(pickle.loads(pickle.dumps(DataError("train.gz is corrupt")))) == "train.gz is corrupt"


# Reading digits.


@pytest.mark.data
@pytest.mark.parametrize("name", ["mnist", "imagenet200_32"])
def test_the_shared_data_has_the_published_checksums(name: str) -> None:
    if not (SHARED / name).is_dir():
        pytest.skip(f"needs {name}")
    assert find(name, SHARED) == SHARED / name
    assert next(row for row in describe(SHARED) if row.dataset.name == name).state == "good"
