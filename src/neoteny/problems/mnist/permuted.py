"""Online permuted MNIST: every task shuffles the pixels of all images in a new way; one image at a time, once.

Each task draws a new permutation and applies it to the original pixels. The order of the images is random; with
`replacement` each example is an independent draw instead, and a task may be of any length (the paper's experiment on
the rate of change). The learner is not told of task changes.

Before this: `images.py` opens the images, `draws.py` draws; after it: `suite/`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from neoteny.problems.data.pixels import PIXEL
from neoteny.problems.draws import draw_whole, shuffle
from neoteny.problems.mnist.images import DigitImages, open_digits
from neoteny.problems.problem import NEW_FIELD, Plan, Problem, Stream, check_range
from neoteny.text import check_whole


@dataclass(frozen=True)
class PermutedMNIST(Problem):
    """Classification of digits whose pixels get a new permutation in every task; one pass, one image at a time.

    Args:
        tasks: permutations.
        examples_per_task: images per task. Without replacement at most as many as there are (60,000); if fewer, each
            task takes another random part of them.
        replacement: whether each example is drawn from all images.
        source: "mnist"; "synthetic" for 2,000 generated images that need no download; or the path of a folder with
            train-images-idx3-ubyte and train-labels-idx1-ubyte, gzipped or not, of images of 28 by 28.
        batch_size: images per update; `examples_per_task` is a multiple of it. A task has
            `examples_per_task / batch_size` updates, and its accuracy is the mean over all of its images.
    """

    tasks: int = 800
    examples_per_task: int = 60_000
    replacement: bool = False
    source: str = "mnist"
    batch_size: int = field(default=1, metadata=NEW_FIELD)

    loss: ClassVar[str] = "cross_entropy"
    performance: ClassVar[str] = "accuracy"

    def __post_init__(self) -> None:
        check_whole(self, tasks=1, examples_per_task=1, batch_size=1)
        if self.examples_per_task % self.batch_size:
            raise ValueError(
                f"PermutedMNIST: examples_per_task must be a multiple of batch_size; got {self.examples_per_task} and "
                f"{self.batch_size}."
            )
        if not isinstance(self.replacement, bool):
            raise ValueError(f"PermutedMNIST: replacement must be True or False; got {self.replacement!r}.")
        if not isinstance(self.source, str) or not self.source:
            raise ValueError(
                f'PermutedMNIST: source must be "mnist", "synthetic" or the path of a folder; got {self.source!r}.'
            )

    @property
    def input_shape(self) -> tuple[int, ...]:
        return (784,)

    @property
    def outputs(self) -> int:
        return 10

    @property
    def steps_per_task(self) -> int:
        return self.examples_per_task // self.batch_size

    def open(self, data: Path | str | None = None) -> PermutedStream:
        images = open_digits(self.source, data)
        if not self.replacement and self.examples_per_task > len(images.labels):
            raise ValueError(
                f"PermutedMNIST: examples_per_task must be at most {len(images.labels):,}, the images of "
                f"{self.source!r}, unless replacement=True; got {self.examples_per_task:,}."
            )
        return PermutedStream(self, images)


@dataclass
class PermutedStream(Stream):
    """The images, one copy for all runs."""

    problem: PermutedMNIST
    data: DigitImages

    def __post_init__(self) -> None:
        self.fingerprint = self.data.fingerprint

    def plan(self, seeds: Sequence[int], task: int) -> PermutedPlan:
        steps, images = self.problem.examples_per_task, len(self.data.labels)
        order = torch.empty(len(seeds), steps, dtype=torch.int32)
        for run, seed in enumerate(seeds):  # one by one: a million draws of thirty runs at once would need 240 MB
            if self.problem.replacement:
                order[run] = draw_whole([seed], task, "permuted.order", 0, steps, images)[0]
            else:
                order[run] = shuffle([seed], task, "permuted.order", images)[0, 0, :steps]
        return PermutedPlan(
            seeds=tuple(seeds),
            task=task,
            data=self.data,
            order=order,
            permutation=shuffle(seeds, task, "permuted.pixels", 784)[:, 0],
            batch_size=self.problem.batch_size,
        )


@dataclass
class PermutedPlan(Plan):
    """Which image at which step, and which pixel goes where.

    Attributes:
        data: images (N, 784) and labels (N,), uint8, on any device.
        order: image numbers (n, steps * batch_size), int32.
        permutation: input i of run r is pixel permutation[r, i]; int32 (n, 784).
        batch_size: images per update.
    """

    seeds: tuple[int, ...]
    task: int
    data: DigitImages
    order: Tensor
    permutation: Tensor
    batch_size: int = 1
    steps: int = field(init=False)

    def __post_init__(self) -> None:
        self.steps = self.order.shape[1] // self.batch_size

    def batches(self, start: int, stop: int, device: torch.device) -> tuple[Tensor, Tensor]:
        check_range(self, start, stop)
        first, last = start * self.batch_size, stop * self.batch_size
        order = self.order[:, first:last].T.contiguous().to(device)  # (images, n)
        labels = self.data.on(device).labels[order].long()
        shape = (stop - start, self.batch_size)
        inputs, labels = self._permuted(order, device).unflatten(0, shape), labels.unflatten(0, shape)
        return inputs.transpose(1, 2).contiguous(), labels.transpose(1, 2).contiguous()

    def probe(self, count: int, device: torch.device) -> Tensor:
        numbers = draw_whole(self.seeds, self.task, "permuted.probe", 0, count, len(self.data.labels))
        return self._permuted(numbers.T.to(device), device).transpose(0, 1).contiguous()

    def _permuted(self, order: Tensor, device: torch.device) -> Tensor:
        """The permuted images of these numbers (count, n), pixels in [0, 1]: float32 (count, n, 784)."""
        images = self.data.on(device).images[order]
        permutation = self.permutation.to(device).long().expand(len(order), -1, -1)
        return torch.gather(images, -1, permutation).float().mul_(PIXEL)
