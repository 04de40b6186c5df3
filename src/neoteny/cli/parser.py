"""The command line: list, run, status, report, claims, data.

Everything heavy is imported by the command that needs it, so that `neoteny --help` answers at once.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import neoteny

SCALES = ("smoke", "laptop", "paper")  # as in engine.sweep, which imports torch; a test compares them


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status."""
    options = _parser().parse_args(arguments)
    if options.command is None:
        _parser().print_help()
        return 2
    from neoteny.cli import show as commands

    try:
        return getattr(commands, f"command_{options.command}")(options)
    except BrokenPipeError:  # `neoteny list | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        text = commands.explain(error)
        if text is None or os.environ.get("NEOTENY_TRACEBACK"):
            raise
        print(f"neoteny: {text}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="neoteny",
        description="Keep neural networks able to learn: run the experiments, look at the results.",
        epilog="Start with `neoteny list`, then `neoteny run scr-cbp --scale laptop`.",
    )
    parser.add_argument("--version", action="version", version=f"neoteny {neoteny.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")

    commands.add_parser("list", help="experiments, problems, methods, networks and measures")

    run = commands.add_parser("run", help="run an experiment, or go on with it")
    run.add_argument("experiment", metavar="EXPERIMENT", help="a name from `neoteny list`, or a Python file")
    run.add_argument("--scale", choices=SCALES, default="laptop", help="how large (default: laptop)")
    run.add_argument("--methods", metavar="A,B", help="these methods of the experiment alone, for now")
    run.add_argument(
        "--runs", type=_count, metavar="N", help="runs for each setting, instead of the experiment's number"
    )
    run.add_argument("--out", type=Path, metavar="DIR", help="results folder (default: results/EXPERIMENT-SCALE)")
    run.add_argument("--device", default="auto", help="auto, cpu or cuda (default: auto)")
    run.add_argument("--kernel", default="auto", help="auto or reference (default: auto)")
    run.add_argument("--jobs", type=_count, metavar="N", help="processes (default: one a core on a CPU, one on a GPU)")
    run.add_argument("--data", type=Path, metavar="DIR", help="where data is (default: $NEOTENY_DATA, then the cache)")
    run.add_argument(
        "--checkpoint-seconds", type=_seconds, default=60.0, metavar="S", help="time between checkpoints (default: 60)"
    )
    run.add_argument("--worker", type=_count, metavar="THREADS", help=argparse.SUPPRESS)

    for name, text in (
        ("status", "what is finished, running, failed and left"),
        ("report", "write DIR/report.html, and the figures as PNG and SVG"),
        ("claims", "each claim of the paper: holds, does not hold, or inconclusive"),
    ):
        command = commands.add_parser(name, help=text)
        command.add_argument("folder", type=Path, metavar="DIR", help="a results folder")
        if name != "status":
            command.add_argument("--so-far", action="store_true", help="count unfinished runs too, as far as they are")
            command.add_argument(
                "--tasks",
                type=_count,
                metavar="N",
                help="of each run with so many, finished or not, the first N tasks",
            )

    data = commands.add_parser("data", help="which datasets are there; fetch one")
    actions = data.add_subparsers(dest="action", metavar="list|fetch", required=True)
    listing = actions.add_parser("list", help="every dataset: found where, checksum, size, terms")
    fetch = actions.add_parser("fetch", help="download a dataset and check it")
    fetch.add_argument("name", metavar="NAME", help="for example mnist")
    for command in (listing, fetch):
        command.add_argument("--data", type=Path, metavar="DIR", help="where data is, or goes (default: the cache)")
    return parser


def _count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text!r}")
    return int(text)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a number of seconds, at least 0, got {text!r}")
    return value
