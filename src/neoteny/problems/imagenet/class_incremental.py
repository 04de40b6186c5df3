"""Class-incremental learning of images: every task adds classes, and trains on all images of the classes seen so far.

The protocol of Dohare et al. 2024 (Nature) on CIFAR-100: 20 tasks of 5 more classes in a random order, 200 passes each;
loss and accuracy look only at the outputs of the classes seen so far. The step size is multiplied by 0.2 after 30%, 60%
and 80% of the passes of every task and is back at its full value in the next. Images are augmented (`augmentation.py`).
With it go ResNet-18 (`nets.ResNet`) and `SGD(0.1, momentum=0.9)` with `L2(5e-4)`. Baselines: `HardReset.from_scratch()`
trains a new network in every task, `HardReset.head()` a new output layer.

Differences from the publication:

- the images are of another source: 100 classes of imagenet200_32 with 450 training and 100 test images each;
- there are no validation images, and a task ends with its last weights; the authors load those of the pass with the
  best validation accuracy;
- pixels are centred with 0.5 and not divided by their spread, which has no effect behind a batch norm;
- the test images are as they are; those of the authors' code are augmented, too (`test_augmented=True`).

Before this: `image_set.py`, `pool.py`; after it: `suite/`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import ClassVar

import torch

from neoteny.problems.draws import shuffle
from neoteny.problems.imagenet.image_set import ChosenClasses, check_classes
from neoteny.problems.imagenet.pool import PoolPlan
from neoteny.problems.problem import Problem, Stream
from neoteny.text import check_whole


@dataclass(frozen=True)
class ClassIncremental(Problem):
    """Classification of images of more and more classes, with the images of all classes seen so far.

    The class that comes first has label 0, and so on. Accuracy is that on the test images of the classes seen so far,
    after each task. The learner is told of task changes, so that methods can act there.

    Args:
        tasks: how often classes are added; `tasks * classes_per_task` are at most `classes`.
        source: as for `WarmStart`.
        classes: outputs of the network, and classes of the source, evenly spaced in its list.
        classes_per_task: classes that every task adds.
        train_images: training images per class.
        test_images: test images per class.
        epochs: passes through the images of all classes seen so far, in each task.
        batch_size: images per update.
        decay_at: shares of a task's passes (in whole passes, at least one) after which the step size is multiplied by
            `decay_factor`; () for none.
        decay_factor: above 0.
        augmented: whether training images are augmented.
        test_augmented: whether test images are, too.
    """

    tasks: int = 20
    source: str = "imagenet200_32"
    classes: int = 100
    classes_per_task: int = 5
    train_images: int = 450
    test_images: int = 100
    epochs: int = 200
    batch_size: int = 90
    decay_at: tuple[float, ...] = (0.3, 0.6, 0.8)
    decay_factor: float = 0.2
    augmented: bool = True
    test_augmented: bool = False

    loss: ClassVar[str] = "cross_entropy"
    performance: ClassVar[str] = "accuracy"
    tells_task: ClassVar[bool] = True
    zeroes_output: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_classes(self)
        check_whole(self, tasks=1, classes_per_task=1, epochs=1, batch_size=1)
        if self.tasks * self.classes_per_task > self.classes:
            raise ValueError(
                f"ClassIncremental: tasks * classes_per_task must be at most classes={self.classes}; got "
                f"tasks={self.tasks} and classes_per_task={self.classes_per_task}."
            )
        if self.classes_per_task * self.train_images < self.batch_size:
            raise ValueError(
                "ClassIncremental: the first task must have at least one mini-batch of images, classes_per_task * "
                f"train_images = {self.classes_per_task * self.train_images}; got batch_size={self.batch_size}."
            )
        decays = self.decay_at
        if not isinstance(decays, tuple) or not all(_is_number(each) and 0.0 < each < 1.0 for each in decays):
            raise ValueError(
                "ClassIncremental: decay_at must be a tuple of shares of the passes, each above 0 and below 1, such as "
                f"(0.3, 0.6, 0.8); got {decays!r}."
            )
        if not _is_number(self.decay_factor) or not 0.0 < self.decay_factor < math.inf:
            raise ValueError(f"ClassIncremental: decay_factor must be a number above 0; got {self.decay_factor!r}.")
        for name in ("augmented", "test_augmented"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"ClassIncremental: {name} must be True or False; got {getattr(self, name)!r}.")

    @property
    def input_shape(self) -> tuple[int, ...]:
        return (3, 32, 32)

    @property
    def outputs(self) -> int:
        return self.classes

    @property
    def steps_per_task(self) -> int:
        return self.epochs * self._steps_of_a_pass(self.tasks - 1)

    def steps_before(self, task: int) -> int:
        return self.epochs * sum(map(self._steps_of_a_pass, range(task)))

    @property
    def schedules_step_size(self) -> bool:
        return bool(self.decay_at)

    def _steps_of_a_pass(self, task: int) -> int:
        return (task + 1) * self.classes_per_task * self.train_images // self.batch_size

    def open(self, data: Path | str | None = None) -> ClassStream:
        return ClassStream(self, ChosenClasses(self, data))


@dataclass
class ClassStream(Stream):
    """The images of all classes, and their order in each run."""

    problem: ClassIncremental
    classes: ChosenClasses

    def __post_init__(self) -> None:
        self.fingerprint = self.classes.fingerprint

    def plan(self, seeds: Sequence[int], task: int) -> PoolPlan:
        problem = self.problem
        if not 0 <= task < problem.tasks:
            raise ValueError(f"ClassIncremental has tasks 0 to {problem.tasks - 1}; got {task}.")
        order = shuffle(seeds, 0, "class_incremental.classes", problem.classes)[:, 0]  # class of each label
        seen = (task + 1) * problem.classes_per_task
        pool, held_out = (
            (order[:, :seen, None] * count + torch.arange(count)).flatten(1)
            for count in (problem.train_images, problem.test_images)
        )
        steps = problem.steps_before(task + 1) - problem.steps_before(task)
        each = steps // problem.epochs
        return PoolPlan(
            name="class_incremental",
            seeds=tuple(seeds),
            task=task,
            images=self.classes.images(),
            pool=pool,
            held_out=held_out,
            labels=order.long().argsort(-1),
            batch_size=problem.batch_size,
            epochs=problem.epochs,
            augment=problem.augmented,
            augment_test=problem.test_augmented,
            seen_classes=seen,
            decays=[each * max(1, round(share * problem.epochs)) for share in problem.decay_at],
            decay_factor=problem.decay_factor,
        )


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)
