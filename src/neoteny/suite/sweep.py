"""Sweep: everything an experiment runs, as frozen descriptions that refuse unknown options.

An experiment's `sweep(scale)` returns a `Sweep`; `stacks` turns it into runs and stacks.
"""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from inspect import Parameter
from numbers import Real
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from torch import nn

from neoteny.backends.library import check_schedule
from neoteny.methods.method import Method
from neoteny.problems.problem import NEW_FIELD, Problem, Worlds
from neoteny.suite.checks import (
    as_tuple,
    check_distinct,
    check_hyperparameters,
    check_kind,
    check_optimizer,
    check_problem,
    check_text,
    plain_details,
    shown,
)
from neoteny.suite.measures import check_measures
from neoteny.suite.plasticity_probe import LEARNING_MEASURES, OPTIMIZERS
from neoteny.text import check_whole, nearest

if TYPE_CHECKING:
    from neoteny.suite.rl.agent import AgentTraining
    from neoteny.suite.stacks import PlannedStack

MATMULS = ("float32", "tf32")
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

    def __post_init__(self) -> None:
        if not isinstance(self.build, type) or not issubclass(self.build, nn.Module):
            what = type(self.build).__name__
            hint = f" Did you mean network({what}, ...)?" if isinstance(self.build, nn.Module) else ""
            raise TypeError(f"Network: build must be a class of nn.Module, such as MLP; got {shown(self.build)}.{hint}")
        pairs = self.options if isinstance(self.options, tuple) else (None,)
        if not all(isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str) for pair in pairs):
            raise TypeError(f"Network: options must be pairs of a name and a value; got {shown(self.options)}.")
        names = [name for name, _ in self.options]
        check_distinct("Network", "options", names)
        _check_options(self.build, names)

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
    fixed = {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}
    return Network(build, tuple(sorted(fixed.items())))


def _check_options(build: type[nn.Module], given: Sequence[str]) -> None:
    """Refuse an option that the class does not have, and the lack of one that it needs."""
    parameters = {name: each for name, each in inspect.signature(build).parameters.items() if name not in _FROM_PROBLEM}
    if any(each.kind is Parameter.VAR_KEYWORD for each in parameters.values()):
        return
    known = [name for name, each in parameters.items() if each.kind is not Parameter.VAR_POSITIONAL]
    takes = f"It takes {', '.join(known) or 'none'}; inputs and outputs come from the problem."
    for name in given:
        if name not in known:
            raise TypeError(f"{build.__name__} has no option {name!r}.{nearest(name, known)} {takes}")
    for name in known:
        if parameters[name].default is Parameter.empty and name not in given:
            raise TypeError(
                f"{build.__name__} needs the option {name!r}: network({build.__name__}, {name}=...). {takes}"
            )


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
        more_runs: instead of the selection's, where it is chosen.
        agent: how it acts and learns in a problem of control; None in supervised learning.
    """

    method: str
    network: Network
    methods: tuple[Method, ...]
    details: Mapping[str, Detail] = field(default_factory=dict)
    problem: Problem | None = None
    runs: int | None = None
    agent: Agent | None = None
    more_runs: int | None = None

    def __post_init__(self) -> None:
        check_text("Setting", "method", self.method)
        where = f"Setting {self.method!r}"
        check_kind(where, "network", self.network, Network, "network(MLP, hidden=(100, 100))")
        methods = as_tuple(where, "methods", self.methods, Method, "(SGD(0.01), L2(1e-4))")
        check_optimizer(where, methods)
        for method in methods:
            check_hyperparameters(where, method)
        if self.problem is not None:
            check_kind(where, "problem", self.problem, Problem, "PermutedMNIST(tasks=10)")
            check_problem(where, self.problem)
        for name in ("runs", "more_runs"):
            if getattr(self, name) is not None:
                check_whole(self, **{name: 1})
        if self.agent is not None:
            check_kind(where, "agent", self.agent, Agent, "PPO()")
        object.__setattr__(self, "methods", methods)
        object.__setattr__(self, "details", MappingProxyType(plain_details(where, self.details, COLUMNS)))

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
        more_runs: how many more the best setting gets (its seeds follow those of the first stage), unless the setting
            itself says how many.
        by: the columns within which to choose: ("method",), or for example ("method", "activation").
        first_seed: the first of the further seeds; 0: the one behind those of the first stage. With a larger one the
            seeds between stay unused.
    """

    more_runs: int
    by: tuple[str, ...] = ("method",)
    first_seed: int = field(default=0, metadata=NEW_FIELD)

    def __post_init__(self) -> None:
        check_whole(self, more_runs=1, first_seed=0)
        by = as_tuple("Selection", "by", self.by, str, '("method",)')
        if not by:
            raise ValueError('Selection: by must name at least one column, such as ("method",); got ().')
        check_distinct("Selection", "by", by)
        object.__setattr__(self, "by", by)


@dataclass(frozen=True)
class Assumption:
    """A value on which the paper is silent, and why we took it."""

    what: str
    value: str
    reason: str

    def __post_init__(self) -> None:
        for name in ("what", "value", "reason"):
            check_text("Assumption", name, getattr(self, name))


Chosen = Assumption  # its name in experiment files of version 0.1


@dataclass(frozen=True)
class Sweep:
    """Everything an experiment runs at one scale.

    Args:
        problem: the stream of tasks.
        settings: the curves.
        runs: runs for each setting. Run k has seed `first_seed` + k, and the same stream in every setting.
        measures: what to measure at the start of tasks (of an agent: at their end), by name
            (`suite.measures.MEASURES`).
        measure_every: measure at every n-th task.
        probe_examples: inputs of the task to measure on.
        selection: the paper's two-stage protocol, or None.
        stack_size: at most this many runs train in one stack; an agent always acts alone.
        points_per_task: at how many points of a task an agent's return is recorded, for curves within tasks.
        chosen: values on which the paper is silent.
        dtype: "float32" or "float64".
        probe_updates: updates of a discarded copy, for the measures that let it learn an unseen task
            (`suite.plasticity_probe.LEARNING_MEASURES`); at most those of a task.
        probe_optimizer: what the copy learns with, from nothing: "sgd" or "adam".
        probe_step_size: its step size.
        matmul: on a CUDA device, what the library and CUDA graphs multiply float32 numbers in: "tf32" (10 bits of
            mantissa) or "float32". None leaves both as torch has them: matrix products in float32, convolutions in
            TF32. See `suite.environment.check_matmul` for where it has no effect and is refused.
        first_seed: the seed of the first run. With a larger one a sweep judges by runs that chose none of its settings.
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
    probe_updates: int = field(default=200, metadata=NEW_FIELD)
    probe_optimizer: str = field(default="sgd", metadata=NEW_FIELD)
    probe_step_size: float = field(default=0.01, metadata=NEW_FIELD)
    matmul: str | None = field(default=None, metadata=NEW_FIELD)
    first_seed: int = field(default=0, metadata=NEW_FIELD)

    def __post_init__(self) -> None:
        check_kind("Sweep", "problem", self.problem, Problem, "PermutedMNIST(tasks=10)")
        check_problem("Sweep", self.problem)
        check_whole(self, runs=1, measure_every=1, probe_examples=1, stack_size=1, points_per_task=1, probe_updates=1)
        check_whole(self, first_seed=0)
        for name, kind, example in (
            ("settings", Setting, '(Setting("BP", net, (SGD(0.01),)),)'),
            ("measures", str, '("dead_units", "effective_rank")'),
            ("chosen", Assumption, '(Assumption("width", "30", "as in the text"),)'),
        ):
            object.__setattr__(self, name, as_tuple("Sweep", name, getattr(self, name), kind, example))
        check_measures(self.measures)
        check_distinct("Sweep", "measures", self.measures)
        _check_probe(self)
        if not self.settings:
            raise ValueError("Sweep: settings is empty; an experiment needs at least one.")
        if self.selection is not None:
            check_kind("Sweep", "selection", self.selection, Selection, "Selection(more_runs=20)")
        for setting in self.settings:
            if setting.more_runs is not None and self.selection is None:
                raise ValueError(
                    f"Setting {setting.label!r} has more_runs={setting.more_runs}, which only a selection gives: add "
                    "selection=Selection(...) to the sweep, or set `runs`."
                )
            behind = seeds_of(self, setting).stop
            if self.selection is not None and 0 < self.selection.first_seed < behind:
                raise ValueError(
                    f"Setting {setting.label!r} chooses by the seeds below {behind}, and Selection "
                    f"has first_seed={self.selection.first_seed}; take a first_seed behind them, or fewer runs."
                )
            _check_agent(setting, setting.problem or self.problem, self.measures, self.points_per_task)
            check_schedule(setting.problem or self.problem, setting.methods[0])
        labels = [setting.label for setting in self.settings]
        twice = sorted({label for label in labels if labels.count(label) > 1})
        if twice:
            raise ValueError(f"Sweep: two settings have the label {twice[0]!r}; name what differs in their `details`.")
        if not isinstance(self.dtype, str) or self.dtype not in ("float32", "float64"):
            raise ValueError(f'Sweep: dtype must be "float32" or "float64"; got {self.dtype!r}.')
        if self.matmul is not None and (not isinstance(self.matmul, str) or self.matmul not in MATMULS):
            raise ValueError(f'Sweep: matmul must be "float32", "tf32" or None; got {self.matmul!r}.')
        if self.matmul is not None and self.dtype != "float32":
            raise ValueError(f"Sweep: matmul={self.matmul!r} has no effect on numbers of {self.dtype}; leave it out.")


def seeds_of(sweep: Sweep, setting: Setting) -> range:
    """The seeds of a setting's runs, without the further ones of a selection."""
    return range(sweep.first_seed, sweep.first_seed + (setting.runs or sweep.runs))


def seeds_after(sweep: Sweep, setting: Setting) -> range:
    """The further seeds of a setting that the selection chooses; none without a selection."""
    if sweep.selection is None:
        return range(0)
    first = sweep.selection.first_seed or seeds_of(sweep, setting).stop
    return range(first, first + (setting.more_runs or sweep.selection.more_runs))


def _check_probe(sweep: Sweep) -> None:
    if not isinstance(sweep.probe_optimizer, str) or sweep.probe_optimizer not in OPTIMIZERS:
        known = " or ".join(f'"{name}"' for name in OPTIMIZERS)
        raise ValueError(f"Sweep: probe_optimizer must be {known}; got {sweep.probe_optimizer!r}.")
    size = sweep.probe_step_size
    if isinstance(size, bool) or not isinstance(size, Real) or not 0.0 < float(size) < math.inf:
        raise ValueError(f"Sweep: probe_step_size must be a number above 0; got {size!r}.")
    object.__setattr__(sweep, "probe_step_size", float(size))


def _check_agent(setting: Setting, problem: Problem, measures: Sequence[str], points_per_task: int) -> None:
    """An agent belongs to a problem of control, and to no other; there is nothing there that a probe could learn.

    It must learn in every task, and every point of a task must see the end of an episode.
    """
    name = type(problem).__name__
    learning = [measure for measure in measures if measure in LEARNING_MEASURES]
    if problem.control and learning:
        raise ValueError(
            f"Sweep: the measure {learning[0]!r} needs examples with targets, which {name}, a problem of control, does "
            "not have; leave it out."
        )
    if problem.control and setting.agent is None:
        raise ValueError(
            f"Setting {setting.method!r}: {name} is a problem of control, in which an agent acts; give one, for "
            "example Setting(..., agent=PPO()) with `from neoteny.suite.rl.ppo import PPO`."
        )
    if not problem.control and setting.agent is not None:
        raise ValueError(f"Setting {setting.method!r}: {name} has nothing to act in; leave out `agent`.")
    iteration = getattr(setting.agent, "iteration_steps", 1)  # an agent of the user's may have none
    if problem.control and isinstance(iteration, int) and iteration > problem.steps_per_task:
        raise ValueError(
            f"Setting {setting.method!r}: iteration_steps={iteration} of {type(setting.agent).__name__} is longer than "
            f"a task of {name}, of {problem.steps_per_task} steps; shorten the iteration, so that something is learned "
            "in every task."
        )
    longest = getattr(problem, "episode_steps", 1)
    if problem.control and problem.steps_per_task // points_per_task < longest:
        raise ValueError(
            f"Sweep: points_per_task={points_per_task} cuts a task of {name}, of {problem.steps_per_task} steps, into "
            f"points shorter than an episode may be ({longest} steps), so that none might end in a point; choose fewer "
            "points, or shorter episodes."
        )
