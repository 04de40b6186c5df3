"""Every combination of options that kernels cover, a few dozen of them that cover all pairs, and how one is built.

A `Case` is one choice of every option. `all_cases` is the whole grid; `covering_cases(2)` are a few dozen of them in
which every pair of option values that can occur together does. `build` makes a case's stack of runs. Nothing here needs
more than the library itself; after it: `kernel_comparison`.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch

import neoteny
from neoteny.backends.kernel.backend import MakeKernel
from neoteny.backends.kernel.examples import Examples
from neoteny.backends.kernel.options import ACTIVATIONS, OPTIMIZERS, Numbers
from neoteny.backends.kernel.pack import Packed
from neoteny.methods import L2, SGD, Adam, ContinualBackprop, Method, ShrinkAndPerturb
from neoteny.methods.continual_backprop import COUNTS, UTILITIES
from neoteny.nets import MLP
from neoteny.problems import PermutedMNIST, SlowlyChangingRegression
from neoteny.problems.problem import Problem, Stream
from neoteny.units.utilities import GRADIENT

SEEDS = (11, -(2**40) - 3, 11)
"""Of the runs: both words of a seed count, and the third run shares the stream of the first."""
TASK_STEPS = 160

PROBLEMS: dict[str, Problem] = {
    "regression": SlowlyChangingRegression(tasks=100, examples_per_task=TASK_STEPS),
    "digits": PermutedMNIST(tasks=100, examples_per_task=TASK_STEPS, source="synthetic"),
    "digits with replacement": PermutedMNIST(100, TASK_STEPS, replacement=True, source="synthetic"),
}
OPTIONS: dict[str, tuple[Any, ...]] = {
    "problem": tuple(PROBLEMS),
    "hidden": ((), (5,), (7, 12), (34, 17, 20)),
    "activation": ACTIVATIONS,
    "optimizer": OPTIMIZERS,
    "shrink": ("none", "l2", "perturb first", "perturb last", "l2 and perturb"),
    "dropout": (0.0, 0.2),
    "norm": (None, "online"),
    "utility": (None, *(name for name, terms in UTILITIES.items() if not terms & GRADIENT)),
    "compensate": (True, False),
    "count": COUNTS,
}


@dataclass(frozen=True)
class Case:
    """One choice of every option.

    Attributes:
        problem: a key of `PROBLEMS`.
        hidden: units of each hidden layer; () is the linear learner.
        activation: as for `MLP`.
        optimizer: one of `OPTIMIZERS`.
        shrink: none of them, `L2`, `ShrinkAndPerturb` before or after `ContinualBackprop`, or `L2` and the former.
        dropout, norm: as for `MLP`.
        utility: of `ContinualBackprop`; None is plain backpropagation.
        compensate, count: of `ContinualBackprop`.
        init: as for `MLP`; not an option of the grid.
    """

    problem: str = "regression"
    hidden: tuple[int, ...] = (5,)
    activation: str = "relu"
    optimizer: str = "sgd"
    shrink: str = "none"
    dropout: float = 0.0
    norm: str | None = None
    utility: str | None = None
    compensate: bool = True
    count: str = "eligible"
    init: str = "kaiming_uniform"

    @property
    def name(self) -> str:
        """What is not the default, for people."""
        values = {field.name: (getattr(self, field.name), field.default) for field in fields(self)}
        told = [
            "x".join(map(str, value)) or "linear" if name == "hidden" else f"{name} {value}"
            for name, (value, default) in values.items()
            if value != default or name in ("hidden", "problem")
        ]
        return ", ".join(told).removeprefix("problem ")


def is_allowed(case: Case) -> bool:
    """Whether the library accepts the case, and no other case is the same learner."""
    if not case.hidden and (case.activation, case.dropout, case.norm, case.utility) != ("relu", 0.0, None, None):
        return False
    if case.utility is None:
        return case.compensate and case.count == "eligible" and case.shrink != "perturb last"
    return case.norm is None


@functools.cache
def all_cases() -> tuple[Case, ...]:
    """The whole grid."""
    cases = (Case(*choice) for choice in itertools.product(*OPTIONS.values()))
    return tuple(case for case in cases if is_allowed(case))


@functools.cache
def covering_cases(strength: int = 2, device: str = "cpu") -> tuple[Case, ...]:
    """Cases in which every allowed combination of `strength` options' values occurs, on each path, chosen greedily.

    Always the case that adds most combinations not yet covered, a little less where the library needs long for it; of
    equals the first in the order of the grid.
    """
    cases = all_cases()
    choices = np.array([[values.index(getattr(case, name)) for name, values in OPTIONS.items()] for case in cases])
    sizes = [len(values) for values in OPTIONS.values()]
    total = 0
    columns: list[np.ndarray] = [np.empty((len(cases), 0), dtype=np.int32)]
    for chosen in itertools.combinations(range(len(sizes)), strength):
        shape = [sizes[option] for option in chosen]
        numbers = np.asarray(np.ravel_multi_index(tuple(choices[:, chosen].T), shape))
        columns.append(numbers[:, None] + total)
        total += int(np.prod(shape))
    combinations = np.hstack(columns)  # their numbers (cases, combinations in each)
    missing = {}
    for path in PATHS[device]:
        able = np.array([path in paths_of(case, device) for case in cases])
        missing[path] = (able, np.zeros(total, dtype=bool))
        missing[path][1][combinations[able]] = True
    prices = np.array([_price(case) for case in cases]) ** 0.4
    found = []
    while any(left.any() for _, left in missing.values()):
        new = sum(able * left[combinations].sum(1) for able, left in missing.values())
        best = int((new / prices).argmax())
        for able, left in missing.values():
            left[combinations[best]] &= not able[best]
        found.append(cases[best])
    return tuple(found)


def _price(case: Case) -> float:
    """About how long the library needs for a thousand updates, in seconds."""
    layers, noise, adam = len(case.hidden), "perturb" in case.shrink, case.optimizer == "adam"
    weights = PROBLEMS[case.problem].input_shape[0] * sum(case.hidden[:1])
    operations = layers * (1.0 if case.norm is None else 2.0) + (layers + 1) * (noise + 0.3 * adam)
    return 0.2 + 0.3 * operations + (noise + 0.3 * adam + 0.1) * weights / 5000


# ----------------------------------------------------------------------------------------------------------- learners


def methods_of(case: Case) -> tuple[Method, ...]:
    """The methods, with other hyperparameters in each run.

    Steps are so small that rounding errors do not grow: with longer ones, above all with online normalisation, a run
    of the library whose initial weights differ in the last bit is soon another run.
    """
    size = 1.0 if case.norm is None else 0.1
    optimizer: Method = Adam((5e-4 * size, 3e-4 * size, 1e-3 * size), betas=(0.85, 0.99), eps=1e-4)
    if case.optimizer == "sgd":
        optimizer = SGD((3e-3 * size, 1e-3 * size, 5e-3 * size))
    elif case.optimizer == "momentum":
        optimizer = SGD((1e-3 * size, 5e-4 * size, 2e-3 * size), (0.9, 0.0, 0.5))
    rest: list[Method] = []
    if case.utility is not None:
        # In the second run units come of age together and many are replaced at once; in the others one by one.
        units = max(sum(case.hidden), 1)
        rates, thresholds = (0.1 / units, 0.4, 0.2 / units), (20, 100, 15)
        decays = (0.99, 0.9, 0.95)
        rest = [ContinualBackprop(rates, thresholds, decays, case.utility, case.compensate, case.count)]
    perturb = ShrinkAndPerturb((1e-3, 1e-4, 1e-2), (1e-4, 1e-3, 1e-5))
    if case.shrink in ("perturb first", "l2 and perturb"):
        rest = [perturb, *rest]
    elif case.shrink == "perturb last":
        rest = [*rest, perturb]
    if case.shrink in ("l2", "l2 and perturb"):
        rest = [L2((1e-3, 0.0, 1e-2)), *rest]
    return (optimizer, *rest)


def select(methods: Sequence[Method], runs: Sequence[int]) -> list[Method]:
    """The methods with the hyperparameters of some runs, in that order."""
    chosen = []
    for method in methods:
        values = method.hyperparameters()
        picked = {
            k: tuple(v[run] for run in runs) if isinstance(v, tuple) and k != "betas" else v for k, v in values.items()
        }
        chosen.append(type(method)(**picked))
    return chosen


def build(
    case: Case,
    methods: Sequence[Method] | None = None,
    seeds: Sequence[int] = SEEDS,
    dtype: torch.dtype = torch.float64,
    device: str = "cpu",
) -> neoteny.Stack:
    """A stack at its start; initial weights follow from the seeds."""
    problem, modules = PROBLEMS[case.problem], []
    for seed in seeds:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed % (2**63 - 1))
            net = MLP(
                problem.input_shape[0],
                case.hidden,
                problem.outputs,
                case.activation,
                case.dropout,
                case.norm,
                case.init,
                forward_decay=0.99,
                backward_decay=0.9,
            )
            modules.append(net.to(device, dtype))
    example = torch.zeros(1, *problem.input_shape, dtype=dtype, device=device)
    methods = methods_of(case) if methods is None else methods
    return neoteny.stack(modules, *methods, loss=problem.loss, example=example, seeds=seeds)


@functools.cache
def stream_of(problem: str) -> Stream:
    """The opened problem, one copy for all cases."""
    stream = PROBLEMS[problem].open()
    assert isinstance(stream, Stream)
    return stream


# -------------------------------------------------------------------------------------------------------------- paths

PATHS = {"cpu": ("one by one", "side by side"), "cuda": ("one block", "cluster")}
"""The separate implementations inside the kernel of each device."""


def paths_of(case: Case, device: str) -> tuple[str, ...]:
    """The paths that can train a case."""
    if device == "cuda":
        return PATHS["cuda"] if min(case.hidden, default=0) > 16 else PATHS["cuda"][:1]
    narrow = max((22, *case.hidden)) <= 32 and case.problem == "regression" and not case.dropout and case.norm is None
    return PATHS["cpu"] if narrow and "perturb" not in case.shrink else PATHS["cpu"][:1]


def kernel_of(device: str, path: str = "") -> MakeKernel:
    """The kernel of a device, imported when it is asked for; it takes the path that it likes best, or a given one."""
    if device == "cpu":
        from neoteny.backends.kernel.cpu.kernel import CpuKernel

        return functools.partial(_OneByOne, CpuKernel) if path == "one by one" else CpuKernel
    from neoteny.backends.kernel.cuda.kernel import CudaKernel
    from neoteny.backends.kernel.cuda.plan import Team

    return type("Cluster", (CudaKernel,), {"team": Team(128, blocks=4)}) if path == "cluster" else CudaKernel


class _OneByOne:
    """The CPU kernel that does not see that inputs are bits, so that it cannot train narrow networks side by side."""

    def __init__(self, kernel: MakeKernel, packed: Packed, numbers: Numbers, scales: Sequence[float]) -> None:
        self._kernel = kernel(packed, numbers, scales)

    def advance(self, examples: Examples, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        table = replace(examples.table, mask=examples.table.mask[:0])
        return self._kernel.advance(replace(examples, table=table), start, stop)
