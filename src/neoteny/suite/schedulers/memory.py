"""estimate_bytes: the memory that a stack's process is likely to need, for schedulers that place stacks on machines."""

from __future__ import annotations

import functools
import math

import torch

from neoteny.problems.problem import Problem
from neoteny.suite.stacks import PlannedStack
from neoteny.suite.sweep import Network

PROCESS_BYTES = 600 * 2**20
"""Python with torch, numba and a dataset of the paper's."""
COPIES = 8
"""Of the parameters: weights, gradients, two moments, utilities and means, a checkpoint while it is written."""
OUTPUT_COPIES = 6
"""Of the outputs of an update where each position of a sequence has one per token: they outgrow the parameters."""


def estimate_bytes(stack: PlannedStack) -> int:
    """Bytes for the stack's process; a guess from its parameters, on the safe side."""
    problem = stack.problem
    each = COPIES * count_parameters(stack.runs[0].setting.network, problem)
    if problem.tokens:
        each += OUTPUT_COPIES * getattr(problem, "batch_size", 1) * math.prod(problem.input_shape) * problem.outputs
    size = torch.empty(0, dtype=getattr(torch, stack.sweep.dtype)).element_size()
    return PROCESS_BYTES + each * size * len(stack.runs)


@functools.cache
def count_parameters(network: Network, problem: Problem) -> int:
    """Parameters of one network; counted without making them where the network's code allows it."""
    try:
        with torch.device("meta"):
            module = network.make(problem)
    except Exception:  # a network of a user's own may look at its weights
        with torch.random.fork_rng(devices=[]):
            module = network.make(problem)
    return sum(parameter.numel() for parameter in module.parameters())
