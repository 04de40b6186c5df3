"""The Triton kernel of `device_adam`."""

from __future__ import annotations

from neoteny.units.device.memory import jit, load_any, store_any, tl


@jit
def adam(
    chunks,
    rows,
    gradients,
    power1,
    power2,
    longest1,
    longest2,
    step,
    step_size,
    keep1,
    beta2,
    keep2,
    eps,
    weight_decay,
    DECOUPLED: tl.constexpr,
    ALIGNED: tl.constexpr,
    COUNTED_ON_DEVICE: tl.constexpr,
    SIZE_ON_DEVICE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One chunk of one parameter per program."""
    c = tl.program_id(0)
    number, start = tl.load(chunks + 2 * c), tl.multiple_of(tl.load(chunks + 2 * c + 1), 16)
    row = rows + number * 13
    kind, count = tl.load(row + 3), tl.load(row + 5)
    k = start + tl.arange(0, BLOCK)
    mask = k < count
    p = load_any(tl.load(row), k, kind, mask, ALIGNED)
    g = load_any(tl.load(gradients + number), k, tl.load(row + 4), mask, ALIGNED)
    m = load_any(tl.load(row + 1), k, kind, mask, ALIGNED)
    v = load_any(tl.load(row + 2), k, kind, mask, ALIGNED)
    if SIZE_ON_DEVICE:
        step_size = tl.load(step_size).to(tl.float32)
    if COUNTED_ON_DEVICE:
        step = tl.load(step)
    if DECOUPLED:
        p = p * (1.0 - step_size * weight_decay)
    else:
        g += weight_decay * p
    m += keep1 * (g - m)
    v = v * beta2 + keep2 * g * g
    by_row, by_column = tl.load(row + 6), tl.load(row + 7)
    now = step - tl.load(row + 12)
    if (by_row == 0) & (by_column == 0):
        same1, same2 = tl.load(power1 + tl.minimum(now, longest1)), tl.load(power2 + tl.minimum(now, longest2))
        p -= step_size * (m * same1) / (tl.sqrt(v * same2) + eps)
    else:  # an element is as old as the younger of its two units
        length, inner, per_group, height = tl.load(row + 8), tl.load(row + 9), tl.load(row + 10), tl.load(row + 11)
        r = k // length
        since = tl.zeros([BLOCK], tl.int64)
        if by_row != 0:
            since = tl.load(by_row.to(tl.pointer_type(tl.int64)) + r, mask=mask, other=0)
        if by_column != 0:
            at = (r // height) * per_group + ((k % length) // inner) % per_group
            since = tl.maximum(since, tl.load(by_column.to(tl.pointer_type(tl.int64)) + at, mask=mask, other=0))
        age = now - since
        factor1 = tl.load(power1 + tl.minimum(age, longest1), mask=mask, other=1.0)
        factor2 = tl.load(power2 + tl.minimum(age, longest2), mask=mask, other=1.0)
        p -= step_size * (m * factor1) / (tl.sqrt(v * factor2) + eps)
    store_any(tl.load(row), k, p, kind, mask, ALIGNED)
    store_any(tl.load(row + 1), k, m, kind, mask, ALIGNED)
    store_any(tl.load(row + 2), k, v, kind, mask, ALIGNED)
