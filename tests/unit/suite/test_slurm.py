"""`--on slurm`: submitit's local jobs give the local table; the sbatch file; a Slurm of four small programs."""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import textwrap
from pathlib import Path

import psutil
import pytest

from neoteny.cli.parser import main
from neoteny.suite.schedulers.queue import QueuedJob, describe_queue, read_jobs, states_of, write_jobs
from neoteny.suite.schedulers.slurm import ShardJob, _minutes
from neoteny.suite.shards import Shard
from neoteny.suite.store.results import Results
from support.suite import Zygote, wait_until, write_experiment

pytest.importorskip("submitit")
FAST = ("--kernel", "reference", "--lease-seconds", "20")
PROGRAMS = {
    # Runs each task of the array as a process of this machine; the file says how many there are.
    "sbatch": """
        file=$1
        count=$(sed -n 's/^#SBATCH --array=0-\\([0-9]*\\)%.*/\\1/p' $file)
        for index in $(seq 0 $count); do
            SLURM_JOB_ID=70$index SLURM_ARRAY_JOB_ID=700 SLURM_ARRAY_TASK_ID=$index bash $file \\
                </dev/null >>$FAKE/out.txt 2>&1 &
            echo "700_$index $!" >>$FAKE/jobs
        done
        echo "Submitted batch job 700"
    """,
    "srun": """
        while [ "${1#--}" != "$1" ]; do
            case $1 in --unbuffered) shift ;; *) shift 2 ;; esac
        done
        exec "$@"
    """,
    "squeue": """
        while read job process; do kill -0 $process 2>/dev/null && echo "$job|RUNNING"; done <$FAKE/jobs
        exit 0
    """,
    "scontrol": """
        echo "$@" >>$FAKE/requeued
    """,
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, zygote: Zygote) -> tuple[Path, Path]:
    """A small sweep of two stages, and its results without Slurm."""
    folder = tmp_path_factory.mktemp("whole")
    experiment = write_experiment(folder / "small.py", tasks=40, examples=25, selection="Selection(1)")
    log = folder / "log.txt"
    run = ("run", experiment, *FAST, "--jobs", "1", "--out", folder / "whole")
    assert zygote.run(*run, output=log) == 0, log.read_text()
    return experiment, folder / "whole"


def write_programs(folder: Path) -> None:
    """A Slurm of small programs."""
    folder.mkdir()
    for name, text in PROGRAMS.items():
        (folder / name).write_text("#!/bin/bash\n" + textwrap.dedent(text))
        (folder / name).chmod(0o755)


def assert_same(folder: Path, other: Path) -> None:
    one, two = Results.open(folder).frame(), Results.open(other).frame()
    assert len(one) > 0
    assert one.equals(two)


def test_local_jobs_that_are_warned_of_their_time_limit_give_the_local_table(
    whole: tuple[Path, Path], tmp_path: Path, zygote: Zygote
) -> None:
    """The warning makes a job write its checkpoints and go back into the queue; a second command waits for it."""
    experiment, expected = whole
    out, log, other = tmp_path / "out", tmp_path / "log.txt", tmp_path / "other.txt"
    run = ("run", experiment, *FAST, "--out", out, "--checkpoint-seconds", "1000", "--on", "slurm", "--workers", "1")
    run += ("--slurm", "cluster=local,time=30")
    process = zygote.start(*run, output=log)
    wait_until(lambda: any(out.glob("progress/*.json")), seconds=120)
    (job,) = read_jobs(out)
    assert states_of([job]) == {job.job_id: "RUNNING"}
    assert "1 running" in describe_queue(out)
    second = zygote.start(*run, output=other)
    wait_until(lambda: other.exists() and "1 job is at work in this folder" in other.read_text(), seconds=60)
    for child in psutil.Process(int(job.job_id)).children(recursive=True):  # Slurm warns every process of a job
        child.send_signal(signal.SIGUSR2)
    assert zygote.wait(process) == 0, log.read_text()
    assert zygote.wait(second) == 0, other.read_text()
    text = Path(job.log).read_text() + Path(job.log.replace(".err", ".out")).read_text()
    assert "Requeued job" in text
    assert_same(out, expected)
    assert sum(part["resumed"] for part in Results.open(out).parts()) >= 1
    assert "1 ended" in describe_queue(out)


@pytest.mark.slow
def test_a_slurm_of_small_programs_trains_an_array(whole: tuple[Path, Path], tmp_path: Path, zygote: Zygote) -> None:
    experiment, expected = whole
    programs = tmp_path / "programs"
    write_programs(programs)
    log, out = tmp_path / "log.txt", tmp_path / "out"
    run = ("run", experiment, *FAST, "--out", out, "--on", "slurm", "--workers", "2", "--slurm", "partition=long")
    environment = {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "FAKE": str(tmp_path)}
    assert zygote.run(*run, output=log, environment=environment) == 0, log.read_text()
    assert [(job.job_id, job.shard) for job in read_jobs(out)] == [("700_0", "0/2"), ("700_1", "1/2")]
    assert_same(out, expected)


def test_jobs_train_the_file_that_the_command_has_read(tmp_path: Path, zygote: Zygote) -> None:
    """It is edited before a job starts: here by the file itself, once the command has read it."""
    path, out, log = tmp_path / "small.py", tmp_path / "out", tmp_path / "log.txt"
    write_experiment(path, tasks=2, examples=20)
    edits = f"\nwith open({str(path)!r}, 'a') as file:\n    file.write('raise RuntimeError(\"edited\")\\n')\n"
    path.write_text(path.read_text() + edits)
    read = path.read_bytes()
    run = ("run", path, *FAST, "--out", out, "--on", "slurm", "--workers", "1", "--slurm", "cluster=local,time=30")
    assert zygote.run(*run, output=log) == 0, log.read_text()
    assert path.read_bytes() != read
    assert (out / "experiment.py").read_bytes() == read
    assert len(Results.open(out).frame()["run_id"].unique()) == 12


def test_a_job_that_goes_back_into_the_queue_keeps_its_command_line() -> None:
    job = ShardJob("{}", Shard(1, 2), 3, ("--kept=small.py",))
    assert job.checkpoint().function == job


def test_a_command_that_waits_for_jobs_of_an_older_file_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    experiment, out = write_experiment(tmp_path / "small.py", tasks=2, examples=20), tmp_path / "out"
    run = ["run", str(experiment), *FAST, "--out", str(out), "--on", "slurm", "--slurm", "cluster=local"]
    kept = out.resolve() / "slurm" / hashlib.sha256(experiment.read_bytes()).hexdigest()[:16] / "small.py"
    assert main([*run[:-4], "--stop-after", "0"]) == 130
    kept.parent.mkdir(parents=True)
    kept.touch()
    write_jobs(out, [QueuedJob(str(os.getpid()), "0/1", "local", "log")])
    capsys.readouterr()
    older = "small.py was changed after they were submitted, and they train it as it was."
    for edit, told in (("", False), ("# edited\n", True)):
        experiment.write_text(experiment.read_text() + edit)
        assert main([*run, "--stop-after", "0"]) == 130
        assert (older in capsys.readouterr().err) == told


def test_a_dry_run_prints_the_sbatch_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    experiment = write_experiment(tmp_path / "small.py", tasks=2, examples=20)
    run = ["run", str(experiment), *FAST, "--out", str(tmp_path / "out"), "--on", "slurm", "--dry-run"]
    given = "partition=gpu,time=2:30:00,account=lab,signal_delay_s=300"
    assert main([*run, "--workers", "8", "--gpus-per-stack", "1", "--device", "cpu", "--slurm", given]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "#!/bin/bash"
    for line in (
        "#SBATCH --array=0-7%8",
        "#SBATCH --partition=gpu",
        "#SBATCH --account=lab",
        "#SBATCH --time=150",
        "#SBATCH --gpus-per-node=1",
        "#SBATCH --cpus-per-task=1",
        "#SBATCH --signal=USR2@300",
        "#SBATCH --job-name=neoteny",
    ):
        assert line in lines
    assert any(line.startswith("#SBATCH --mem=") and line.endswith("GB") for line in lines)
    assert any("submitit.core._submit" in line and sys.executable in line for line in lines)
    assert not (tmp_path / "out").exists()


def test_a_dry_run_changes_nothing_in_a_folder_that_is_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counts what is left there, and refuses a folder of something else."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    experiment, out = write_experiment(tmp_path / "small.py", tasks=2, examples=20), tmp_path / "out"
    run = ["run", str(experiment), *FAST, "--out", str(out)]
    dry = [*run, "--on", "slurm", "--dry-run", "--track", "neoteny.suite.trackers.tensorboard:TensorBoardTracker"]
    assert main([*run, "--jobs", "1", "--methods", "BP"]) == 0
    capsys.readouterr()
    (tmp_path / "out" / "checkpoints" / "0123").mkdir(parents=True)
    before = {path: path.is_file() and (path.stat().st_ino, path.read_bytes()) for path in out.rglob("*")}
    assert main(dry) == 0
    assert "#SBATCH --array=0-0%1" in capsys.readouterr().out  # the one stack of CBP
    assert {path: path.is_file() and (path.stat().st_ino, path.read_bytes()) for path in out.rglob("*")} == before
    there = tmp_path / "storage"
    assert main([*run[:-1], there.as_uri(), "--on", "slurm", "--dry-run"]) == 0
    assert not there.exists()
    other = write_experiment(tmp_path / "other.py", tasks=2, examples=20)
    assert main(["run", str(other), *FAST, "--out", str(out), "--on", "slurm", "--dry-run"]) == 1
    assert "holds experiment 'small'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "text"),
    [
        (("--on", "slum"), "--on slum: unknown. Did you mean 'slurm'?"),
        (("--on", "ray://"), "--on ray://: unknown."),
        (("--on", "slurm://host"), "--on slurm://host: unknown."),
        (("--on", "slurm", "--slurm", "partition"), "expected KEY=VALUE pairs"),
        (("--on", "slurm", "--shard", "0/2"), "--on slurm shares by itself"),
        (("--dry-run",), "--dry-run prints the sbatch file of --on slurm"),
        (("--on", "slurm", "--dry-run", "--slurm", "time=soon"), "expected minutes, or HOURS:MINUTES:SECONDS"),
        (("--on", "slurm", "--dry-run", "--slurm", "party=gpu"), "party"),
        (("--on", "slurm", "--dry-run", "--gpus-per-stack", "0.5", "--device", "cpu"), "Slurm gives whole GPUs"),
        (("--on", "slurm", "--dry-run", "--slurm", "mem_gb=lots"), "--slurm mem_gb=lots: expected a whole number"),
        (("--on", "slurm", "--dry-run", "--slurm", "cluster=mine"), "cluster=mine: expected slurm or local"),
        (("--on", "ray", "--slurm", "time=4"), "--slurm is for --on slurm"),
        (("--on", "ray", "--jobs", "4"), "with --on ray use --workers"),
        (("--on", "ray", "--gpus-per-stack", "1.5"), "a part of one GPU, or a whole number of them; got 1.5"),
        (("--cpus-per-stack", "4"), "--cpus-per-stack is for --on ray and --on slurm"),
        (("--gpus-per-stack", "1"), "--gpus-per-stack is for --on ray and --on slurm"),
    ],
)
def test_mistaken_options_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: tuple[str, ...], text: str
) -> None:
    experiment = write_experiment(tmp_path / "small.py", tasks=2, examples=20)
    assert main(["run", str(experiment), *FAST, "--out", str(tmp_path / "out"), *more]) == 1
    assert text in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_queue_that_does_not_answer_is_not_taken_for_an_empty_one(tmp_path: Path, zygote: Zygote) -> None:
    """Neither are jobs submitted a second time, nor is a sweep given up whose jobs go on."""
    programs, log, out = tmp_path / "programs", tmp_path / "log.txt", tmp_path / "out"
    write_programs(programs)
    (programs / "squeue").write_text("#!/bin/bash\n[ -e $FAKE/answers ] || exit 1\nexit 0\n")
    experiment = write_experiment(tmp_path / "small.py", tasks=2, examples=20)
    run = ("run", experiment, *FAST, "--out", out, "--on", "slurm", "--workers", "2")
    environment = {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "FAKE": str(tmp_path)}
    process = zygote.start(*run, output=log, environment=environment)
    wait_until(lambda: log.exists() and "squeue does not answer" in log.read_text(), seconds=60)
    assert zygote.run(*run, output=tmp_path / "second.txt", environment=environment) == 1
    assert "it is not known whether the jobs of an earlier command (700_0...) have" in (
        (tmp_path / "second.txt").read_text()
    )
    assert len((tmp_path / "jobs").read_text().splitlines()) == 2
    wait_until(lambda: len(list(out.glob("parts/*.parquet"))) == 2, seconds=240)  # two jobs may have to compile
    (tmp_path / "answers").touch()
    assert zygote.wait(process) == 0, log.read_text()


def test_status_does_not_ask_for_a_command_while_jobs_wait_in_the_queue(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment, out = write_experiment(tmp_path / "small.py", tasks=2, examples=20), tmp_path / "out"
    assert main(["run", str(experiment), *FAST, "--out", str(out), "--jobs", "1", "--stop-after", "0"]) == 130
    write_programs(tmp_path / "programs")
    (tmp_path / "programs" / "squeue").write_text("#!/bin/bash\necho '700_0|PENDING'\n")
    monkeypatch.setenv("PATH", f"{tmp_path / 'programs'}{os.pathsep}{os.environ['PATH']}")
    capsys.readouterr()
    assert main(["status", str(out)]) == 0
    assert "Nothing is running." in capsys.readouterr().out
    write_jobs(out, [QueuedJob("700_0", "0/1", "slurm", "log")])
    assert main(["status", str(out)]) == 0
    text = capsys.readouterr().out
    assert "Jobs on slurm (700): 1 pending." in text
    assert "Nothing is running." not in text


def test_time_limits() -> None:
    assert [_minutes(text) for text in ("90", "0.5", "2:30:00", "0:0:30")] == [90, 0.5, 150, 0.5]


def test_the_file_of_jobs_is_data(tmp_path: Path) -> None:
    job = QueuedJob("12_3", "3/4", "slurm", "log")
    write_jobs(tmp_path, [job])
    assert read_jobs(tmp_path) == [job]
    (tmp_path / "jobs.json").write_text('{"jobs": [{"job_id": "$(touch x)"}]}')
    assert read_jobs(tmp_path) == []
    write_jobs(tmp_path, [QueuedJob("$(touch x)", "0/1", "slurm", "log"), QueuedJob("-1", "0/1", "local", "log")])
    assert set(states_of(read_jobs(tmp_path)).values()) == {"UNKNOWN"}
    (tmp_path / "jobs.json").unlink()
    assert describe_queue(tmp_path) == ""
