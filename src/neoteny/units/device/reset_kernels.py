"""Triton kernels that choose units and replace them, of all groups that are due in one launch.

The tables are filled by `plan.py`; draws follow the layout of `draws.rng`.
"""

from __future__ import annotations

from neoteny.units.device.memory import constant, jit, libdevice, load_any, store_any, tl  # pyright: ignore

DUE = 6
"""Numbers of a row of `due`: group, number of units, step, purpose of a random choice, run, maturity threshold."""
_DUE = constant(DUE)


@jit
def uniform_words(seed, column, row, step, purpose):
    """Uniform numbers in (0, 1), float64, of the draws' layout (see `draws.rng`): the word of each column and its pair.

    Returns:
        The number itself, the first and the second of its pair, and whether it is the first.
    """
    high = ((step >> 32) * 0x9E3779B9) & 0xFFFFFFFF
    c0 = (column // 4).to(tl.uint32)
    zero = c0 * 0
    c1 = zero + (row & 0xFFFFFFFF).to(tl.uint32)
    c2 = zero + (step & 0xFFFFFFFF).to(tl.uint32)
    c3 = zero + (high ^ purpose).to(tl.uint32)
    w0, w1, w2, w3 = tl.philox(seed, c0, c1, c2, c3)
    late, odd = (column % 4) >= 2, (column % 2) == 1
    first = (tl.where(late, w2, w0).to(tl.float64) + 0.5) * 2.3283064365386963e-10
    second = (tl.where(late, w3, w1).to(tl.float64) + 0.5) * 2.3283064365386963e-10
    return tl.where(odd, second, first), first, second, odd


@jit
def scores(
    utility, power, born, base, units, seed, step, purpose, threshold, RANDOM: tl.constexpr, BLOCK: tl.constexpr
):
    """Scores of a group's units, infinite where a unit is not eligible."""
    u = tl.arange(0, BLOCK)
    mask = u < units
    if RANDOM:
        number, _, _, _ = uniform_words(seed, u.to(tl.int64), step * 0, step, purpose)
        score = number.to(tl.float32)
    else:
        score = tl.load(utility + base + u, mask=mask, other=0.0)
        score = libdevice.div_rn(score, 1.0 - tl.load(power + base + u, mask=mask, other=0.0))  # the library's bits
    largest = 3.4028234663852886e38
    score = tl.where(score != score, largest, tl.minimum(score, largest))
    young = step - tl.load(born + base + u, mask=mask, other=0) <= threshold
    return tl.where(young | (mask == 0), float("inf"), score)


@jit
def store_states(states, values, start, end, offsets, new, mask):
    """Put optimizer state back to its beginning: a number, or a copy of the new weight."""
    for s in range(start, end):
        value = tl.load(values + s).to(tl.float32) + tl.zeros_like(new)
        if tl.load(states + 3 * s + 2) == 1:
            value = new
        store_any(tl.load(states + 3 * s), offsets, value, tl.load(states + 3 * s + 1), mask)


@jit
def advance(due, groups, born, steps, waiting, replaced, rates, BY_LAYER: tl.constexpr, BLOCK: tl.constexpr):
    """One step of the replacement schedule of one group per program: `Schedule.tick`, counted on the device.

    Compile it without fused multiply-adds: with other rounding, what is due at exactly 1 would come one step late.
    """
    d = due + tl.program_id(0) * _DUE
    n = tl.load(d)
    base, units = tl.load(groups + n * 16), tl.load(groups + n * 16 + 1)
    step, threshold = tl.load(steps + n) + 1, tl.load(d + 5)
    u = tl.arange(0, BLOCK)
    mask = u < units
    ages = step - tl.load(born + base + u, mask=mask, other=0)
    eligible = tl.sum(((ages > threshold) & mask).to(tl.int64), 0)
    growing = eligible
    if BY_LAYER:
        growing = tl.where(eligible > 0, units, 0)
    total = tl.load(waiting + n) + tl.load(rates + n) * growing.to(tl.float64)
    whole = tl.floor(total)
    count = tl.minimum(whole.to(tl.int64), eligible)
    tl.store(steps + n, step)
    tl.store(waiting + n, total - whole)
    tl.store(replaced + n, tl.load(replaced + n) + count)
    tl.store(d + 1, count)
    tl.store(d + 2, step)


@jit
def choose_and_clear(
    due,
    groups,
    ranges,
    tiles,
    jobs,
    states,
    values,
    features,
    utility,
    power,
    born,
    mean,
    chosen,
    seeds,
    first,
    most,
    RANDOM: tl.constexpr,
    COMPENSATE: tl.constexpr,
    CLEAR: tl.constexpr,
    BLOCK: tl.constexpr,
    BR: tl.constexpr,
):
    """Zero the outgoing weights of the units that are due, in some rows of one consumer per program.

    The eligible units of lowest utility are due, ties to the lowest index; each program finds them for itself, and the
    first of each group writes them down. Their mean share of a consumer's pre-activation joins its bias,
    or leaves the running mean behind it. The rows of `due` from `first` on are served; no two groups among them may
    add to one bias.
    """
    n = first + tl.program_id(1)
    d = due + n * _DUE
    number, count, step, purpose = tl.load(d), tl.load(d + 1), tl.load(d + 2), tl.load(d + 3)
    if count == 0:
        return
    seed, threshold = tl.load(seeds + tl.load(d + 4)), tl.load(d + 5)
    t = tl.load(ranges + number * 6) + tl.program_id(0)
    if t >= tl.load(ranges + number * 6 + 1):
        return
    g = groups + number * 16
    base, units = tl.load(g), tl.load(g + 1)
    score = scores(utility, power, born, base, units, seed, step, purpose, threshold, RANDOM, BLOCK)
    every = tl.arange(0, BLOCK)
    j = jobs + tl.load(tiles + 2 * t) * 17
    r = tl.load(tiles + 2 * t + 1) * BR + tl.arange(0, BR)
    address, kind, rows, columns = tl.load(j), tl.load(j + 1), tl.load(j + 2), tl.load(j + 3)
    repeat, place, inner, apart, taps = (
        tl.load(j + 4),
        tl.load(j + 5),
        tl.load(j + 6),
        tl.load(j + 7),
        tl.load(j + 8),
    )
    per_group, outputs = tl.load(j + 10), rows // tl.load(j + 9)
    bias, bias_kind, means, sign = tl.load(j + 11), tl.load(j + 12), tl.load(j + 13), tl.load(j + 14)
    share = tl.zeros([BR], tl.float32)
    for m in range(count):
        least = tl.min(score, 0)
        u = tl.min(tl.where(score == least, every, BLOCK), 0).to(tl.int64)
        score = tl.where(every == u, float("inf"), score)
        if tl.program_id(0) == 0:
            tl.store(chosen + n * most + m, u)
        if CLEAR:
            remaining = tl.maximum(1.0 - tl.load(power + base + u), 1.1754943508222875e-38)
            for q in range(repeat):
                f = tl.load(features + place + u * repeat + q)
                mask = (r < rows) & ((r // outputs) == (f // per_group))
                for tap in range(taps):
                    at = r * columns + (f % per_group) * inner + tap * apart
                    if COMPENSATE:
                        seen = tl.load(mean + base + u)
                        if means != 0:
                            seen = tl.load(means.to(tl.pointer_type(tl.float32)) + (u * repeat + q) * taps + tap)
                        share += load_any(address, at, kind, mask) * (seen / remaining)
                    zero = tl.zeros([BR], tl.float32)
                    store_any(address, at, zero, kind, mask)
                    store_states(states, values, tl.load(j + 15), tl.load(j + 16), at, zero, mask)
    if CLEAR and COMPENSATE:  # noqa: SIM102 - the first is known when the kernel is compiled
        if bias != 0:
            inside = r < rows
            store_any(bias, r, load_any(bias, r, bias_kind, inside) + sign * share, bias_kind, inside)


@jit
def draw_and_write(
    due,
    ranges,
    tiles,
    jobs,
    laws,
    states,
    values,
    vectors,
    vector_values,
    features,
    chosen,
    seeds,
    most,
    clock,
    CLOCK_ON_DEVICE: tl.constexpr,
    BC: tl.constexpr,
):
    """Draw the chosen units' incoming weights, and set their entries of biases, norms, statistics and their state.

    A program takes some columns of one producer, or one of those vectors.
    """
    n = tl.program_id(1)
    d = due + n * _DUE
    group, count, step = ranges + tl.load(d) * 6, tl.load(d + 1), tl.load(d + 2)
    if count == 0:
        return
    seed = tl.load(seeds + tl.load(d + 4))
    t = tl.load(group + 2) + tl.program_id(0)
    k = tl.arange(0, BC)
    if t < tl.load(group + 3):
        number = tl.load(tiles + 2 * t)
        j = jobs + number * 12
        c = (tl.load(tiles + 2 * t + 1) * BC + k).to(tl.int64)
        address, kind, length = tl.load(j), tl.load(j + 1), tl.load(j + 2)
        repeat, place, inner, apart, taps = (
            tl.load(j + 3),
            tl.load(j + 4),
            tl.load(j + 5),
            tl.load(j + 6),
            tl.load(j + 7),
        )
        family, purpose = tl.load(j + 8), tl.load(j + 9)
        scale, outside = tl.load(laws + 2 * number), tl.load(laws + 2 * number + 1)
        mask = c < length
        inside = (c // taps) * inner + (c % taps) * apart
        for m in range(count):
            u = tl.load(chosen + n * most + m)
            for q in range(repeat):
                row = tl.load(features + place + u * repeat + q)
                own, first, second, odd = uniform_words(seed, c, row, step, purpose)
                drawn = (own * 2.0 - 1.0) * scale
                if family == 1:
                    angle = 6.283185307179586 * second
                    turned = tl.where(odd, tl.sin(angle), tl.cos(angle))
                    drawn = tl.sqrt(-2.0 * tl.log(first)) * turned * scale
                if family == 2:
                    drawn = libdevice.normcdfinv(outside + own * (1.0 - 2.0 * outside)) * scale
                new = drawn.to(tl.float32)
                at = row * length + inside
                store_any(address, at, new, kind, mask)
                store_states(states, values, tl.load(j + 10), tl.load(j + 11), at, new, mask)
        return
    t = tl.load(group + 4) + t - tl.load(group + 3)
    if t >= tl.load(group + 5):
        return
    j = vectors + t * 6
    address, kind, repeat, place, length, special = (
        tl.load(j),
        tl.load(j + 1),
        tl.load(j + 2),
        tl.load(j + 3),
        tl.load(j + 4),
        tl.load(j + 5),
    )
    value = tl.load(vector_values + t)
    updates = clock
    if CLOCK_ON_DEVICE:
        updates = tl.load(clock)
    for m in range(count):
        u = tl.load(chosen + n * most + m)
        for q in range(repeat):
            entry = u
            if place >= 0:
                entry = tl.load(features + place + u * repeat + q)
            for start in range(0, length, BC):
                at = entry * length + start + k
                mask = start + k < length
                if kind == 3:
                    number = tl.where(special == 1, step, updates)  # nothing else is counted in whole numbers
                    whole = tl.zeros([BC], tl.int64) + number
                    tl.store(address.to(tl.pointer_type(tl.int64)) + at, whole, mask=mask)
                else:
                    store_any(address, at, value.to(tl.float32) + tl.zeros([BC], tl.float32), kind, mask)
