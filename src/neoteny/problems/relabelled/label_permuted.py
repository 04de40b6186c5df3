"""Label-permuted images: the inputs stay the same, and every task renames the classes; one image at a time.

The protocol is UPGD's (Elsayed and Mahmood, 2024): a million single examples, with labels permuted again every 2,500.
Each permutation acts on the labels that the ones before it have made. The images come in passes through all of them,
each in a new random order; tasks do not interrupt a pass. The network can keep its features and has to relearn their
names. The learner is not told of task changes.

| set of the paper | here |
|---|---|
| CIFAR-10 | `LabelPermutedImages(400, source="cifar10", classes=10)` |
| EMNIST, balanced | `LabelPermutedMNIST(400, 2_500, "emnist_balanced", classes=47)` |
| mini-ImageNet, as features of a trained network | not here; `LabelPermutedImages()` has pixels of 200 classes |
| MNIST, every 5,000 (weight clipping) | `LabelPermutedMNIST()` |

Before this: `images.py` opens the images, `draws.py` draws; after it: `plan.py`, `suite/`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from neoteny.problems.data.labelled import LabelledImages
from neoteny.problems.data.pixels import check_pixels
from neoteny.problems.draws import draw_from_passes, shuffle
from neoteny.problems.problem import Problem, Stream
from neoteny.problems.relabelled.images import COLOUR_SHAPE, DIGIT_SHAPE, check_source, open_colour, open_grey
from neoteny.problems.relabelled.plan import RelabelledPlan
from neoteny.text import check_whole


@dataclass(frozen=True)
class LabelPermuted(Problem):
    """Classification of images whose classes are renamed in every task; what both problems of this file share."""

    tasks: int
    examples_per_task: int
    source: str
    classes: int
    batch_size: int = 1
    pixels: str = "centred"

    loss: ClassVar[str] = "cross_entropy"
    performance: ClassVar[str] = "accuracy"

    def __post_init__(self) -> None:
        name = type(self).__name__
        check_whole(self, tasks=1, examples_per_task=1, classes=2, batch_size=1)
        check_pixels(self, self.pixels)
        if self.examples_per_task % self.batch_size:
            raise ValueError(
                f"{name}: examples_per_task must be a multiple of batch_size; got {self.examples_per_task} and "
                f"{self.batch_size}."
            )
        check_source(self, self.source)

    @property
    def outputs(self) -> int:
        return self.classes

    @property
    def steps_per_task(self) -> int:
        return self.examples_per_task // self.batch_size

    def open(self, data: Path | str | None = None) -> LabelPermutedStream:
        return LabelPermutedStream(self, self.images(data))

    @abstractmethod
    def images(self, data: Path | str | None) -> LabelledImages:
        """The images of the source."""


@dataclass(frozen=True)
class LabelPermutedMNIST(LabelPermuted):
    """Classification of digits or characters whose classes are renamed in every task; the images stay as they are.

    Args:
        tasks: permutations of the labels.
        examples_per_task: images per task, any number.
        source: "mnist"; "emnist_balanced" (47 classes); "synthetic" for 2,000 generated images that need no download;
            or the path of a folder with train-images-idx3-ubyte and train-labels-idx1-ubyte, gzipped or not.
        classes: of the source.
        batch_size: images per update; `examples_per_task` is a multiple of it.
        pixels: "unit" for inputs in [0, 1], or "centred" for (x - 0.5) / 0.5 in [-1, 1].
    """

    tasks: int = 200
    examples_per_task: int = 5_000
    source: str = "mnist"
    classes: int = 10

    @property
    def input_shape(self) -> tuple[int, ...]:
        return DIGIT_SHAPE

    def images(self, data: Path | str | None) -> LabelledImages:
        """The images of the source, (N, 784)."""
        return open_grey(type(self).__name__, self.source, self.classes, data)


@dataclass(frozen=True)
class LabelPermutedImages(LabelPermuted):
    """Classification of colour images of 32 by 32 whose classes are renamed in every task.

    Args:
        tasks: permutations of the labels.
        examples_per_task: images per task, any number.
        source: "imagenet200_32" (200 classes), "cifar10", "cifar100", "imagenet32", "synthetic" (40 generated classes,
            no download), or the path of a folder of classes; see `neoteny.problems.imagenet.classes`.
        classes: how many of the source's classes are used, the first ones by name.
        batch_size: images per update; `examples_per_task` is a multiple of it.
        pixels: "unit" for inputs in [0, 1], or "centred" for (x - 0.5) / 0.5 in [-1, 1].
    """

    tasks: int = 400
    examples_per_task: int = 2_500
    source: str = "imagenet200_32"
    classes: int = 200

    @property
    def input_shape(self) -> tuple[int, ...]:
        return COLOUR_SHAPE

    def images(self, data: Path | str | None) -> LabelledImages:
        """The images of the classes, (N, 3072)."""
        return open_colour(type(self).__name__, self.source, self.classes, data)


@dataclass
class LabelPermutedStream(Stream):
    """The images, one copy for all runs, and the labels in force in the last task that was asked for."""

    problem: LabelPermuted
    data: LabelledImages
    _names: dict[int, tuple[int, Tensor]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self.fingerprint = self.data.fingerprint

    def names(self, seed: int, task: int) -> Tensor:
        """The label of each class in a task, int64 (classes,): the permutations of all tasks up to it, in turn."""
        done, names = self._names.get(seed, (-1, torch.arange(self.problem.classes)))
        if done > task:
            done, names = -1, torch.arange(self.problem.classes)
        for number in range(done + 1, task + 1):
            names = shuffle([seed], number, "label_permuted.labels", self.problem.classes)[0, 0].long()[names]
        self._names[seed] = (task, names)
        return names

    def plan(self, seeds: Sequence[int], task: int) -> RelabelledPlan:
        problem, total = self.problem, len(self.data.labels)
        first, last = task * problem.examples_per_task, (task + 1) * problem.examples_per_task
        images = torch.stack([draw_from_passes(seed, "label_permuted.passes", total, first, last) for seed in seeds])
        original = self.data.labels.cpu()[images.long()].long()
        names = torch.stack([self.names(seed, task) for seed in seeds])
        return RelabelledPlan(
            seeds=tuple(seeds),
            task=task,
            data=self.data,
            input_shape=problem.input_shape,
            images=images,
            labels=names.gather(1, original).short(),
            order=torch.arange(problem.examples_per_task, dtype=torch.int32).expand(len(seeds), -1).contiguous(),
            batch_size=problem.batch_size,
            pixels=problem.pixels,
            probe_all=True,
        )
