"""How many files of the package a command enters: a measure of how far its code is spread.

    python benchmarks/files_entered.py [JOURNEY ...]

Counts the files under neoteny/ in which a function is called (importing alone does not count), the functions called,
and how often a call goes from one file to another. Each journey runs in a process of its own. With another checkout's
src on PYTHONPATH it measures that one.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

JOURNEYS = ("run", "report", "claims", "attach", "step, nothing due", "step, units replaced")


class Count:
    """What was called while `with Count() as count:` was open, in this thread."""

    def __init__(self) -> None:
        import neoteny

        self._root = str(Path(neoteny.__file__).parent)
        self.functions: set[CodeType] = set()
        self.switches = 0
        self._before = ""

    @property
    def files(self) -> list[str]:
        """The files entered, relative to the package."""
        return sorted({str(Path(code.co_filename).relative_to(self._root)) for code in self.functions})

    def _called(self, frame: FrameType, event: str, _argument: Any) -> None:
        code = frame.f_code
        if event != "call" or code.co_name == "<module>" or not code.co_filename.startswith(self._root):
            return
        self.functions.add(code)
        self.switches += code.co_filename != self._before
        self._before = code.co_filename

    def __enter__(self) -> Count:
        sys.setprofile(self._called)
        return self

    def __exit__(self, *_error: object) -> None:
        sys.setprofile(None)


def command(*arguments: str) -> Callable[[], object]:
    """A command of `neoteny`."""
    from neoteny.cli import main

    return lambda: main(list(arguments))


def network() -> tuple[Any, Any, Any]:
    """A three-layer network, its optimizer and an example."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 2))
    return model, torch.optim.Adam(model.parameters()), torch.randn(4, 8)


def step(due: bool) -> Callable[[], object]:
    """One step of an attachment, after some that are not counted."""
    import neoteny

    model, optimizer, example = network()
    method = neoteny.ContinualBackprop(0.5 if due else 1e-9, maturity_threshold=3)
    plastic = neoteny.attach(model, optimizer, method, example=example)

    def update() -> None:
        optimizer.zero_grad()
        model(example).square().mean().backward()
        optimizer.step()

    for _ in range(10):
        update()
        plastic.step()
    update()
    return plastic.step


def attach() -> object:
    """Attach continual backpropagation to the network."""
    import neoteny

    model, optimizer, example = network()
    return neoteny.attach(model, optimizer, neoteny.ContinualBackprop(1e-4), example=example)


def measure(journey: str, folder: str) -> str:
    """Take one journey twice and describe the second time: the first imports and compiles."""
    run = ("run", "mnist-methods", "--scale", "smoke", "--device", "cpu", "--jobs", "1", "--out")
    make: dict[str, Callable[[str], Callable[[], object]]] = {
        "run": lambda out: command(*run, out),
        "report": lambda _: command("report", folder),
        "claims": lambda _: command("claims", folder),
        "attach": lambda _: attach,
        "step, nothing due": lambda _: step(due=False),
        "step, units replaced": lambda _: step(due=True),
    }
    make[journey](f"{folder}-first")()
    take = make[journey](folder)
    with Count() as count:
        take()
    if "--files" in sys.argv:
        print(*count.files, sep="\n", file=sys.stderr)
    return f"{journey:22} {len(count.files):5} {len(count.functions):9} {count.switches:8,}"


def main() -> None:
    """Print the table, one journey per process."""
    if "--one" in sys.argv:
        print("\n" + measure(*sys.argv[sys.argv.index("--one") + 1 :][:2]))
        return
    wanted = [name for name in sys.argv[1:] if not name.startswith("--")] or list(JOURNEYS)
    more = ["--files"] if "--files" in sys.argv else []
    print(f"{'journey':22} files functions switches")
    with tempfile.TemporaryDirectory() as folder:
        if "run" not in wanted and {"report", "claims"} & set(wanted):
            _take("run", f"{folder}/results", [])
        for name in wanted:
            print(_take(name, f"{folder}/results", more), flush=True)


def _take(journey: str, folder: str, more: list[str]) -> str:
    program = [sys.executable, __file__, "--one", journey, folder, *more]
    done = subprocess.run(program, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.splitlines()[-1]


if __name__ == "__main__":
    main()
