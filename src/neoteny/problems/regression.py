"""Slowly-changing regression: bits of which some flip rarely, and a fixed target network of linear threshold units.

The paper's Appendix B, with the table of its parameters. An input has `bits` bits and a constant 1. The
first `slow_bits` keep their values during a task; at every task change one of them, drawn uniformly, flips. The other
bits are drawn for each example. The target network has one hidden layer of threshold units and weights of +1 or -1:

    unit i is 1 if  sum_j w_ij x_j > theta_i,  else 0,   theta_i = (bits + 1) * threshold - S_i,

where S_i counts the negative weights among all bits + 1 incoming ones, the constant's included; its output is the sum
of the units with signs, plus a bias of +1 or -1 (the table gives the output layer a bias as well). Since sum_j w_ij x_j
+ S_i is the number of inputs that agree with the sign of their weight, a unit fires when strictly more than
`threshold` of its inputs agree: whole numbers, compared exactly.

The learner is not told of flips. Before this: `draws.py`; after it: `suite/`, which trains on the batches of its plans.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from neoteny.problems.draws import draw, draw_whole
from neoteny.problems.problem import Plan, Problem, Stream, check_range
from neoteny.text import check_share, check_whole

_MOST_RANDOM_BITS = 32  # one word of the generator per example
_MOST_TABLED_BITS = 10  # up to here all inputs of a task are laid out once, and examples are looked up


@dataclass(frozen=True)
class SlowlyChangingRegression(Problem):
    """Regression on bits of which one of fifteen flips every 10,000 examples.

    Args:
        tasks: spans between flips.
        examples_per_task: examples between two flips (T of the paper).
        bits: bits of an input without the constant one (m).
        slow_bits: bits that change by flips only (f).
        target_units: threshold units of the target network (n).
        threshold: share of agreeing inputs above which a unit fires (beta).
    """

    tasks: int = 300
    examples_per_task: int = 10_000
    bits: int = 21
    slow_bits: int = 15
    target_units: int = 100
    threshold: float = 0.7

    loss: ClassVar[str] = "mse"
    performance: ClassVar[str] = "error"

    def __post_init__(self) -> None:
        check_whole(self, tasks=1, examples_per_task=1, bits=1, slow_bits=1, target_units=1)
        if self.slow_bits > self.bits:
            raise ValueError(
                f"SlowlyChangingRegression: slow_bits must be at most bits; got {self.slow_bits} of {self.bits}."
            )
        if self.bits - self.slow_bits > _MOST_RANDOM_BITS:
            raise ValueError(
                f"SlowlyChangingRegression: at most {_MOST_RANDOM_BITS} bits may be random; got bits={self.bits} of "
                f"which slow_bits={self.slow_bits}, which leaves {self.bits - self.slow_bits}."
            )
        check_share(self, "threshold")

    @property
    def input_shape(self) -> tuple[int, ...]:
        return (self.bits + 1,)

    @property
    def outputs(self) -> int:
        return 1

    @property
    def steps_per_task(self) -> int:
        return self.examples_per_task

    def open(self, data: Path | str | None = None) -> RegressionStream:
        return RegressionStream(self)


@dataclass
class RegressionStream(Stream):
    """The opened problem, which needs no data."""

    problem: SlowlyChangingRegression

    def plan(self, seeds: Sequence[int], task: int) -> RegressionPlan:
        problem = self.problem
        units, inputs = problem.target_units, problem.bits + 1
        weights = draw(seeds, 0, "regression.target.hidden", 0, units * inputs).unflatten(-1, (units, inputs))
        return RegressionPlan(
            problem=problem,
            seeds=tuple(seeds),
            task=task,
            slow=slow_bits(problem, seeds, task),
            hidden=_signs(weights),
            output=_signs(draw(seeds, 0, "regression.target.output", 0, units + 1)),
        )


@dataclass
class RegressionPlan(Plan):
    """The slow bits of a task and the target networks of its runs; random bits are drawn when they are asked for.

    Attributes:
        slow: values of the slow bits (n, slow_bits), float32.
        hidden: weights into the threshold units (n, target_units, bits + 1), float32.
        output: weights out of them, the bias last (n, target_units + 1), float32.
        inputs: all inputs of this task (n, 2 ** random bits, bits + 1), float32; None where there are too many.
        targets: their targets (n, 2 ** random bits).
    """

    problem: SlowlyChangingRegression
    seeds: tuple[int, ...]
    task: int
    slow: Tensor
    hidden: Tensor
    output: Tensor
    inputs: Tensor | None = field(init=False, default=None)
    targets: Tensor | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.steps = self.problem.examples_per_task
        self.random_bits = self.problem.bits - self.problem.slow_bits
        if self.random_bits <= _MOST_TABLED_BITS:
            codes = torch.arange(2**self.random_bits).unsqueeze(-1).expand(-1, len(self.seeds))
            inputs = self._inputs(codes)
            self.inputs = inputs.transpose(0, 1).contiguous()
            self.targets = self._targets(inputs).T.contiguous()

    def codes(self, start: int, stop: int, device: torch.device, purpose: str = "regression.bits") -> Tensor:
        """The random bits of some examples, each as one whole number whose bit b is random bit b: int64 (n, count)."""
        return draw_whole(self.seeds, self.task, purpose, start, stop, 2**self.random_bits, device)

    def batches(self, start: int, stop: int, device: torch.device) -> tuple[Tensor, Tensor]:
        check_range(self, start, stop)
        inputs, targets = self._examples(self.codes(start, stop, device).T.contiguous())
        return inputs.unsqueeze(-2), targets[..., None, None]

    def probe(self, count: int, device: torch.device) -> Tensor:
        inputs, _ = self._examples(self.codes(0, count, device, "regression.probe").T)
        return inputs.transpose(0, 1).contiguous()

    def _examples(self, codes: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs (count, n, bits + 1) and targets (count, n) for codes (count, n)."""
        if self.inputs is None or self.targets is None:
            inputs = self._inputs(codes)
            return inputs, self._targets(inputs).contiguous()
        runs = torch.arange(len(self.seeds), device=codes.device)
        return self.inputs.to(codes.device)[runs, codes], self.targets.to(codes.device)[runs, codes]

    def _inputs(self, codes: Tensor) -> Tensor:
        """Inputs: slow bits, random bits, then the constant 1."""
        slow = self.slow.to(codes.device).expand(len(codes), -1, -1)
        places = torch.arange(self.random_bits, device=codes.device)
        random = (codes.unsqueeze(-1) >> places) & 1
        return torch.cat((slow, random.float(), torch.ones_like(slow[..., :1])), dim=-1)

    def _targets(self, inputs: Tensor) -> Tensor:
        """Outputs of the target networks (count, n). All numbers are small whole ones, so float32 is exact."""
        hidden, output = self.hidden.to(inputs.device), self.output.to(inputs.device)
        agreeing = torch.einsum("kni,nui->knu", inputs, hidden) + (hidden < 0).sum(-1)
        fires = (agreeing > agreement(self.problem)).float()
        return torch.einsum("knu,nu->kn", fires, output[:, :-1]) + output[:, -1]


def agreement(problem: SlowlyChangingRegression) -> int:
    """The number of agreeing inputs above which a unit fires; a threshold of 0.7 means 7/10, not its nearest float.

    Example:
        >>> agreement(SlowlyChangingRegression())
        15
    """
    return math.floor((problem.bits + 1) * Fraction(str(problem.threshold)))


def slow_bits(problem: SlowlyChangingRegression, seeds: Sequence[int], task: int) -> Tensor:
    """The slow bits' values in a task, float32 (n, slow_bits): those of task 0 with the flips of tasks 1 to `task`."""
    bits = (draw(seeds, 0, "regression.slow", 0, problem.slow_bits) >= 0.5).long()
    flipped = draw_whole(seeds, 0, "regression.flip", 1, task + 1, problem.slow_bits)
    return (bits.scatter_add(-1, flipped, torch.ones_like(flipped)) % 2).float()


def _signs(numbers: Tensor) -> Tensor:
    return torch.where(numbers >= 0.5, 1.0, -1.0).float()
