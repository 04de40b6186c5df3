"""Twelve methods on a stream of your own, beside plain training and a fresh network per task.

The stream is a regression whose target is replaced every 60 updates: the network must learn 40 functions in turn. Plain
Adam learns each later one worse than the first. All seeds of a method train together in one stack, and every method
sees the same data, so methods are compared seed by seed. Prints a table and draws one figure.

    python examples/compare_methods.py [--seeds 20] [--tasks 40] [--figure compare_methods.png]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

import neoteny
from neoteny.methods import Adam, Method

INPUTS, WIDTH, UPDATES, BATCH = 8, 32, 60, 16
STEP_SIZE = 0.01


class MyModel(nn.Module):
    """Your own model: nothing in it knows of the methods."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(INPUTS, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU())
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


def stream(tasks: int, seeds: int) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """Your own stream: per task the batches of all seeds, inputs (seeds, B, 8) and targets (seeds, B, 1)."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(tasks):
        inner = torch.randn(seeds, INPUTS, 20, generator=generator) * 2 / INPUTS**0.5
        outer = torch.randn(seeds, 20, 1, generator=generator) * 1.5 / 20**0.5
        inputs = [torch.randn(seeds, BATCH, INPUTS, generator=generator) for _ in range(UPDATES)]
        yield [(x, torch.tanh(x @ inner) @ outer) for x in inputs]


def learners() -> dict[str, tuple[Method, ...]]:
    """What is compared: an optimizer, and what is added to it."""
    adam = Adam(STEP_SIZE)
    return {
        "plain Adam": (adam,),
        "from scratch": (adam, neoteny.HardReset.from_scratch()),
        "continual backprop": (adam, neoteny.ContinualBackprop(1e-3, maturity_threshold=50)),
        "ReDo": (adam, neoteny.ReDo(period=60, threshold=0.1)),
        "ReGraMa": (adam, neoteny.ReGraMa(period=60, threshold=0.1)),
        "L2": (adam, neoteny.L2(1e-3)),
        "L2-init": (adam, neoteny.L2Init(1e-2)),
        "spectral": (adam, neoteny.Spectral(1e-2)),
        "shrink and perturb": (adam, neoteny.ShrinkAndPerturb(1e-3, noise_std=1e-3)),
        "weight clipping": (adam, neoteny.WeightClipping(2.0)),
        "hare and tortoise": (adam, neoteny.HareAndTortoise(0.99, period=60)),
        "FIRE": (adam, neoteny.FIRE()),
        "head reset": (adam, neoteny.HardReset.head()),
        "UPGD": (neoteny.UPGD(0.05, noise_std=0.01),),
    }


def train(methods: Sequence[Method], tasks: int, seeds: int) -> Tensor:
    """The mean loss of every task and seed, (tasks, seeds), of one learner with all its seeds in a stack."""
    networks = []
    for seed in range(seeds):
        torch.manual_seed(seed)
        networks.append(MyModel())
    runs = neoteny.stack(networks, *methods, example=torch.zeros(2, INPUTS), seeds=range(seeds))
    losses: list[Tensor] = []
    for task, batches in enumerate(stream(tasks, seeds)):
        if task > 0:
            runs.task_boundary()
        losses.append(torch.stack([runs.step(x, y).losses for x, y in batches]).mean(0))
    return torch.stack(losses)


def report(found: dict[str, Tensor]) -> None:
    """First and last tasks of every learner, and the paired difference from plain training with a 95% interval."""
    last = -(-len(found["plain Adam"]) // 4)
    plain = found["plain Adam"][-last:].mean(0)
    print(f"{'method':20s} {'first 3 tasks':>13s} {'last quarter':>13s} {'less than plain':>16s}")
    for name, losses in sorted(found.items(), key=lambda item: float(item[1][-last:].mean())):
        late = losses[-last:].mean(0)
        better = plain - late  # (seeds,): the same streams
        spread = 2.0 * float(better.std()) / len(better) ** 0.5
        print(f"{name:20s} {losses[:3].mean():13.3f} {late.mean():13.3f} {better.mean():9.3f} ± {spread:.3f}")


def draw(found: dict[str, Tensor], file: str) -> None:
    """Loss by task, a smoothed line per learner."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 5.5), layout="constrained")
    colours = [f"C{number}" for number in range(10) if number != 7]  # C7 is grey
    for number, (name, losses) in enumerate(found.items(), start=-2):  # plain Adam and from scratch come first
        mean = losses.mean(1)
        smooth = mean.unfold(0, 5, 1).mean(-1)
        colour = ("black", "grey")[number + 2] if number < 0 else colours[number % len(colours)]
        width, dashes = 2.5 if number < 0 else 1.3, "-" if number < len(colours) else "--"
        axes.plot(range(3, len(smooth) + 3), smooth, dashes, color=colour, linewidth=width, label=name)
    axes.set(xlabel="task", ylabel="mean squared error while learning the task", title="A drifting regression")
    axes.legend(ncols=2, fontsize=8)
    figure.savefig(file, dpi=120)
    print(f"wrote {file}")


def main() -> None:
    """Train everything, print the table, draw the figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--tasks", type=int, default=40)
    parser.add_argument("--figure", default="", help="file of the figure; none without it")
    options = parser.parse_args()
    torch.set_num_threads(1)
    start = time.perf_counter()
    found = {name: train(methods, options.tasks, options.seeds) for name, methods in learners().items()}
    report(found)
    print(f"{len(found)} learners, {options.seeds} seeds, {time.perf_counter() - start:.0f} s")
    if options.figure:
        draw(found, options.figure)


if __name__ == "__main__":
    main()
