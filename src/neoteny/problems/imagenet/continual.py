"""Continual ImageNet: a long sequence of binary tasks, each of two classes that were not paired before.

The pairs are drawn at random without replacement from all pairs of the source's classes. A class's first
`train_images` images are for training, the next `test_images` for testing. A task is `epochs` passes through the
training images of both classes, reshuffled for every pass, in mini-batches; afterwards accuracy is measured on the
test images. The learner is told of task changes: its output layer is set to zero.

Pixels are scaled to [0, 1] and centred with 0.5. The paper is silent on this; an input with a mean near zero keeps
the first layer's gradients from all having one sign, and a fixed constant, unlike the mean of the data, is the same
for every source of classes.

Before this: `classes.py` opens the images, `draws.py` draws; after it: `suite/`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from neoteny.problems.data.pixels import MIDDLE, PIXEL
from neoteny.problems.draws import shuffle
from neoteny.problems.imagenet.classes import ClassSource, open_source
from neoteny.problems.problem import Plan, Problem, Stream, check_range
from neoteny.text import check_whole


@dataclass(frozen=True)
class ContinualImageNet(Problem):
    """Binary classification of pairs of image classes, with a training and a test set for each pair.

    Args:
        tasks: pairs of classes.
        source: "imagenet200_32" (200 classes of 550 images), "imagenet32" (the downsampled ImageNet), "synthetic" (40
            generated classes of 60 images, no download), or the path of a folder of classes; see `classes.py`.
        train_images: training images per class. The paper's classes have 600 + 100; those of imagenet200_32 have 450 +
            100.
        test_images: test images per class.
        batch_size: must divide the training images of two classes.
        epochs: passes through the training images.
    """

    tasks: int = 2000
    source: str = "imagenet200_32"
    train_images: int = 600
    test_images: int = 100
    batch_size: int = 100
    epochs: int = 250

    loss: ClassVar[str] = "cross_entropy"
    performance: ClassVar[str] = "accuracy"
    tells_task: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_whole(self, tasks=1, train_images=1, test_images=1, batch_size=1, epochs=1)
        if not isinstance(self.source, str) or not self.source:
            raise ValueError(
                f"ContinualImageNet: source must be the name of a dataset or the path of a folder; got {self.source!r}."
            )
        if 2 * self.train_images % self.batch_size:
            raise ValueError(
                f"ContinualImageNet: batch_size must divide 2 * train_images = {2 * self.train_images}, so that all "
                f"mini-batches are of one size; got {self.batch_size}."
            )

    @property
    def input_shape(self) -> tuple[int, ...]:
        return (3, 32, 32)

    @property
    def outputs(self) -> int:
        return 2

    @property
    def steps_per_task(self) -> int:
        return self.epochs * (2 * self.train_images // self.batch_size)

    def open(self, data: Path | str | None = None) -> ImageNetStream:
        source = open_source(self.source, data)
        pairs = len(source.names) * (len(source.names) - 1) // 2
        if self.tasks > pairs:
            raise ValueError(
                f"ContinualImageNet: {self.source!r} has {len(source.names)} classes, of which {pairs:,} different "
                f"pairs can be made; got tasks={self.tasks:,}."
            )
        smallest = min(source.names, key=source.count)
        if self.train_images + self.test_images > source.count(smallest):
            raise ValueError(
                f"ContinualImageNet: class {smallest} of {self.source!r} has {source.count(smallest)} images; got "
                f"train_images={self.train_images} and test_images={self.test_images}, which need "
                f"{self.train_images + self.test_images}."
            )
        return ImageNetStream(self, source)


@dataclass
class ImageNetStream(Stream):
    """The classes, and the pairs of each seed that was asked for."""

    problem: ContinualImageNet
    source: ClassSource
    _pairs: dict[int, np.ndarray] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self.fingerprint = self.source.fingerprint

    def pairs(self, seed: int) -> np.ndarray:
        """The class numbers of every task of a run, and of one more if there is one: (tasks + 1, 2).

        They are kept, because finding one means ordering all.
        """
        if seed not in self._pairs:
            first, second = np.triu_indices(len(self.source.names), 1)
            order = shuffle([seed], 0, "imagenet.pairs", len(first))[0, 0, : self.problem.tasks + 1].numpy()
            self._pairs[seed] = np.stack((first[order], second[order]), axis=-1)
        return self._pairs[seed]

    def plan(self, seeds: Sequence[int], task: int) -> ImageNetPlan:
        problem = self.problem
        if not 0 <= task < problem.tasks:
            raise ValueError(f"ContinualImageNet has tasks 0 to {problem.tasks - 1}; got {task}.")
        return self._plan(seeds, task)

    def unseen(self, seeds: Sequence[int]) -> ImageNetPlan:
        """The pair that would come after the last task; its classes may have been seen in other pairs."""
        if any(len(self.pairs(seed)) <= self.problem.tasks for seed in seeds):
            raise ValueError(
                f"ContinualImageNet: the tasks are all {self.problem.tasks:,} pairs of the classes of "
                f"{self.problem.source!r}, so that none is left that a run does not see; choose fewer tasks."
            )
        return self._plan(seeds, self.problem.tasks)

    def _plan(self, seeds: Sequence[int], task: int) -> ImageNetPlan:
        problem = self.problem
        classes = np.stack([self.pairs(seed)[task] for seed in seeds])
        train = torch.empty(len(seeds), 2, problem.train_images, 3, 32, 32, dtype=torch.uint8)
        held_out = torch.empty(len(seeds), 2, problem.test_images, 3, 32, 32, dtype=torch.uint8)
        for run, pair in enumerate(classes):
            for label, number in enumerate(pair):
                images = torch.tensor(self.source.load(self.source.names[number])).permute(0, 3, 1, 2)
                train[run, label] = images[: problem.train_images]
                held_out[run, label] = images[problem.train_images :][: problem.test_images]
        return ImageNetPlan(
            problem=problem,
            seeds=tuple(seeds),
            task=task,
            classes=classes,
            images=train.flatten(1, 2),
            held_out=held_out.flatten(1, 2),
        )


@dataclass
class ImageNetPlan(Plan):
    """The images of each run's two classes, and the order of its mini-batches.

    Attributes:
        classes: class numbers (n, 2); the first has label 0.
        images: training images (n, 2 * train_images, 3, 32, 32), uint8, those of label 0 first.
        held_out: test images (n, 2 * test_images, 3, 32, 32), uint8, those of label 0 first.
    """

    problem: ContinualImageNet
    seeds: tuple[int, ...]
    task: int
    classes: np.ndarray
    images: Tensor
    held_out: Tensor

    def __post_init__(self) -> None:
        self.steps = self.problem.steps_per_task
        self.steps_of_a_pass = self.steps // self.problem.epochs

    def order(self, start: int, stop: int) -> Tensor:
        """Which training images make the mini-batches start to stop - 1: int32 (n, stop - start, B)."""
        total, size = 2 * self.problem.train_images, self.problem.batch_size
        first, last = start * size // total, -(-stop * size // total)
        epochs = shuffle(self.seeds, self.task, "imagenet.order", total, first, last - first)
        return epochs.flatten(1)[:, start * size - first * total : stop * size - first * total].unflatten(1, (-1, size))

    def batches(self, start: int, stop: int, device: torch.device) -> tuple[Tensor, Tensor]:
        check_range(self, start, stop)
        order = self.order(start, stop).transpose(0, 1).contiguous().to(device)  # (count, n, B)
        labels = (order >= self.problem.train_images).long()
        return self._train(order, device), labels

    def probe(self, count: int, device: torch.device) -> Tensor:
        """Training images in a random order of its own, from the start again after the last."""
        order = shuffle(self.seeds, self.task, "imagenet.probe", 2 * self.problem.train_images)[:, 0]
        numbers = torch.arange(count) % order.shape[1]
        return self._train(order[:, numbers].unsqueeze(0).to(device), device)[0]

    def test(self, device: torch.device) -> tuple[Tensor, Tensor]:
        labels = torch.arange(2, device=device).repeat_interleave(self.problem.test_images)
        return _scaled(self.held_out.to(device)), labels.expand(len(self.seeds), -1).contiguous()

    def _train(self, order: Tensor, device: torch.device) -> Tensor:
        """Training images (count, n, B, 3, 32, 32) of these numbers (count, n, B)."""
        if self.images.device != device:
            self.images = self.images.to(device)
        runs = torch.arange(len(self.seeds), device=device).unsqueeze(-1)
        return _scaled(self.images[runs, order])


def _scaled(images: Tensor) -> Tensor:
    return images.float().mul_(PIXEL).sub_(MIDDLE)
