"""Results in a storage that is no file system: the same table, resumed there, and refusals of what cannot be safe."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from neoteny.cli.parser import main
from neoteny.suite import follow
from neoteny.suite.store import remote
from neoteny.suite.store import storage as storages
from neoteny.suite.store.errors import StoreError
from neoteny.suite.store.leases import Leases
from neoteny.suite.store.objects import check_storage, open_storage
from neoteny.suite.store.remote import copy_folder, fetch_results
from neoteny.suite.store.results import Results
from neoteny.suite.store.storage import FolderStorage
from support import object_store
from support.suite import Zygote, wait_until, write_experiment

FAST = ("--kernel", "reference", "--jobs", "1")


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A small experiment, and its results in a folder."""
    folder = tmp_path_factory.mktemp("local")
    experiment = write_experiment(folder / "small.py", tasks=3, examples=20, selection="Selection(1)")
    assert main(["run", str(experiment), *FAST, "--out", str(folder / "out")]) == 0
    return experiment, folder / "out"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies of storages lie in a folder of the test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    """A bucket of a server that fails one write in twenty."""
    pytest.importorskip("moto")
    pytest.importorskip("s3fs")
    with object_store.bucket(failures=20) as (address, _):
        yield address


def assert_same(address: str, folder: Path) -> None:
    one, two = Results.open(fetch_results(address)).frame(), Results.open(folder).frame()
    assert len(one) > 0
    assert one.equals(two)


def test_a_bucket_that_fails_one_write_in_twenty_gets_the_table_of_a_folder(
    bucket: str, local: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    experiment, folder = local
    address = f"{bucket}/sweep"
    command = ["run", str(experiment), *FAST, "--out", address, "--checkpoint-seconds", "0"]
    assert main(command) == 0
    assert_same(address, folder)
    storage = open_storage(address)
    assert not storage.list("checkpoints")
    assert not storage.list("unfinished")
    assert main(["status", address]) == 0
    assert "0 of 14 planned left" in capsys.readouterr().out
    assert main(["report", address]) == 0
    assert (copy_folder(address) / "report.html").exists()
    assert main(command) == 0
    assert "0 stacks to train" in capsys.readouterr().err


def test_creating_an_object_is_exclusive_there(bucket: str) -> None:
    storage = open_storage(f"{bucket}/keys")
    for number in range(30):
        assert storage.create(f"folder/{number}", b"mine %d" % number)
        assert not storage.create(f"folder/{number}", b"another's")
        assert storage.read(f"folder/{number}") == b"mine %d" % number
    assert len(storage.list("folder")) == 30
    storage.remove("folder/3")
    storage.remove("folder/3")
    assert not storage.exists("folder/3")
    with pytest.raises(FileNotFoundError):
        storage.read("folder/3")


def test_a_killed_worker_is_continued_from_its_checkpoint_in_the_storage(tmp_path: Path, zygote: Zygote) -> None:
    experiment = write_experiment(tmp_path / "long.py", tasks=40, examples=25, first=2)
    log, there = tmp_path / "log.txt", tmp_path / "storage"
    run = ("run", experiment, *FAST, "--checkpoint-seconds", "0")
    where = {"output": log, "environment": {"XDG_CACHE_HOME": str(tmp_path / "cache")}}
    assert zygote.run(*run, "--out", tmp_path / "whole", **where) == 0, log.read_text()
    process = zygote.start(*run, "--out", there.as_uri(), **where)
    wait_until(lambda: any(there.glob("checkpoints/*/00000[2-9]*.pt")))
    os.kill(process, signal.SIGKILL)
    assert zygote.wait(process) == -signal.SIGKILL
    assert zygote.run(*run, "--out", there.as_uri(), **where) == 0, log.read_text()
    (part,) = Results.open(fetch_results(there.as_uri())).parts()
    assert part["resumed"] == 1
    assert_same(there.as_uri(), tmp_path / "whole")
    # The kill may have left a temporary file of `FolderStorage`, which has a name that nobody reads.
    files = [
        path for path in there.rglob("*") if path.is_file() and not re.fullmatch(r"\..+\.[0-9a-f]{12}\.tmp", path.name)
    ]
    left = {path.relative_to(there).parts[0] for path in files}
    assert left == {"analysis.json", "experiment.json", "experiment.py", "parts", "plan.json", "progress"}


def test_repair_moves_a_damaged_part_out_of_the_storage(tmp_path: Path, local: tuple[Path, Path]) -> None:
    experiment, folder = local
    there = tmp_path / "storage"
    command = ["run", str(experiment), *FAST, "--out", there.as_uri()]
    assert main(command) == 0
    table = min(there.glob("parts/*.parquet"))
    content = bytearray(table.read_bytes())
    content[len(content) // 2] ^= 1
    table.write_bytes(content)
    assert main(command) == 1
    assert main([*command, "--repair"]) == 0
    assert_same(there.as_uri(), folder)
    assert table.read_bytes() != content


def test_a_storage_of_another_experiment_is_refused(tmp_path: Path, local: tuple[Path, Path]) -> None:
    there = (tmp_path / "storage").as_uri()
    assert main(["run", str(local[0]), *FAST, "--out", there]) == 0
    other = write_experiment(tmp_path / "other.py", tasks=3, examples=20)
    assert main(["run", str(other), *FAST, "--out", there]) == 1
    assert_same(there, local[1])


@pytest.mark.parametrize(
    ("address", "text"),
    [
        ("ftp://host/folder", "cannot be kept in a storage of kind ftp"),
        ("s3://", "expected s3://BUCKET/PREFIX"),
        ("file://host/folder", "expected file:///absolute/path"),
        ("gs://bucket/x", "gs:// needs gcsfs"),
    ],
)
def test_what_cannot_be_used_is_refused_in_words(address: str, text: str) -> None:
    with pytest.raises(StoreError, match=text):
        open_storage(address)


class Overwriting(FolderStorage):
    """A store that ignores the condition of a conditional put."""

    def create(self, key: str, content: bytes, durable: bool = True) -> bool:
        self.write(key, content, durable)
        return True


def test_a_store_that_ignores_conditions_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="If-None-Match"):
        check_storage(Overwriting(tmp_path))
    assert not list(tmp_path.iterdir())
    check_storage(FolderStorage(tmp_path))


def test_what_shows_a_storage_while_it_is_written_sees_what_is_new(
    tmp_path: Path, zygote: Zygote, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`status --follow` ends by itself when another process has finished the sweep there."""
    monkeypatch.setattr(remote, "_FETCH_SECONDS", 0.1)
    monkeypatch.setattr(follow, "REFRESH_SECONDS", 0.1)
    experiment = write_experiment(tmp_path / "small.py", tasks=3, examples=20)
    there = (tmp_path / "storage").as_uri()
    command = ["run", str(experiment), *FAST, "--out", there]
    assert main([*command, "--stop-after", "0"]) == 130
    with ThreadPoolExecutor(1) as pool:
        shown = pool.submit(main, ["status", there, "--follow"])
        wait_until(lambda: "0 of 12 runs finished" in capsys.readouterr().out)
        log, elsewhere = tmp_path / "log.txt", {"XDG_CACHE_HOME": str(tmp_path / "of another machine")}
        assert zygote.run(*command, output=log, environment=elsewhere) == 0, log.read_text()
        assert shown.result(timeout=60) == 0
    assert "0 of 12 planned left" in capsys.readouterr().out


def test_a_lease_in_a_storage_shows_as_running_until_it_is_given_back(tmp_path: Path) -> None:
    experiment = write_experiment(tmp_path / "small.py", tasks=3, examples=20)
    there = (tmp_path / "storage").as_uri()
    assert main(["run", str(experiment), *FAST, "--out", there]) == 0
    storage = open_storage(there)
    stack = min(storage.list("parts")).partition(".")[0]
    storage.remove(f"parts/{stack}.parquet")
    lease = Leases(storage).claim(stack)
    assert lease is not None
    assert Results.open(fetch_results(there)).is_running(stack)
    lease.release(finished=False)
    assert not Results.open(fetch_results(there)).is_running(stack)


def test_a_bucket_that_is_not_there_or_a_server_that_is_dead_is_told(
    bucket: str, local: tuple[Path, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["run", str(local[0]), *FAST, "--out", "s3://nowhere/sweep"]) == 1
    assert "s3://nowhere/sweep: there is no such bucket" in capsys.readouterr().err
    monkeypatch.setattr(storages, "_FIRST_WAIT_SECONDS", 0.001)
    with pytest.raises(StoreError, match=r"cannot be written \(OSError: dead\)"):  # not: cannot be removed
        check_storage(storages.PatientStorage(Dead(Path("nowhere")), 2))


class Dead(FolderStorage):
    """A storage that does not answer."""

    def create(self, key: str, content: bytes, durable: bool = True) -> bool:
        raise OSError("dead")

    def remove(self, key: str) -> None:
        raise OSError("dead")


def test_a_storage_without_results_cannot_be_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", (tmp_path / "nothing").as_uri()]) == 1
    assert "is not a results folder" in capsys.readouterr().err
