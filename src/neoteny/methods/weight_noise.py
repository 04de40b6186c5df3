"""Gaussian noise on all elements of a parameter, drawn by (run seed, step, purpose) so that it can be repeated."""

from __future__ import annotations

import torch
from torch import Tensor

from neoteny.draws import noise
from neoteny.units.view import View


@torch.no_grad()
def add_noise(view: View, parameter: Tensor, step: int | Tensor, purpose: str, std: float | tuple[float, ...]) -> None:
    """Add noise to a parameter (*R, ...) in place; each row of a weight is one row of draws.

    Args:
        view: for the run axes and the seeds.
        parameter: changed in place.
        step: the step of the draw; a tensor while a recorded graph counts.
        purpose: what the noise is for, the parameter's name included.
        std: standard deviation, one number or one per run.
    """
    shape = parameter.shape[len(view.runs) :]
    matrix = (shape[0], shape[1:].numel()) if len(shape) > 1 else (1, shape.numel())
    exact = torch.empty(0, dtype=torch.float64, device=parameter.device)
    scale = view.per_run(std, exact, axes=0)
    target = parameter if parameter.is_contiguous() else torch.zeros_like(parameter).contiguous()
    flat = target.detach().view(*view.runs, *matrix)
    noise.add_normal(flat, view.seeds, step, purpose, scale)
    if target is not parameter:
        parameter.add_(target)
