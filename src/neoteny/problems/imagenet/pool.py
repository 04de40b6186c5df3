"""PoolPlan: passes through a pool of images in mini-batches, with a test set: a task of problems of many classes.

A pass shows the pool in a new random order, in mini-batches of one size. What is left over at the end of the order,
fewer images than a mini-batch, is not shown in that pass; in the next pass it is other images.

Pixels are scaled to [0, 1] and centred with 0.5, as in Continual ImageNet. Behind the first convolution of a network
with batch norm their scale has no effect.

Before this: `image_set.py` and `augmentation.py`; after it: `suite/`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from neoteny.problems.data.pixels import MIDDLE, PIXEL
from neoteny.problems.draws import shuffle
from neoteny.problems.imagenet.augmentation import places, take
from neoteny.problems.imagenet.image_set import ImageSet
from neoteny.problems.problem import Plan, check_range


@dataclass
class PoolPlan(Plan):
    """Which images each run learns from, and which it is tested on.

    Attributes:
        name: of the stream of draws.
        images: of all runs.
        pool: numbers of training images (n, N), int32.
        held_out: numbers of test images (n, T), int32.
        labels: label of each class (n, classes), int64.
        batch_size: images per update.
        epochs: passes through the pool.
        augment: whether training images are augmented.
        augment_test: whether test images are.
        seen_classes: see `Plan`.
        decays: updates from which on the step size is multiplied by `decay_factor` once more.
    """

    name: str
    seeds: tuple[int, ...]
    task: int
    images: ImageSet
    pool: Tensor
    held_out: Tensor
    labels: Tensor
    batch_size: int
    epochs: int
    augment: bool = False
    augment_test: bool = False
    seen_classes: int = 0
    decays: Sequence[int] = ()
    decay_factor: float = 1.0
    _kept: tuple[int, int, Tensor] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self.steps_of_a_pass = self.pool.shape[1] // self.batch_size
        self.steps = self.epochs * self.steps_of_a_pass

    def order(self, start: int, stop: int) -> Tensor:
        """Which places of the pool make the mini-batches start to stop - 1: int32 (n, stop - start, B)."""
        each = self.steps_of_a_pass
        first, last = start // each, -(-stop // each)
        if self._kept is None or self._kept[:2] != (first, last):  # blocks of updates are shorter than a pass
            orders = shuffle(self.seeds, self.task, f"{self.name}.order", self.pool.shape[1], first, last - first)
            shown = orders[:, :, : each * self.batch_size].unflatten(-1, (each, self.batch_size)).flatten(1, 2)
            self._kept = first, last, shown
        return self._kept[2][:, start - first * each : stop - first * each]

    def batches(self, start: int, stop: int, device: torch.device) -> tuple[Tensor, Tensor]:
        check_range(self, start, stop)
        order = self.order(start, stop)
        numbers = self.pool.gather(1, order.flatten(1).long()).view(order.shape)
        numbers = numbers.transpose(0, 1).contiguous()  # (count, n, B)
        source = None
        if self.augment:
            size = self.batch_size
            source = places(self.seeds, self.task, f"{self.name}.augmentation", start * size, stop * size)
            source = source.unflatten(1, (stop - start, size)).transpose(0, 1).contiguous()
        runs = torch.arange(len(self.seeds)).unsqueeze(-1)
        labels = self.labels[runs, numbers // self.images.train_images]
        return self._make(self._images(device).train, numbers, source, device), labels.to(device)

    def probe(self, count: int, device: torch.device) -> Tensor:
        """Training images, not augmented, in a random order of its own, from the start again after the last."""
        order = shuffle(self.seeds, self.task, f"{self.name}.probe", self.pool.shape[1])[:, 0]
        places_of = order[:, torch.arange(count) % order.shape[1]].long()
        return self._make(self._images(device).train, self.pool.gather(1, places_of), None, device)

    def test(self, device: torch.device) -> tuple[Tensor, Tensor]:
        source = None
        if self.augment_test:
            purpose = f"{self.name}.test_augmentation"
            source = places(self.seeds, self.task, purpose, 0, self.held_out.shape[1])
        runs = torch.arange(len(self.seeds)).unsqueeze(-1)
        labels = self.labels[runs, self.held_out // self.images.test_images].to(device)
        images = self._images(device).test
        if source is None and bool((self.held_out == self.held_out[:1]).all()):  # one copy for all runs
            shared = self._make(images, self.held_out[:1], None, device)
            return shared.expand(len(self.seeds), *shared.shape[1:]), labels
        return self._make(images, self.held_out, source, device), labels

    def step_size_factor(self, step: int) -> float:
        return self.decay_factor ** sum(step >= decay for decay in self.decays)

    def _images(self, device: torch.device) -> ImageSet:
        if self.images.train.device != device:
            self.images = self.images.to(device)
        return self.images

    def _make(self, images: Tensor, numbers: Tensor, source: Tensor | None, device: torch.device) -> Tensor:
        """Centred images (..., 3, 32, 32) of these numbers (...), with pixels from `source` (..., 1024)."""
        chosen = images[numbers.to(device).long()]
        if source is None:
            return chosen.float().mul_(PIXEL).sub_(MIDDLE)
        taken, inside = take(chosen, source.to(device))
        return taken.float().mul_(PIXEL).sub_(MIDDLE).mul_(inside)
