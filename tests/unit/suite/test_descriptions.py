"""Every field of every description that an experiment file fills in refuses nonsense, by name, when it is made."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import nn

from neoteny import problems
from neoteny.methods import L2, SGD, Adam, Method
from neoteny.nets import MLP
from neoteny.problems import (
    ClassIncremental,
    ContinualImageNet,
    LabelPermutedImages,
    LabelPermutedMNIST,
    PermutedMNIST,
    PermutedShakespeare,
    Problem,
    RandomLabelImages,
    RandomLabelMNIST,
    SampleIncremental,
    ShiftingControl,
    SlipperyAnt,
    SlowlyChangingRegression,
    WarmStart,
)
from neoteny.problems.problem import Source
from neoteny.suite import sweep as descriptions
from neoteny.suite.environment import open_problems
from neoteny.suite.rl.ppo import PPO
from neoteny.suite.stacks import runs_of
from neoteny.suite.sweep import Agent, Assumption, Network, Selection, Setting, Sweep, network
from support.small_sweeps import NET, PROBLEM, make_sweep

NAN, INF = math.nan, math.inf
BP = Setting("BP", NET, (SGD(0.01),))
COUNT = [0, -1, 1.5, 2.0, True, "3", None, NAN, INF, (1,), np.float64(2.0), torch.tensor(2)]
SHARE = [-0.1, 1.1, NAN, INF, -INF, True, "0.5", None, (0.5,), torch.tensor(0.5)]
TEXT = ["", " ", "two\nlines", None, 3, ("text",), b"text"]
FLAG = [0, 1, None, "yes", NAN]
NAME = ["", None, 3, ("mnist",)]
PIXELS = [*NAME, "centered"]
LABEL_PERMUTED: dict[str, list[Any]] = {
    "tasks": COUNT,
    "examples_per_task": COUNT,
    "source": NAME,
    "classes": [*COUNT, 1],
    "batch_size": [*COUNT, 7],
    "pixels": PIXELS,
}
RANDOM_LABEL: dict[str, list[Any]] = {
    "tasks": COUNT,
    "images_per_task": [*COUNT, 1201],
    "epochs": COUNT,
    "batch_size": [*COUNT, 7],
    "source": NAME,
    "classes": [*COUNT, 1],
    "new_images": FLAG,
    "pixels": PIXELS,
}


def without(values: list[Any], *allowed: Any) -> list[Any]:
    return [value for value in values if not any(value is each for each in allowed)]


@dataclasses.dataclass(frozen=True)
class Own(Problem):
    """A problem of a user, which checks nothing itself."""

    tasks: Any = 2
    length: Any = 5
    inputs: Any = (3,)
    classes: Any = 2
    loss: ClassVar[str] = "mse"
    performance: ClassVar[str] = "error"

    @property
    def input_shape(self) -> tuple[int, ...]:
        return self.inputs

    @property
    def outputs(self) -> int:
        return self.classes

    @property
    def steps_per_task(self) -> int:
        return self.length

    def open(self, data: Path | str | None = None) -> Source:
        return "a stream"  # pyright: ignore[reportReturnType]


@dataclasses.dataclass(frozen=True)
class Scaled(Method):
    """A method of a user, which checks nothing itself."""

    scale: Any = 1.0


class Undecorated(Method):
    """A method of a user who forgot the decorator."""


PROBLEMS = [
    3,
    None,
    "mnist",
    PermutedMNIST,
    SGD(0.1),
    Own(tasks=-1),
    Own(tasks=True),
    Own(length=0),
    Own(classes=2.5),
    Own(inputs=()),
    Own(inputs=[3]),
    Own(inputs=(0,)),
    Own(length=NAN),
    Own(classes=0),
]
VALID: dict[type, Callable[..., Any]] = {
    Sweep: make_sweep,
    Setting: lambda **change: Setting(**{"method": "BP", "network": NET, "methods": (SGD(0.01),), **change}),
    Selection: lambda **change: Selection(**{"more_runs": 2, **change}),
    Network: lambda **change: Network(**{"build": MLP, "options": (("hidden", (5,)),), **change}),
    Assumption: lambda **change: Assumption(**{"what": "width", "value": "30", "reason": "narrow", **change}),
    PPO: PPO,
    PermutedMNIST: PermutedMNIST,
    PermutedShakespeare: PermutedShakespeare,
    SlowlyChangingRegression: SlowlyChangingRegression,
    ClassIncremental: ClassIncremental,
    ContinualImageNet: ContinualImageNet,
    SampleIncremental: SampleIncremental,
    ShiftingControl: ShiftingControl,
    SlipperyAnt: SlipperyAnt,
    WarmStart: WarmStart,
    LabelPermutedImages: LabelPermutedImages,
    LabelPermutedMNIST: LabelPermutedMNIST,
    RandomLabelImages: RandomLabelImages,
    RandomLabelMNIST: RandomLabelMNIST,
}
REFUSED: dict[type, dict[str, list[Any]]] = {
    Sweep: {
        "problem": PROBLEMS,
        "settings": [(), None, BP, "BP", (BP, "CBP"), (BP, BP), {"BP": BP}],
        "measures": ["dead_units", ("dead",), ("dead_units", "dead_units"), (3,), None, {"dead_units"}],
        "selection": [3, "method", Selection, ("method",)],
        "chosen": [None, "width", ("width",), Assumption("width", "30", "narrow")],
        "dtype": ["float16", "", None, torch.float32, ("float32",)],
        "matmul": ["float16", "", 1, torch.float32, ("tf32",)],
        **dict.fromkeys(("runs", "measure_every", "probe_examples", "stack_size"), COUNT),
        **dict.fromkeys(("points_per_task", "probe_updates"), COUNT),
        "first_seed": without(COUNT, 0),
        "probe_optimizer": [*NAME, "rmsprop", SGD(0.1), ["sgd"]],
        "probe_step_size": [0, -1, NAN, INF, True, "1", (1,), None],
    },
    Setting: {
        "method": TEXT,
        "network": [MLP, MLP(2, [3], 1), None, "MLP", 3],
        "methods": [
            (),
            None,
            SGD(0.1),
            "SGD",
            (SGD,),
            (SGD(0.1), "L2"),
            (L2(0.1),),
            (L2(0.1), SGD(0.1)),
            (SGD(0.1), Adam(0.1)),
            (SGD((0.1, 0.2)),),
            (SGD(0.1), Scaled(NAN)),
            (SGD(0.1), Undecorated()),
            (torch.optim.SGD,),
        ],
        "details": [
            None,
            "step_size",
            [("step_size", 1)],
            {3: 1},
            {"": 1},
            {"method": 1},
            {"seed": 1},
            {"step_size": NAN},
            {"step_size": INF},
            {"step_size": None},
            {"step_size": (0.1,)},
            {"step_size": torch.tensor(0.1)},
        ],
        "problem": without(PROBLEMS, None),
        "runs": without(COUNT, None),
        "more_runs": without(COUNT, None),
        "agent": [PPO, 3, "PPO", SGD(0.1)],
    },
    Selection: {"more_runs": COUNT, "first_seed": [-1, 1.5], "by": ["method", (), None, ("method", "method"), (3,)]},
    Network: {
        "build": [MLP(2, [3], 1), None, "MLP", int, lambda: MLP(2, [3], 1)],
        "options": [None, "hidden", ("hidden",), ((3, 4),), (("hiden", (5,)),), (("hidden", 1), ("hidden", 2)), ()],
    },
    Assumption: {"what": TEXT, "value": TEXT, "reason": TEXT},
    PPO: {
        "iteration_steps": [*COUNT, 100],
        "epochs": COUNT,
        "minibatch": [*COUNT, 100],
        "trace_decay": SHARE,
        "discount": SHARE,
        "clip": [*SHARE, 0.0, 1.0],
        "entropy": [-0.1, NAN, INF, True, "0.1", None],
        "reward_scale": [0.0, -1.0, NAN, INF, True, "1", None],
    },
    ShiftingControl: {
        "tasks": COUNT,
        "environment": [*NAME, "CartPole-v0"],
        "period_steps": [*COUNT, 10],
        "shift_std": [-1, NAN, INF, True, "2", None],
        "episode_steps": [*COUNT, 10**6],
    },
    PermutedMNIST: {
        "tasks": COUNT,
        "examples_per_task": COUNT,
        "replacement": FLAG,
        "source": NAME,
        "batch_size": [*COUNT, 7],
        "pixels": PIXELS,
        "continue_passes": FLAG,
        "images_per_run": COUNT[1:],
    },
    PermutedShakespeare: {
        "tasks": COUNT,
        "sequences_per_task": [*COUNT, 7],
        "epochs": COUNT,
        "batch_size": [*COUNT, 7],
        "context": COUNT,
        "source": [*NAME, "hamlet"],
    },
    **dict.fromkeys((LabelPermutedImages, LabelPermutedMNIST), LABEL_PERMUTED),
    **dict.fromkeys((RandomLabelImages, RandomLabelMNIST), RANDOM_LABEL),
    SlowlyChangingRegression: {
        "tasks": COUNT,
        "examples_per_task": COUNT,
        "bits": [*COUNT, 14, 48],
        "slow_bits": [*COUNT, 22],
        "target_units": COUNT,
        "threshold": SHARE,
    },
    ContinualImageNet: {
        "tasks": COUNT,
        "source": NAME,
        "train_images": COUNT,
        "test_images": COUNT,
        "batch_size": [*COUNT, 7],
        "epochs": COUNT,
    },
    WarmStart: {
        "tasks": COUNT,
        "source": NAME,
        "classes": [*COUNT, 1],
        "train_images": COUNT,
        "test_images": COUNT,
        "first_share": [*SHARE, 0.0],
        "first_epochs": COUNT,
        "epochs": COUNT,
        "batch_size": [*COUNT, 20_000],
    },
    SampleIncremental: {
        "tasks": [*COUNT, 11],
        "source": NAME,
        "classes": [*COUNT, 1],
        "train_images": [*COUNT, 449],
        "test_images": COUNT,
        "images_per_task": [*COUNT, 4501, 100],
        "epochs": COUNT,
        "batch_size": [*COUNT, 4501],
    },
    ClassIncremental: {
        "tasks": [*COUNT, 21],
        "source": NAME,
        "classes": [*COUNT, 99],
        "classes_per_task": [*COUNT, 6],
        "train_images": [*COUNT, 17],
        "test_images": COUNT,
        "epochs": COUNT,
        "batch_size": [*COUNT, 2251],
        "decay_at": [None, 0.5, [0.5], (0.0,), (1.0,), ("0.5",), (True,), (NAN,), (0.5, INF)],
        "decay_factor": [0, -1, NAN, INF, True, "1", (1,)],
        "augmented": FLAG,
        "test_augmented": FLAG,
    },
    SlipperyAnt: {
        "tasks": COUNT,
        "simulator": [*NAME, "mujocco"],
        "period_steps": [*COUNT, 10],
        "friction_range": [None, 3, "12", (1,), (0, 1), (2, 1), (1, NAN), (1, INF), (True, 2), ("1", "2"), (1, 2, 3)],
        "first_friction": [0, -1, NAN, INF, True, "1", (1,)],
        "change": [*NAME, "steps"],
        "episode_steps": COUNT,
    },
}
NAMES_MORE_THAN_THE_FIELD = "Unknown measure|MLP (has no|needs the) option|Undecorated must be a frozen dataclass"
FIELDS = [(kind, name) for kind, fields in REFUSED.items() for name in fields]


def test_every_field_of_every_description_has_a_row() -> None:
    """A new description, or a new field of one, belongs into the table above."""
    public = [value for value in vars(descriptions).values() if isinstance(value, type)]
    own = {kind for kind in public if dataclasses.is_dataclass(kind) and kind.__module__ == descriptions.__name__}
    ours = set(problems.PROBLEMS.values())
    agents = {kind for kind in Agent.__subclasses__() if kind.__module__.startswith("neoteny.")}
    assert set(REFUSED) == set(VALID) == (own - {Agent}) | ours | agents
    for kind, fields in REFUSED.items():
        assert set(fields) == {field.name for field in dataclasses.fields(kind)}, kind
        VALID[kind]()


@pytest.mark.parametrize(("kind", "name"), FIELDS, ids=lambda part: part if isinstance(part, str) else part.__name__)
def test_nonsense_is_refused_with_the_field_and_the_value(kind: type, name: str) -> None:
    for value in REFUSED[kind][name]:
        with pytest.raises((TypeError, ValueError)) as caught:
            VALID[kind](**{name: value})
        said = str(caught.value)
        assert len(said) < 400, said
        named = name in said and kind.__name__ in said
        assert named or isinstance(value, Own) or re.match(NAMES_MORE_THAN_THE_FIELD, said), said


def test_what_is_wrong_with_a_problem_is_said_with_its_name() -> None:
    for problem, said in (
        (Own(tasks=-1), "Own: tasks must be a whole number of at least 1; got -1"),
        (Own(length=0), "Own.steps_per_task must be a whole number of at least 1; got 0"),
        (Own(inputs=()), r"Own.input_shape must be a tuple of whole numbers .*; got \(\)"),
        (Own(length=[5]), "must be a whole number"),
    ):
        with pytest.raises(ValueError, match=said):
            make_sweep(problem=problem)
    with pytest.raises(TypeError, match="Own cannot be hashed"):
        make_sweep(problem=dataclasses.replace(Own(), inputs=Unhashable((3,))))
    with pytest.raises(TypeError, match=r"Own.open must return a Stream .*; got str"):
        open_problems(make_sweep(problem=Own()), None)


class Unhashable(tuple[int, ...]):
    """A tuple that cannot be a key."""

    __hash__ = None  # pyright: ignore[reportAssignmentType]


@pytest.mark.parametrize(("attribute", "value"), [("loss", "huber"), ("performance", "acuracy")])
def test_an_unknown_loss_or_performance_of_a_problem_is_refused(attribute: str, value: str) -> None:
    other = type("Other", (Own,), {attribute: value})
    with pytest.raises(ValueError, match=f"Other.{attribute} must be one of .*; got '{value}'"):
        make_sweep(problem=other())


def test_numbers_of_numpy_become_pythons() -> None:
    """Otherwise they would be found when the results are written, after the training."""
    setting = Setting("BP", NET, (SGD(0.01),), {"size": np.float32(0.5), "width": np.int64(3)}, runs=np.int64(2))  # pyright: ignore[reportArgumentType]
    assert [type(value) for value in setting.details.values()] == [float, int]
    sweep = make_sweep(setting, runs=np.int64(3), problem=dataclasses.replace(PROBLEM, tasks=np.int32(3)))
    assert type(sweep.runs) is type(sweep.problem.tasks) is int
    assert len(runs_of(sweep, sweep.settings, "reference")) == 2


def test_a_class_and_a_lone_value_get_a_hint() -> None:
    with pytest.raises(TypeError, match=r"got the class PermutedMNIST. Did you mean PermutedMNIST\(...\)\?"):
        make_sweep(problem=PermutedMNIST)
    with pytest.raises(TypeError, match=r"Did you mean \(SGD\(.*\),\)\?"):
        Setting("BP", NET, SGD(0.01))  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match=r"Did you mean \('dead_units',\)\?"):
        make_sweep(measures="dead_units")
    with pytest.raises(TypeError, match=r"Did you mean network\(MLP, ...\)\?"):
        network(MLP(2, [3], 1))  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match=r"MLP needs the option 'hidden': network\(MLP, hidden=...\)"):
        network(MLP)


def test_a_network_with_options_of_any_name_may_be_given_any() -> None:
    class Any_(nn.Module):
        def __init__(self, **options: int) -> None:
            super().__init__()
            self.layer = nn.Linear(22, options["width"])

    assert network(Any_, width=3).make(PROBLEM).get_parameter("layer.weight").shape == (3, 22)


def test_a_selection_within_a_column_that_no_setting_has_is_refused_before_anything_runs() -> None:
    setting = Setting("BP", NET, (SGD(0.01),), {"step_size": 0.01})
    sweep = make_sweep(setting, selection=Selection(2, by=("method", "stepsize")))
    with pytest.raises(ValueError, match=r"no setting has in its details: 'stepsize'. Did you mean 'step_size'\?"):
        open_problems(sweep, None)
    open_problems(make_sweep(setting, selection=Selection(2, by=("method", "step_size"))), None)
