"""Leases: one holder at a time, and nobody writes after another has taken over."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from neoteny.suite.store.claims import Claims
from neoteny.suite.store.commits import commit
from neoteny.suite.store.errors import StoreError, TakenOver
from neoteny.suite.store.files import try_lock
from neoteny.suite.store.leases import Entry, Lease, Leases
from neoteny.suite.store.storage import FolderStorage, PatientStorage

STACK = "0123456789abcdef"
SHORT = 0.3
"""Seconds of a lease in tests of its end."""


@pytest.fixture
def storage(tmp_path: Path) -> FolderStorage:
    return FolderStorage(tmp_path)


def take(leases: Leases) -> Lease:
    lease = leases.claim(STACK)
    assert lease is not None
    return lease


def stop_renewing(lease: Lease) -> None:
    """What SIGSTOP does to the thread."""
    lease._ended.set()
    lease._thread.join()


def overtake(storage: FolderStorage) -> tuple[Lease, Lease]:
    """A lease that was not renewed, and the one that has followed it; the first is of a process that still lives."""
    first = take(Leases(storage, SHORT))
    stop_renewing(first)
    second, watcher = None, Leases(storage, SHORT)
    deadline = time.monotonic() + 20
    while second is None and time.monotonic() < deadline:
        second = watcher.claim(STACK)
        time.sleep(0.02)
    assert second is not None
    return first, second


def test_of_many_claims_one_succeeds(storage: FolderStorage) -> None:
    with ThreadPoolExecutor(16) as pool:
        leases = list(pool.map(lambda _: Leases(storage).claim(STACK), range(64)))
    (held,) = [lease for lease in leases if lease is not None]
    assert held.token == 1
    held.check()


def test_of_many_processes_that_create_a_key_one_succeeds(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    with context.Pool(4) as pool:
        for number in range(5):
            made = pool.starmap(_create, [(tmp_path, f"key{number}", each) for each in range(40)])
            assert made.count(True) == 1
            assert int((tmp_path / f"key{number}").read_text()) == made.index(True)
    assert not list(tmp_path.glob(".*"))


def _create(folder: Path, key: str, number: int) -> bool:
    return FolderStorage(folder).create(key, str(number).encode())


def test_a_lease_is_renewed_and_stays(storage: FolderStorage) -> None:
    lease = take(Leases(storage, SHORT))
    other = Leases(storage, SHORT)
    end = time.monotonic() + 3 * SHORT
    while time.monotonic() < end:
        assert other.claim(STACK) is None
        time.sleep(0.02)
    lease.check()
    lease.release(finished=False)


def test_a_released_lease_is_followed_at_once_by_the_next_number(storage: FolderStorage) -> None:
    first = take(Leases(storage))
    first.release(finished=False)
    second = take(Leases(storage))
    assert (first.token, second.token) == (1, 2)
    with pytest.raises(TakenOver):
        first.check()


def test_a_finished_stack_leaves_no_lease(storage: FolderStorage, tmp_path: Path) -> None:
    take(Leases(storage)).release(finished=False)
    take(Leases(storage)).release(finished=True)
    assert not list((tmp_path / "leases").iterdir())


def test_a_lease_that_is_not_renewed_is_taken_over_not_before_its_time(storage: FolderStorage) -> None:
    began = time.monotonic()
    first, second = overtake(storage)
    assert time.monotonic() - began >= SHORT
    assert second.token == 2
    with pytest.raises(TakenOver, match="taken over"):
        first.check()
    assert first.lost
    second.check()


def test_the_lease_of_a_dead_process_of_this_machine_is_free_at_once(storage: FolderStorage, tmp_path: Path) -> None:
    code = (
        "import sys, os; from pathlib import Path; from neoteny.suite.store.leases import Leases; "
        "from neoteny.suite.store.storage import FolderStorage; "
        f"assert Leases(FolderStorage(Path(sys.argv[1]))).claim('{STACK}'); os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
    assert take(Leases(storage)).token == 2


def test_the_lease_of_another_machine_is_watched_for_its_whole_time(storage: FolderStorage) -> None:
    entry = Entry(
        3, "somebody", "", "another machine", "node7", 1, 0, 5, time.time() + 1e6, SHORT
    )  # its clock is wrong
    storage.write(f"leases/{STACK}/000003.json", entry.to_bytes())
    leases = Leases(storage, 60.0)
    assert leases.claim(STACK) is None
    assert leases.is_held(STACK)
    time.sleep(SHORT + 0.1)
    assert take(leases).token == 4


def test_a_command_takes_over_from_its_own_lost_workers_at_once(storage: FolderStorage) -> None:
    stop_renewing(take(Leases(storage, command="this command")))
    assert Leases(storage, command="another").claim(STACK) is None
    assert take(Leases(storage, command="this command")).token == 2


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"token": 1}', json.dumps({"a": 1}).encode(), b"\xff"])
def test_a_damaged_lease_holds_the_stack_for_the_usual_time(storage: FolderStorage, content: bytes) -> None:
    storage.write(f"leases/{STACK}/000001.json", content)
    leases = Leases(storage, SHORT)
    assert leases.claim(STACK) is None
    time.sleep(SHORT + 0.1)
    assert take(leases).token == 2


# Results


def parts(storage: FolderStorage) -> dict[str, bytes]:
    return {name: storage.read(f"parts/{name}") for name in storage.list("parts")}


def test_a_worker_that_was_overtaken_cannot_write(storage: FolderStorage) -> None:
    first, second = overtake(storage)
    with pytest.raises(TakenOver):
        commit(storage, first, STACK, b"of the first", b"table of the first")
    assert not parts(storage)
    commit(storage, second, STACK, b"of the second", b"table of the second")
    second.release(finished=True)
    before = parts(storage)
    with pytest.raises(TakenOver):
        commit(storage, first, STACK, b"of the first", b"table of the first")
    assert parts(storage) == before == {f"{STACK}.json": b"of the second", f"{STACK}.parquet": b"table of the second"}


class Waking(FolderStorage):
    """A storage in which something happens just before one key is created: after every check of its lease."""

    def __init__(self, root: Path, key: str, happens: Iterator[None]) -> None:
        super().__init__(root)
        self._key, self._happens = key, happens

    def create(self, key: str, content: bytes, durable: bool = True) -> bool:
        if key.endswith(self._key):
            next(self._happens, None)
        return super().create(key, content, durable)


@pytest.mark.parametrize("key", [".json", ".parquet"])
def test_a_worker_that_is_paused_between_check_and_write_does_not_overwrite(tmp_path: Path, key: str) -> None:
    storage = FolderStorage(tmp_path)
    first = take(Leases(storage, SHORT, command="same"))
    stop_renewing(first)

    def successor() -> Iterator[None]:
        second = take(Leases(storage, SHORT, command="same"))
        commit(storage, second, STACK, b"of the second", b"table of the second")
        yield

    with pytest.raises(TakenOver):
        commit(Waking(tmp_path, f"{STACK}{key}", successor()), first, STACK, b"of the first", b"table of the first")
    assert parts(storage) == {f"{STACK}.json": b"of the second", f"{STACK}.parquet": b"table of the second"}


def test_a_late_table_between_the_successors_two_files_is_replaced_by_the_successors(tmp_path: Path) -> None:
    storage = FolderStorage(tmp_path)

    def predecessor() -> Iterator[None]:
        storage.create(f"parts/{STACK}.parquet", b"table of the first")
        yield

    lease = take(Leases(storage))
    commit(Waking(tmp_path, ".parquet", predecessor()), lease, STACK, b"of the second", b"table of the second")
    assert parts(storage) == {f"{STACK}.json": b"of the second", f"{STACK}.parquet": b"table of the second"}


def test_what_a_process_left_between_its_two_files_is_replaced(storage: FolderStorage) -> None:
    storage.write(f"parts/{STACK}.json", b"left")
    commit(storage, take(Leases(storage)), STACK, b"mine", b"table")
    assert parts(storage) == {f"{STACK}.json": b"mine", f"{STACK}.parquet": b"table"}


def test_a_table_without_description_is_kept_aside(storage: FolderStorage) -> None:
    storage.write(f"parts/{STACK}.parquet", b"left")
    commit(storage, take(Leases(storage)), STACK, b"mine", b"table")
    assert parts(storage) == {f"{STACK}.json": b"mine", f"{STACK}.parquet": b"table"}
    (name,) = storage.list("damaged")
    assert storage.read(f"damaged/{name}") == b"left"


# Locks and leases in one folder


def test_a_folder_without_leases_is_locked_as_ever(tmp_path: Path) -> None:
    claims = Claims(tmp_path)
    with claims.lock(STACK, lambda _: False) as mine:
        assert mine
        assert claims.lease(STACK) is None
        claims.guard(STACK)
    assert [path.name for path in tmp_path.iterdir()] == ["locks"]


def test_a_lock_of_this_machine_keeps_a_cluster_away(tmp_path: Path) -> None:
    cluster = Claims(tmp_path)
    cluster.share()
    with try_lock(tmp_path / "locks" / f"{STACK}.lock") as locked:
        assert locked
        with cluster.lock(STACK, lambda _: False) as mine:
            assert not mine
        assert cluster.is_held(STACK)


def test_a_process_with_a_lock_alone_is_refused_once_there_is_a_lease(tmp_path: Path) -> None:
    """As on two machines that do not see each other's locks."""
    local, cluster = Claims(tmp_path), Claims(tmp_path)
    with local.lock(STACK, lambda _: False) as mine:
        assert mine
        cluster.share()
        os.rename(tmp_path / "locks", tmp_path / "unseen")
        with cluster.lock(STACK, lambda _: False) as taken:
            assert taken
            with pytest.raises(TakenOver):
                local.guard(STACK)


def test_local_commands_use_leases_in_a_folder_that_has_them(tmp_path: Path) -> None:
    Claims(tmp_path).share()
    one, two = Claims(tmp_path), Claims(tmp_path)
    with one.lock(STACK, lambda _: False) as mine, two.lock(STACK, lambda _: False) as yours:
        assert (mine, yours) == (True, False)
        assert two.is_held(STACK)
    assert not two.is_held(STACK)


# A storage that fails


class Flaky(FolderStorage):
    """Fails the first attempts; `late`: after they were carried out."""

    def __init__(self, root: Path, failures: int, late: bool = False) -> None:
        super().__init__(root)
        self._failures, self._late = failures, late

    def create(self, key: str, content: bytes, durable: bool = True) -> bool:
        if self._failures:
            self._failures -= 1
            if self._late:
                super().create(key, content, durable)
            raise OSError("made to fail")
        return super().create(key, content, durable)


@pytest.mark.parametrize("late", [False, True])
def test_a_creation_whose_answer_was_lost_is_known_as_ours(tmp_path: Path, late: bool) -> None:
    assert PatientStorage(Flaky(tmp_path, 2, late)).create("key", b"mine")
    assert not PatientStorage(Flaky(tmp_path, 2, late)).create("key", b"another's")
    assert (tmp_path / "key").read_bytes() == b"mine"


def test_a_storage_that_never_answers_is_an_error_in_words(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"key cannot be written \(OSError: made to fail\)"):
        PatientStorage(Flaky(tmp_path, 99), attempts=2).create("key", b"mine")
