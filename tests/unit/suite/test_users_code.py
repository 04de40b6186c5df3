"""A user's code that fails in a sweep: one line that says what, where and in which runs; the other stacks go on."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from neoteny.cli import parser as cli
from neoteny.methods import SGD, ContinualBackprop, Method
from neoteny.nets import MLP, ConvNet
from neoteny.problems.problem import Plan, Problem, Stream
from neoteny.suite.environment import open_problems
from neoteny.suite.progress import status_text
from neoteny.suite.session import Job
from neoteny.suite.stacks import runs_of, stacks_of
from neoteny.suite.store.results import Results
from neoteny.suite.sweep import Network, Setting, Sweep, network
from neoteny.suite.training import Training
from neoteny.suite.worker import Worker, describe_failure
from support import misbehaving
from support.misbehaving import AT, Harmless, SpoilsGradients, SpoilsPenalty, SpoilsStep
from support.small_sweeps import CPU, NET, PROBLEM, make_sweep

ABOUT = {"experiment": "one", "scale": "smoke", "data": "", "configuration": {}, "versions": {}}
GOOD = Setting("good", NET, (SGD(0.01),))


def work(sweep: Sweep, folder: Path) -> tuple[list[str], Results, list[str]]:
    """What failed, the results, and what was said on the way."""
    results, said = Results.create(folder, ABOUT), []
    results.write_plan({"runs": [run.run_id for run in runs_of(sweep, sweep.settings, "reference")]})
    job = Job(results, open_problems(sweep, None), CPU, "reference", 60.0, notify=said.append)
    return Worker(sweep, job).run(), results, said


def fails(setting: Setting, folder: Path) -> str:
    """The line about a setting that fails, beside one that does not."""
    (line,), results, _ = work(make_sweep(setting, GOOD), folder)
    assert set(results.frame()["method"]) == {"good"}  # kept
    assert f"failed: {line}" in status_text(results)
    assert "\n" not in line
    return line


@dataclasses.dataclass(frozen=True)
class Keeps(Method):
    """Keeps what cannot be saved, from some update on."""

    at_once: bool = True

    def init(self, view: Any) -> dict[str, Any]:
        return {"memory": np.zeros(3)} if self.at_once else {}

    def step(self, view: Any, state: dict[str, Any]) -> None:
        state["memory"] = np.zeros(3)


@dataclasses.dataclass(frozen=True)
class Draws(Method):
    """Draws from NumPy's generator."""

    def step(self, view: Any, state: dict[str, Any]) -> None:
        np.random.rand()


@dataclasses.dataclass(frozen=True)
class Exits(Method):
    """Ends the process."""

    def step(self, view: Any, state: dict[str, Any]) -> None:
        raise SystemExit(3)


@dataclasses.dataclass(frozen=True)
class Chatters(Method):
    """Raises a page of text."""

    def step(self, view: Any, state: dict[str, Any]) -> None:
        raise RuntimeError("a line\n" * 1000)


class UnshownError(RuntimeError):
    """An error whose text raises another."""

    def __str__(self) -> str:
        raise ValueError("no text")


@dataclasses.dataclass(frozen=True)
class Unshown(Method):
    """Raises an error that cannot be shown."""

    def step(self, view: Any, state: dict[str, Any]) -> None:
        raise UnshownError


@pytest.mark.parametrize(
    ("method", "said"),
    [
        (Unshown(), r"UnshownError: \(its message cannot be shown\) \(in Unshown.step; task 0, update 0; "),
        (misbehaving.METHODS["step raises"][0], rf"RuntimeError: out of cheese \(in Wrong.step; task 0, update {AT}; "),
        (misbehaving.METHODS["shape changes"][0], rf"changed out.weight .*\(in Wrong.step; task 0, update {AT}; "),
        (Keeps(), r"Keeps: the state.memory is a ndarray.*\(seeds 0 to 1\)"),
        (Keeps(at_once=False), r"Keeps: the state.memory is a ndarray"),
        (Draws(), "Draws drew from NumPy's global generator"),
        (Exits(), "SystemExit: 3"),
        (Chatters(), r"a line a line .*\.\.\. \(in Chatters.step"),
    ],
    ids=lambda part: type(part).__name__ if isinstance(part, Method) else "",
)
def test_a_method_that_fails_is_named_with_task_update_line_and_runs(method: Method, said: str, tmp_path: Path) -> None:
    line = fails(Setting("mine", NET, (SGD(0.01), method)), tmp_path / "out")
    assert line.startswith("mine: ")
    assert re.search(said, line), line
    assert line.endswith("seeds 0 to 1)")
    assert len(line) < 1000


@pytest.mark.parametrize("name", ["raises", "a branch on values", "in place"])
def test_a_network_that_fails_is_named_with_its_line(name: str, tmp_path: Path) -> None:
    kind, said = misbehaving.NETWORKS[name]
    line = fails(Setting("mine", network(kind), (SGD(0.01),)), tmp_path / "out")
    assert said in line
    assert f"{inspect.getsourcefile(misbehaving)}, line " in line
    assert "task 0, update 0" in line


@pytest.mark.parametrize("outputs", [lambda net, x: net.plain(x)[:, 0], lambda net, x: (net.plain(x),)])
def test_a_network_with_other_outputs_than_the_problems_is_refused(outputs: Any, tmp_path: Path) -> None:
    line = fails(Setting("mine", network(misbehaving.own(outputs)), (SGD(0.01),)), tmp_path / "out")
    assert "Broken must give one tensor of shape (batch, 1) as outputs; got " in line
    assert f"(in Broken.forward; task 0, update 0; {inspect.getsourcefile(misbehaving)}, line " in line


# Numbers that are not finite


@pytest.mark.parametrize("kind", [SpoilsPenalty, SpoilsGradients, SpoilsStep])
def test_a_run_that_a_method_spoils_is_named_and_the_others_keep_their_bits(
    kind: type[Harmless], tmp_path: Path
) -> None:
    sweep = make_sweep(Setting("mine", NET, (SGD(0.01), kind())), runs=3)
    failures, results, said = work(sweep, tmp_path / "out")
    hook = {SpoilsPenalty: "penalty", SpoilsGradients: "transform_gradients", SpoilsStep: "step"}[kind]
    text = (
        f"mine, seed 1, diverged at update {AT + 1} ({kind.__name__}.{hook} gave the first number that was not finite)"
    )
    assert failures == []
    assert said == [f"mine: {text}"]
    assert f"diverged: {text}" in status_text(results)
    (progress,) = results.progress().values()
    assert progress["diverged_runs"] == [text]
    (part,) = results.parts()
    assert [run["diverged_at_update"] for run in part["runs"]] == [None, AT + 1, None]

    (one,) = stacks_of(sweep, runs_of(sweep, sweep.settings, "reference"), ())
    harmless = dataclasses.replace(sweep, settings=(Setting("mine", NET, (SGD(0.01), Harmless())),))
    (other,) = stacks_of(harmless, runs_of(harmless, harmless.settings, "reference"), ())
    rows = []
    for planned in (one, other):
        training = Training(planned, PROBLEM.open(), CPU)
        training.run(lambda: None)
        rows.append(torch.stack(list(training.rows["error"].values())))
    assert torch.equal(rows[0][:, [0, 2]], rows[1][:, [0, 2]])
    assert rows[0][:, 1].isnan().all()
    assert rows[1].isfinite().all()


# Streams


@dataclasses.dataclass(frozen=True)
class Toy(Problem):
    """A problem of a user, with one fault."""

    tasks: int = 2
    fault: str = ""
    loss: ClassVar[str] = "cross_entropy"
    performance: ClassVar[str] = "accuracy"

    @property
    def input_shape(self) -> tuple[int, ...]:
        return (3,)

    @property
    def outputs(self) -> int:
        return 2

    @property
    def steps_per_task(self) -> int:
        return 4

    def open(self, data: Path | str | None = None) -> Stream:
        return ToyStream(self.fault)


class ToyStream(Stream):
    def __init__(self, fault: str) -> None:
        self.fault = fault

    def plan(self, seeds: Sequence[int], task: int) -> Plan:
        if self.fault == "raises" and task == 1:
            raise KeyError("no such task")
        return "a plan" if self.fault == "no plan" else ToyPlan(self.fault, len(seeds))  # pyright: ignore[reportReturnType]


class ToyPlan(Plan):
    made = 0

    def __init__(self, fault: str, runs: int) -> None:
        ToyPlan.made += 1
        self.fault, self.runs, self.number = fault, runs, ToyPlan.made
        self.steps = 0 if fault == "no steps" else 4

    def batches(self, start: int, stop: int, device: torch.device) -> Any:
        x = torch.linspace(-1, 1, (stop - start) * self.runs * 3).reshape(stop - start, self.runs, 1, 3)
        y = (x.sum(-1) > 0).long()
        return {
            "nan": lambda: (x * torch.nan, y),
            "shape": lambda: (x[..., :2], y),
            "rows": lambda: (x.repeat(2, 1, 1, 1), y),
            "targets": lambda: (x, y[..., 0]),
            "labels": lambda: (x, y + 1),
            "floats": lambda: (x, y.float()),
            "one": lambda: x,
            "draws": lambda: (torch.rand_like(x), y),
            "differs": lambda: (x + self.number, y),
        }.get(self.fault, lambda: (x, y))()

    def probe(self, count: int, device: torch.device) -> Tensor:
        return torch.zeros(self.runs, count, 2 if self.fault == "probe" else 3)

    def test(self, device: torch.device) -> tuple[Tensor, Tensor] | None:
        if self.fault != "test":
            return None
        return torch.zeros(self.runs, 5, 3), torch.zeros(self.runs, 4, dtype=torch.int64)


FAULTS = {
    "raises": r"KeyError: 'no such task' \(in ToyStream.plan; task 1, update 4; .*test_users_code.py, line",
    "no plan": "ToyStream.plan must return a Plan whose steps are a whole number of at least 1; got str",
    "no steps": "ToyStream.plan must return a Plan whose steps are a whole number of at least 1; got steps=0",
    "nan": "ToyPlan.batches gave inputs that are not finite",
    "shape": r"ToyPlan.batches must give inputs of shape \(1, 2, batch, 3\) on cpu; got \(1, 2, 1, 2\)",
    "rows": r"inputs of shape \(1, 2, batch, 3\) on cpu; got \(2, 2, 1, 3\)",
    "targets": r"must give targets of shape \(1, 2, 1, ...\) on cpu; got \(1, 2\)",
    "labels": "must give whole targets from 0 to 1, one per output; got torch.int64 from 1 to",
    "floats": "must give whole targets from 0 to 1, one per output; got torch.float32",
    "one": "ToyPlan.batches must return two tensors, inputs and targets; got Tensor",
    "draws": "ToyPlan.batches drew from torch's global generator",
    "differs": "Toy: two plans of task 0 for the same seeds differ",
    "probe": r"ToyPlan.probe must give inputs of shape \(2, 10, 3\) on cpu; got \(2, 10, 2\)",
    "test": r"ToyPlan.test must give targets of shape \(2, 5\) on cpu; got \(2, 4\)",
}


class Column(Toy):
    """The same with inputs of two axes."""

    @property
    def input_shape(self) -> tuple[int, ...]:
        return (3, 1)

    def open(self, data: Path | str | None = None) -> Stream:
        return ColumnStream("")


class ColumnStream(ToyStream):
    def plan(self, seeds: Sequence[int], task: int) -> Plan:
        return ColumnPlan("", len(seeds))


class ColumnPlan(ToyPlan):
    def batches(self, start: int, stop: int, device: torch.device) -> Any:
        inputs, targets = super().batches(start, stop, device)
        return inputs.unsqueeze(-1), targets


@pytest.mark.parametrize("others", [(), (ContinualBackprop(1e-2),)])
@pytest.mark.parametrize(
    ("net", "said"),
    [
        (network(MLP, hidden=(4,)), "Write network(MLP, flatten=True, ...), which makes each input one row"),
        (network(ConvNet), "Its forward pass: Images x (B, 3, 32, 32) to (B, outputs). Choose another network, or"),
    ],
)
def test_a_network_of_the_package_that_does_not_take_a_problems_inputs_is_named_with_what_to_do(
    net: Network, said: str, others: tuple[Method, ...], tmp_path: Path
) -> None:
    problem = Column()
    line = fails(Setting("mine", net, (SGD(0.01), *others), problem=problem), tmp_path / "out")
    assert line.startswith(f"mine: {net.build.__name__} does not take the inputs of Column, each of shape (3, 1): ")
    assert said in line
    flat = Setting("mine", network(MLP, hidden=(4,), flatten=True), (SGD(0.01), *others), problem=problem)
    assert work(make_sweep(flat), tmp_path / "flat")[0] == []


@pytest.mark.parametrize("fault", FAULTS)
def test_a_stream_that_gives_what_it_must_not_is_named(fault: str) -> None:
    sweep = make_sweep(
        Setting("mine", network(MLP, hidden=(4,)), (SGD(0.01),)),
        problem=Toy(fault=fault),
        measures=("weight_magnitude",),
        probe_examples=10,
    )
    (one,) = stacks_of(sweep, runs_of(sweep, sweep.settings, "reference"), ())
    with pytest.raises((KeyError, TypeError, ValueError)) as caught:
        Training(one, Toy(fault=fault).open(), CPU).run(lambda: None)
    line = describe_failure(one, caught.value)
    assert re.search(FAULTS[fault], line), line
    assert re.search(r"task \d, update \d", line), line


def test_a_failure_of_a_single_run_without_a_place_ends_with_its_message() -> None:
    sweep = make_sweep(Setting("mine", network(MLP, hidden=(4,)), (SGD(0.01),)), problem=Toy(), runs=1)
    (one,) = stacks_of(sweep, runs_of(sweep, sweep.settings, "reference"), ())
    assert describe_failure(one, ValueError("Too short.")) == "mine, seed 0: ValueError: Too short."


def test_a_stream_without_a_fault_trains() -> None:
    sweep = make_sweep(Setting("mine", network(MLP, hidden=(4,)), (SGD(0.01),)), problem=Toy())
    (one,) = stacks_of(sweep, runs_of(sweep, sweep.settings, "reference"), ())
    training = Training(one, Toy().open(), CPU)
    training.run(lambda: None)
    assert training.task == 2


# The command line

FILE = '''
"""An experiment with a method that fails"""
from dataclasses import dataclass
from neoteny.methods import SGD, Method
from neoteny.nets import MLP
from neoteny.problems import SlowlyChangingRegression
from neoteny.suite.sweep import Setting, Sweep, network


@dataclass(frozen=True)
class Broken(Method):
    def step(self, view, state):
        raise RuntimeError("out of cheese")


def sweep(scale):
    net = network(MLP, hidden=(4,))
    settings = (Setting("bad", net, (SGD(0.1), Broken())), Setting("good", net, (SGD(0.1),)))
    return Sweep(SlowlyChangingRegression(tasks=1, examples_per_task=5), settings, runs=RUNS)


def figure(frame):
    return []


claims = ()
'''


def test_the_command_ends_with_1_after_the_other_stacks_and_refuses_to_run_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = tmp_path / "mine.py", tmp_path / "out"
    command = ["run", str(file), "--kernel", "reference", "--jobs", "1", "--out", str(out)]
    file.write_text(FILE.replace("RUNS", "-1"))
    assert cli.main(command) == 1
    said = capsys.readouterr().err
    assert f"neoteny: {file}, line 19: Sweep: runs must be a whole number of at least 1; got -1." in said
    assert not out.exists()
    file.write_text(FILE.replace("RUNS", "2"))
    assert cli.main(command) == 1
    line = f"bad: RuntimeError: out of cheese (in Broken.step; task 0, update 0; {file}, line 13; seeds 0 to 1)"
    said = capsys.readouterr().err
    assert f"neoteny: {line}\nFinished runs are kept; repeat the command to try the others again." in said
    assert "Traceback" not in said
    assert set(Results.open(out).frame()["method"]) == {"good"}
    assert cli.main(["status", str(out)]) == 0
    assert f"failed: {line}" in capsys.readouterr().out
