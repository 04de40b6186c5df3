"""Warm start: a network first learns a part of the data, then all of it (Ash and Adams 2020).

A network that has learned the part first ends with a lower test accuracy than one that is trained on all of the data
from scratch. That baseline is the method `HardReset.from_scratch()`: at the task boundary it draws everything new.

Differences from the publication:

- the images are of another source, with other numbers of classes and images;
- each task has a fixed number of passes, because the runs of a stack train in lock-step; the authors train until 99% of
  the training images are right;
- a pass leaves out the last images, too few for a mini-batch (`pool.py`).

Before this: `accumulating.py`; after it: `suite/`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from neoteny.problems.imagenet.accumulating import AccumulatingStream, steps_in
from neoteny.problems.imagenet.image_set import ChosenClasses, check_classes
from neoteny.problems.problem import Problem
from neoteny.text import check_share, check_whole


@dataclass(frozen=True)
class WarmStart(Problem):
    """Classification of images: a random part of the training images first, then all of them.

    Accuracy is that on all test images after each task. The learner is told of the task change, so that methods can
    act there; nothing else changes.

    Args:
        tasks: 2; with more, further tasks have all images again.
        source: "imagenet200_32" (200 classes of 550 images), "imagenet32" (the downsampled ImageNet), "synthetic" (40
            generated classes of 60 images, no download), or the path of a folder of classes; see `classes.py`.
        classes: of the source, evenly spaced in its list.
        train_images: training images per class. The authors train with two thirds of the images.
        test_images: test images per class.
        first_share: share of the training images in the first task, 0.5 by the authors.
        first_epochs: passes through the images of the first task.
        epochs: passes in each task after it.
        batch_size: images per update.
    """

    tasks: int = 2
    source: str = "imagenet200_32"
    classes: int = 100
    train_images: int = 360
    test_images: int = 180
    first_share: float = 0.5
    first_epochs: int = 100
    epochs: int = 100
    batch_size: int = 128

    loss: ClassVar[str] = "cross_entropy"
    performance: ClassVar[str] = "accuracy"
    tells_task: ClassVar[bool] = True
    zeroes_output: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_classes(self)
        check_whole(self, tasks=1, first_epochs=1, epochs=1, batch_size=1)
        check_share(self, "first_share")
        if self.images_in(0) < self.batch_size:
            raise ValueError(
                f"WarmStart: the first task has {self.images_in(0)} images (first_share={self.first_share} of "
                f"classes * train_images), fewer than one mini-batch; got batch_size={self.batch_size}."
            )

    def images_in(self, task: int) -> int:
        """Training images in a task."""
        images = self.classes * self.train_images
        return images if task > 0 else round(self.first_share * images)

    def epochs_in(self, task: int) -> int:
        """Passes through the images of a task."""
        return self.epochs if task > 0 else self.first_epochs

    @property
    def input_shape(self) -> tuple[int, ...]:
        return (3, 32, 32)

    @property
    def outputs(self) -> int:
        return self.classes

    @property
    def steps_per_task(self) -> int:
        return max(steps_in(self, task) for task in range(min(self.tasks, 2)))

    def steps_before(self, task: int) -> int:
        return sum(steps_in(self, before) for before in range(task))

    def open(self, data: Path | str | None = None) -> AccumulatingStream:
        return AccumulatingStream(self, "warm_start", ChosenClasses(self, data))
