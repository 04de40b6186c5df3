"""Compiled resets of units: measured, chosen, taken out of the next layer, drawn again.

The same arithmetic as in `methods` (continual backpropagation, ReDo, ReGraMa, self-normalised resets) and in
`units.reset`, for units that give one feature or, with CReLU, two: feature c * units + j of a layer belongs to unit j.
"""

from __future__ import annotations

import numpy as np

from neoteny.backends.kernel.cpu.units import choose, sum_matrix
from neoteny.backends.kernel.dense.places import BIAS, GAIN, INPUTS, OFFSET, OUTPUTS, PURPOSES, STRIDE, UNIT, WEIGHT
from neoteny.draws.philox import compiled, philox, uniform
from neoteny.jit import compiler
from neoteny.units.utilities import ACTIVITY, CENTRED, INCOMING, OUTGOING, RANDOM

_ZERO, _ONE, _TWO, _THREE, _FOUR = (np.uint64(k) for k in range(5))
_EPSILON, _GRADIENT_EPSILON = 1e-9, 1e-8  # of `methods.redo` and `units.gradients`
_found = compiler(cache=False, exact=True)
assert _found is not None
exactly = _found


@exactly
def count_due(born, run, unit, units, rate, threshold, by_layer, step, accumulator, layer):  # pragma: no cover
    """Units to replace at this update, as `units.schedule` counts them; moves the accumulator on."""
    eligible = 0
    for j in range(units):
        eligible += np.int64(step) - born[run, unit + j] > threshold
    many = eligible
    if by_layer:
        many = np.int64(units) if eligible > 0 else 0
    due = accumulator[run, layer] + rate * many
    whole = np.floor(due) if due >= 1.0 else 0.0
    accumulator[run, layer] = due - whole
    return min(np.int64(whole), eligible)


@compiled
def measure_layer(
    run, layer, shape, options, state, work, decay, incoming, outgoing, largest, one
):  # pragma: no cover - compiled
    """One tick of the running means and the utility of a layer's units."""
    terms, batch, copies = options.utility, np.uint64(options.batch), np.uint64(options.copies)
    n, unit, zero, h = shape[OUTPUTS, layer], shape[UNIT, layer], one - one, work.h
    share = work.typed[3]
    half = share / np.float64(copies)
    mean, power, running, column_means = state.mean_activation, state.decay_power, state.utility, state.column_means
    inverse = work.inverse[layer + _ONE]
    for j in range(n):
        total = zero
        for c in range(copies):
            part = zero
            for b in range(batch):
                part += h[layer * batch + b, c * n + j]
            total += part
            if column_means.size > 0:
                kept = column_means[c, run, unit + j]
                column_means[c, run, unit + j] = kept + (one - decay) * (part * share - kept)
        x, m = total * half, mean[run, unit + j]
        if abs(x) <= largest:
            power[run, unit + j] *= decay
            mean[run, unit + j] = m + (one - decay) * (x - m)
    if terms & RANDOM:
        return
    for j in range(n):
        centre = zero
        if terms & CENTRED:
            centre = mean[run, unit + j] / (one - power[run, unit + j])
        instant = zero
        for c in range(copies):
            value = one
            f = c * n + j
            if terms & ACTIVITY:
                value = zero
                for b in range(batch):
                    value += abs(h[layer * batch + b, f] - centre)
                value *= share
            if terms & OUTGOING:
                value *= outgoing[layer, f] * inverse
            instant += value
        if copies > _ONE:
            instant *= 0.5
        if terms & INCOMING:
            size = incoming[layer, j] / np.float64(shape[INPUTS, layer])
            instant = zero if size == zero else instant / size
        u = running[run, unit + j]
        if abs(instant) <= largest:
            running[run, unit + j] = u + (one - decay) * (instant - u)


@compiled
def write(k, value, p, first, second, anchor, slow):  # pragma: no cover - compiled
    """A new element: no moments, and it is its own initial and slow value."""
    p[k] = value
    if first.size > 0:
        first[k] = 0.0
    if second.size > 0:
        second[k] = 0.0
    if anchor.size > 0:
        anchor[k] = value
    if slow.size > 0:
        slow[k] = value


@compiled
def cut(
    run, layer, j, shape, options, state, p, first, second, anchor, slow, compensates, tiny, one
):  # pragma: no cover
    """Take unit j of a layer out of the next one; with `compensates` that one's bias gets the unit's mean share."""
    after, n, unit = layer + _ONE, shape[OUTPUTS, layer], shape[UNIT, layer]
    stride = shape[STRIDE, after]
    for c in range(np.uint64(options.copies)):
        row = shape[WEIGHT, after] + (c * n + j) * stride
        if compensates:
            seen = state.mean_activation[run, unit + j]
            if state.column_means.size > 0:
                seen = state.column_means[c, run, unit + j]
            seen = seen / max(one - state.decay_power[run, unit + j], tiny)
            for k in range(shape[OUTPUTS, after]):
                p[shape[BIAS, after] + k] += p[row + k] * seen
        for k in range(shape[OUTPUTS, after]):
            write(row + k, one - one, p, first, second, anchor, slow)


@compiled
def draw(
    run, layer, j, shape, options, state, p, first, second, anchor, slow, power1, power2, step, seed, born, one
):  # pragma: no cover - compiled
    """Give unit j of a layer new incoming weights, a zero bias, a new norm, and no past; `born`: for its age."""
    inputs, stride = shape[INPUTS, layer], shape[STRIDE, layer]
    for block in range((inputs + _THREE) // _FOUR):
        words = philox(seed, j, step, shape[PURPOSES + 0, layer], block)
        for k in range(4):
            i = block * _FOUR + np.uint64(k)
            if i < inputs:
                new = one * ((uniform(words[k]) * 2.0 - 1.0) * state.bounds[layer])
                write(shape[WEIGHT, layer] + i * stride + j, new, p, first, second, anchor, slow)
    write(shape[BIAS, layer] + j, one - one, p, first, second, anchor, slow)
    if options.norm:
        write(shape[GAIN, layer] + j, one, p, first, second, anchor, slow)
        write(shape[OFFSET, layer] + j, one - one, p, first, second, anchor, slow)
    unit = shape[UNIT, layer] + j
    state.since[run, unit] = np.int64(step)
    by_output, by_input = _TWO * layer + _ONE, _TWO * (layer + _ONE)
    power1[by_output, j] = power2[by_output, j] = 1.0
    for c in range(np.uint64(options.copies)):
        f = c * shape[OUTPUTS, layer] + j
        power1[by_input, f] = power2[by_input, f] = 1.0
    if state.born.size > 0:
        state.mean_activation[run, unit] = state.utility[run, unit] = one - one
        state.decay_power[run, unit] = one
        state.born[run, unit] = born
        if state.column_means.size > 0:
            state.column_means[0, run, unit] = state.column_means[1, run, unit] = one - one


@compiled
def choose_useless(
    run, shape, options, state, numbers, work, p, step, seed, largest, one
):  # pragma: no cover - compiled
    """One tick of continual backpropagation: every layer is measured, then those of its units chosen that are due."""
    hidden = np.uint64(shape.shape[1]) - _ONE
    incoming, outgoing, places = work.incoming, work.outgoing, work.places
    for layer in range(hidden + _ONE if options.utility & (INCOMING | OUTGOING) else _ZERO):
        sum_matrix(p, shape[WEIGHT, layer], shape[INPUTS, layer], shape[STRIDE, layer], layer, incoming, outgoing)
    threshold = np.int64(numbers.maturity_threshold[run])
    for layer in range(hidden):
        measure_layer(run, layer, shape, options, state, work, work.typed[4], incoming, outgoing, largest, one)
        due = count_due(
            state.born, run, shape[UNIT, layer], shape[OUTPUTS, layer], numbers.replacement_rate[run], threshold,
            options.count_layer, step, state.accumulator, layer,
        )  # fmt: skip
        places[layer + _ONE] = places[layer] + due
        if due > 0:
            choose(
                options.utility, shape[UNIT, layer], shape[OUTPUTS, layer], state.utility, state.decay_power,
                state.born, run, due, threshold, step, seed, shape[PURPOSES + 1, layer], largest, work.score,
                work.draws, work.chosen, np.uint64(places[layer]), one,
            )  # fmt: skip


@compiled
def choose_silent(shape, options, threshold, work):  # pragma: no cover - compiled
    """Units of little activity, of every layer."""
    batch, copies = np.uint64(options.batch), np.uint64(options.copies)
    places, activity, h = work.places, work.draws, work.h
    for layer in range(np.uint64(shape.shape[1]) - _ONE):
        n, whole = shape[OUTPUTS, layer], 0.0
        for j in range(n):
            total = 0.0
            for c in range(copies):
                for b in range(batch):
                    total += abs(np.float64(h[layer * batch + b, c * n + j]))
            activity[j] = total / np.float64(batch * copies)
            whole += activity[j]
        middle = whole / np.float64(n) + _EPSILON
        number = places[layer]
        for j in range(n):
            if activity[j] / middle <= threshold:
                work.chosen[np.uint64(number)] = j
                number += 1
        places[layer + _ONE] = number


@compiled
def score_gradients(run, shape, state, grad, incoming, outgoing):  # pragma: no cover - compiled
    """The mean |gradient| of every unit's incoming weights over the layer's mean."""
    for layer in range(np.uint64(shape.shape[1]) - _ONE):
        n, inputs = shape[OUTPUTS, layer], np.float64(shape[INPUTS, layer])
        sum_matrix(grad, shape[WEIGHT, layer], shape[INPUTS, layer], shape[STRIDE, layer], layer, incoming, outgoing)
        whole = 0.0
        for j in range(n):
            whole += incoming[layer, j] / inputs
        for j in range(n):
            score = (incoming[layer, j] / inputs) / (whole / np.float64(n) + _GRADIENT_EPSILON)
            state.score[run, shape[UNIT, layer] + j] = score


@compiled
def choose_by_score(run, shape, state, threshold, work):  # pragma: no cover - compiled
    """Units whose score is at most the threshold, of every layer."""
    for layer in range(np.uint64(shape.shape[1]) - _ONE):
        number = work.places[layer]
        for j in range(shape[OUTPUTS, layer]):
            if state.score[run, shape[UNIT, layer] + j] <= threshold:
                work.chosen[np.uint64(number)] = j
                number += 1
        work.places[layer + _ONE] = number


@compiled
def choose_by_silence(run, shape, options, state, rejection, recalibrates, work):  # pragma: no cover - compiled
    """Count the ages of this update and choose units whose age has reached their threshold.

    With `recalibrates`, thresholds follow from the histograms, which start again.
    """
    ages, thresholds, histogram, h = state.age, state.threshold, state.histogram, work.h
    batch, longest = np.int64(options.batch), np.int64(histogram.shape[2])
    for layer in range(np.uint64(shape.shape[1]) - _ONE):
        n, number = shape[OUTPUTS, layer], work.places[layer]
        for j in range(n):
            unit = shape[UNIT, layer] + j
            silent = True
            for c in range(np.uint64(options.copies)):
                for b in range(np.uint64(options.batch)):
                    silent &= h[layer * np.uint64(options.batch) + b, c * n + j] <= 0.0
            age = ages[run, unit] + (batch if silent else 0)
            late = silent and age >= thresholds[run, unit] and rejection > 0.0
            if age > 0 and (late or not silent):
                place = min((age + batch - 1) // batch, longest) - 1
                histogram[run, unit, np.uint64(place)] += 1
            ages[run, unit] = 0 if late or not silent else age
            if late:
                work.chosen[np.uint64(number)] = j
                number += 1
            if recalibrates:
                _recalibrate(run, unit, thresholds, histogram, 1.0 - rejection, batch, longest)
        work.places[layer + _ONE] = number


@compiled
def _recalibrate(run, unit, thresholds, histogram, share, batch, longest):  # pragma: no cover - compiled
    """The threshold is the age that the unit's silences mostly end by, or twice what it was."""
    total = 0
    for place in range(longest):
        total += histogram[run, unit, np.uint64(place)]
    if total == 0:
        return
    before, reached, age = thresholds[run, unit], 0, 0
    for place in range(longest):
        reached += histogram[run, unit, np.uint64(place)]
        histogram[run, unit, np.uint64(place)] = 0
        age += 1 if np.float64(reached) < share * np.float64(total) else 0
    age = (age + 1) * batch
    proposed = age if age < before else 2 * before
    thresholds[run, unit] = min(max(proposed, batch), longest * batch)


@compiled
def rewrite(
    run, shape, options, state, counts, replaces, work, p, first, second, anchor, slow, power1, power2, step, seed,
    born, tiny, one,
):  # pragma: no cover - compiled  # fmt: skip
    """Make the chosen units new.

    Continual backpropagation (`replaces`) takes all of them out of their next layers before it draws any; resets go
    from the last layer to the first, so that a weight from one chosen unit to another ends as zero.
    """
    hidden, places = np.uint64(shape.shape[1]) - _ONE, work.places
    if places[hidden] == 0:
        return
    for part in range(_TWO * hidden):
        layer = part % hidden if replaces else hidden - _ONE - part // _TWO
        cuts = part < hidden if replaces else part % _TWO == _ZERO
        for c in range(places[layer], places[layer + _ONE]):
            j = work.chosen[np.uint64(c)]
            if cuts:
                cut(
                    run, layer, j, shape, options, state, p, first, second, anchor, slow,
                    replaces and options.compensate, tiny, one,
                )  # fmt: skip
            else:
                draw(
                    run, layer, j, shape, options, state, p, first, second, anchor, slow, power1, power2, step, seed,
                    born, one,
                )  # fmt: skip
                counts[run, layer] += 1
                if replaces and state.age.size > 0:  # to the other method it is a unit without a history
                    unit = shape[UNIT, layer] + j
                    state.age[run, unit], state.threshold[run, unit] = 0, options.first_threshold
                    state.histogram[run, unit] = 0
