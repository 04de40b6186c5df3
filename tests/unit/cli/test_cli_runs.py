"""The command line, used as a person would: run, status, claims, report."""

from __future__ import annotations

import io
import shutil
from pathlib import Path

import pandas as pd
import pytest
from rich.console import Console

from neoteny import experiments
from neoteny.cli import parser as cli
from neoteny.suite.follow import draw
from neoteny.suite.overview import look
from neoteny.suite.progress import describe_progress
from neoteny.suite.store.folder import ResultsFolder
from neoteny.suite.store.results import Results
from support.suite import Zygote, write_experiment


@pytest.mark.parametrize("name", experiments.NAMES)
def test_every_experiment_runs_at_smoke_scale_and_reports(name: str, tmp_path: Path, zygote: Zygote) -> None:
    if name.startswith("ant-"):
        pytest.importorskip("pybullet", reason="pybullet is not installed (the extra pybullet)")
    log, out = tmp_path / "log.txt", tmp_path / "out"
    assert zygote.run("run", name, "--scale", "smoke", "--out", out, "--jobs", "1", output=log) == 0, log.read_text()
    frame = Results.open(out).frame()
    sweep = experiments.load(name).sweep("smoke")
    wanted = {setting.label for setting in sweep.settings}
    assert set(frame["setting"]) == wanted
    assert set(frame["metric"]) >= {sweep.problem.performance, *sweep.measures}
    assert zygote.run("report", out, output=log) == 0, log.read_text()
    page = (out / "report.html").read_text()
    assert experiments.load(name).title in page
    assert list((out / "figures").glob("*.png"))
    assert list((out / "figures").glob("*.svg"))
    said = tmp_path / "claims.txt"
    assert zygote.run("claims", out, output=said) == 0, said.read_text()
    for claim in experiments.load(name).claims:
        assert claim.statement in said.read_text()


def test_finished_runs_are_skipped_and_more_are_added(finished: Path, tmp_path: Path, zygote: Zygote) -> None:
    out = tmp_path / "out"
    shutil.copytree(finished / "out", out)
    before = {path.name: path.stat().st_mtime_ns for path in out.glob("parts/*")}
    command = ("run", finished / "small.py", "--out", out, "--jobs", "1")
    log = tmp_path / "log.txt"
    assert zygote.run(*command, output=log) == 0
    assert {path.name: path.stat().st_mtime_ns for path in out.glob("parts/*")} == before
    assert "0 stacks to train" in log.read_text()
    assert zygote.run(*command, "--runs", "5", output=log) == 0
    after = {path.name: path.stat().st_mtime_ns for path in out.glob("parts/*")}
    assert {name: after[name] for name in before} == before
    frame = Results.open(out).frame()
    assert frame.groupby("setting")["seed"].nunique().tolist() == [5, 5, 5, 5]
    old = Results.open(finished / "out").frame()
    assert frame[frame["seed"] < 3].reset_index(drop=True).equals(old)


def test_results_are_opened_by_a_path_or_its_text(finished: Path) -> None:
    frame = Results.open(str(finished / "out")).frame()
    assert len(frame) > 0
    assert frame.equals(Results.open(finished / "out").frame())


def test_the_progress_line_names_the_backend_and_why_it_is_no_kernel(tmp_path: Path, zygote: Zygote) -> None:
    pytest.importorskip("numba", reason="without numba there are no kernels")
    experiment = write_experiment(tmp_path / "small.py", tasks=1, examples=20)
    text = experiment.read_text().replace("ContinualBackprop", "Spectral")
    experiment.write_text(text.replace("Spectral(1e-2, maturity_threshold=20)", "Spectral(1e-3)"))
    log, out = tmp_path / "log.txt", tmp_path / "out"
    for more, expected in (
        ((), {"BP": "compiled kernel on cpu", "CBP": "library on cpu (Spectral is not covered)"}),
        (("--kernel", "reference"), {"BP": "library on cpu", "CBP": "library on cpu"}),
    ):
        shutil.rmtree(out, ignore_errors=True)
        command = ("run", experiment, "--out", out, "--jobs", "1", "--device", "cpu", *more)
        assert zygote.run(*command, output=log) == 0, log.read_text()
        entries = Results.open(out).progress().values()
        assert {entry["name"].partition(",")[0]: entry["backend"] for entry in entries} == expected
        lines = [describe_progress({**entry, "state": "running"}) for entry in entries]
        assert all(any(words in line for line in lines) for words in expected.values())


def test_the_best_setting_of_each_method_gets_more_runs(tmp_path: Path, zygote: Zygote) -> None:
    experiment = write_experiment(tmp_path / "select.py", selection="Selection(more_runs=2)")
    log, out = tmp_path / "log.txt", tmp_path / "out"
    assert zygote.run("run", experiment, "--out", out, "--jobs", "1", output=log) == 0, log.read_text()
    frame = Results.open(out).frame()
    counts = frame.groupby(["method", "setting"])["seed"].nunique()
    for method in ("BP", "CBP"):
        mine = counts.xs(method)
        assert isinstance(mine, pd.Series)
        assert sorted(mine.tolist()) == [3, 5]
        first = frame[(frame["method"] == method) & (frame["seed"] < 3) & (frame["metric"] == "error")]
        assert mine.idxmax() == first.groupby("setting")["value"].mean().idxmin()


def test_status_says_what_is_finished_and_what_is_left(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    shutil.copytree(finished / "out", out)
    assert cli.main(["status", str(out)]) == 0
    assert "12 runs finished, 0 of 12 planned left" in capsys.readouterr().out
    part = next(path for path in out.glob("parts/*.parquet"))
    part.rename(part.with_suffix(".away"))
    assert cli.main(["status", str(out)]) == 0
    said = capsys.readouterr().out
    assert "6 runs finished, 6 of 12 planned left" in said
    assert "Nothing is running." in said


def test_status_is_not_as_wide_as_a_very_long_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    experiment, out = write_experiment(tmp_path / "small.py", tasks=2, examples=20, first=2), tmp_path / "out"
    experiment.write_text(experiment.read_text().replace('"CBP"', '"CBP" + 60 * " and more"'))
    run = ["run", str(experiment), "--runs", "1", "--jobs", "1", "--kernel", "reference", "--out", str(out)]
    assert cli.main(run) == 0
    name = look(ResultsFolder.open(out)).stacks[0].name
    assert len(name) > 500
    capsys.readouterr()
    assert cli.main(["status", str(out)]) == 0
    row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("CBP and more"))
    assert len(row) < 180
    assert row.split("  ")[0].endswith(name[-20:])
    console = Console(width=140, file=io.StringIO())
    console.print(draw(look(ResultsFolder.open(out)), most=5))
    assert name[-20:] in console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]


def test_one_of_a_thing_is_said_in_the_singular(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    experiment, out = write_experiment(tmp_path / "small.py", tasks=2, examples=20, first=3), tmp_path / "out"
    run = ["run", str(experiment), "--runs", "1", "--jobs", "1", "--kernel", "reference", "--out", str(out)]
    assert cli.main(run) == 0
    assert "1 run, 1 stack to train, 1 process," in capsys.readouterr().err
    assert cli.main(["status", str(out)]) == 0
    assert "1 run finished, 0 of 1 planned left" in capsys.readouterr().out
    assert cli.main(["status", "--follow", str(out)]) == 0
    assert "1 of 1 run finished" in capsys.readouterr().out
    assert cli.main(["verify", str(out), str(experiment)]) == 0
    said = capsys.readouterr().out
    assert "CBP (step_size=0.003), seed 0: 1 run, " in said
    assert "1 run in 1 stack: all the same" in said


def test_a_stack_that_fails_is_reported_and_the_others_finish(tmp_path: Path, zygote: Zygote) -> None:
    experiment = write_experiment(tmp_path / "fails.py")
    text = experiment.read_text()
    broken = "class Broken(MLP):\n    def forward(self, x):\n        raise RuntimeError('out of cheese')\n\n\n"
    text = text.replace("NET = ", broken + "BAD = network(Broken, hidden=(6,))\nNET = ", 1).replace(
        'Setting("BP", NET', 'Setting("BP", BAD', 1
    )
    experiment.write_text(text)
    log, out = tmp_path / "log.txt", tmp_path / "out"
    assert zygote.run("run", experiment, "--out", out, "--jobs", "1", output=log) == 1
    assert "out of cheese" in log.read_text()
    assert set(Results.open(out).frame()["method"]) == {"CBP"}
    status = tmp_path / "status.txt"
    assert zygote.run("status", out, output=status) == 0
    assert "failed: BP, 2 settings: RuntimeError: out of cheese" in status.read_text()


def test_claims_and_report_of_a_users_experiment(finished: Path, tmp_path: Path, zygote: Zygote) -> None:
    """Its file may be gone: the folder has a copy."""
    out, log = tmp_path / "out", tmp_path / "log.txt"
    shutil.copytree(finished / "out", out)
    assert zygote.run("claims", out, output=log) == 0
    assert "Continual backpropagation has a lower error." in log.read_text()
    assert zygote.run("report", out, output=log) == 0, log.read_text()
    assert "A small experiment for tests" in (out / "report.html").read_text()


def test_a_stack_that_cannot_be_built_can_be_tried_again(tmp_path: Path, zygote: Zygote) -> None:
    experiment = write_experiment(tmp_path / "build.py")
    good = experiment.read_text()
    broken = "class Broken(MLP):\n    def __init__(self, **options):\n        raise RuntimeError('no cheese')\n\n\n"
    experiment.write_text(
        good.replace("NET = ", broken + "BAD = network(Broken)\nNET = ", 1).replace('"BP", NET', '"BP", BAD', 1)
    )
    out, log = tmp_path / "out", tmp_path / "log.txt"
    assert zygote.run("run", experiment, "--out", out, "--jobs", "1", output=log) == 1
    assert "no cheese" in log.read_text()
    assert "Traceback" not in log.read_text()
    assert zygote.run("status", out, output=log) == 0
    assert "failed: BP, 2 settings" in log.read_text()
    experiment.write_text(good)
    assert zygote.run("run", experiment, "--out", out, "--jobs", "1", output=log) == 0, log.read_text()
    after = tmp_path / "after.txt"
    assert zygote.run("status", out, output=after) == 0
    assert "failed" not in after.read_text()
    assert "no longer asked for, and not shown: 1." in after.read_text()
    assert look(ResultsFolder.open(out)).ended  # --follow does


def test_results_of_an_edited_experiment_are_not_mixed_with_older_ones(
    finished: Path, tmp_path: Path, zygote: Zygote
) -> None:
    out, log = tmp_path / "out", tmp_path / "log.txt"
    shutil.copytree(finished / "out", out)
    experiment = write_experiment(tmp_path / "small.py", tasks=6)
    experiment.write_text(experiment.read_text().replace("A small experiment", "An edited experiment"))
    assert zygote.run("run", experiment, "--out", out, "--jobs", "1", output=log) == 0, log.read_text()
    frame = Results.open(out).frame()
    assert not frame.duplicated(["setting", "seed", "task", "metric"]).any()
    assert frame["task"].max() == 5
    assert len(Results.open(out).finished_runs()) == 24  # the old ones are kept
    assert "12 finished runs" in log.read_text()
    assert zygote.run("report", out, output=log) == 0, log.read_text()
    assert "An edited experiment" in (out / "report.html").read_text()


def test_changed_code_of_a_user_makes_another_run(tmp_path: Path, zygote: Zygote) -> None:
    experiment = write_experiment(tmp_path / "code.py")
    text = experiment.read_text().replace(
        "NET = network(MLP", "class Own(MLP):\n    factor = 1\n\n\nNET = network(Own", 1
    )
    experiment.write_text(text)
    out, log = tmp_path / "out", tmp_path / "log.txt"
    for _ in range(2):
        assert zygote.run("run", experiment, "--out", out, "--jobs", "1", output=log) == 0, log.read_text()
        assert len(Results.open(out).finished_runs()) == 12
    experiment.write_text(text.replace("factor = 1", "factor = 2"))
    assert zygote.run("run", experiment, "--out", out, "--jobs", "1", output=log) == 0, log.read_text()
    assert len(Results.open(out).finished_runs()) == 24


def test_files_that_are_only_looked_at_do_not_block(finished: Path, tmp_path: Path, zygote: Zygote) -> None:
    out, log = tmp_path / "out", tmp_path / "log.txt"
    shutil.copytree(finished / "out", out)
    for path in (*out.glob("progress/*.json"), out / "plan.json"):
        path.write_text("")
    part = next(out.glob("parts/*.parquet"))
    part.with_suffix(".json").unlink()  # a table that nobody can say anything about does not count
    assert zygote.run("status", out, output=log) == 0, log.read_text()
    assert zygote.run("run", finished / "small.py", "--out", out, "--jobs", "1", output=log) == 0, log.read_text()
    assert Results.open(out).frame().equals(Results.open(finished / "out").frame())


def test_status_of_a_selection_counts_both_stages(tmp_path: Path, zygote: Zygote) -> None:
    experiment = write_experiment(tmp_path / "select.py", selection="Selection(more_runs=2)")
    out, log, status = tmp_path / "out", tmp_path / "log.txt", tmp_path / "status.txt"
    assert zygote.run("run", experiment, "--out", out, "--jobs", "1", output=log) == 0, log.read_text()
    assert zygote.run("status", out, output=status) == 0
    assert "16 runs finished, 0 of 16 planned left" in status.read_text()
    assert "Then the best" not in status.read_text()


def test_an_experiment_may_import_what_lies_beside_it(tmp_path: Path, zygote: Zygote) -> None:
    (tmp_path / "a b").mkdir()
    (tmp_path / "a b" / "beside.py").write_text("RUNS = 2\n")
    experiment = write_experiment(tmp_path / "a b" / "sibling.py")
    experiment.write_text("import beside\n" + experiment.read_text().replace("runs=3", "runs=beside.RUNS"))
    out, log = tmp_path / "out", tmp_path / "log.txt"
    assert zygote.run("run", experiment, "--out", out, "--jobs", "1", output=log) == 0, log.read_text()
    assert zygote.run("claims", out, output=log) == 0, log.read_text()
