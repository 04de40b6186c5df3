"""Warm start, sample-incremental and class-incremental learning of images: one run, one image at a time, plain loops.

Number i of a stream of draws is word i % 4 of row i // 4. A random order is the stable order of as many numbers. A pass
through N images in batches of B has N // B batches; what is left over of its order is not shown in that pass.

- warm start, sample-incremental: one random order of all training images per run; a task has its first images.
- class-incremental: one random order of the classes per run; the class at place p has label p, and task t has all
  images of the first (t + 1) * k classes, class by class.
- augmentation, in this order: a mirror image with probability 1/2; four pixels of reflected border, then a window of
  the old size at a random place; a rotation by 0 to 15 degrees, counter-clockwise about the centre, each pixel the
  nearest one of the image before, and zero (after centring) where there is none.
"""

from __future__ import annotations

import math

import numpy as np

from reference.philox import uniform


def numbers(seed: int, step: int, purpose: str, start: int, stop: int) -> list[float]:
    """Numbers start to stop - 1 of a stream."""
    return [float(uniform(seed, step, purpose, place // 4, 4)[place % 4]) for place in range(start, stop)]


def random_order(seed: int, step: int, purpose: str, count: int, which: int = 0) -> list[int]:
    """Random order number `which` of 0 to count - 1."""
    drawn = numbers(seed, step, purpose, which * count, (which + 1) * count)
    return sorted(range(count), key=lambda place: drawn[place])


def accumulated(seed: int, purpose: str, images: int, first: int) -> list[int]:
    """The images of a task: the first ones of the random order of all."""
    return random_order(seed, 0, purpose, images)[:first]


def class_order(seed: int, classes: int) -> list[int]:
    """The class at each place."""
    return random_order(seed, 0, "class_incremental.classes", classes)


def seen_images(seed: int, classes: int, seen: int, images_per_class: int) -> list[int]:
    """The numbers of all images of the classes seen, where class c has the images c * images_per_class and on."""
    return [
        label * images_per_class + image
        for label in class_order(seed, classes)[:seen]
        for image in range(images_per_class)
    ]


def batches(seed: int, task: int, purpose: str, images: list[int], size: int, passes: int) -> list[list[int]]:
    """The images of every batch of a task."""
    found = []
    for one in range(passes):
        order = random_order(seed, task, purpose, len(images), one)
        for batch in range(len(images) // size):
            found.append([images[place] for place in order[batch * size : (batch + 1) * size]])
    return found


def centred(image: np.ndarray) -> np.ndarray:
    """Bytes (side, side, 3) as numbers around zero, (3, side, side)."""
    return image.astype(np.float64).transpose(2, 0, 1) / 255.0 - 0.5


def augmented(image: np.ndarray, drawn: list[float]) -> np.ndarray:
    """An image (side, side, 3) after the augmentation by four numbers in (0, 1), centred, (3, side, side)."""
    side = image.shape[0]
    values = centred(image)
    if drawn[0] < 0.5:
        values = values[:, :, ::-1]
    top, left = int(drawn[1] * 9), int(drawn[2] * 9)
    bordered = np.pad(values, ((0, 0), (4, 4), (4, 4)), mode="reflect")
    values = bordered[:, top : top + side, left : left + side]
    angle = math.radians(15.0 * drawn[3])
    centre = (side - 1) / 2
    rotated = np.zeros_like(values)
    for row in range(side):
        for column in range(side):
            right, up = column - centre, centre - row
            from_right = right * math.cos(angle) + up * math.sin(angle)  # turned back, clockwise
            from_up = -right * math.sin(angle) + up * math.cos(angle)
            from_row, from_column = math.floor(centre - from_up + 0.5), math.floor(centre + from_right + 0.5)
            if 0 <= from_row < side and 0 <= from_column < side:
                rotated[:, row, column] = values[:, from_row, from_column]
    return rotated


def step_size_factor(step: int, steps_per_pass: int, passes: int, decay_at: tuple[float, ...], factor: float) -> float:
    """What the step size is multiplied by at an update of a task."""
    value = 1.0
    for share in decay_at:
        if step // steps_per_pass >= max(1, round(share * passes)):
            value *= factor
    return value
