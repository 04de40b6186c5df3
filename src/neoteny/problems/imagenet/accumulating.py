"""AccumulatingStream: tasks with more and more images of the same classes, for warm start and sample-incremental.

Before this: `image_set.py`, `pool.py`; after it: `warm_start.py` and `sample_incremental.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from neoteny.problems.draws import shuffle
from neoteny.problems.imagenet.image_set import ChosenClasses, OfClasses
from neoteny.problems.imagenet.pool import PoolPlan
from neoteny.problems.problem import Stream


class Accumulating(OfClasses, Protocol):
    """A problem that says how many images a task has, and how often it goes through them."""

    @property
    def tasks(self) -> int:
        """Number of tasks."""
        ...

    @property
    def batch_size(self) -> int:
        """Images per update."""
        ...

    def images_in(self, task: int) -> int:
        """Training images in a task."""
        ...

    def epochs_in(self, task: int) -> int:
        """Passes through them."""
        ...


def steps_in(problem: Accumulating, task: int) -> int:
    """Updates in a task."""
    return problem.epochs_in(task) * (problem.images_in(task) // problem.batch_size)


@dataclass
class AccumulatingStream(Stream):
    """A task has the first images of each run's random order of all training images.

    Attributes:
        problem: how many.
        name: of the stream of draws.
        classes: where they come from.
    """

    problem: Accumulating
    name: str
    classes: ChosenClasses

    def __post_init__(self) -> None:
        self.fingerprint = self.classes.fingerprint

    def plan(self, seeds: Sequence[int], task: int) -> PoolPlan:
        problem = self.problem
        if not 0 <= task < problem.tasks:
            raise ValueError(f"{type(problem).__name__} has tasks 0 to {problem.tasks - 1}; got {task}.")
        images = problem.classes * problem.train_images
        held_out = torch.arange(problem.classes * problem.test_images, dtype=torch.int32)
        return PoolPlan(
            name=self.name,
            seeds=tuple(seeds),
            task=task,
            images=self.classes.images(),
            pool=shuffle(seeds, 0, f"{self.name}.images", images)[:, 0, : problem.images_in(task)],
            held_out=held_out.expand(len(seeds), -1),
            labels=torch.arange(problem.classes).expand(len(seeds), -1),
            batch_size=problem.batch_size,
            epochs=problem.epochs_in(task),
        )
