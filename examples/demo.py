"""Twenty small networks on a drifting stream, half of them with continual backpropagation.

Every 250 steps the task changes: the inputs are permuted and the target is a new random network. All networks train in
one stack, each task with the same data for both methods, so differences between the methods are paired run by run.
"""

from __future__ import annotations

import math
import time

import torch
from torch import Tensor

from neoteny import metrics, stack
from neoteny.methods import Adam, ContinualBackprop
from neoteny.nets import MLP

RUNS, TASKS, STEPS, BATCH = 10, 30, 250, 8
INPUTS, WIDTH = 16, 32


def target(generator: torch.Generator) -> list[Tensor]:
    """The weights of a random tanh network, one for each run."""
    first = torch.randn(RUNS, INPUTS, 8, generator=generator) / math.sqrt(INPUTS) * 2
    return [first, torch.randn(RUNS, 8, 1, generator=generator) / math.sqrt(8)]


def main() -> None:
    """Train, then print errors and the three correlates of lost plasticity at the start and the end."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    networks = [MLP(INPUTS, [WIDTH, WIDTH], 1) for _ in range(RUNS)]
    rates = (0.0,) * RUNS + (1e-3,) * RUNS  # a replacement rate of zero is plain backpropagation
    runs = stack(
        networks + networks,
        Adam(0.01),
        ContinualBackprop(rates, maturity_threshold=100),
        example=torch.zeros(1, INPUTS),
        seeds=list(range(RUNS)) * 2,
    )
    generator = torch.Generator().manual_seed(1)
    start = time.perf_counter()
    errors: list[Tensor] = []
    print(f"{2 * RUNS} networks {INPUTS}-{WIDTH}-{WIDTH}-1, {TASKS} tasks of {STEPS} updates")
    for task in range(TASKS):
        weights = target(generator)
        total = torch.zeros(2 * RUNS)
        for _ in range(STEPS):
            inputs = torch.randn(RUNS, BATCH, INPUTS, generator=generator)
            targets = torch.tanh(inputs @ weights[0]) @ weights[1]
            total += runs.step(inputs.repeat(2, 1, 1), targets.repeat(2, 1, 1)).losses
        errors.append(total / STEPS)
        if task % 10 == 9:
            print(f"  task {task + 1:3} of {TASKS}, {time.perf_counter() - start:4.0f} s", flush=True)
    report(runs, torch.stack(errors), generator)


def report(runs, errors: Tensor, generator: torch.Generator) -> None:
    """The table: mean over runs, with the paired difference between the methods at the end."""
    activations = read_last_layer(runs, torch.randn(512, INPUTS, generator=generator))
    dead = metrics.dead_units(activations).double().mean(-1)
    rank = metrics.effective_rank(activations)
    size = metrics.weight_magnitude([runs.view.tensor(f"{name}.weight") for name in ("fc1", "fc2")], run_dims=1)
    replaced = sum(runs.replaced.values())
    print(f"\n{'':28}{'backpropagation':>18}{'continual':>18}")
    rows = [
        ("error, first 5 tasks", errors[:5].mean(0)),
        ("error, last 10 tasks", errors[-10:].mean(0)),
        ("dead units of fc2, %", 100 * dead),
        ("effective rank of fc2", rank),
        ("mean absolute weight", size),
        ("units replaced", replaced.double()),
    ]
    for name, values in rows:
        plain, continual = values[:RUNS], values[RUNS:]
        print(f"{name:28}{plain.mean():>18.3f}{continual.mean():>18.3f}")
    difference = errors[-10:].mean(0)[:RUNS] - errors[-10:].mean(0)[RUNS:]
    spread = 2.262 * difference.std() / math.sqrt(RUNS)  # Student's t, 9 degrees of freedom
    print(f"\nerror of backpropagation minus continual, last 10 tasks: {difference.mean():.3f} +- {spread:.3f} (95%)")


@torch.no_grad()
def read_last_layer(runs, inputs: Tensor) -> Tensor:
    """Activations (2 * RUNS, examples, WIDTH) of the last hidden layer."""
    value = inputs.expand(2 * RUNS, -1, -1)
    for name in ("fc1", "fc2"):
        weight, bias = runs.view.tensor(f"{name}.weight"), runs.view.tensor(f"{name}.bias")
        value = torch.relu(torch.baddbmm(bias.unsqueeze(1), value, weight.transpose(1, 2)))
    return value


if __name__ == "__main__":
    main()
