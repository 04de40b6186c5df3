"""A group of runs of a narrow network, from the first update of a block to the last; the loops are in `lanes`.

Rows of activations `x`, gradients `g` and sums are numbered through the network: inputs, hidden units, outputs, and one
last row of ones, which stands for what a bias is multiplied by.
"""

from __future__ import annotations

import math

import numpy as np

from neoteny.backends.kernel.cpu.lanes import (
    LANES,
    activate_lanes,
    adam_lanes,
    add_sizes,
    back_lanes,
    descend,
    descend_with_momentum,
    forward_lanes,
    measure_lanes,
    release_lane,
    renew_lane,
)
from neoteny.backends.kernel.cpu.units import choose
from neoteny.draws.philox import compiled, inlined

_ZERO, _ONE = np.uint64(0), np.uint64(1)


@inlined
def train_group(
    first_run, runs, shape, options, state, rates, masks, targets, order, streams, due, step, start, stop, total,
    broken, unit_value,
):  # pragma: no cover - compiled  # fmt: skip
    """Updates start to stop - 1 of `runs` runs, at most `LANES`; `step`: updates before them.

    Inputs are bit masks, int32, by number of the example.
    """
    one = unit_value[0]
    n_in, n_out = shape.inputs, shape.outputs
    layers = np.uint64(len(n_in))
    last = layers - _ONE
    at, bias, row, unit = (
        np.zeros(layers + _ONE, np.uint64), np.zeros(layers, np.uint64), np.zeros(layers + _ONE, np.uint64),
        np.zeros(layers + _ONE, np.uint64),
    )  # fmt: skip
    for layer in range(layers):
        bias[layer] = at[layer] + n_in[layer] * n_out[layer]
        at[layer + _ONE] = bias[layer] + n_out[layer]
        row[layer + _ONE] = row[layer] + n_in[layer]
        unit[layer + _ONE] = unit[layer] + n_out[layer]
    ones = row[layers] + n_out[last]
    rows, units = ones + _ONE, max(unit[last], _ONE)
    dtype = state.parameters.dtype
    p = np.zeros((at[layers], np.uint64(LANES)), dtype)
    first = np.zeros((at[layers] if options.optimizer > 0 else _ZERO, np.uint64(LANES)), dtype)
    second = np.zeros((at[layers] if options.optimizer > 1 else _ZERO, np.uint64(LANES)), dtype)
    mean, utility, decay_power = (
        np.zeros((units, LANES), dtype),
        np.zeros((units, LANES), dtype),
        np.ones((units, LANES), dtype),
    )
    born = np.zeros((units, LANES), np.int64)
    replaces = options.utility != 0
    for lane in range(LANES):
        run = first_run + min(lane, runs - 1)
        _exchange(p, state.parameters[run], lane, shape, at, bias, True)
        if options.optimizer > 0:
            _exchange(first, state.first[run], lane, shape, at, bias, True)
        if options.optimizer > 1:
            _exchange(second, state.second[run], lane, shape, at, bias, True)
        for layer in range(last if replaces else _ZERO):
            for j in range(n_out[layer]):
                own, theirs = unit[layer] + j, shape.unit[layer] + j
                mean[own, lane] = state.mean_activation[run, theirs]
                utility[own, lane] = state.utility[run, theirs]
                decay_power[own, lane] = state.decay_power[run, theirs]
                born[own, lane] = state.born[run, theirs]

    x, g, slope = np.zeros((rows, LANES), dtype), np.zeros((rows, LANES), dtype), np.zeros((rows, LANES), dtype)
    incoming, outgoing = np.zeros((rows, LANES), dtype), np.zeros((rows, LANES), dtype)
    step_scale, root_scale = np.zeros((rows, LANES), dtype), np.zeros((rows, LANES), dtype)
    power1, power2 = np.ones((rows, LANES)), np.ones((rows, LANES))
    rate, weight_decay, shrink = np.zeros(LANES, dtype), np.zeros(LANES, dtype), np.zeros(LANES, dtype)
    momentum, decay, instant = np.zeros(LANES, dtype), np.zeros(LANES, dtype), np.zeros(LANES, dtype)
    score, chosen, draws = np.zeros(units, dtype), np.zeros(units, np.uint64), np.zeros(units + np.uint64(4))
    places = np.zeros(layers + _ONE, np.int64)
    bits, target, loss = np.zeros(LANES, np.int32), np.zeros(LANES, dtype), np.zeros(LANES, dtype)
    sums, alive = np.zeros(LANES), np.ones(LANES, np.bool_)
    examples = np.zeros(LANES, np.int64)
    any_due = np.zeros(stop - start, np.bool_)
    typed = np.empty(4, dtype)
    typed[0], typed[1], typed[2], typed[3] = 1.0 - options.beta1, 1.0 - options.beta2, options.beta2, options.eps
    one_minus_beta1, one_minus_beta2, beta2, eps = typed[0], typed[1], typed[2], typed[3]
    largest, tiny = np.finfo(dtype).max, np.finfo(dtype).tiny
    for lane in range(LANES):
        run = first_run + min(lane, runs - 1)
        rate[lane], shrink[lane] = rates.step_size[run], rates.shrink[run]
        weight_decay[lane] = rates.step_size[run] * rates.shrink[run]
        momentum[lane], decay[lane] = rates.momentum[run], rates.decay_rate[run]
        x[ones, lane] = one
        for k in range(stop - start):
            for layer in range(last if replaces else _ZERO):
                any_due[k] |= due[run, layer, k] > 0
        if options.optimizer == 2:
            for j in range(rows):
                power1[j, lane], power2[j, lane] = options.beta1**step, options.beta2**step
            for layer in range(last if replaces else _ZERO):
                for j in range(n_out[layer]):
                    age = step - born[unit[layer] + j, lane]
                    power1[row[layer + _ONE] + j, lane] = options.beta1**age
                    power2[row[layer + _ONE] + j, lane] = options.beta2**age
    share = np.empty(layers, dtype)
    fan_in, fan_out = np.empty(layers, dtype), np.empty(layers, dtype)
    for layer in range(layers):
        fan_in[layer], fan_out[layer] = 1.0 / n_in[layer], 1.0 / n_out[layer]
        share[layer] = 2.0 / n_out[last]

    for k in range(start, stop):
        for lane in range(LANES):
            example = order[streams[first_run + min(lane, runs - 1)], k]
            examples[lane] = example
            bits[lane] = masks[example]
            target[lane] = targets[example]
        for i in range(n_in[0]):
            place = np.int32(i)
            for lane in range(LANES):
                x[i, lane] = (bits[lane] >> place) & np.int32(1)
        for layer in range(layers):
            forward_lanes(p, at[layer], bias[layer], n_in[layer], n_out[layer], x, row[layer], row[layer + _ONE])
            if layer < last:
                activate_lanes(options.activation, x, slope, row[layer + _ONE], n_out[layer], one)

        for lane in range(LANES):
            loss[lane] = 0.0
        for j in range(n_out[last]):
            out = row[layers] + j
            for lane in range(LANES):
                off = x[out, lane] - target[lane]
                loss[lane] += off * off * fan_out[last]
                g[out, lane] = share[last] * off
        for lane in range(LANES):
            fine = abs(loss[lane]) <= largest
            if alive[lane] and not fine:
                alive[lane] = False
                if lane < runs:
                    broken[first_run + lane] = k
            sums[lane] += loss[lane] if alive[lane] else 0.0

        if options.optimizer == 2:
            for j in range(row[1] if replaces else ones, rows):
                for lane in range(LANES):
                    power1[j, lane] *= options.beta1
                    power2[j, lane] *= options.beta2
                for lane in range(LANES):
                    step_scale[j, lane] = rate[lane] / (1.0 - power1[j, lane])
                    root_scale[j, lane] = 1.0 / math.sqrt(1.0 - power2[j, lane])
        for backwards in range(layers):
            layer = last - backwards
            from_, to = row[layer], row[layer + _ONE]
            if layer > _ZERO:
                back_lanes(p, at[layer], n_in[layer], n_out[layer], g, slope, from_, to)
            # A bias is one more row of weights, on the input that is always one.
            for part in range(2):
                is_bias = part == 1
                weights, count = (bias[layer], _ONE) if is_bias else (at[layer], n_in[layer])
                source = ones if is_bias else from_
                if options.optimizer == 0:
                    descend(p, weights, count, n_out[layer], x, source, g, to, rate, weight_decay, instant)
                elif options.optimizer == 1:
                    descend_with_momentum(
                        p, first, weights, count, n_out[layer], x, source, g, to, rate, shrink, momentum
                    )  # fmt: skip
                else:
                    old_inputs = not replaces or layer == _ZERO or is_bias
                    old_outputs = not replaces or layer == last
                    adam_lanes(
                        p, first, second, weights, count, n_out[layer], x, source, g, to, shrink, one_minus_beta1,
                        one_minus_beta2, beta2, eps, step_scale, root_scale, ones if old_inputs else from_,
                        _ZERO if old_inputs else _ONE, ones if old_outputs else to, _ZERO if old_outputs else _ONE,
                    )  # fmt: skip

        if not replaces:
            continue
        if options.sums_in or options.sums_out:
            for layer in range(layers):
                add_sizes(
                    p, at[layer], n_in[layer], n_out[layer], incoming, outgoing, row[layer], row[layer + _ONE],
                    layer > _ZERO,
                )  # fmt: skip
        for layer in range(last):
            for j in range(n_out[layer]):
                measure_lanes(
                    options.utility, x, row[layer + _ONE] + j, mean, utility, decay_power, unit[layer] + j, decay,
                    incoming, fan_in[layer], outgoing, fan_out[layer + _ONE], instant, largest, one,
                )  # fmt: skip
        if not any_due[k - start]:
            continue
        now = np.uint64(step + (k - start) + 1)
        for lane in range(runs):
            run = first_run + lane
            seed = np.uint64(state.seeds[run])
            for layer in range(last):
                places[layer + _ONE] = places[layer]
                if due[run, layer, k - start] > 0:
                    choose(
                        options.utility, unit[layer], n_out[layer], utility.T, decay_power.T, born.T, np.uint64(lane),
                        due[run, layer, k - start], rates.maturity_threshold[run], now, seed, shape.purposes[1, layer],
                        largest, score, draws, chosen, np.uint64(places[layer]), one,
                    )  # fmt: skip
                    places[layer + _ONE] += due[run, layer, k - start]
            for layer in range(last):
                after = layer + _ONE
                for e in range(places[layer], places[after]):
                    release_lane(
                        p, first, second, at[after], bias[after], n_out[after], chosen[np.uint64(e)], np.uint64(lane),
                        unit[layer], mean, decay_power, options.compensate, tiny,
                    )  # fmt: skip
                for e in range(places[layer], places[after]):
                    j = chosen[np.uint64(e)]
                    renew_lane(
                        p, first, second, at[layer], bias[layer], n_in[layer], n_out[layer], j, np.uint64(lane),
                        unit[layer], mean, utility, decay_power, born, shape.bounds[layer], now, seed,
                        shape.purposes[0, layer],
                    )  # fmt: skip
                    power1[row[after] + j, lane] = power2[row[after] + j, lane] = 1.0
                    state.replaced[run, layer] += 1

    for lane in range(runs):
        run = first_run + lane
        total[run] += sums[lane]
        _exchange(p, state.parameters[run], lane, shape, at, bias, False)
        if options.optimizer > 0:
            _exchange(first, state.first[run], lane, shape, at, bias, False)
        if options.optimizer > 1:
            _exchange(second, state.second[run], lane, shape, at, bias, False)
        for layer in range(last if replaces else _ZERO):
            for j in range(n_out[layer]):
                own, theirs = unit[layer] + j, shape.unit[layer] + j
                state.mean_activation[run, theirs] = mean[own, lane]
                state.utility[run, theirs] = utility[own, lane]
                state.decay_power[run, theirs] = decay_power[own, lane]
                state.born[run, theirs] = born[own, lane]


@compiled
def _exchange(ours, theirs, lane, shape, at, bias, read):  # pragma: no cover - compiled
    """Copy a run's parameters between its packed row and its lane."""
    for layer in range(np.uint64(len(shape.inputs))):
        outputs = shape.outputs[layer]
        for i in range(shape.inputs[layer] + _ONE):
            is_bias = i == shape.inputs[layer]
            w = bias[layer] if is_bias else at[layer] + i * outputs
            q = shape.bias[layer] if is_bias else shape.weight[layer] + i * shape.stride[layer]
            for j in range(outputs):
                if read:
                    ours[w + j, lane] = theirs[q + j]
                else:
                    theirs[q + j] = ours[w + j, lane]
