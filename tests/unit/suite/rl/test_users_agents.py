"""Worlds and agents of a user that do what they must not: the error says what, at which task and step."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from neoteny.methods import SGD
from neoteny.nets import MLP
from neoteny.problems.problem import Problem, Worlds
from neoteny.stacking.stack import stack
from neoteny.suite.rl.agent import AgentTraining, Experience
from neoteny.suite.session import Job, Session
from neoteny.suite.stacks import PlannedStack, runs_of, stacks_of
from neoteny.suite.store.results import Results
from neoteny.suite.sweep import Agent, Setting, Sweep, network
from neoteny.suite.worker import describe_failure

FAULT_AT = 20


@dataclass(frozen=True)
class Corridor(Problem):
    """A world in which nothing happens, but for one fault."""

    tasks: int = 2
    fault: str = ""

    performance: ClassVar[str] = "return"
    control: ClassVar[bool] = True

    @property
    def input_shape(self) -> tuple[int, ...]:
        return (3,)

    @property
    def outputs(self) -> int:
        return 2

    @property
    def steps_per_task(self) -> int:
        return 32

    def open(self, data: Path | str | None = None) -> Worlds:
        return Corridors(self.fault)


class Corridors(Worlds):
    def __init__(self, fault: str) -> None:
        self.fault = fault

    def make(self, seed: int) -> Walk:
        return Walk(self.fault)


class Walk:
    friction = 1.0

    def __init__(self, fault: str) -> None:
        self.fault, self.steps = fault, 0

    def reset(self, *, seed: int | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        return np.zeros(3, np.float32), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        due = self.steps == FAULT_AT
        self.steps += 1
        if due and self.fault == "raises":
            raise ZeroDivisionError("no ground")
        seen = np.zeros(1 if due and self.fault == "observation" else 3, np.float32)
        return seen, float("nan") if due and self.fault == "reward" else 1.0, self.steps % 4 == 0, False, {}

    def state_dict(self) -> dict[str, Any]:
        return {"steps": np.int64(self.steps) if self.fault == "state" else self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps = int(state["steps"])

    def close(self) -> None:
        """Nothing to free."""


class Learner:
    metric_names = ("loss",)

    def __init__(self, planned: PlannedStack, fault: str) -> None:
        run = planned.runs[0]
        self.stack, self.fault = stack([run.make_network(torch.float32)], *run.setting.methods, seeds=[0]), fault

    def act(self, observation: np.ndarray, noise: np.ndarray) -> np.ndarray:
        return noise[:1] if self.fault == "action" else noise

    def learn(self, experience: Experience, iteration: int) -> dict[str, float]:
        return {"lost": 1.0} if self.fault == "metrics" else {"loss": 1.0}


@dataclass(frozen=True)
class Idle(Agent):
    """Learns nothing, but for one fault."""

    fault: str = ""

    def train(self, planned: PlannedStack, worlds: Worlds) -> AgentTraining:
        if self.fault == "train":
            return "later"  # pyright: ignore[reportReturnType]
        return AgentTraining(planned, worlds, Learner(planned, self.fault), 16)  # pyright: ignore[reportArgumentType]


FAULTS = {
    "raises": rf"ZeroDivisionError: no ground \(task 0, step {FAULT_AT + 1}; .*test_users_agents.py, line \d+\)",
    "observation": r"Expected the world's observation to be an array of shape \(3,\); got shape \(1,\). \(task 0, step",
    "reward": rf"Walk.step must give a finite reward; got nan at step {FAULT_AT}",
    "state": "Walk: the state.steps is a int64",
    "action": r"Expected the agent's action to be an array of shape \(2,\); got shape \(1,\). \(task 0, step 0",
    "metrics": r"Learner.learn must return a dict with the metrics loss; got {'lost': 1.0}. \(task 0, step 16",
    "train": "Idle.train must return an AgentTraining .*; got str",
}


@pytest.mark.parametrize("fault", ["", *FAULTS])
def test_a_world_or_an_agent_that_does_what_it_must_not_is_named(fault: str, tmp_path: Path) -> None:
    problem = Corridor(fault=fault)
    setting = Setting("idle", network(MLP, hidden=(4,)), (SGD(0.1),), agent=Idle(fault))
    sweep = Sweep(problem, (setting,), runs=1, points_per_task=2)
    (planned,) = stacks_of(sweep, runs_of(sweep, sweep.settings, "reference"), ())
    about = {"experiment": "one", "scale": "smoke", "data": "", "configuration": {}, "versions": {}}
    results = Results.create(tmp_path / "out", about)
    job = Job(results, {problem: problem.open()}, torch.device("cpu"), "reference", 60.0)
    if not fault:
        Session(job, planned).run()
        assert set(results.frame()["metric"]) >= {"return", "loss"}
        return
    with pytest.raises((TypeError, ValueError, ZeroDivisionError)) as caught:
        Session(job, planned).run()
    line = describe_failure(planned, caught.value)
    assert line.startswith("idle, seed 0: ")
    assert re.search(FAULTS[fault], line), line
