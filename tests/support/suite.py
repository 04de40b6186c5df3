"""Small experiments for tests of the engine, and a place to fork processes from that have everything imported.

`Zygote` starts one Python process that imports the command line once, then forks a real process for each command: the
children can be killed with real signals, and start in milliseconds.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

EXPERIMENT = '''
"""A small experiment for tests.

Backpropagation with SGD and continual backpropagation with Adam.
"""
from neoteny.suite.sweep import Selection, Setting, Sweep, network
from neoteny.methods import SGD, Adam, ContinualBackprop
from neoteny.nets import MLP
from neoteny.problems import SlowlyChangingRegression
from neoteny.report.chart import Chart
from neoteny.report.claim import Claim, above
from neoteny.report.statistics import curve, paired, per_run, select

NET = network(MLP, hidden=(6,), activation="relu")


def sweep(scale):
    bp = [Setting("BP", NET, (SGD(s),), {"step_size": s}) for s in (0.01, 0.003)]
    cbp = [Setting("CBP", NET, (Adam(s), ContinualBackprop(1e-2, maturity_threshold=20)), {"step_size": s})
           for s in (0.01, 0.003)]
    return Sweep(SlowlyChangingRegression(tasks=TASKS, examples_per_task=EXAMPLES), (*bp, *cbp)[FIRST:], runs=3,
                 measures=("dead_units",), measure_every=10, probe_examples=50, selection=SELECTION)


def figure(frame):
    return [Chart("error", "task", "error", [curve(select(frame, "error", setting=name), name)
            for name in frame["setting"].unique()])]


def check(frame):
    bp, cbp = (per_run(select(frame, "error", method=m, step_size=0.01)) for m in ("BP", "CBP"))
    return above(paired(bp, cbp), what="error of BP minus CBP")


claims = (Claim("cbp-better", "Continual backpropagation has a lower error.", "Figure 1", check),)
'''


def write_experiment(path: Path, tasks: int = 4, examples: int = 50, first: int = 0, selection: str = "None") -> Path:
    """Write the small experiment into a file."""
    values = {"TASKS": tasks, "EXAMPLES": examples, "FIRST": first, "SELECTION": selection}
    text = EXPERIMENT
    for name, value in values.items():
        text = text.replace(name, str(value))
    path.write_text(textwrap.dedent(text).lstrip())
    return path


_IMPORTED = (
    "matplotlib.backends.backend_agg",
    "matplotlib.backends.backend_svg",
    "jinja2",
    "scipy.stats",
    "gymnasium",
    "neoteny.problems.ant.env",
    "neoteny.backends.kernel.cpu.kernel",
    "neoteny.cli.run",
    "neoteny.cli.show",
    "neoteny.experiments",
    "neoteny.report.figures",
    "neoteny.report.page",
    "neoteny.suite.processes",
    "neoteny.suite.rl.ppo",
    "neoteny.suite.training",
    "neoteny.suite.worker",
)
"""What commands import, once instead of in every process. One that is missing costs time and changes nothing."""

_ZYGOTE = """
import contextlib, gc, importlib, json, os, signal, sys
import pandas, pyarrow.parquet, torch
torch.set_num_threads(1)
from neoteny.cli import parser as cli
for module in sys.argv[1:]:
    with contextlib.suppress(ImportError):
        importlib.import_module(module)
with contextlib.suppress(ImportError):
    import numba, numpy
    numba.njit(lambda x: x + 1.0)(numpy.ones(2))  # numba imports most of itself when it first compiles
gc.collect()
gc.freeze()  # a child that looks at all of this for garbage copies the memory it lies in
signal.signal(signal.SIGCHLD, signal.SIG_DFL)
for line in sys.stdin:
    request = json.loads(line)
    if "wait" in request:
        _, status = os.waitpid(request["wait"], 0)
        print(json.dumps(os.waitstatus_to_exitcode(status)), flush=True)
        continue
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        output = os.open(request["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.environ.update(request["environment"])
        if request["file_limit"]:
            import resource
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (request["file_limit"],) * 2)
        if request["fault"]:
            import ctypes
            ctypes.CDLL(None).arm(*(each.encode() if isinstance(each, str) else each for each in request["fault"]))
        code = 1
        try:
            code = cli.main(request["arguments"])
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 1
        except BaseException:
            import traceback
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    print(json.dumps(child), flush=True)
"""


class Zygote:
    """Forks processes that run `neoteny` commands.

    Args:
        preload: a library that is loaded before all others, as `failing_calls` makes it; None: none.
    """

    def __init__(self, preload: Path | None = None) -> None:
        self.preload = preload
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        if preload is not None:
            environment["LD_PRELOAD"] = str(preload)
        self._process = subprocess.Popen(
            [sys.executable, "-c", _ZYGOTE, *_IMPORTED],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def start(
        self,
        *arguments: str | Path,
        output: Path,
        file_limit: int = 0,
        fault: Sequence[str | int] = (),
        environment: Mapping[str, str] | None = None,
    ) -> int:
        """Start a command; returns its process id. `fault` is what `failing_calls` is armed with."""
        request = {"arguments": [str(each) for each in arguments], "output": str(output), "file_limit": file_limit}
        return self._ask({**request, "fault": list(fault), "environment": dict(environment or {})})

    def wait(self, process: int) -> int:
        """Its exit status, negative for a signal."""
        return self._ask({"wait": process})

    def run(
        self,
        *arguments: str | Path,
        output: Path,
        file_limit: int = 0,
        fault: Sequence[str | int] = (),
        environment: Mapping[str, str] | None = None,
    ) -> int:
        """Run a command to its end."""
        options = {"file_limit": file_limit, "fault": fault, "environment": environment}
        return self.wait(self.start(*arguments, output=output, **options))

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def _ask(self, request: dict[str, object]) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


def wait_until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait for something to become true; TimeoutError if it does not."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("it did not happen in time")
        time.sleep(0.005)


def kill(process: int) -> None:
    """The signal that cannot be caught."""
    os.kill(process, signal.SIGKILL)


AGENTS = '''
"""A small experiment with agents for tests

Continual PPO on the Slippery Ant, with friction that changes every 256 steps.
"""
from neoteny.suite.rl.ppo import PPO
from neoteny.suite.sweep import Setting, Sweep, network
from neoteny.methods import Adam, ContinualBackprop
from neoteny.nets import ActorCritic
from neoteny.problems import SlipperyAnt


def sweep(scale):
    methods = (Adam(1e-3), ContinualBackprop(1e-2, maturity_threshold=5))
    setting = Setting("Continual PPO", network(ActorCritic, hidden=(8, 8)), methods,
                      agent=PPO(iteration_steps=64, epochs=2, minibatch=16))
    problem = SlipperyAnt(tasks=4, period_steps=256, episode_steps=100, simulator="SIMULATOR")
    return Sweep(problem, (setting,), runs=1, measures=("saturated_units",), points_per_task=2)


def figure(frame):
    return []


claims = ()
'''


def write_agents(path: Path, simulator: str) -> Path:
    """Write the small experiment with agents into a file."""
    path.write_text(AGENTS.replace("SIMULATOR", simulator).lstrip())
    return path
