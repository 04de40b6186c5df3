"""Online permuted MNIST: every task shuffles the pixels of all images in a new way; one image at a time, once.

Each task draws a new permutation and applies it to the original pixels. The order of the images is random; with
`replacement` each example is an independent draw instead, and a task may be of any length (the paper's experiment on
the rate of change). The learner is not told of task changes.

Two more protocols of the field are settings of the same problem:

- UPGD's (Elsayed and Mahmood, 2024): `PermutedMNIST(200, 5_000, pixels="centred", continue_passes=True)`, a million
  images one by one, trained by an MLP 784-300-150-10 with torch's initial weights (`init="default"`). A pass through
  60,000 images spans 12 tasks; a new permutation does not interrupt it. Weight clipping's form of it has 300 tasks of
  50,000 images and leaky ReLU. Permuting pixels that were permuted before, or the original ones, is the same in
  distribution: a permutation that is drawn evenly and applied to any other is an even draw.
- L2 Init's (Kumar, Marklund and Van Roy, 2023): `PermutedMNIST(500, 10_000, batch_size=16, images_per_run=10_000)`, 625
  updates per task. That all tasks of a run permute one sample of images is from memory of the paper; not verified.

Before this: `images.py` opens the images, `draws.py` draws; after it: `suite/`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from neoteny.problems.data.labelled import LabelledImages
from neoteny.problems.data.pixels import check_pixels, scale_pixels
from neoteny.problems.draws import draw_from_passes, draw_whole, shuffle
from neoteny.problems.mnist.images import open_digits
from neoteny.problems.problem import NEW_FIELD, Plan, Problem, Stream, check_range
from neoteny.text import check_whole


@dataclass(frozen=True)
class PermutedMNIST(Problem):
    """Classification of digits whose pixels get a new permutation in every task; one pass, one image at a time.

    Args:
        tasks: permutations.
        examples_per_task: images per task. Without replacement at most as many as there are (60,000); if fewer, each
            task takes another random part of them. With `continue_passes` any number.
        replacement: whether each example is drawn from all images.
        source: "mnist"; "synthetic" for 2,000 generated images that need no download; or the path of a folder with
            train-images-idx3-ubyte and train-labels-idx1-ubyte, gzipped or not, of images of 28 by 28.
        batch_size: images per update; `examples_per_task` is a multiple of it. A task has
            `examples_per_task / batch_size` updates, and its accuracy is the mean over all of its images.
        pixels: "unit" for inputs in [0, 1], or "centred" for (x - 0.5) / 0.5 in [-1, 1].
        continue_passes: whether a task goes on where the one before it stopped in a pass through all images, instead of
            beginning a pass of its own.
        images_per_run: images that a run uses in all of its tasks, a random sample; 0 for all.
    """

    tasks: int = 800
    examples_per_task: int = 60_000
    replacement: bool = False
    source: str = "mnist"
    batch_size: int = field(default=1, metadata=NEW_FIELD)
    pixels: str = field(default="unit", metadata=NEW_FIELD)
    continue_passes: bool = field(default=False, metadata=NEW_FIELD)
    images_per_run: int = field(default=0, metadata=NEW_FIELD)

    loss: ClassVar[str] = "cross_entropy"
    performance: ClassVar[str] = "accuracy"

    def __post_init__(self) -> None:
        check_whole(self, tasks=1, examples_per_task=1, batch_size=1, images_per_run=0)
        check_pixels(self, self.pixels)
        if self.examples_per_task % self.batch_size:
            raise ValueError(
                f"PermutedMNIST: examples_per_task must be a multiple of batch_size; got {self.examples_per_task} and "
                f"{self.batch_size}."
            )
        for name in ("replacement", "continue_passes"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"PermutedMNIST: {name} must be True or False; got {getattr(self, name)!r}.")
        if self.replacement and self.continue_passes:
            raise ValueError(
                "PermutedMNIST: replacement draws each image by itself, so there are no passes to continue; got "
                "replacement=True and continue_passes=True."
            )
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
        if self.images_per_run > len(images.labels):
            raise ValueError(
                f"PermutedMNIST: images_per_run must be at most {len(images.labels):,}, the images of {self.source!r}; "
                f"got {self.images_per_run:,}."
            )
        most = self.images_per_run or len(images.labels)
        if self.examples_per_task > most and not (self.replacement or self.continue_passes):
            raise ValueError(
                f"PermutedMNIST: examples_per_task must be at most {most:,}, the images of {self.source!r}"
                f"{' that a run uses' if self.images_per_run else ''}, unless replacement=True or "
                f"continue_passes=True; got {self.examples_per_task:,}."
            )
        return PermutedStream(self, images)


@dataclass
class PermutedStream(Stream):
    """The images, one copy for all runs."""

    problem: PermutedMNIST
    data: LabelledImages

    def __post_init__(self) -> None:
        self.fingerprint = self.data.fingerprint

    def plan(self, seeds: Sequence[int], task: int) -> PermutedPlan:
        problem, steps, total = self.problem, self.problem.examples_per_task, len(self.data.labels)
        images = problem.images_per_run or total
        order = torch.empty(len(seeds), steps, dtype=torch.int32)
        for run, seed in enumerate(seeds):  # one by one: a million draws of thirty runs at once would need 240 MB
            if problem.replacement:
                order[run] = draw_whole([seed], task, "permuted.order", 0, steps, images)[0]
            elif problem.continue_passes:
                order[run] = draw_from_passes(seed, "permuted.passes", images, task * steps, (task + 1) * steps)
            else:
                order[run] = shuffle([seed], task, "permuted.order", images)[0, 0, :steps]
            if problem.images_per_run:
                order[run] = self._sample(seed)[order[run].long()]
        return PermutedPlan(
            seeds=tuple(seeds),
            task=task,
            data=self.data,
            order=order,
            permutation=shuffle(seeds, task, "permuted.pixels", 784)[:, 0],
            batch_size=problem.batch_size,
            pixels=problem.pixels,
            sample=torch.stack([self._sample(seed) for seed in seeds]) if problem.images_per_run else None,
        )

    def _sample(self, seed: int) -> Tensor:
        """The images that a run uses, int32 (images_per_run,)."""
        return shuffle([seed], 0, "permuted.sample", len(self.data.labels))[0, 0, : self.problem.images_per_run]


@dataclass
class PermutedPlan(Plan):
    """Which image at which step, and which pixel goes where.

    Attributes:
        data: images (N, 784) and labels (N,), uint8, on any device.
        order: image numbers (n, steps * batch_size), int32.
        permutation: input i of run r is pixel permutation[r, i]; int32 (n, 784).
        batch_size: images per update.
        pixels: how bytes become inputs.
        sample: the images that a run uses, int32 (n, images); None for all.
    """

    seeds: tuple[int, ...]
    task: int
    data: LabelledImages
    order: Tensor
    permutation: Tensor
    batch_size: int = 1
    pixels: str = "unit"
    sample: Tensor | None = None
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
        total = len(self.data.labels) if self.sample is None else self.sample.shape[1]
        numbers = draw_whole(self.seeds, self.task, "permuted.probe", 0, count, total)
        if self.sample is not None:
            numbers = self.sample.long().gather(1, numbers)
        return self._permuted(numbers.T.to(device), device).transpose(0, 1).contiguous()

    def _permuted(self, order: Tensor, device: torch.device) -> Tensor:
        """The permuted images of these numbers (count, n): float32 (count, n, 784)."""
        images = self.data.on(device).images[order]
        permutation = self.permutation.to(device).long().expand(len(order), -1, -1)
        return scale_pixels(torch.gather(images, -1, permutation), self.pixels)
