"""`--track`: each task's mean once, over interruptions too, in programs that work without a network."""

from __future__ import annotations

import importlib
import json
import math
import os
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd
import pytest

from neoteny.cli import parser as cli
from neoteny.cli import run as launch
from neoteny.cli.trust import command_to_continue
from neoteny.suite.store.results import Results
from neoteny.suite.trackers import tracking
from neoteny.suite.trackers.tracker import Point, TrackedSetting, Tracker
from support.flipped_bits import StopAt
from support.suite import write_experiment

Run = Callable[..., int]


class Recorder(Tracker):
    """Keeps what it is told."""

    told: ClassVar[list[tuple[str, Sequence[Point], bool]]] = []
    ended: ClassVar[int] = 0

    def log(self, setting: TrackedSetting, points: Sequence[Point], complete: bool) -> None:
        self.told.append((setting.label, points, complete))

    def end(self) -> None:
        Recorder.ended += 1


class Failing(Recorder):
    """Cannot be reached."""

    def log(self, setting: TrackedSetting, points: Sequence[Point], complete: bool) -> None:
        raise ConnectionError("no route to host.")


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """`neoteny run` of the small experiment, with --track."""
    experiment = write_experiment(tmp_path / "small.py", tasks=3, examples=10)
    Recorder.told.clear()

    def start(tracker: str, *more: str) -> int:
        options = ("--out", str(tmp_path / "out"), "--jobs", "1", "--kernel", "reference", "--track", tracker)
        return cli.main(["run", str(experiment), *options, *more])

    return start


@pytest.fixture
def ours(monkeypatch: pytest.MonkeyPatch) -> str:
    """The name under which the recorder is found."""
    monkeypatch.setitem(sys.modules, "recorders", sys.modules[__name__])
    return "recorders:Recorder"


def expected(folder: Path) -> dict[tuple[str, str, int], float]:
    """(setting, metric, task) -> mean over runs, computed from the table."""
    frame = Results.open(folder).frame()
    means = frame.groupby(["setting", "metric", "task"])["value"].mean()
    return {key: float(value) for key, value in means.to_dict().items()}  # pyright: ignore[reportReturnType]


def recorded() -> dict[tuple[str, str, int], float]:
    points = [(label, point) for label, some, _ in Recorder.told for point in some]
    found = {(label, point.metric, point.task): point.mean for label, point in points}
    assert len(found) == len(points)  # each once
    return found


# What is told


def test_every_mean_is_told_once_and_the_last_call_of_a_setting_says_so(run: Run, ours: str, tmp_path: Path) -> None:
    ended = Recorder.ended
    assert run(ours) == 0
    assert recorded() == pytest.approx(expected(tmp_path / "out"))
    assert [complete for _, _, complete in Recorder.told] == [True] * 4
    assert Recorder.ended == ended + 1
    assert run(ours) == 0  # nothing is new
    assert len(Recorder.told) == 4


def test_a_sweep_that_was_stopped_goes_on_where_it_was(
    run: Run, ours: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(launch, "StopFlag", lambda: StopAt(1 + 2))
        assert run(ours, "--checkpoint-seconds", "0") == launch.STOPPED
    first = recorded()
    assert first
    assert not any(complete for _, _, complete in Recorder.told)
    assert run(ours) == 0
    assert recorded() == pytest.approx(expected(tmp_path / "out"))
    assert {key: value for key, value in recorded().items() if key in first} == first


def test_a_task_is_told_when_all_runs_have_finished_it() -> None:
    rows = pd.DataFrame(
        {
            "seed": [0, 0, 0, 1, 1, 2],
            "metric": ["error"] * 6,
            "task": [0, 1, 2, 0, 1, 0],
            "value": [1.0, 2.0, 3.0, 3.0, 4.0, 100.0],
        }
    )
    points, reached = tracking.find_points(rows, range(2), {})
    assert points == [Point("error", 0, 2.0), Point("error", 1, 3.0)]  # seed 2 is of a later stage
    assert reached == {"error": 1}
    assert tracking.find_points(rows, range(2), reached) == ([], reached)
    ((first,), _) = tracking.find_points(rows, range(3), {})
    assert first.mean == pytest.approx(104 / 3)


def test_a_mean_over_a_diverged_run_is_not_a_number() -> None:
    rows = pd.DataFrame({"seed": [0, 1], "metric": ["error"] * 2, "task": [0, 0], "value": [1.0, math.nan]})
    ((point,), _) = tracking.find_points(rows, range(2), {})
    assert math.isnan(point.mean)


def test_a_tracker_that_fails_does_not_end_the_sweep(
    run: Run, ours: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("recorders:Failing") == 0
    said = capsys.readouterr().err
    assert said.count("--track Failing has stopped: ConnectionError: no route to host.") == 1
    assert len(Results.open(tmp_path / "out").finished_runs()) == 12


def test_what_was_told_is_refused_where_it_is_not_what_was_written(
    run: Run, ours: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(ours) == 0
    path = tmp_path / "out" / "track" / "Recorder.json"
    for content in ("[]", '{"a": 3}', "{"):
        path.write_text(content)
        assert run(ours) == 1
        assert str(path) in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("tensorbord", "Did you mean 'tensorboard'?"),
        ("nothing.of.this:Kind", "it cannot be imported"),
        ("json:dumps", "expected a subclass of Tracker"),
        ("json:JSONDecoder", "expected a subclass of Tracker"),
    ],
)
def test_an_unknown_tracker_is_refused_before_anything_runs(
    name: str, said: str, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(name) == 1
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", list(tracking.TRACKERS))
def test_a_tracker_whose_package_is_missing_is_refused_with_what_to_install(
    name: str, run: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracking.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=rf"pip install 'neoteny\[{name}\]'"):
        tracking.find_tracker(name)


def test_a_folder_does_not_suggest_a_command_that_imports_a_module(run: Run, ours: str, tmp_path: Path) -> None:
    assert run(ours) == 0
    results = Results.open(tmp_path / "out")
    assert ours in results.plan()["command"]
    command = command_to_continue(results)
    assert command.startswith("neoteny run")
    assert "--track" not in command


# The programs


def test_tensorboard_has_every_mean_and_the_link(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    events = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
    assert run("tensorboard") == 0
    found: dict[tuple[str, str, int], float] = {}
    folders = sorted((tmp_path / "out" / "track" / "tensorboard").iterdir())
    assert folders[0].name == "BP (step_size=0.003)"
    for folder in folders:
        read = events.EventAccumulator(str(folder))
        read.Reload()
        for metric in read.Tags()["scalars"]:
            found |= {(folder.name, metric, each.step): each.value for each in read.Scalars(metric)}
        (link,) = read.Tensors("report/text_summary")
        assert (tmp_path / "out" / "report.html").as_uri() in link.tensor_proto.string_val[0].decode()
    assert found == pytest.approx(expected(tmp_path / "out"), rel=1e-6)


def read_log(content: bytes) -> Iterator[bytes]:
    """The records of an offline file: LevelDB's log format (blocks of 32 KiB; checksum, length, kind) after 7 bytes."""
    place, record = 7, b""
    while place + 7 <= len(content):
        left = 32768 - place % 32768
        if left < 7:
            place += left
            continue
        length, kind = int.from_bytes(content[place + 4 : place + 6], "little"), content[place + 6]
        record += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # a whole record, or the last piece of one
            yield record
            record = b""


@pytest.mark.filterwarnings("ignore")  # of its libraries about each other
def test_wandb_offline_keeps_a_run_per_setting(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    for name in ("WANDB_DATA_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    assert run("wandb") == 0
    records = importlib.import_module("wandb.proto.wandb_internal_pb2")
    found: dict[tuple[str, str, int], float] = {}
    files = sorted((tmp_path / "out" / "track" / "wandb").rglob("*.wandb"))
    assert len(files) == 4
    for path in files:
        name, link = "", ""
        for content in read_log(path.read_bytes()):
            record = records.Record()
            record.ParseFromString(content)
            if record.HasField("run"):
                name, link = record.run.display_name, record.run.notes
            if record.HasField("history"):
                values = {(each.key or each.nested_key[0]): json.loads(each.value_json) for each in record.history.item}
                for metric in {"error", "dead_units"} & values.keys():
                    found[name, metric, values["task"]] = values[metric]
        assert (tmp_path / "out" / "report.html").as_uri() in link
    known = {key: value for key, value in expected(tmp_path / "out").items() if key[1] in ("error", "dead_units")}
    assert found == pytest.approx(known)


@pytest.mark.filterwarnings("ignore")  # of its libraries about each other
def test_mlflow_keeps_a_run_per_setting_in_a_file(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with monkeypatch.context() as patch:
        patch.setattr(launch, "StopFlag", lambda: StopAt(1 + 2))
        assert run("mlflow", "--checkpoint-seconds", "0") == launch.STOPPED
    assert run("mlflow") == 0
    mlflow: Any = importlib.import_module("mlflow")
    address = f"sqlite:///{tmp_path / 'out' / 'track' / 'mlflow' / 'mlflow.db'}"
    client = mlflow.MlflowClient(tracking_uri=address)
    experiment = client.get_experiment_by_name("neoteny/small-laptop")
    runs = client.search_runs([experiment.experiment_id])
    assert len(runs) == 4  # also after it was stopped and continued
    found: dict[tuple[str, str, int], float] = {}
    for each in runs:
        assert each.info.status == "FINISHED"
        assert each.data.tags["neoteny.report"] == (tmp_path / "out" / "report.html").as_uri()
        assert each.data.params["method"] in ("BP", "CBP")
        for metric in each.data.metrics:
            history = client.get_metric_history(each.info.run_id, metric)
            assert len(history) == len({one.step for one in history})
            found |= {(each.info.run_name, metric, one.step): one.value for one in history}
    assert found == pytest.approx(expected(tmp_path / "out"))


def test_a_tracker_of_ones_own_needs_one_small_file(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(
        textwrap.dedent(
            """
            from neoteny.suite.trackers.tracker import Tracker

            class Lines(Tracker):
                def log(self, setting, points, complete):
                    self.sweep.folder.mkdir(parents=True, exist_ok=True)
                    with open(self.sweep.folder / "lines.txt", "a") as file:
                        file.writelines(f"{setting.label} {one.metric} {one.task} {one.mean}\\n" for one in points)

                def end(self):
                    pass
            """
        )
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert run("mine:Lines") == 0
    lines = (tmp_path / "out" / "track" / "Lines" / "lines.txt").read_text().splitlines()
    assert len(lines) == len(expected(tmp_path / "out"))
    assert not os.environ.get("WANDB_MODE")
