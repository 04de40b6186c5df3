"""Gaussian noise added to a tensor in place, drawn by (run seed, step, purpose, row, column) as `rng` draws it.

On a CUDA device the draws are made in one kernel (CUDA C++ that torch compiles at its first use) instead of some two
hundred, and the step may be a number on the device, so that a recorded graph can count. The numbers are `rng.normal`'s,
bit for bit.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from neoteny.draws import rng

# All arguments are integers, so that torch casts none of them; what comes back are the bits of a float64.
_SOURCE = """
template <typename T> T normal_bits(T seed, T step, T row, T column, T purpose) {
    unsigned long long key = (unsigned long long)seed, time = (unsigned long long)step;
    unsigned k0 = (unsigned)key, k1 = (unsigned)(key >> 32);
    unsigned c0 = (unsigned)(column >> 2), c1 = (unsigned)row, c2 = (unsigned)time;
    unsigned c3 = (unsigned)purpose ^ ((unsigned)(time >> 32) * 0x9E3779B9u);
    PHILOX_ROUNDS
    bool second = column & 2;
    double first_unit = ((double)(second ? c2 : c0) + 0.5) * 2.3283064365386963e-10;  // 2**-32
    double other_unit = ((double)(second ? c3 : c1) + 0.5) * 2.3283064365386963e-10;
    double radius = sqrt(-2.0 * log(first_unit)), angle = 6.283185307179586 * other_unit;
    return (T)__double_as_longlong(radius * ((column & 1) ? sin(angle) : cos(angle)));
}
""".replace("PHILOX_ROUNDS", rng.CUDA_ROUNDS)


def add_normal(target: Tensor, seeds: Tensor, step: int | Tensor, purpose: str, scale: float | Tensor) -> None:
    """Add scale * `rng.normal` to a tensor (*R, rows, columns); see `rng.add_normal`.

    Args:
        target: changed in place.
        seeds: run seeds (*R).
        step: the step of the draw; an int64 tensor on the target's device if a graph is to count it.
        purpose: what the numbers are for.
        scale: standard deviation, one or (*R).
    """
    draw = _compiled(target.device) if target.is_cuda else None
    if draw is None:
        rng.add_normal(target, seeds, step if target.is_cuda else int(step), purpose, scale)  # pyright: ignore
        return
    noise = draw(seeds, step, purpose, *target.shape[-2:])
    factor = scale.reshape(*scale.shape, 1, 1) if isinstance(scale, Tensor) else scale
    target.add_((noise * factor).to(target.dtype))


@functools.cache
def _compiled(device: torch.device) -> Callable[[Tensor, int | Tensor, str, int, int], Tensor] | None:
    """Draws (*R, rows, columns) from (seeds, step, purpose, rows, columns); None where torch cannot compile it."""
    try:
        kernel = torch.cuda.jiterator._create_jit_fn(_SOURCE)
    except (AttributeError, RuntimeError):
        return None

    def whole(value: int) -> Tensor:
        return torch.full((), value, dtype=torch.int64, device=device)

    def draw(seeds: Tensor, step: int | Tensor, purpose: str, rows: int, columns: int) -> Tensor:
        row = torch.arange(rows, device=device).unsqueeze(-1)
        column = torch.arange(columns, device=device)
        time = step if isinstance(step, Tensor) else whole(step)
        bits = kernel(seeds[..., None, None], time, row, column, whole(rng.purpose_code(purpose)))
        return bits.view(torch.float64)

    try:
        draw(whole(0), 0, "", 1, 1)
    except RuntimeError:
        return None
    return draw
