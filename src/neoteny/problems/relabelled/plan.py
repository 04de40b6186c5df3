"""RelabelledPlan: one task of images whose labels are the task's own.

Before this: `label_permuted.py` and `random_label.py` draw which images come with which labels; after it: `suite/`, and
`backends/kernel/examples.py`, which reads these plans for the kernels.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from neoteny.problems.data.labelled import LabelledImages
from neoteny.problems.data.pixels import scale_pixels
from neoteny.problems.draws import draw_whole
from neoteny.problems.problem import Plan, check_range


@dataclass
class RelabelledPlan(Plan):
    """The images of a task with their labels, and the order in which they come.

    Attributes:
        data: all images (N, pixels), uint8, on any device.
        input_shape: of one image as the network gets it.
        images: numbers of the task's images, int32 (n, M).
        labels: their labels, int16 (n, M).
        order: which of the M comes when, int32 (n, steps * batch_size).
        batch_size: images per update.
        pixels: how bytes become inputs.
        steps_of_a_pass: updates of one pass through the M, where there are several; else 0.
        probe_all: whether measures look at any of the N images, not only at the M.
    """

    seeds: tuple[int, ...]
    task: int
    data: LabelledImages
    input_shape: tuple[int, ...]
    images: Tensor
    labels: Tensor
    order: Tensor
    batch_size: int
    pixels: str
    steps_of_a_pass: int = 0
    probe_all: bool = False
    steps: int = field(init=False)

    def __post_init__(self) -> None:
        self.steps = self.order.shape[1] // self.batch_size

    def batches(self, start: int, stop: int, device: torch.device) -> tuple[Tensor, Tensor]:
        check_range(self, start, stop)
        chosen = self.order[:, start * self.batch_size : stop * self.batch_size].long()  # (n, images)
        shape = (stop - start, self.batch_size)
        numbers = self.images.gather(1, chosen).unflatten(1, shape).transpose(0, 1).contiguous()
        labels = self.labels.gather(1, chosen).unflatten(1, shape).transpose(0, 1).contiguous()
        return self._inputs(numbers, device), labels.long().to(device)

    def probe(self, count: int, device: torch.device) -> Tensor:
        total = len(self.data.labels) if self.probe_all else self.images.shape[1]
        numbers = draw_whole(self.seeds, self.task, "relabelled.probe", 0, count, total)
        return self._inputs(numbers if self.probe_all else self.images.gather(1, numbers), device)

    def _inputs(self, numbers: Tensor, device: torch.device) -> Tensor:
        """The images of these numbers: float32 (*numbers.shape, *input_shape)."""
        images = self.data.on(device).images[numbers.long().to(device)]
        return scale_pixels(images, self.pixels).unflatten(-1, self.input_shape)
