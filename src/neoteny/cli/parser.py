"""The command line: list, run, status, watch, report, claims, verify, data.

Each command imports what it needs when it is called, so that `neoteny --help` answers at once.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import dataclasses
import gc
import importlib
import importlib.util
import io
import json
import os
import shlex
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import neoteny
from neoteny.cli.suggestions import SuggestingParser

SCALES = ("smoke", "laptop", "paper")  # as in suite.sweep, which imports torch; a test compares them
NEEDS = {
    "run": ("pandas", "pyarrow", "rich"),
    "verify": ("pandas", "pyarrow"),
    "report": ("pandas", "pyarrow", "scipy", "plotly", "matplotlib", "jinja2"),
    "watch": ("pandas", "pyarrow", "scipy", "plotly", "jinja2"),
}
"""Packages that a command needs at its end, and that are therefore looked for before it starts."""
_MODULES = {"run": "run", "work": "run", "verify": "verify", "watch": "watch"}
"""Where a command is, if not in `show`."""

_LEFT_TO_THE_PERSON = ("scale", "out", "jobs", "repair", "workers", "shard", "dry_run", "stop_after")
"""Options that the command to continue does not repeat, or has in another place."""


@dataclass(frozen=True)
class RunOptions:
    """What a person asked `neoteny run` to do. Each field but the first is a flag of the same name.

    Args:
        experiment: a name, or the path of a Python file.
        scale: how large.
        methods: names of methods, separated by commas; None: all.
        runs: runs per setting instead of the experiment's number.
        out: the results folder, or the address of a storage (text, as s3://bucket/prefix); None:
            results/EXPERIMENT-SCALE.
        device: auto, cpu or cuda.
        kernel: auto or reference.
        jobs: processes; None: one per core on a CPU, one on a GPU.
        data: where data is; None: $NEOTENY_DATA, then the cache.
        checkpoint_seconds: time between checkpoints of a stack.
        repair: whether damaged parts are moved away and their runs trained again.
        track: a tracker that is told of results as they come; None: none.
        on: where stacks are trained: local, ray, ray://HOST:PORT or slurm.
        workers: at most this many stacks at a time; jobs of an array on Slurm.
        cpus_per_stack: processor cores per stack, on a cluster.
        gpus_per_stack: GPUs per stack, on a cluster; a fraction lets stacks share one.
        shard: INDEX/COUNT: train this share of the stacks alone.
        lease_seconds: how long a worker of a cluster may be silent before another takes its stack over.
        slurm: options of the batch system, as "partition=gpu,time=240".
        dry_run: whether to print what would be given to the batch system.
        stop_after: minutes after which it stops as after Ctrl-C; None: never.
    """

    experiment: str
    scale: str = "laptop"
    methods: str | None = None
    runs: int | None = None
    out: Path | str | None = None
    device: str = "auto"
    kernel: str = "auto"
    jobs: int | None = None
    data: Path | None = None
    checkpoint_seconds: float = 60.0
    repair: bool = False
    track: str | None = None
    on: str = "local"
    workers: int | None = None
    cpus_per_stack: int = 1
    gpus_per_stack: float | None = None
    shard: str | None = None
    lease_seconds: float = 60.0
    slurm: str | None = None
    dry_run: bool = False
    stop_after: float | None = None

    @classmethod
    def defaults(cls) -> dict[str, Any]:
        """Every flag's default, by name."""
        return {field.name: field.default for field in dataclasses.fields(cls) if field.name != "experiment"}

    def command(self, root: Path | str) -> str:
        """The command that continues this one in the folder `root`; --jobs, --shard and such are left to the person."""
        words = ["neoteny", "run", self.experiment, "--scale", self.scale, "--out", str(root)]
        for name, default in self.defaults().items():
            if name not in _LEFT_TO_THE_PERSON and getattr(self, name) != default:
                words += [f"--{name.replace('_', '-')}", str(getattr(self, name))]
        return shlex.join(words)

    @classmethod
    def from_command(cls, text: str) -> RunOptions | None:
        """The options of a command such as `command` writes; None for any other text."""
        nothing = io.StringIO()
        try:
            program, *words = shlex.split(text)
            with contextlib.redirect_stdout(nothing), contextlib.redirect_stderr(nothing):
                options = vars(make_parser().parse_args(words))
        except (ValueError, SystemExit):
            return None
        return cls(**options) if program == "neoteny" and options.pop("command") == "run" else None

    def to_json(self) -> str:
        """All options, for `from_json` in another process."""
        return json.dumps(dataclasses.asdict(self), default=str)

    @classmethod
    def from_json(cls, text: str) -> RunOptions:
        """The options that `to_json` wrote."""
        values = json.loads(text)
        paths = {name: _place(values[name]) for name in ("out", "data") if values[name] is not None}
        return cls(**{**values, **paths})


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status."""
    atexit.register(gc.freeze)  # what is left at the end goes with the process; to look through it takes a while
    options = vars(make_parser().parse_args(arguments))
    command = options.pop("command")
    if command is None:
        make_parser().print_help()
        return 2
    try:
        for package in NEEDS.get(command, ()):
            if importlib.util.find_spec(package) is None:
                raise ModuleNotFoundError(name=package)
        with contextlib.ExitStack() as meanwhile:
            if isinstance(options.get("folder"), str):  # a storage: a copy of it is read
                from neoteny.suite.store.remote import fetch_results, fetching

                address, options["folder"] = options["folder"], fetch_results(options["folder"])
                if command == "watch" or options.get("follow"):
                    meanwhile.enter_context(fetching(address))
            module = importlib.import_module(f"neoteny.cli.{_MODULES.get(command, 'show')}")
            return getattr(module, f"command_{command}")(**options)
    except BrokenPipeError:  # `neoteny list | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        return 130
    except (Exception, SystemExit, GeneratorExit) as error:
        from neoteny.cli.explain import explain
        from neoteny.text import printable

        text = explain(error)
        if text is None or os.environ.get("NEOTENY_TRACEBACK"):
            if isinstance(error, Exception):
                raise
            traceback.print_exception(error)  # raised again, it would end the program as if all were well
        print(f"neoteny: {printable(text or repr(error))}", file=sys.stderr)
        return 1


def make_parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    parser = SuggestingParser(
        prog="neoteny",
        description="Keep neural networks able to learn: run the experiments and read their results.",
        epilog="Start with `neoteny list`, then `neoteny run scr-cbp --scale laptop`.",
    )
    parser.add_argument("--version", action="version", version=f"neoteny {neoteny.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    commands.add_parser("list", help="list experiments, problems, methods, networks and measures")
    _add_run(commands.add_parser("run", help="run an experiment, or continue it"))
    for name, text in (
        ("status", "show what is finished, running, failed and left"),
        ("watch", "serve a page on this machine that shows the same, and the figures, while it runs"),
        ("report", "write DIR/report.html, and the figures as PNG and SVG"),
        ("claims", "check each claim of the paper: holds, does not hold, or inconclusive"),
    ):
        command = commands.add_parser(name, help=text)
        command.add_argument("folder", type=_place, metavar="DIR", help="a results folder")
        if name == "status":
            command.add_argument("--follow", action="store_true", help="show it again and again until all is done")
        else:
            command.add_argument(
                "file",
                type=Path,
                nargs="?",
                metavar="FILE.py",
                help="your experiment's file, to make its figures and claims again; without it those that were saved "
                "are shown",
            )
            command.add_argument(
                "--trust",
                action="store_true",
                help="run FILE.py even if it is not the one that made DIR; without FILE.py, run DIR/experiment.py",
            )
        if name == "watch":
            command.add_argument(
                "--port", type=_port, default=0, metavar="N", help="of the page's address (default: a free one)"
            )
        if name in ("report", "claims"):
            command.add_argument("--so-far", action="store_true", help="include the finished tasks of unfinished runs")
            command.add_argument(
                "--tasks",
                type=_count,
                metavar="N",
                help="use only the first N tasks, of every run that has finished that many",
            )
    _add_verify(commands.add_parser("verify", help="make a sample of the runs again and compare them"))
    _add_data(commands.add_parser("data", help="list the datasets, or fetch one"))
    work = commands.add_parser("work")  # what --jobs starts; without help, so that it is not listed
    work.add_argument("--digest", default="", metavar="SHA256", help="of the experiment file that the parent has read")
    work.add_argument("--kept", type=Path, metavar="FILE.py", help="a copy of that file as it was read")
    work.add_argument("options", metavar="JSON")
    work.add_argument("threads", type=_count, metavar="THREADS")
    work.add_argument("started_by", nargs="?", default="", metavar="COMMAND")
    return parser


def _add_run(run: argparse.ArgumentParser) -> None:
    """The flags of `run`; their names and defaults are those of `RunOptions`."""
    run.set_defaults(**RunOptions.defaults())
    run.add_argument(
        "experiment",
        metavar="EXPERIMENT",
        help="a name from `neoteny list`, `field` for all that begin so, or a Python file",
    )
    run.add_argument("--scale", choices=SCALES, help="how large (default: %(default)s)")
    run.add_argument("--methods", metavar="A,B", help="run only these methods (comma-separated); the others later")
    run.add_argument("--runs", type=_count, metavar="N", help="runs per setting, instead of the experiment's number")
    run.add_argument(
        "--out",
        type=_place,
        metavar="DIR",
        help="results folder, or a storage such as s3://BUCKET/PREFIX (default: results/EXPERIMENT-SCALE)",
    )
    run.add_argument("--device", help="auto, cpu or cuda (default: %(default)s)")
    run.add_argument(
        "--kernel", help="auto, or reference to train without the compiled backends (default: %(default)s)"
    )
    run.add_argument(
        "--jobs",
        type=_count,
        metavar="N",
        help="processes (default: on a CPU one per core that it may use, on a GPU one)",
    )
    run.add_argument("--data", type=Path, metavar="DIR", help="where data is (default: $NEOTENY_DATA, then the cache)")
    run.add_argument(
        "--checkpoint-seconds", type=_seconds, metavar="S", help="time between checkpoints (default: %(default)g)"
    )
    run.add_argument(
        "--stop-after",
        type=_minutes,
        metavar="MINUTES",
        help="stop after this time as after Ctrl-C: checkpoints stay, and the same command continues",
    )
    run.add_argument(
        "--repair", action="store_true", help="move damaged parts to DIR/damaged and train their runs again"
    )
    run.add_argument(
        "--track", metavar="NAME", help="log means per task: tensorboard, wandb, mlflow, or package.module:Class"
    )
    cluster = run.add_argument_group("more than one machine (docs/cluster.md)")
    cluster.add_argument("--on", help="local, ray, ray://HOST:PORT or slurm (default: %(default)s)")
    cluster.add_argument("--workers", type=_count, metavar="N", help="stacks at a time; on Slurm jobs of the array")
    cluster.add_argument("--cpus-per-stack", type=_count, metavar="N", help="cores per stack (default: %(default)s)")
    cluster.add_argument(
        "--gpus-per-stack", type=_amount, metavar="F", help="GPUs per stack; 0.25 lets four stacks share one"
    )
    cluster.add_argument("--shard", metavar="I/N", help="train only every N-th stack, beginning with number I (from 0)")
    cluster.add_argument(
        "--lease-seconds",
        type=_lease,
        metavar="S",
        help="a worker that is silent for this long may lose its stack to another (default: %(default)g)",
    )
    cluster.add_argument("--slurm", metavar="KEY=VALUE,...", help="options of the jobs: partition, time (minutes), ...")
    cluster.add_argument("--dry-run", action="store_true", help="print the sbatch file and submit nothing")


def _add_verify(verify: argparse.ArgumentParser) -> None:
    verify.add_argument("folder", type=_place, metavar="DIR", help="a results folder")
    verify.add_argument("file", type=Path, nargs="?", metavar="FILE.py", help="your experiment's file")
    verify.add_argument("--trust", action="store_true", help="as of `claims`")
    verify.add_argument(
        "--runs", type=_count, default=1, metavar="N", help="at least this many runs, in whole stacks (default: 1)"
    )
    verify.add_argument(
        "--tasks",
        type=lambda text: 0 if text == "0" else _count(text),
        default=1,
        metavar="N",
        help="tasks of each run; 0: what was before the first update (default: %(default)s)",
    )
    verify.add_argument(
        "--tolerance",
        type=_share,
        default=0.02,
        metavar="SHARE",
        help="of the largest value, where machine, device, backend or versions differ (default: %(default)s)",
    )
    verify.add_argument("--seed", type=int, default=0, help="draws which stacks (default: %(default)s)")
    verify.add_argument("--device", default="auto", help="auto, cpu or cuda (default: %(default)s)")
    verify.add_argument(
        "--data", type=Path, metavar="DIR", help="where data is (default: $NEOTENY_DATA, then the cache)"
    )


def _add_data(data: argparse.ArgumentParser) -> None:
    actions = data.add_subparsers(dest="action", metavar="list|fetch", required=True)
    listing = actions.add_parser("list", help="every dataset: where it was found, checksum, size, terms")
    fetch = actions.add_parser("fetch", help="download a dataset and check it")
    fetch.add_argument("name", metavar="NAME", help="for example mnist")
    listing.set_defaults(name="")
    for command in (listing, fetch):
        command.add_argument(
            "--data", type=Path, metavar="DIR", help="where data is, or is written to (default: the cache)"
        )


def _place(text: str) -> Path | str:
    """A folder, or the address of a storage, which a path would change."""
    return text if "://" in text else Path(text)


def _count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text!r}")
    return int(text)


def _port(text: str) -> int:
    if not text.isdigit() or not 0 <= int(text) <= 65535:
        raise argparse.ArgumentTypeError(f"expected a port from 1 to 65535, or 0 for a free one, got {text!r}")
    return int(text)


def _seconds(text: str) -> float:
    return _number(text, 0.0, "a number of seconds, at least 0")


def _lease(text: str) -> float:
    return _number(text, 1.0, "a number of seconds, at least 1")


def _amount(text: str) -> float:
    return _number(text, 0.0, "a number, at least 0")


def _number(text: str, least: float, expected: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not least <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"expected {expected}, got {text!r}")
    return value


def _minutes(text: str) -> float:
    return _number(text, 0.0, "a number of minutes, at least 0")


def _share(text: str) -> float:
    return _number(text, 0.0, "a share, at least 0")
