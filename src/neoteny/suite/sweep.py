"""Sweep: everything an experiment runs, as frozen descriptions that refuse unknown options.

An experiment's `sweep(scale)` returns a `Sweep`; `stacks` turns it into runs and stacks.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from torch import nn

from neoteny.methods.method import Method
from neoteny.problems.problem import Problem, Worlds
from neoteny.text import check_whole, nearest

if TYPE_CHECKING:
    from neoteny.suite.rl.agent import AgentTraining
    from neoteny.suite.stacks import PlannedStack

SCALES = ("smoke", "laptop", "paper")
COLUMNS = ("run_id", "method", "setting", "hyperparameters", "seed", "task", "metric", "value", "scale")
"""What every table of results has; a setting's details come beside them."""
Detail = str | float | int
_FROM_PROBLEM = ("inputs", "outputs")


@dataclass(frozen=True)
class Network:
    """A network still to be built: a module class and its options; made by `network`."""

    build: type[nn.Module]
    options: tuple[tuple[str, Any], ...] = ()

    def make(self, problem: Problem) -> nn.Module:
        """The module, its numbers of inputs and outputs taken from the problem."""
        known = inspect.signature(self.build).parameters
        given: dict[str, Any] = {}
        if "inputs" in known:
            size = 1
            for side in problem.input_shape:
                size *= side
            given["inputs"] = size
        if "outputs" in known:
            given["outputs"] = problem.outputs
        return self.build(**given, **dict(self.options))


def network(build: type[nn.Module], **options: Any) -> Network:
    """Describe a network: `network(MLP, hidden=(100, 100), activation="relu")`.

    `inputs` and `outputs` come from the problem. Lists become tuples.
    """
    known = [name for name in inspect.signature(build).parameters if name not in _FROM_PROBLEM]
    for name in options:
        if name not in known:
            raise TypeError(
                f"{build.__name__} has no option {name!r}.{nearest(name, known)} It takes {', '.join(known)}; inputs "
                "and outputs come from the problem."
            )
    fixed = {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}
    return Network(build, tuple(sorted(fixed.items())))


@dataclass(frozen=True)
class Agent(ABC):
    """How a network learns by acting in a problem of control: a frozen description, as `neoteny.suite.rl.ppo.PPO`."""

    @abstractmethod
    def train(self, planned: PlannedStack, worlds: Worlds) -> AgentTraining:
        """The training of one run, at its start."""

    def why_not_compiled(self, setting: Setting) -> str:
        """Why the compiled backend cannot train this setting, in words; "" if it can."""
        return f"{type(self).__name__} has no compiled backend"


@dataclass(frozen=True)
class Setting:
    """One curve: a network trained with some methods.

    Args:
        method: its name in figures and tables: "BP", "CBP", ...
        network: what is trained.
        methods: an optimizer first, then the others in the order in which they act.
        details: what distinguishes this setting from others of its method, by names that become columns of the results:
            {"step_size": 0.01, "activation": "relu"}.
        problem: instead of the sweep's.
        runs: instead of the sweep's.
        agent: how it acts and learns in a problem of control; None in supervised learning.
    """

    method: str
    network: Network
    methods: tuple[Method, ...]
    details: Mapping[str, Detail] = field(default_factory=dict)
    problem: Problem | None = None
    runs: int | None = None
    agent: Agent | None = None

    def __post_init__(self) -> None:
        if not self.methods or not all(isinstance(method, Method) for method in self.methods):
            raise TypeError(
                f"Setting {self.method!r}: methods must be a tuple of methods, an optimizer first, for example "
                f"(SGD(0.01), L2(1e-4)); got {self.methods!r}."
            )
        for method in self.methods:
            if method.runs() is not None:
                raise ValueError(
                    f"Setting {self.method!r}: {method!r} holds a sequence. A setting has one value for each "
                    "hyperparameter; write one setting for each value, they are stacked for you."
                )
        for name in self.details:
            if name in COLUMNS:
                raise ValueError(
                    f"Setting {self.method!r}: a detail must not be called {name!r}, which is a column of the results "
                    f"already ({', '.join(COLUMNS)})."
                )
        object.__setattr__(self, "methods", tuple(self.methods))
        object.__setattr__(self, "details", MappingProxyType(dict(self.details)))

    @property
    def label(self) -> str:
        """The method with its details: unique within a sweep."""
        shown = ", ".join(f"{name}={_short(value)}" for name, value in self.details.items())
        return f"{self.method} ({shown})" if shown else self.method


def _short(value: Detail) -> str:
    """A number as briefly as it can be said exactly."""
    if isinstance(value, float) and float(f"{value:g}") == value:
        return f"{value:g}"
    return str(value)


@dataclass(frozen=True)
class Selection:
    """The paper's two stages: every setting gets the sweep's runs, then the best of each method gets more.

    Args:
        more_runs: how many more the best setting gets (its seeds follow those of the first stage).
        by: the columns within which to choose: ("method",), or for example ("method", "activation").
    """

    more_runs: int
    by: tuple[str, ...] = ("method",)


@dataclass(frozen=True)
class Assumption:
    """A value on which the paper is silent, and why we took it."""

    what: str
    value: str
    reason: str


Chosen = Assumption  # its name in experiment files of version 0.1


@dataclass(frozen=True)
class Sweep:
    """Everything an experiment runs at one scale.

    Args:
        problem: the stream of tasks.
        settings: the curves.
        runs: runs for each setting; run k has seed k, and the same stream in every setting.
        measures: what to measure at the start of tasks (of an agent: at their end), by name
            (`suite.measures.MEASURES`).
        measure_every: measure at every n-th task.
        probe_examples: inputs of the task to measure on.
        selection: the paper's two-stage protocol, or None.
        stack_size: at most this many runs train in one stack; an agent always acts alone.
        points_per_task: at how many points of a task an agent's return is recorded, for curves within tasks.
        chosen: values on which the paper is silent.
        dtype: "float32" or "float64".
    """

    problem: Problem
    settings: tuple[Setting, ...]
    runs: int
    measures: tuple[str, ...] = ()
    measure_every: int = 1
    probe_examples: int = 2000
    selection: Selection | None = None
    stack_size: int = 100
    chosen: tuple[Assumption, ...] = ()
    dtype: str = "float32"
    points_per_task: int = 20

    def __post_init__(self) -> None:
        object.__setattr__(self, "settings", tuple(self.settings))
        check_whole(self, runs=1, measure_every=1, probe_examples=1, stack_size=1, points_per_task=1)
        if not self.settings:
            raise ValueError("Sweep: settings is empty; an experiment needs at least one.")
        for setting in self.settings:
            _check_agent(setting, setting.problem or self.problem)
        labels = [setting.label for setting in self.settings]
        twice = sorted({label for label in labels if labels.count(label) > 1})
        if twice:
            raise ValueError(f"Sweep: two settings have the label {twice[0]!r}; name what differs in their `details`.")
        if self.dtype not in ("float32", "float64"):
            raise ValueError(f'Sweep: dtype must be "float32" or "float64"; got {self.dtype!r}.')


def _check_agent(setting: Setting, problem: Problem) -> None:
    """An agent belongs to a problem of control, and to no other."""
    name = type(problem).__name__
    if problem.control and setting.agent is None:
        raise ValueError(
            f"Setting {setting.method!r}: {name} is a problem of control, in which an agent acts; give one, for "
            "example Setting(..., agent=PPO()) with `from neoteny.suite.rl.ppo import PPO`."
        )
    if not problem.control and setting.agent is not None:
        raise ValueError(f"Setting {setting.method!r}: {name} has nothing to act in; leave out `agent`.")
