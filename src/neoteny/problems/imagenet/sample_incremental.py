"""Sample-incremental learning: images of all classes arrive in parts, and every task has all that arrived so far.

In the usual form the data comes in ten equal parts, with 100 passes through what is there after each. The baseline that
loses no plasticity is `HardReset.from_scratch()`, which trains a new network in every task.

Differences from the publications: the images are of another source; a pass leaves out the last images, too few for a
mini-batch (`pool.py`); labels are never wrong (some authors add label noise that falls from part to part).

Before this: `accumulating.py`; after it: `suite/`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from neoteny.problems.imagenet.accumulating import AccumulatingStream, steps_in
from neoteny.problems.imagenet.image_set import ChosenClasses, check_classes
from neoteny.problems.problem import Problem
from neoteny.text import check_whole


@dataclass(frozen=True)
class SampleIncremental(Problem):
    """Classification of images of which every task brings more, kept with all that came before.

    Accuracy is that on all test images after each task. The learner is told of task changes, so that methods can act
    there; nothing else changes.

    Args:
        tasks: parts in which the images arrive.
        source: as for `WarmStart`.
        classes: of the source, evenly spaced in its list.
        train_images: training images per class.
        test_images: test images per class.
        images_per_task: training images that every task adds, of all classes; `tasks` times as many must be there.
        epochs: passes through all images so far, in each task.
        batch_size: images per update.
    """

    tasks: int = 10
    source: str = "imagenet200_32"
    classes: int = 100
    train_images: int = 450
    test_images: int = 100
    images_per_task: int = 4500
    epochs: int = 100
    batch_size: int = 128

    loss: ClassVar[str] = "cross_entropy"
    performance: ClassVar[str] = "accuracy"
    tells_task: ClassVar[bool] = True
    zeroes_output: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_classes(self)
        check_whole(self, tasks=1, images_per_task=1, epochs=1, batch_size=1)
        images = self.classes * self.train_images
        if self.tasks * self.images_per_task > images:
            raise ValueError(
                f"SampleIncremental: there are classes * train_images = {images} images; got tasks={self.tasks} and "
                f"images_per_task={self.images_per_task}, which need {self.tasks * self.images_per_task}."
            )
        if self.images_per_task < self.batch_size:
            raise ValueError(
                f"SampleIncremental: the first task must have at least one mini-batch; got images_per_task="
                f"{self.images_per_task} and batch_size={self.batch_size}."
            )

    def images_in(self, task: int) -> int:
        """Training images in a task."""
        return (task + 1) * self.images_per_task

    def epochs_in(self, task: int) -> int:
        """Passes through the images of a task."""
        return self.epochs

    @property
    def input_shape(self) -> tuple[int, ...]:
        return (3, 32, 32)

    @property
    def outputs(self) -> int:
        return self.classes

    @property
    def steps_per_task(self) -> int:
        return steps_in(self, self.tasks - 1)

    def steps_before(self, task: int) -> int:
        return sum(steps_in(self, before) for before in range(task))

    def open(self, data: Path | str | None = None) -> AccumulatingStream:
        return AccumulatingStream(self, "sample_incremental", ChosenClasses(self, data))
