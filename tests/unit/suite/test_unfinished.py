"""Less than all of an experiment: what unfinished runs have so far, the first tasks of runs, some of the methods."""

from __future__ import annotations

import io
import re
import shlex
import shutil
import tarfile
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path

import pandas as pd
import pytest

from neoteny.cli import parser as cli
from neoteny.cli import run as launch
from neoteny.cli.analysis import read_frame
from neoteny.cli.parser import RunOptions
from neoteny.cli.trust import find_experiment
from neoteny.suite.schedulers import local
from neoteny.suite.stopping import StopFlag
from neoteny.suite.store.results import Results
from support.suite import write_agents, write_experiment

SLOW = ("--kernel", "reference", "--checkpoint-seconds", "0")
"""The library, which needs no compiling, and a checkpoint after every block; here a task is one block."""

Command = Callable[..., int]


class StopAt(StopFlag):
    """A Ctrl-C that always comes at the same place: when the flag is looked at for the n-th time.

    It is looked at before every stack and after every block.
    """

    def __init__(self, looks: int) -> None:
        super().__init__()
        self._looks = looks

    def __bool__(self) -> bool:
        self._looks -= 1
        return self._looks <= 0


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Command:
    """`neoteny run`, stopped where it is said; returns the exit status."""

    def start(*arguments: str | Path, looks: int = 0) -> int:
        with monkeypatch.context() as patch:
            if looks:
                patch.setattr(launch, "StopFlag", lambda: StopAt(looks))
            return cli.main(["run", *map(str, arguments), "--jobs", "1"])

    return start


def write_small(path: Path, **numbers: int | str) -> Path:
    """The small experiment, measured at every second task."""
    experiment = write_experiment(path, **numbers)  # pyright: ignore[reportArgumentType]
    experiment.write_text(experiment.read_text().replace("measure_every=10", "measure_every=2"))
    return experiment


def read(out: Path, tasks: int | None = None) -> pd.DataFrame:
    """What `claims --tasks` judges."""
    results = Results.open(out)
    experiment = find_experiment(results, trust=True)
    assert experiment is not None
    return read_frame(results, experiment, tasks=tasks)


def anonymous(frame: pd.DataFrame) -> pd.DataFrame:
    """The table without the names of runs, which depend on how long they are to become."""
    return frame.drop(columns="run_id")


def complaint(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    """What a command says that fails in a way that the user can fix."""
    capsys.readouterr()
    assert cli.main([str(each) for each in arguments]) == 1
    return capsys.readouterr().err


# The first tasks


def test_the_first_tasks_of_a_long_run_are_all_of_a_short_one(tmp_path: Path, run: Command) -> None:
    for name, tasks in (("long", 5), ("short", 3)):
        assert run(write_small(tmp_path / "small.py", tasks=tasks), *SLOW, "--out", tmp_path / name) == 0
    short = anonymous(Results.open(tmp_path / "short").frame())
    assert sorted(short["metric"].unique()) == ["dead_units", "error", "replaced"]
    assert anonymous(read(tmp_path / "long", tasks=3)).equals(short)
    assert read(tmp_path / "long", tasks=5).equals(Results.open(tmp_path / "long").frame())


def test_the_first_tasks_of_an_agent_are_all_of_a_shorter_life_with_its_curves(tmp_path: Path, run: Command) -> None:
    pytest.importorskip("pybullet", reason="pybullet is not installed (the extra pybullet)")
    long = write_agents(tmp_path / "agents.py", "pybullet")
    assert run(long, "--checkpoint-seconds", "0", "--out", tmp_path / "long", looks=1 + 10) == 130  # 4 a task
    so_far = Results.open(tmp_path / "long").frame(so_far=True)
    assert so_far[so_far["metric"] == "return"]["task"].tolist() == [0, 1]
    assert so_far[so_far["metric"] == "return.curve"]["task"].tolist() == [0, 1, 2, 3]  # two points a task
    assert not so_far["value"].isna().any()
    long.write_text(long.read_text().replace("tasks=4", "tasks=2"))
    assert run(long, "--out", tmp_path / "short") == 0
    short = Results.open(tmp_path / "short").frame()
    assert anonymous(so_far).equals(anonymous(short))
    first = read(tmp_path / "short", tasks=1)
    assert first.equals(short[short["task"] < short["metric"].str.endswith(".curve") + 1].reset_index(drop=True))


def test_runs_that_are_not_so_far_are_left_out_and_none_being_so_far_is_said(
    tmp_path: Path, run: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    experiment, out = write_small(tmp_path / "small.py", tasks=4), tmp_path / "out"
    assert run(experiment, *SLOW, "--out", out, looks=1 + 4 + 1 + 2) == 130  # BP is done, CBP has two tasks
    assert set(read(out, tasks=2)["method"]) == {"BP", "CBP"}
    assert set(read(out, tasks=3)["method"]) == {"BP"}
    for command in ("claims", "report"):
        said = complaint(capsys, command, out, experiment, "--tasks", "5")
        assert f"--tasks 5: no run of {out} has finished that many tasks" in said
        assert f"neoteny status {out}" in said


# What unfinished runs have


def test_what_a_stopped_run_has_counts_where_it_is_asked_for(tmp_path: Path, run: Command) -> None:
    experiment = write_small(tmp_path / "small.py", tasks=5, first=2)
    whole, out = tmp_path / "whole", tmp_path / "out"
    assert run(experiment, *SLOW, "--out", whole) == 0
    assert run(experiment, *SLOW, "--out", out, looks=1 + 3) == 130
    results = Results.open(out)
    assert results.frame().empty
    frame = Results.open(whole).frame()
    assert results.frame(so_far=True).equals(frame[frame["task"] < 3].reset_index(drop=True))
    assert len(list(out.glob("unfinished/*"))) == 1

    assert run(experiment, *SLOW, "--out", out) == 0
    assert not list(out.glob("unfinished/*"))
    assert results.frame().equals(frame)
    assert results.frame(so_far=True).equals(frame)


NEEDED = ("experiment.json", "plan.json", "parts", "checkpoints")
"""What of a folder must be carried; docs/experiments.md says so."""


def carry(folder: Path, to: Path, names: Sequence[str], piece: int = 3000) -> Path:
    """Some of what is in a folder, packed, cut into pieces, joined and unpacked elsewhere; the folder is then gone."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name in names:
            if (folder / name).exists():  # nothing may be finished yet
                archive.add(folder / name, f"{folder.name}/{name}")
    shutil.rmtree(folder)
    content = packed.getvalue()
    pieces = [content[start : start + piece] for start in range(0, len(content), piece)]
    assert len(pieces) > 1
    with tarfile.open(fileobj=io.BytesIO(b"".join(pieces))) as archive:
        archive.extractall(to, filter="data")
    return to / folder.name


@pytest.mark.parametrize("names", [(), NEEDED], ids=["all of it", "what is needed"])
@pytest.mark.parametrize("selection", ["None", "Selection(more_runs=2)"])
def test_an_unfinished_folder_that_is_carried_elsewhere_in_pieces_ends_with_the_same_table(
    tmp_path: Path, run: Command, selection: str, names: Sequence[str]
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    experiment, whole = write_small(here / "mine.py", selection=selection), tmp_path / "whole"
    assert run(experiment, *SLOW, "--out", whole) == 0
    out, times = here / "out", 0
    while run(experiment, *SLOW, "--out", out, looks=3) == 130:  # within a stack, or between two
        out, times = carry(out, there, names or [path.name for path in out.iterdir()]), times + 1
        experiment = Path(shutil.move(experiment, there / experiment.name))
        here, there = there, here
    assert times > 2
    assert Results.open(out).frame().equals(Results.open(whole).frame())


@pytest.mark.parametrize("measures", ['("dead_units",)', "()"])  # measured at the start of a task, or nothing at all
def test_a_stack_within_its_first_task_has_nothing_and_harms_nothing(
    measures: str, tmp_path: Path, run: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    experiment, out = write_small(tmp_path / "small.py", tasks=2, examples=501, first=2), tmp_path / "out"
    experiment.write_text(experiment.read_text().replace('("dead_units",)', measures))
    assert run(experiment, *SLOW, "--out", out, looks=1 + 1) == 130  # after a block of 500
    assert len(list(out.glob("unfinished/*.parquet"))) == 1
    assert Results.open(out).frame(so_far=True).empty
    assert "has no runs with a finished task yet" in complaint(capsys, "report", out, experiment, "--so-far")
    assert "--so-far counts unfinished ones too" in complaint(capsys, "report", out, experiment)
    assert "no run of" in complaint(capsys, "claims", out, experiment, "--tasks", "1")
    assert cli.main(["claims", str(out), str(experiment), "--so-far"]) == 0
    assert "no finished runs" in capsys.readouterr().out


def test_a_run_that_diverged_stays_among_the_others_and_so_does_a_stack_of_them(tmp_path: Path, run: Command) -> None:
    experiment, out = write_small(tmp_path / "small.py", tasks=4), tmp_path / "out"
    text = experiment.read_text().replace("for s in (0.01, 0.003)]\n    cbp", "for s in (1e30, 1e20)]\n    cbp")
    experiment.write_text(text.replace("for s in (0.01, 0.003)]\n    return", "for s in (0.01, 1e30)]\n    return"))
    # All of BP diverge in the first task: it is done before it has seen the others.
    assert run(experiment, *SLOW, "--out", out, looks=1 + 1) == 130
    errors = Results.open(out).frame(so_far=True).query("metric == 'error'")
    assert errors.groupby("seed").size().tolist() == [8, 8, 8]
    assert errors["value"].isna().all()
    assert run(experiment, *SLOW, "--out", out, looks=1 + 1 + 3) == 130
    errors = read(out, tasks=3).query("metric == 'error'")
    assert errors.groupby("setting").size().tolist() == [9, 9, 9, 9]
    lost = errors[errors["value"].isna()]
    assert lost.groupby("setting").size().to_dict() == {
        "BP (step_size=1e+20)": 9, "BP (step_size=1e+30)": 9, "CBP (step_size=1e+30)": 9,
    }  # fmt: skip


def test_of_a_run_in_two_stacks_the_one_that_is_further_counts(tmp_path: Path, run: Command) -> None:
    experiment, out = write_small(tmp_path / "small.py", tasks=6, first=2), tmp_path / "out"
    assert run(experiment, *SLOW, "--out", out, looks=1 + 2) == 130
    for runs, tasks in ((2, 1), (1, 4)):  # each a stack of its own, which starts from the beginning
        assert run(experiment, *SLOW, "--out", out, "--runs", runs, looks=1 + tasks) == 130
    assert len(list(out.glob("unfinished/*"))) == 3
    errors = Results.open(out).frame(so_far=True).query("metric == 'error'")
    assert not errors.duplicated(["setting", "seed", "task"]).any()
    assert errors.groupby("seed")["task"].max().tolist() == [3, 1, 1]


def test_a_damaged_table_of_an_unfinished_stack_is_named_and_harms_nothing_else(
    tmp_path: Path, run: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    experiment, out = write_small(tmp_path / "small.py", tasks=3, first=2), tmp_path / "out"
    assert run(experiment, *SLOW, "--out", out, looks=1 + 1) == 130
    (path,) = out.glob("unfinished/*")
    path.write_bytes(path.read_bytes()[:100])
    assert f"{path} is damaged: its checksum" in complaint(capsys, "claims", out, experiment, "--so-far")
    assert Results.open(out).frame().empty
    assert run(experiment, *SLOW, "--out", out) == 0
    assert len(Results.open(out).frame(so_far=True)) > 0


def test_claims_and_pages_say_what_is_unfinished(
    tmp_path: Path, run: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    experiment, out = write_small(tmp_path / "small.py", tasks=4), tmp_path / "out"
    assert run(experiment, *SLOW, "--out", out, looks=1 + 4 + 1 + 2) == 130
    text = "CBP (step_size=0.003), 3 runs with 2 tasks; CBP (step_size=0.01), 3 runs with 2 tasks"
    for options, shown in (((), ()), (("--so-far",), (text,)), (("--tasks", "2"), ("the first 2 of each run", text))):
        capsys.readouterr()
        assert cli.main(["claims", str(out), str(experiment), *options]) == 0
        said = capsys.readouterr().out
        assert ("CBP (step_size" in said) == bool(options)
        assert all(each in said for each in shown)
    assert cli.main(["report", str(out), str(experiment), "--tasks", "2"]) == 0
    page = (out / "report.html").read_text()
    facts = dict(re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", page))
    assert facts["Unfinished"] == text
    assert facts["Tasks shown"] == "the first 2 of each run that has them"
    assert facts["Runs"] == "6 finished, 6 left"


# Some of the methods


def test_some_methods_are_trained_alone_and_the_rest_later(
    tmp_path: Path, run: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    experiment, out, whole = write_small(tmp_path / "small.py"), tmp_path / "out", tmp_path / "whole"
    assert run(experiment, *SLOW, "--out", out, "--methods", "CBP", looks=1 + 2) == 130
    assert cli.main(["status", str(out)]) == 0
    said = capsys.readouterr().out
    assert "0 runs finished, 6 of 6 planned left (0 not begun)." in said
    assert "Left for later by --methods: BP." in said
    assert "--methods CBP" in said  # the command that goes on
    # Another method in between: what CBP has so far still counts, as it does once it has finished.
    assert run(experiment, *SLOW, "--out", out, "--methods", "BP") == 0
    counts = Results.open(out).frame(so_far=True).query("metric == 'error'").groupby("method").size()
    assert counts.to_dict() == {"BP": 2 * 3 * 4, "CBP": 2 * 3 * 2}
    assert run(experiment, *SLOW, "--out", out, "--methods", " CBP , CBP") == 0
    assert cli.main(["status", str(out)]) == 0
    said = capsys.readouterr().out
    assert "12 runs finished, 0 of 12 planned left" in said
    assert "Left for later" not in said
    assert Results.open(out).parts()[0]["resumed"] + Results.open(out).parts()[1]["resumed"] == 1
    assert set(Results.open(out).frame()["method"]) == {"BP", "CBP"}

    assert run(experiment, *SLOW, "--out", whole, "--methods", "BP,CBP") == 0
    assert run(experiment, *SLOW, "--out", whole) == 0  # nothing is left
    assert Results.open(out).frame().equals(Results.open(whole).frame())


def test_each_method_may_be_trained_by_another_path(
    tmp_path: Path, run: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    """As where one method is too slow for the machine that had the others; the path asked for last counts."""
    pytest.importorskip("numba", reason="without numba there is one path alone")
    experiment, out = write_small(tmp_path / "small.py"), tmp_path / "out"

    def find() -> dict[Hashable, int]:
        """The runs in the results by method and path."""
        parts = Results.open(out).parts()
        path = {one["run_id"]: one["configuration"]["kernel"] for part in parts for one in part["runs"]}
        runs = Results.open(out).frame()[["method", "run_id"]].drop_duplicates()
        return runs.groupby(["method", runs["run_id"].map(path)]).size().to_dict()

    def status() -> str:
        capsys.readouterr()
        assert cli.main(["status", str(out)]) == 0
        return capsys.readouterr().out

    assert run(experiment, *SLOW, "--out", out) == 0
    assert run(experiment, "--out", out, "--methods", "CBP") == 0
    assert find() == {("BP", "reference"): 6, ("CBP", "cpu"): 6}
    assert "18 runs finished, 0 of 12 planned left" in status()
    assert "Left for later" not in status()
    assert run(experiment, *SLOW, "--out", out, "--methods", "CBP") == 0
    assert find() == {("BP", "reference"): 6, ("CBP", "reference"): 6}
    assert run(experiment, "--out", out) == 0  # all methods: one path for all of them
    assert find() == {("BP", "cpu"): 6, ("CBP", "cpu"): 6}


def test_a_wrong_method_is_named_with_the_nearest_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    said = complaint(capsys, "run", "scr-cbp", "--scale", "smoke", "--out", out, "--methods", "BP,CPB")
    assert "--methods: this experiment has no method 'CPB'. Did you mean 'CBP'?" in said
    assert "It has BP, L2, S&P, CBP, Linear." in said
    assert "no method ''" in complaint(capsys, "run", "scr-cbp", "--out", out, "--methods", "BP,")
    assert not out.exists()


def test_the_plan_of_some_methods_says_what_follows_and_how_to_go_on(
    tmp_path: Path, run: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    arguments = ("scr-cbp", "--scale", "paper", "--out", out, "--runs", "2", "--methods", "S&P,Linear")
    assert run(*arguments, looks=1) == 130
    plan = Results.open(out).plan()
    assert plan["more"] == "Then the best setting of each method and activation and optimizer gets 70 or 370 more runs."
    assert shlex.split(plan["command"])[-4:] == ["--methods", "S&P,Linear", "--runs", "2"]
    assert len(plan["settings"]) > len(plan["runs"]) // 2  # those of all methods
    assert cli.main(["status", str(out)]) == 0
    assert plan["more"] in capsys.readouterr().out


def test_worker_processes_get_every_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their work is done here, one after the other; that processes share it is tested elsewhere, and takes long."""
    experiment = write_experiment(tmp_path / "small.py", tasks=2, examples=20, selection="Selection(more_runs=1)")
    out = tmp_path / "out"

    def work(
        arguments: Sequence[str], jobs: int, stop: StopFlag, notify: Callable[[str], None]
    ) -> tuple[list[str], str]:
        command, _digest, options, _threads = arguments
        assert command == "work"
        assert RunOptions.from_json(options) == RunOptions(
            str(experiment), out=out, kernel="reference", checkpoint_seconds=0.0, methods="CBP", jobs=2
        )
        assert [cli.main(list(arguments)) for _ in range(jobs)] == [0, 0]
        return [], ""

    monkeypatch.setattr(local, "run_workers", work)
    monkeypatch.setattr(launch, "stop_with_parent", lambda stop: None)  # there is no pipe to a parent here
    command = ["run", str(experiment), *SLOW, "--out", str(out), "--methods", "CBP", "--jobs", "2"]
    assert cli.main(command) == 0
    frame = Results.open(out).frame()
    assert set(frame["method"]) == {"CBP"}
    assert sorted(frame.groupby("setting")["seed"].nunique()) == [3, 4]  # both stages
