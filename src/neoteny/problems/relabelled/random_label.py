"""Random-label images: every task gives a few images new random labels, to be learnt by heart in many passes.

The protocol is L2 Init's (Kumar, Marklund and Van Roy, 2023): 1,200 images in mini-batches of 16, 400 passes, which are
30,000 updates per task, 50 tasks. The accuracy is that before each update, so it tells how fast a task is learnt by
heart. That all tasks of a run relabel the same images is from memory of the paper; not verified. `new_images` draws
others in every task. The learner is not told of task changes.

Before this: `images.py` opens the images, `draws.py` draws; after it: `plan.py`, `suite/`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch

from neoteny.problems.data.labelled import LabelledImages
from neoteny.problems.data.pixels import check_pixels
from neoteny.problems.draws import draw_whole, shuffle
from neoteny.problems.problem import Problem, Stream
from neoteny.problems.relabelled.images import COLOUR_SHAPE, DIGIT_SHAPE, check_source, open_colour, open_grey
from neoteny.problems.relabelled.plan import RelabelledPlan
from neoteny.text import check_whole


@dataclass(frozen=True)
class RandomLabel(Problem):
    """Random labels of a few images, learnt by heart; what both problems of this file share."""

    tasks: int = 50
    images_per_task: int = 1_200
    epochs: int = 400
    batch_size: int = 16
    source: str = "mnist"
    classes: int = 10
    new_images: bool = False
    pixels: str = "unit"

    loss: ClassVar[str] = "cross_entropy"
    performance: ClassVar[str] = "accuracy"

    def __post_init__(self) -> None:
        name = type(self).__name__
        check_whole(self, tasks=1, images_per_task=1, epochs=1, batch_size=1, classes=2)
        check_pixels(self, self.pixels)
        if self.images_per_task % self.batch_size:
            raise ValueError(
                f"{name}: images_per_task must be a multiple of batch_size, so that all mini-batches are of one size; "
                f"got {self.images_per_task} and {self.batch_size}."
            )
        if not isinstance(self.new_images, bool):
            raise ValueError(f"{name}: new_images must be True or False; got {self.new_images!r}.")
        check_source(self, self.source)

    @property
    def outputs(self) -> int:
        return self.classes

    @property
    def steps_per_task(self) -> int:
        return self.epochs * (self.images_per_task // self.batch_size)

    def open(self, data: Path | str | None = None) -> RandomLabelStream:
        images = self.images(data)
        if self.images_per_task > len(images.labels):
            raise ValueError(
                f"{type(self).__name__}: images_per_task must be at most {len(images.labels):,}, the images of "
                f"{self.source!r}; got {self.images_per_task:,}."
            )
        return RandomLabelStream(self, images)

    @abstractmethod
    def images(self, data: Path | str | None) -> LabelledImages:
        """The images of the source."""


@dataclass(frozen=True)
class RandomLabelMNIST(RandomLabel):
    """Digits with random labels, new ones in every task, learnt by heart in many passes.

    Args:
        tasks: sets of random labels.
        images_per_task: images that are relabelled, a random sample of the source.
        epochs: passes through them, each in a new random order.
        batch_size: images per update; `images_per_task` is a multiple of it.
        source: "mnist"; "emnist_balanced"; "synthetic" for 2,000 generated images that need no download; or the path of
            a folder with train-images-idx3-ubyte and train-labels-idx1-ubyte, gzipped or not.
        classes: labels to draw from.
        new_images: whether every task draws other images; else a run has one sample for all tasks.
        pixels: "unit" for inputs in [0, 1], or "centred" for (x - 0.5) / 0.5 in [-1, 1].
    """

    @property
    def input_shape(self) -> tuple[int, ...]:
        return DIGIT_SHAPE

    def images(self, data: Path | str | None) -> LabelledImages:
        """The images of the source, (N, 784)."""
        return open_grey(type(self).__name__, self.source, None, data)


@dataclass(frozen=True)
class RandomLabelImages(RandomLabel):
    """Colour images of 32 by 32 with random labels, new ones in every task, learnt by heart in many passes.

    Args:
        tasks: sets of random labels.
        images_per_task: images that are relabelled, a random sample of all classes of the source.
        epochs: passes through them, each in a new random order.
        batch_size: images per update; `images_per_task` is a multiple of it.
        source: "imagenet200_32" (200 classes), "cifar10" (the paper's), "cifar100", "imagenet32", "synthetic" (2,400
            generated images, no download), or the path of a folder of classes; see `neoteny.problems.imagenet.classes`.
        classes: labels to draw from.
        new_images: whether every task draws other images; else a run has one sample for all tasks.
        pixels: "unit" for inputs in [0, 1], or "centred" for (x - 0.5) / 0.5 in [-1, 1].
    """

    source: str = "imagenet200_32"

    @property
    def input_shape(self) -> tuple[int, ...]:
        return COLOUR_SHAPE

    def images(self, data: Path | str | None) -> LabelledImages:
        """The images of all classes, (N, 3072)."""
        return open_colour(type(self).__name__, self.source, 0, data)


@dataclass
class RandomLabelStream(Stream):
    """The images, one copy for all runs."""

    problem: RandomLabel
    data: LabelledImages

    def __post_init__(self) -> None:
        self.fingerprint = self.data.fingerprint

    def plan(self, seeds: Sequence[int], task: int) -> RelabelledPlan:
        problem, total = self.problem, len(self.data.labels)
        count, drawn_at = problem.images_per_task, task if problem.new_images else 0
        orders = shuffle(seeds, task, "random_label.order", count, rounds=problem.epochs)
        return RelabelledPlan(
            seeds=tuple(seeds),
            task=task,
            data=self.data,
            input_shape=problem.input_shape,
            images=torch.cat([shuffle([seed], drawn_at, "random_label.images", total)[0, :, :count] for seed in seeds]),
            labels=draw_whole(seeds, task, "random_label.labels", 0, count, problem.classes).short(),
            order=orders.flatten(1),
            batch_size=problem.batch_size,
            pixels=problem.pixels,
            steps_of_a_pass=count // problem.batch_size,
        )
