"""Triton kernels that measure units. Each serves all groups of a model in one launch.

Tables of int64 numbers say what each program works on; `layout.py` fills them. Tensors are given by their addresses
inside these tables, so that a launch takes a handful of arguments however large the model is. Sums are kept in parts,
each written by one program and added up in a fixed order: the same input gives the same bits.
"""

from __future__ import annotations

from neoteny.units.device.memory import constant, jit, load_any, tl
from neoteny.units.utilities import ACTIVITY, CENTRED, INCOMING, OUTGOING

_ACTIVITY, _CENTRED, _OUTGOING, _INCOMING = map(constant, (ACTIVITY, CENTRED, OUTGOING, INCOMING))


@jit
def weight_sums(tiles, weights, sums, ALIGNED: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr):
    """Sums of |w| over rows and over columns, in parts: one tile of a weight (rows, columns) per program."""
    t = tl.program_id(0)
    w = weights + tl.load(tiles + 3 * t) * 8
    rb, cb = tl.load(tiles + 3 * t + 1), tl.load(tiles + 3 * t + 2)
    address, kind, rows, columns = tl.load(w), tl.load(w + 1), tl.load(w + 2), tl.load(w + 3)
    by_row, by_column = tl.load(w + 4), tl.load(w + 5)
    if ALIGNED:
        columns = tl.multiple_of(columns, 16)
    r, c = rb * BR + tl.arange(0, BR), cb * BC + tl.arange(0, BC)
    mask = (r < rows)[:, None] & (c < columns)[None, :]
    x = tl.abs(load_any(address, r[:, None] * columns + c[None, :], kind, mask, ALIGNED))
    tl.store(sums + by_row + cb * rows + r, tl.sum(x, 1), mask=r < rows)
    tl.store(sums + by_column + rb * columns + c, tl.sum(x, 0), mask=c < columns)


@jit
def column_sums(
    tiles,
    pieces,
    inputs,
    unit_of,
    centres,
    sums,
    DEVIATE: tl.constexpr,
    TERMS: tl.constexpr,
    ALIGNED: tl.constexpr,
    BR: tl.constexpr,
    BC: tl.constexpr,
):
    """Sums over examples of h, or of |h - centre| if DEVIATE, in parts: some rows of some columns per program."""
    t = tiles + tl.program_id(0) * 6
    p, i = pieces + tl.load(t) * 3, inputs + tl.load(t + 1) * 10
    split, start, end, cb = tl.load(t + 2), tl.load(t + 3), tl.load(t + 4), tl.load(t + 5)
    address, kind = tl.load(p), tl.load(p + 1)
    columns = tl.load(i)
    if ALIGNED:
        columns = tl.multiple_of(columns, 16)
    c = cb * BC + tl.arange(0, BC)
    inside = c < columns
    centre = tl.zeros([BC], tl.float32)
    offset = tl.load(i + 1)
    if DEVIATE:
        offset = tl.load(i + 2)
        inner, channels, place = tl.load(i + 5), tl.load(i + 6), tl.load(i + 7)
        unit = tl.load(unit_of + place + (c // inner) % channels, mask=inside, other=-1)
        if TERMS & _CENTRED:
            centre = tl.load(centres + unit, mask=unit >= 0, other=0.0)
    total = tl.zeros([BR, BC], tl.float32)
    for row in range(start, end, BR):
        r = row + tl.arange(0, BR)
        mask = (r < end)[:, None] & inside[None, :]
        x = load_any(address, r[:, None] * columns + c[None, :], kind, mask, ALIGNED)
        if DEVIATE:
            x = tl.where(mask, tl.abs(x - centre[None, :]), 0.0)
        total += x
    tl.store(sums + offset + split * columns + c, tl.sum(total, 0), mask=inside)


@jit
def unit_total(sums, offset, features, place, repeat, i, u, mask, BU: tl.constexpr, BK: tl.constexpr):
    """(BU,): what all columns of some units add up to in the parts of one input."""
    columns, splits = tl.load(i), tl.load(i + 3)
    inner, positions, apart = tl.load(i + 5), tl.load(i + 8), tl.load(i + 9)
    total = tl.zeros([BU], tl.float32)
    for k0 in range(0, repeat * splits * positions, BK):
        k = k0 + tl.arange(0, BK)
        r, s, p = k // (splits * positions), (k // positions) % splits, k % positions
        both = mask[:, None] & (k < repeat * splits * positions)[None, :]
        f = tl.load(features + place + u[:, None] * repeat + r[None, :], mask=both, other=0)
        at = offset + s[None, :] * columns + f * inner + p[None, :] * apart
        total += tl.sum(tl.load(sums + at, mask=both, other=0.0), 1)
    return total


@jit
def update_means(
    blocks,
    groups,
    inputs,
    features,
    sums,
    mean,
    power,
    centres,
    decay,
    rest,
    BU: tl.constexpr,
    BK: tl.constexpr,
):
    """One tick of the running means of some units; a unit whose mean is not finite keeps what it had."""
    b = blocks + tl.program_id(0) * 2
    g = groups + tl.load(b) * 16
    u = tl.load(b + 1) + tl.arange(0, BU)
    mask = u < tl.load(g + 1)
    i, repeat = inputs + tl.load(g + 2) * 10, tl.load(g + 3)
    total = unit_total(sums, tl.load(i + 1), features, tl.load(g + 4), repeat, i, u, mask, BU, BK)
    observed = total / (tl.load(i + 4) * repeat * tl.load(i + 8)).to(tl.float32)
    at = tl.load(g) + u
    finite = (observed - observed) == 0.0
    old_power, old = tl.load(power + at, mask=mask, other=0.0), tl.load(mean + at, mask=mask, other=0.0)
    new_power = tl.where(finite, old_power * decay, old_power)
    new = old + rest * (tl.where(finite, observed, old) - old)
    tl.store(power + at, new_power, mask=mask)
    tl.store(mean + at, new, mask=mask)
    tl.store(centres + at, new / (1.0 - new_power), mask=mask)


@jit
def update_column_means(blocks, jobs, inputs, features, sums, rest, BK: tl.constexpr):
    """One tick of what a consumer sees of one unit on average, for each of its columns and kernel taps."""
    b = blocks + tl.program_id(0) * 2
    j = jobs + tl.load(b) * 18
    u = tl.load(b + 1)
    repeat, place = tl.load(j + 2), tl.load(j + 3)
    i = inputs + tl.load(j + 4) * 10
    kept = tl.load(j + 5).to(tl.pointer_type(tl.float32))
    high, wide = tl.load(j + 6), tl.load(j + 7)
    columns, offset, splits, rows = tl.load(i), tl.load(i + 1), tl.load(i + 3), tl.load(i + 4)
    inner, apart = tl.load(i + 5), tl.load(i + 9)
    image_high, image_wide = tl.load(j + 14), tl.load(j + 15)
    out_high, out_wide = tl.load(j + 16), tl.load(j + 17)
    outputs = out_high * out_wide
    taps = high * wide
    for r in range(repeat):
        f = tl.load(features + place + u * repeat + r)
        for tap in range(taps):
            total = tl.zeros([BK], tl.float32)
            for k0 in range(0, outputs * splits, BK):
                k = k0 + tl.arange(0, BK)
                s, o = k // outputs, k % outputs
                y = (o // out_wide) * tl.load(j + 8) - tl.load(j + 10) + (tap // wide) * tl.load(j + 12)
                x = (o % out_wide) * tl.load(j + 9) - tl.load(j + 11) + (tap % wide) * tl.load(j + 13)
                inside = (k < outputs * splits) & (y >= 0) & (y < image_high) & (x >= 0) & (x < image_wide)
                at = offset + s * columns + f * inner + (y * image_wide + x) * apart
                total += tl.load(sums + at, mask=inside, other=0.0)
            observed = tl.sum(total, 0) / (rows * outputs).to(tl.float32)
            at = kept + (u * repeat + r) * taps + tap
            old = tl.load(at)
            tl.store(at, tl.where((observed - observed) == 0.0, old + rest * (observed - old), old))


@jit
def outgoing_sum(weights, sums, c, f, mask, BU: tl.constexpr, BK: tl.constexpr):
    """(BU,): sums of |w| of the outgoing weights of features f in one consumer."""
    w = weights + tl.load(c) * 8
    columns, by_column, blocks = tl.load(w + 3), tl.load(w + 5), tl.load(w + 6)
    inner, apart, taps, groups, per_group = (
        tl.load(c + 3),
        tl.load(c + 4),
        tl.load(c + 5),
        tl.load(c + 6),
        tl.load(c + 7),
    )
    total = tl.zeros([BU], tl.float32)
    if groups == 1:
        for k0 in range(0, blocks * taps, BK):
            k = k0 + tl.arange(0, BK)
            both = mask[:, None] & (k < blocks * taps)[None, :]
            at = by_column + (k // taps)[None, :] * columns + f[:, None] * inner + (k % taps)[None, :] * apart
            total += tl.sum(tl.load(sums + at, mask=both, other=0.0), 1)
    else:  # few weights leave a channel of a grouped convolution: they are read where they lie
        address, kind, outputs = tl.load(w), tl.load(w + 1), tl.load(w + 2) // groups
        for k0 in range(0, outputs * taps, BK):
            k = k0 + tl.arange(0, BK)
            both = mask[:, None] & (k < outputs * taps)[None, :]
            row = (f // per_group)[:, None] * outputs + (k // taps)[None, :]
            at = row * columns + (f % per_group)[:, None] * inner + (k % taps)[None, :] * apart
            total += tl.sum(tl.abs(load_any(address, at, kind, both)), 1)
    return total


@jit
def update_utilities(
    blocks,
    groups,
    inputs,
    producers,
    consumers,
    weights,
    features,
    sums,
    utility,
    rest,
    TERMS: tl.constexpr,
    BU: tl.constexpr,
    BK: tl.constexpr,
):
    """One tick of the utilities of some units."""
    b = blocks + tl.program_id(0) * 2
    g = groups + tl.load(b) * 16
    u = tl.load(b + 1) + tl.arange(0, BU)
    mask = u < tl.load(g + 1)
    i, repeat, place = inputs + tl.load(g + 2) * 10, tl.load(g + 3), tl.load(g + 4)
    columns, splits, rows, inner = tl.load(i), tl.load(i + 3), tl.load(i + 4), tl.load(i + 5)
    deviation = tl.full([BU], 1.0, tl.float32)
    if TERMS & _ACTIVITY:
        deviation = unit_total(sums, tl.load(i + 2), features, place, repeat, i, u, mask, BU, BK)
        deviation = deviation / (rows * repeat * tl.load(i + 8)).to(tl.float32)
    instant = deviation
    if TERMS & _OUTGOING:
        instant = tl.zeros([BU], tl.float32)
        for n in range(tl.load(g + 12), tl.load(g + 13)):
            c = consumers + n * 8
            times, at = tl.load(c + 1), tl.load(c + 2)
            share = tl.zeros([BU], tl.float32)
            for r in range(times):
                f = tl.load(features + at + u * times + r, mask=mask, other=0)
                weight = outgoing_sum(weights, sums, c, f, mask, BU, BK)
                seen = deviation
                if (TERMS & _ACTIVITY) and n == tl.load(g + 15):  # each column is weighed with its own deviation
                    seen = tl.zeros([BU], tl.float32)
                    for s in range(splits):
                        seen += tl.load(sums + tl.load(i + 2) + s * columns + f * inner, mask=mask, other=0.0)
                    seen = seen / rows.to(tl.float32)
                share += seen * weight
            instant += share / times.to(tl.float32)
        instant = instant / tl.load(g + 14).to(tl.float32)
    if TERMS & _INCOMING:
        incoming = tl.zeros([BU], tl.float32)
        for n in range(tl.load(g + 9), tl.load(g + 10)):
            q = producers + n * 4
            w = weights + tl.load(q) * 8
            times, at, height, parts = tl.load(q + 1), tl.load(q + 2), tl.load(w + 2), tl.load(w + 7)
            for k in range(times * parts):
                f = tl.load(features + at + u * times + k // parts, mask=mask, other=0)
                incoming += tl.load(sums + tl.load(w + 4) + (k % parts) * height + f, mask=mask, other=0.0)
        incoming = incoming / tl.load(g + 11).to(tl.float32)
        instant = tl.where(incoming == 0.0, 0.0, instant / incoming)
    at = tl.load(g) + u
    old = tl.load(utility + at, mask=mask, other=0.0)
    finite = (instant - instant) == 0.0
    tl.store(utility + at, tl.where(finite, old + rest * (instant - old), old), mask=mask)
