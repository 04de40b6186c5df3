"""Downloads from a real server on this machine: whole, right, continued, from mirrors."""

from __future__ import annotations

import hashlib
import threading
from pathlib import Path

import pytest

from neoteny.problems.data.datasets import DATASETS, DataError, fetch, find
from support.data_server import CONTENT, SECOND, Server, known_from


def visible(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.startswith(".")}


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
