"""The index of a results folder: it saves time, and nothing else about a folder changes with it."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as parquet
import pytest
import torch

from neoteny.methods import SGD
from neoteny.nets import MLP
from neoteny.problems import SlowlyChangingRegression
from neoteny.suite.identity import RESULTS_VERSION
from neoteny.suite.progress import status_text
from neoteny.suite.stacks import PlannedStack, Run, runs_of
from neoteny.suite.store import index
from neoteny.suite.store.errors import StoreError
from neoteny.suite.store.folder import ResultsFolder
from neoteny.suite.store.results import Results
from neoteny.suite.store.rows import Owner, Rows
from neoteny.suite.store.tables import take_first_tasks
from neoteny.suite.sweep import Setting, Sweep, network
from support.drawn_results import Drawn, write_drawn

NET = network(MLP, hidden=(3,))
SWEEP = Sweep(
    SlowlyChangingRegression(tasks=4, examples_per_task=2),
    tuple(Setting("SGD", NET, (SGD(0.1 / n),), {"step_size": 0.1 / n, "kind": "ab"[n % 2]}) for n in range(1, 5)),
    runs=6,
)
ABOUT = {"experiment": "small", "scale": "smoke", "data": "", "configuration": {}, "versions": {}}


def group(size: int) -> list[PlannedStack]:
    """The runs of the sweep in stacks of this size, some runs in two of them."""
    runs: list[Run] = runs_of(SWEEP, SWEEP.settings, "reference")
    stacks = [PlannedStack(SWEEP, tuple(runs[start : start + size])) for start in range(0, len(runs), size)]
    return [*stacks, PlannedStack(SWEEP, tuple(runs[1 : 1 + size]))]


def make(root: Path, size: int = 2) -> Results:
    results = Results.create(root, ABOUT)
    draws = torch.Generator().manual_seed(1)
    for number, stack in enumerate(group(size)):
        tasks = 2 if number in (2, 5) else None
        write_drawn(results, stack, Drawn(stack, draws, tasks, ("dead_units",) if number % 2 else ()))
    return results


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """An index of every folder, however small and new."""
    monkeypatch.setattr(index, "FEWEST_RUNS", 1)
    monkeypatch.setattr(index, "SETTLED_SECONDS", 0.01)


@pytest.fixture
def folder(always: None, tmp_path: Path) -> Path:
    """A folder with an index of everything."""
    make(tmp_path / "out")
    build(tmp_path / "out")
    return tmp_path / "out"


def build(root: Path) -> None:
    """Let commands that read write the index; they do so when files have not changed for a moment."""
    while not all((root / "index" / name).exists() for name in ("parts.json", "progress.json", "rows.arrow")):
        status_text(ResultsFolder.open(root))
        Results.open(root).frame()


def without_index(root: Path, so_far: bool = False) -> tuple[str, pd.DataFrame, set[str]]:
    """What a reader that has no index finds."""
    away = root.parent / "away"
    moved = (root / "index").exists()
    if moved:
        (root / "index").rename(away)
    try:
        return read(root, so_far)
    finally:
        shutil.rmtree(root / "index", ignore_errors=True)
        if moved:
            away.rename(root / "index")


def read(root: Path, so_far: bool = False) -> tuple[str, pd.DataFrame, set[str]]:
    results = Results.open(root)
    return status_text(ResultsFolder.open(root)), results.frame(so_far), results.finished_runs()


def same(one: tuple[str, pd.DataFrame, set[str]], other: tuple[str, pd.DataFrame, set[str]]) -> None:
    assert one[0] == other[0]
    pd.testing.assert_frame_equal(one[1], other[1])
    assert one[2] == other[2]


def find(root: Path, pattern: str) -> Path:
    return sorted(root.glob(pattern))[0]


def flip(path: Path, place: float = 0.5) -> None:
    content = bytearray(path.read_bytes())
    content[int(place * len(content))] ^= 1
    path.write_bytes(content)


# What is read


def test_the_table_is_that_of_all_parts_put_together_and_sorted(tmp_path: Path) -> None:
    """Against a table made with pandas alone: parts one after the other, each run once, sorted."""
    results = make(tmp_path / "out")
    tables, seen = [], set()
    for path in sorted((tmp_path / "out" / "parts").glob("*.parquet")):
        part = parquet.read_table(path).to_pandas()
        tables.append(part[~part["run_id"].isin(seen)])
        seen |= set(part["run_id"])
    expected = pd.concat(tables, ignore_index=True)
    for name in ("run_id", "method", "setting", "hyperparameters", "metric"):
        expected[name] = expected[name].astype(str)
    expected = expected.sort_values(["method", "setting", "seed", "metric", "task"], kind="stable", ignore_index=True)
    details = expected["hyperparameters"].map(json.loads)
    for name in ("step_size", "kind"):
        expected[name] = details.map(lambda detail, name=name: detail[name])
    expected["scale"] = "smoke"
    pd.testing.assert_frame_equal(results.frame(), expected)


def as_categories(frame: pd.DataFrame) -> pd.DataFrame:
    """The same table with categories in place of texts, by pandas alone."""
    texts = [name for name in frame.columns if isinstance(frame[name].dtype, pd.StringDtype)]
    return frame.astype(dict.fromkeys(texts, "category"))


def test_categories_are_those_that_pandas_makes_of_the_texts(tmp_path: Path) -> None:
    results = make(tmp_path / "out")
    frame, expected = results.frame(categories=True), as_categories(results.frame())
    assert isinstance(frame["kind"].dtype, pd.CategoricalDtype)
    pd.testing.assert_frame_equal(frame, expected)
    first = take_first_tasks(frame, 3, 1)
    assert len(first) < len(frame)
    pd.testing.assert_frame_equal(
        first, as_categories(take_first_tasks(results.frame(), 3, 1)), check_categorical=False
    )


def test_categories_leave_out_what_no_row_has_and_know_missing_details() -> None:
    owners = [
        Owner(0, f"{n:x}", "SGD", label, json.dumps(details), n)
        for n, (label, details) in enumerate([("b", {"kind": "z"}), ("a", {"size": 1}), ("c", {"kind": "y"})])
    ]
    owner, metric, task = (np.array(x) for x in ([1, 0, 0], [0, 0, 0], [0, 0, 1]))
    rows = Rows(("0",), tuple(owners), ("error", "unused"), owner, metric, task, np.array([1.0, 2.0, 3.0]))
    frame = rows.frame({"scale": "smoke"}, categories=True)
    pd.testing.assert_frame_equal(frame, as_categories(rows.frame({"scale": "smoke"})))
    assert list(frame["setting"].cat.categories) == ["a", "b"]
    assert list(frame["metric"].cat.categories) == ["error"]
    assert list(frame["kind"].isna()) == [True, False, False]


def test_a_part_counts_where_both_of_its_files_are_there(tmp_path: Path) -> None:
    """Against a look at each file by its path; links to nowhere, hidden and unfinished files are among them."""
    for name in ("ab.json", "ab.parquet", "cd.json", "ef.parquet", ".0.json", ".0.parquet", "x.json", "x.parquet"):
        (tmp_path / name).write_text(name)
    (tmp_path / "0a.json").write_text("")
    (tmp_path / "0a.parquet").symlink_to(tmp_path / "nowhere")
    (tmp_path / "12.b.json").write_text("1")
    (tmp_path / "12.b.parquet").write_text("22")
    stacks = ("ab", "12.b")
    expected = {
        stack: tuple(index.sign((tmp_path / f"{stack}{ending}").stat()) for ending in (".parquet", ".json"))
        for stack in sorted(stacks)
    }
    found = index.list_pairs(tmp_path, ".parquet", ".json")
    assert found == expected
    assert list(found) == list(expected)
    assert index.list_paired_names(tmp_path, ".parquet", ".json") == {*stacks, "0a"}  # links are not followed here
    assert index.list_files(tmp_path, ".json", {"ab", "cd"}).keys() == {"ab", "cd"}
    assert index.list_pairs(tmp_path / "none", ".parquet", ".json") == {}
    assert index.list_paired_names(tmp_path / "none", ".parquet", ".json") == set()


@pytest.mark.parametrize("so_far", [False, True])
def test_reading_with_an_index_gives_what_reading_without_gives(so_far: bool, folder: Path) -> None:
    same(read(folder, so_far), without_index(folder, so_far))


def test_nothing_is_lost_or_stale_however_a_folder_changes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts come, go, are replaced and are read before they have settled, in any order; each look is compared."""
    draw, generator = random.Random(3), torch.Generator().manual_seed(2)
    stacks = [*group(2), *group(3)]
    for _ in range(40):
        monkeypatch.setattr(index, "SETTLED_SECONDS", draw.choice([0.0, 0.0, 1e9]))
        results = Results.open(folder)
        for stack in draw.sample(stacks, draw.randrange(3)):
            part = folder / "parts" / f"{stack.stack_id}.parquet"
            if part.exists():
                part.unlink()
                part.with_suffix(".json").unlink()
            if draw.random() < 0.7:
                write_drawn(results, stack, Drawn(stack, generator))
        if draw.random() < 0.3:
            path = draw.choice(sorted((folder / "index").glob("[a-z]*")))
            path.unlink()
        looked = read(folder, so_far=draw.random() < 0.5) if draw.random() < 0.5 else None
        so_far = looked is not None and draw.random() < 0.5
        same(read(folder, so_far), without_index(folder, so_far))


def test_an_object_that_lives_on_sees_what_is_new(folder: Path) -> None:
    results = Results.open(folder)
    before = results.finished_runs()
    stack = next(stack for stack in group(2) if not results.is_finished(stack.stack_id))
    write_drawn(results, stack, Drawn(stack, torch.Generator()))
    assert results.finished_runs() == before | {run.run_id for run in stack.runs}
    assert results.progress()[stack.stack_id]["state"] == "finished"


# Damage


@pytest.mark.parametrize("pattern", ["parts/*.parquet", "parts/*.json"])
@pytest.mark.parametrize("place", [0.1, 0.5, 0.9])
def test_a_part_that_was_damaged_after_it_was_indexed_is_named(pattern: str, place: float, folder: Path) -> None:
    path = find(folder, pattern)
    flip(path, place)
    assert f"  {path}: " in status_text(ResultsFolder.open(folder))
    for refused in (lambda: Results.open(folder).frame(), lambda: Results.create(folder, ABOUT)):
        with pytest.raises(StoreError, match=path.name):
            refused()


def test_a_replaced_file_with_the_old_size_and_time_is_read_again(folder: Path) -> None:
    path = find(folder, "parts/*.parquet")
    about = path.stat()
    copy = path.with_suffix(".copy")
    shutil.copyfile(path, copy)
    flip(copy)
    os.utime(copy, ns=(about.st_atime_ns, about.st_mtime_ns))
    copy.replace(path)
    assert path.stat().st_mtime_ns == about.st_mtime_ns
    assert path.name in status_text(ResultsFolder.open(folder))


def test_a_file_that_has_just_been_written_is_not_trusted(
    always: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its times would not show a second change within one tick of the file system's clock."""
    monkeypatch.setattr(index, "SETTLED_SECONDS", 1e6)
    make(tmp_path)
    read(tmp_path)
    assert not (tmp_path / "index").exists()


def test_a_damaged_progress_file_is_named(folder: Path) -> None:
    path = find(folder, "progress/*.json")
    flip(path)
    assert f"{path} is damaged" in status_text(ResultsFolder.open(folder))


def test_repair_reads_everything_and_not_the_index(folder: Path) -> None:
    path = find(folder, "parts/*.parquet")
    flip(path)
    known = folder / "index" / "parts.json"
    content = json.loads((index.read_sealed(known) or b"").decode())
    content["entries"][path.stem][0][0] = index.sign(path.stat())  # as if the damage had left no trace
    index.save_sealed(known, json.dumps(content).encode())
    assert "damaged" not in status_text(ResultsFolder.open(folder))
    Results.create(folder, ABOUT, repair=True)
    assert (folder / "damaged" / path.name).exists()
    same(read(folder), without_index(folder))


def test_a_damaged_index_is_no_index(folder: Path) -> None:
    expected = without_index(folder, so_far=True)
    damages: list[Callable[[Path], object]] = [
        flip,
        lambda path: flip(path, 0.0),
        lambda path: path.write_bytes(path.read_bytes()[:100]),
        lambda path: path.write_bytes(b""),
        lambda path: index.save_sealed(path, b"[1, 2"),
        lambda path: index.save_sealed(path, b'{"format": 1, "owner": 3, "entries": 4}'),
        lambda path: index.save_sealed(path, b"null"),
    ]
    for name in ("parts.json", "progress.json", "rows.arrow"):
        for damage in damages:
            build(folder)
            damage(folder / "index" / name)
            same(read(folder, so_far=True), expected)


def test_an_index_of_another_folder_is_not_used(folder: Path, tmp_path: Path) -> None:
    """A copy has other inodes and times; its index says nothing about its files."""
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    path = find(copy, "parts/*.parquet")
    about = path.stat()
    flip(path)
    os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))
    assert path.name in status_text(ResultsFolder.open(copy))


# Where there is one


def test_small_folders_have_no_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "SETTLED_SECONDS", 0.0)
    make(tmp_path)
    read(tmp_path)
    assert not (tmp_path / "index").exists()


def test_a_folder_that_cannot_be_written_is_read_all_the_same(folder: Path) -> None:
    expected = without_index(folder)
    shutil.rmtree(folder / "index")
    (folder / "index").write_text("in the way")
    same(read(folder), expected)
    assert (folder / "index").read_text() == "in the way"


def test_nothing_is_written_through_a_linked_index(folder: Path, tmp_path: Path) -> None:
    shutil.rmtree(folder / "index")
    (tmp_path / "elsewhere").mkdir()
    (folder / "index").symlink_to(tmp_path / "elsewhere")
    read(folder)
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_many_finished_stacks_are_counted_in_one_row(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("neoteny.suite.progress.MOST_ROWS", 5)
    text = status_text(ResultsFolder.open(folder))
    finished = len(list((folder / "parts").glob("*.parquet")))
    (row,) = [line.split() for line in text.splitlines() if " finished  " in line]
    assert row == [str(finished), "stacks", "finished", str(2 * finished)]
    assert text.count("stopped") == 2


def test_results_of_this_version_only(folder: Path) -> None:
    """The index belongs to what experiment.json says; where that changes, parts are looked at again."""
    about = json.loads((folder / "experiment.json").read_text())
    assert about["results_version"] == RESULTS_VERSION
    assert Results.open(folder).check_records(about={**Results.open(folder).about, "data": "other"})[0] == []
