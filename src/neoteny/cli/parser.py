"""The command line: list, run, status, report, claims, verify, data.

Each command imports what it needs when it is called, so that `neoteny --help` answers at once.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
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

SCALES = ("smoke", "laptop", "paper")  # as in suite.sweep, which imports torch; a test compares them
NEEDS = {
    "run": ("pandas", "pyarrow", "rich"),
    "verify": ("pandas", "pyarrow"),
    "report": ("pandas", "pyarrow", "scipy", "plotly", "matplotlib", "jinja2"),
}
"""Packages that a command needs at its end, and that are therefore looked for before it starts."""
_MODULES = {"run": "run", "work": "run", "verify": "verify"}
"""Where a command is, if not in `show`."""


@dataclass(frozen=True)
class RunOptions:
    """What a person asked `neoteny run` to do. Each field but the first is a flag of the same name.

    Args:
        experiment: a name, or the path of a Python file.
        scale: how large.
        methods: names of methods, separated by commas; None: all.
        runs: runs per setting instead of the experiment's number.
        out: the results folder; None: results/EXPERIMENT-SCALE.
        device: auto, cpu or cuda.
        kernel: auto or reference.
        jobs: processes; None: one per core on a CPU, one on a GPU.
        data: where data is; None: $NEOTENY_DATA, then the cache.
        checkpoint_seconds: time between checkpoints of a stack.
        repair: whether damaged parts are moved away and their runs trained again.
        stop_after: minutes after which it stops as after Ctrl-C; None: never.
    """

    experiment: str
    scale: str = "laptop"
    methods: str | None = None
    runs: int | None = None
    out: Path | None = None
    device: str = "auto"
    kernel: str = "auto"
    jobs: int | None = None
    data: Path | None = None
    checkpoint_seconds: float = 60.0
    repair: bool = False
    stop_after: float | None = None

    @classmethod
    def defaults(cls) -> dict[str, Any]:
        """Every flag's default, by name."""
        return {field.name: field.default for field in dataclasses.fields(cls) if field.name != "experiment"}

    def command(self, root: Path) -> str:
        """The command that continues this one in the folder `root`; --jobs, --repair and --stop-after are left out."""
        words = ["neoteny", "run", self.experiment, "--scale", self.scale, "--out", str(root)]
        for name, default in self.defaults().items():
            if name not in ("scale", "out", "jobs", "repair", "stop_after") and getattr(self, name) != default:
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
        paths = {name: Path(values[name]) for name in ("out", "data") if values[name] is not None}
        return cls(**{**values, **paths})


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status."""
    options = vars(make_parser().parse_args(arguments))
    command = options.pop("command")
    if command is None:
        make_parser().print_help()
        return 2
    try:
        for package in NEEDS.get(command, ()):
            if importlib.util.find_spec(package) is None:
                raise ModuleNotFoundError(name=package)
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
    parser = argparse.ArgumentParser(
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
        ("report", "write DIR/report.html, and the figures as PNG and SVG"),
        ("claims", "check each claim of the paper: holds, does not hold, or inconclusive"),
    ):
        command = commands.add_parser(name, help=text)
        command.add_argument("folder", type=Path, metavar="DIR", help="a results folder")
        if name != "status":
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
    work.add_argument("options", metavar="JSON")
    work.add_argument("threads", type=_count, metavar="THREADS")
    return parser


def _add_run(run: argparse.ArgumentParser) -> None:
    """The flags of `run`; their names and defaults are those of `RunOptions`."""
    run.set_defaults(**RunOptions.defaults())
    run.add_argument("experiment", metavar="EXPERIMENT", help="a name from `neoteny list`, or a Python file")
    run.add_argument("--scale", choices=SCALES, help="how large (default: %(default)s)")
    run.add_argument("--methods", metavar="A,B", help="run only these methods (comma-separated); the others later")
    run.add_argument("--runs", type=_count, metavar="N", help="runs per setting, instead of the experiment's number")
    run.add_argument("--out", type=Path, metavar="DIR", help="results folder (default: results/EXPERIMENT-SCALE)")
    run.add_argument("--device", help="auto, cpu or cuda (default: %(default)s)")
    run.add_argument(
        "--kernel", help="auto, or reference to train without the compiled backends (default: %(default)s)"
    )
    run.add_argument(
        "--jobs", type=_count, metavar="N", help="processes (default: one per core on a CPU, one on a GPU)"
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


def _add_verify(verify: argparse.ArgumentParser) -> None:
    verify.add_argument("folder", type=Path, metavar="DIR", help="a results folder")
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


def _count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text!r}")
    return int(text)


def _seconds(text: str, what: str = "a number of seconds") -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"expected {what}, at least 0, got {text!r}")
    return value


def _minutes(text: str) -> float:
    return _seconds(text, "a number of minutes")


def _share(text: str) -> float:
    return _seconds(text, "a share")
