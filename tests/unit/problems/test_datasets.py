"""Datasets: found, checked, read and downloaded; downloads come from a real server on this machine."""

from __future__ import annotations

import gzip
import hashlib
import os
import pickle
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from neoteny.problems import PermutedMNIST
from neoteny.problems.data import datasets, files
from neoteny.problems.data.datasets import DATASETS, DataError, Dataset, describe, fetch, find
from neoteny.problems.data.files import File
from neoteny.problems.data.texts import fetch_with_progress, list_text
from neoteny.problems.mnist.images import open_digits, read_idx

CONTENT = np.random.default_rng(0).bytes(700_000)
SECOND = b"a second, small file"


class Server(ThreadingHTTPServer):
    """Serves files, and misbehaves as told."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.content = {"first.bin": CONTENT, "second.bin": SECOND}
        self.knows_ranges = True
        self.cuts: list[int] = []  # the next answers end after so many bytes
        self.asked: list[tuple[str, str | None]] = []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/"


class Handler(BaseHTTPRequestHandler):
    server: Server  # type: ignore[assignment]

    def do_GET(self) -> None:
        name, wanted = self.path.strip("/"), self.headers.get("Range")
        self.server.asked.append((name, wanted))
        if name not in self.server.content:
            self.send_error(404)
            return
        content, start = self.server.content[name], 0
        if wanted and self.server.knows_ranges:
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        else:
            self.send_response(200)
        rest = content[start:]
        self.send_header("Content-Length", str(len(rest)))
        self.end_headers()
        if name == "first.bin" and self.server.cuts:
            rest = rest[: self.server.cuts.pop(0)]
        self.wfile.write(rest)

    def log_message(self, format: str, *args: object) -> None:  # the name is the standard library's
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    served = Server()
    thread = threading.Thread(target=served.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield served
    served.shutdown()
    served.server_close()
    thread.join()


def file_of(name: str, content: bytes) -> File:
    return File(name, len(content), hashlib.sha256(content).hexdigest())


def known_from(*mirrors: str) -> Dataset:
    files = (file_of("first.bin", CONTENT), file_of("second.bin", SECOND))
    return Dataset("tiny", "digits", "two files", "none", files=files, mirrors=mirrors)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder, and no $NEOTENY_DATA."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("NEOTENY_DATA", raising=False)
    return tmp_path / "neoteny"


@pytest.fixture
def tiny(server: Server, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder into which the dataset "tiny" is fetched."""
    monkeypatch.setitem(DATASETS, "tiny", known_from(server.address))
    return cache / "tiny"


def visible(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.startswith(".")}


# Downloads.


def test_a_download_is_whole_right_and_found_afterwards(tiny: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    with pytest.raises(DataError, match="neoteny data fetch tiny"):
        find("tiny")
    assert fetch("tiny", progress=lambda *step: seen.append(step)) == tiny
    assert visible(tiny) == {"first.bin": CONTENT, "second.bin": SECOND}
    assert not list(tiny.glob(".*.part"))
    assert find("tiny") == tiny
    firsts = [done for name, done, total in seen if name == "first.bin" and total == len(CONTENT)]
    assert firsts == sorted(firsts)
    assert len(firsts) > 1
    assert firsts[-1] == len(CONTENT)


def test_files_that_are_right_are_not_downloaded_again_and_a_wrong_one_is(tiny: Path, server: Server) -> None:
    fetch("tiny")
    server.asked.clear()
    fetch("tiny")
    assert server.asked == []
    (tiny / "second.bin").write_bytes(SECOND[::-1])
    with pytest.raises(DataError, match=r"second.bin is corrupt: expected sha256 .*fetch tiny"):
        find("tiny")
    fetch("tiny")
    assert server.asked == [("second.bin", None)]
    assert visible(tiny) == {"first.bin": CONTENT, "second.bin": SECOND}


def test_a_part_is_continued_where_it_ended(tiny: Path, server: Server) -> None:
    tiny.mkdir(parents=True)
    (tiny / ".first.bin.part").write_bytes(CONTENT[:300_000])
    fetch("tiny")
    assert server.asked[0] == ("first.bin", "bytes=300000-")
    assert visible(tiny)["first.bin"] == CONTENT


def test_a_server_that_does_not_know_ranges_sends_the_whole_and_the_part_starts_over(
    tiny: Path, server: Server
) -> None:
    server.knows_ranges = False
    tiny.mkdir(parents=True)
    (tiny / ".first.bin.part").write_bytes(CONTENT[:300_000])
    fetch("tiny")
    assert [wanted for name, wanted in server.asked if name == "first.bin"] == ["bytes=300000-"]
    assert visible(tiny)["first.bin"] == CONTENT


@pytest.mark.parametrize("knows_ranges", [True, False])
def test_cut_connections_are_taken_up_again(tiny: Path, server: Server, knows_ranges: bool) -> None:
    server.knows_ranges = knows_ranges
    server.cuts = [100_000, 150_000]
    fetch("tiny")
    assert visible(tiny)["first.bin"] == CONTENT
    if knows_ranges:
        assert [wanted for name, wanted in server.asked if name == "first.bin"] == [
            None,
            "bytes=100000-",
            "bytes=250000-",
        ]


def test_a_connection_that_keeps_breaking_is_reported_and_the_part_kept_for_the_next_time(
    tiny: Path, server: Server
) -> None:
    server.cuts = [100_000, 0, 0]
    with pytest.raises(DataError, match=r"100,000 of 700,000 bytes.*100,000 bytes are kept.*try again") as broken:
        fetch("tiny")
    assert hashlib.sha256(CONTENT).hexdigest() in str(broken.value)
    assert visible(tiny) == {}
    assert (tiny / ".first.bin.part").read_bytes() == CONTENT[:100_000]
    server.cuts = []
    server.asked.clear()
    fetch("tiny")
    assert server.asked[0] == ("first.bin", "bytes=100000-")
    assert visible(tiny)["first.bin"] == CONTENT


@pytest.mark.parametrize(
    "wrong", [CONTENT[::-1], CONTENT + b"more", b"<html>not here</html>"], ids=["same", "more", "page"]
)
def test_wrong_content_is_never_given_the_files_name(tiny: Path, server: Server, wrong: bytes) -> None:
    server.content["first.bin"] = wrong
    with pytest.raises(DataError, match=hashlib.sha256(CONTENT).hexdigest()):
        fetch("tiny")
    assert visible(tiny) == {}
    if len(wrong) >= len(CONTENT):
        assert not (tiny / ".first.bin.part").exists()
    server.content["first.bin"] = CONTENT
    fetch("tiny")
    assert visible(tiny)["first.bin"] == CONTENT


def test_a_wrong_checksum_names_what_was_expected_and_what_was_found(tiny: Path, server: Server) -> None:
    server.content["first.bin"] = CONTENT[::-1]
    expected, found = (hashlib.sha256(content).hexdigest() for content in (CONTENT, CONTENT[::-1]))
    with pytest.raises(DataError, match=f"expected sha256 {expected}; found {found}"):
        fetch("tiny")


def test_a_part_that_another_time_spoilt_is_thrown_away_and_fetched_anew(tiny: Path, server: Server) -> None:
    tiny.mkdir(parents=True)
    (tiny / ".first.bin.part").write_bytes(b"?" * 300_000)
    fetch("tiny")
    assert [wanted for name, wanted in server.asked if name == "first.bin"] == ["bytes=300000-", None]
    assert visible(tiny)["first.bin"] == CONTENT


def test_a_whole_part_is_published_without_asking_and_one_too_long_starts_over(tiny: Path, server: Server) -> None:
    tiny.mkdir(parents=True)
    (tiny / ".first.bin.part").write_bytes(CONTENT)
    (tiny / ".second.bin.part").write_bytes(SECOND + b"too long")
    fetch("tiny")
    assert server.asked == [("second.bin", None)]
    assert visible(tiny) == {"first.bin": CONTENT, "second.bin": SECOND}


def test_another_mirror_serves_where_the_first_is_down_lacks_the_file_or_has_a_wrong_one(
    server: Server, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = Server()
    wrong.content = {"second.bin": SECOND[::-1]}
    thread = threading.Thread(target=wrong.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    monkeypatch.setitem(DATASETS, "tiny", known_from("http://127.0.0.1:1/", wrong.address, server.address))
    try:
        assert visible(fetch("tiny")) == {"first.bin": CONTENT, "second.bin": SECOND}
    finally:
        wrong.shutdown()
        wrong.server_close()
        thread.join()


def test_no_network_is_a_clear_error(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DATASETS, "tiny", known_from("http://127.0.0.1:1/"))
    with pytest.raises(DataError, match=r"Could not download first.bin .*refused.*Check the connection"):
        fetch("tiny")


def test_a_folder_of_ones_own_serves_and_one_that_cannot_be_written_is_named(tiny: Path, tmp_path: Path) -> None:
    assert fetch("tiny", tmp_path / "mine") == tmp_path / "mine" / "tiny"
    assert find("tiny", tmp_path / "mine") == tmp_path / "mine" / "tiny"
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DataError, match=r"Could not write to .*file/tiny: Not a directory"):
        fetch("tiny", tmp_path / "file")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_not_taken_for_a_broken_connection(tiny: Path, server: Server) -> None:
    tiny.mkdir(parents=True)
    (tiny / ".first.bin.part").symlink_to("/dev/full")
    with pytest.raises(DataError, match=r"Could not write .*first.bin.part: No space left on device. Make room"):
        fetch("tiny")
    assert len(server.asked) == 1


def test_of_several_at_once_one_downloads_and_the_others_wait(tiny: Path, server: Server) -> None:
    """Locks belong to open files, so that threads stand for processes here."""
    downloaded: set[int] = set()

    def fetch_once(number: int) -> None:
        fetch("tiny", progress=lambda *_: downloaded.add(number))

    threads = [threading.Thread(target=fetch_once, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert len(downloaded) == 1
    assert [name for name, _ in server.asked] == ["first.bin", "second.bin"]
    assert visible(tiny) == {"first.bin": CONTENT, "second.bin": SECOND}


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


# The real data.

SHARED = Path(os.environ.get("NEOTENY_DATA") or Path(__file__).parents[4] / "shared" / "data")


@pytest.mark.data
@pytest.mark.parametrize("name", ["mnist", "imagenet200_32"])
def test_the_shared_data_has_the_published_checksums(name: str) -> None:
    if not (SHARED / name).is_dir():
        pytest.skip(f"needs {name}")
    assert find(name, SHARED) == SHARED / name
    assert next(row for row in describe(SHARED) if row.dataset.name == name).state == "good"
