"""Streams of online problems with plain loops: one run, one example after the other.

Transcribed from the protocols of three papers: input-permuted and label-permuted images (Elsayed and Mahmood, UPGD),
permuted and random-label images (Kumar, Marklund and Van Roy, regenerative regularization).

A list of uniform numbers belongs to (seed, step, purpose): number i is word i % 4 of row i // 4. A random order of n
things sorts the things by the next n of these numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from reference import philox


class Numbers:
    """The uniform numbers of (seed, step, purpose), one after the other."""

    def __init__(self, seed: int, step: int, purpose: str) -> None:
        self.seed, self.step, self.purpose = seed, step, purpose
        self.used = 0
        self.row: list[float] = []

    def next(self) -> float:
        """The next number."""
        if self.used % 4 == 0:
            self.row = philox.uniform(self.seed, self.step, self.purpose, self.used // 4, 4).tolist()
        self.used += 1
        return self.row[(self.used - 1) % 4]

    def order(self, count: int) -> list[int]:
        """A random order of 0 to count - 1, from the next `count` numbers."""
        keys = [(self.next(), place) for place in range(count)]
        return [place for _, place in sorted(keys)]


def scaled(level: int, pixels: str) -> np.float32:
    """A byte as the network gets it: in [0, 1], or in [-1, 1] as (x - 0.5) / 0.5."""
    share = np.float32(level) * np.float32(1 / 255)
    if pixels == "unit":
        return share
    return np.float32((share - np.float32(0.5)) / np.float32(0.5))


def endless_passes(seed: int, purpose: str, count: int) -> Iterator[int]:
    """0 to count - 1 in a random order, then again in another, without end; tasks do not interrupt a pass."""
    numbers = Numbers(seed, 0, purpose)
    while True:
        yield from numbers.order(count)


Example = tuple[list[int], int]
"""The bytes of an input and its label."""


def permuted_in_passes(
    seed: int, images: np.ndarray, labels: Sequence[int], tasks: int, examples_per_task: int
) -> list[list[Example]]:
    """UPGD's input-permuted stream: one long series of passes, with a new permutation in every task."""
    series = endless_passes(seed, "permuted.passes", len(images))
    found = []
    for task in range(tasks):
        permutation = Numbers(seed, task, "permuted.pixels").order(images.shape[1])
        examples = []
        for _ in range(examples_per_task):
            number = next(series)
            examples.append(([int(images[number][pixel]) for pixel in permutation], int(labels[number])))
        found.append(examples)
    return found


def permuted_of_a_sample(
    seed: int, images: np.ndarray, labels: Sequence[int], tasks: int, sample: int, examples_per_task: int
) -> list[list[Example]]:
    """Permuted images of which a run uses one random sample; every task goes through it in a new order."""
    kept = Numbers(seed, 0, "permuted.sample").order(len(images))[:sample]
    found = []
    for task in range(tasks):
        permutation = Numbers(seed, task, "permuted.pixels").order(images.shape[1])
        order = Numbers(seed, task, "permuted.order").order(sample)[:examples_per_task]
        examples = []
        for place in order:
            number = kept[place]
            examples.append(([int(images[number][pixel]) for pixel in permutation], int(labels[number])))
        found.append(examples)
    return found


def label_permuted(
    seed: int, images: np.ndarray, labels: Sequence[int], classes: int, tasks: int, examples_per_task: int
) -> list[list[Example]]:
    """UPGD's label-permuted stream: the labels in force are permuted once more in every task."""
    series = endless_passes(seed, "label_permuted.passes", len(images))
    in_force = [int(label) for label in labels]
    found = []
    for task in range(tasks):
        permutation = Numbers(seed, task, "label_permuted.labels").order(classes)
        in_force = [permutation[label] for label in in_force]  # what was permuted before is permuted again
        examples = []
        for _ in range(examples_per_task):
            number = next(series)
            examples.append(([int(level) for level in images[number]], in_force[number]))
        found.append(examples)
    return found


def random_label(
    seed: int, images: np.ndarray, classes: int, tasks: int, sample: int, epochs: int, new_images: bool = False
) -> list[list[Example]]:
    """Random labels of one sample of images (or of a new one per task), learnt by heart in several passes."""
    found = []
    for task in range(tasks):
        kept = Numbers(seed, task if new_images else 0, "random_label.images").order(len(images))[:sample]
        draws = Numbers(seed, task, "random_label.labels")
        drawn = [int(draws.next() * classes) for _ in range(sample)]
        numbers = Numbers(seed, task, "random_label.order")
        examples = []
        for _ in range(epochs):
            for place in numbers.order(sample):
                examples.append(([int(level) for level in images[kept[place]]], drawn[place]))
        found.append(examples)
    return found
