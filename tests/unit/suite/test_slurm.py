"""`--on slurm`: submitit's local jobs give the local table; the sbatch file; a Slurm of four small programs."""

from __future__ import annotations

import os
import signal
import sys
import textwrap
from pathlib import Path

import pytest

from neoteny.cli.parser import main
from neoteny.suite.schedulers.queue import QueuedJob, describe_queue, read_jobs, states_of, write_jobs
from neoteny.suite.schedulers.slurm import _minutes
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
    wait_until(lambda: other.exists() and "1 jobs are at work in this folder" in other.read_text(), seconds=60)
    children = Path(f"/proc/{job.job_id}/task/{job.job_id}/children").read_text().split()
    os.kill(int(children[0]), signal.SIGUSR2)
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
    programs.mkdir()
    for name, text in PROGRAMS.items():
        (programs / name).write_text("#!/bin/bash\n" + textwrap.dedent(text))
        (programs / name).chmod(0o755)
    log, out = tmp_path / "log.txt", tmp_path / "out"
    run = ("run", experiment, *FAST, "--out", out, "--on", "slurm", "--workers", "2", "--slurm", "partition=long")
    environment = {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "FAKE": str(tmp_path)}
    assert zygote.run(*run, output=log, environment=environment) == 0, log.read_text()
    assert [(job.job_id, job.shard) for job in read_jobs(out)] == [("700_0", "0/2"), ("700_1", "1/2")]
    assert_same(out, expected)


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
    assert not (tmp_path / "out" / "jobs.json").exists()


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
    ],
)
def test_mistaken_options_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: tuple[str, ...], text: str
) -> None:
    experiment = write_experiment(tmp_path / "small.py", tasks=2, examples=20)
    assert main(["run", str(experiment), *FAST, "--out", str(tmp_path / "out"), *more]) == 1
    assert text in capsys.readouterr().err


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
