"""One run from the first update of a block to the last, in the dense kernel."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from neoteny.backends.kernel.dense.network import backward_all, forward_all, load, losses
from neoteny.backends.kernel.dense.passes import (
    adam,
    add_terms,
    advance_powers,
    clip,
    descend,
    follow,
    perturb,
    spare_useful,
    start_powers,
)
from neoteny.backends.kernel.dense.places import OUTPUTS
from neoteny.backends.kernel.dense.reinit import ages_that_differ, fill_scales, measure_weights, redraw_weights
from neoteny.backends.kernel.dense.terms import (
    ACTIVITY,
    ADAM,
    CLIP,
    NOISE,
    REINIT,
    REPLACE,
    SILENCE,
    SLOW,
    UPDATE,
    UPGD,
)
from neoteny.backends.kernel.dense.units import (
    choose_by_score,
    choose_by_silence,
    choose_silent,
    choose_useless,
    rewrite,
    score_gradients,
)
from neoteny.draws.philox import inlined

_ZERO, _ONE, _TWO = np.uint64(0), np.uint64(1), np.uint64(2)
_ADAM, _UPGD, _ACTIVITY, _SILENCE = ADAM, UPGD, ACTIVITY, SILENCE
_UPDATE, _NOISE, _REPLACE, _REINIT, _CLIP, _SLOW = UPDATE, NOISE, REPLACE, REINIT, CLIP, SLOW
_AFTER_UPDATE, _IN_UPDATE = 4, 8  # rows of the purposes of noise


class Work(NamedTuple):
    """Memory of one run at work: a row per layer and example, and some odd numbers of the parameters' type.

    `typed`: slope, sharpness, the norm's epsilon, 1 / batch, and the decay rate of continual backpropagation.
    """

    rows: np.ndarray
    values: np.ndarray
    listed: np.ndarray
    z: np.ndarray
    h: np.ndarray
    slope: np.ndarray
    g: np.ndarray
    normed: np.ndarray
    root: np.ndarray
    typed: np.ndarray
    inverse: np.ndarray
    incoming: np.ndarray
    outgoing: np.ndarray
    places: np.ndarray
    chosen: np.ndarray
    score: np.ndarray
    draws: np.ndarray


@inlined
def train_run(
    run_number, shape, options, acts, state, numbers, inputs, step, start, stop, total, broken, unit_value
):  # pragma: no cover - compiled
    """One run's updates start to stop - 1 of a task; `step`: updates before them, `acts`: what happens at each."""
    run = np.uint64(run_number)
    one = unit_value[0]
    zero = one - one
    layers = np.uint64(shape.shape[1])
    last = layers - _ONE
    p = state.parameters[run]
    kind = p.dtype
    first, second, anchor, slow = state.first[run], state.second[run], state.anchor[run], state.slow[run]
    worth, drawn = state.worth[run], state.drawn[run]
    width = np.uint64(options.width)
    size = (layers * np.uint64(options.batch), width)
    side = (_TWO * layers, width)
    work = Work(
        np.zeros(size, np.uint64), np.zeros(size, kind), np.zeros(size[0], np.uint64), np.zeros(size, kind),
        np.zeros(size, kind), np.zeros(size, kind), np.zeros(size, kind), np.zeros(size, kind), np.zeros(size[0], kind),
        np.zeros(5, kind), np.zeros(layers, kind), np.zeros((layers, width), kind), np.zeros((layers, width), kind),
        np.zeros(layers + _ONE, np.int64), np.zeros(layers * width, np.uint64), np.zeros(width, kind),
        np.zeros(width + np.uint64(4)),
    )  # fmt: skip
    work.typed[0], work.typed[1], work.typed[2] = options.slope, options.sharpness, options.norm_eps
    work.typed[3], work.typed[4] = 1.0 / options.batch, numbers.decay_rate[run]
    for layer in range(layers):
        work.inverse[layer] = 1.0 / shape[OUTPUTS, layer]
    grad = np.zeros(p.size, kind)
    noise = np.zeros(p.size if options.optimizer == _UPGD else 1, kind)
    power1, power2 = np.ones(side), np.ones(side)
    scale1, scale2 = np.ones(side, kind), np.ones(side, kind)
    length, words = np.zeros(width, kind), np.zeros((4, width))
    typed = np.empty(12, kind)  # constants take the parameters' type by way of an array
    typed[0], typed[1], typed[2] = numbers.step_size[run], numbers.momentum[run], numbers.l2[run]
    typed[3], typed[4], typed[5] = numbers.anchor[run], 1.0 - options.beta1, 1.0 - options.beta2
    typed[6], typed[7], typed[8] = options.beta2, options.eps, 1.0 - numbers.slow_decay[run]
    typed[9] = 1.0 - numbers.step_size[run] * numbers.weight_decay[run]
    typed[10], typed[11] = numbers.step_size[run] * options.factor, numbers.reinit_decay[run]
    largest, tiny = np.finfo(kind).max, np.finfo(kind).tiny
    stream, seed = np.uint64(inputs.stream[run]), np.uint64(state.seeds[run])
    if options.optimizer >= _ADAM:
        start_powers(state.since[run], _ZERO, shape, options, step, power1, power2)
    ages = ages_that_differ(options, step + stop - start) if drawn.size > 0 else 1
    by_age1, by_age2 = np.ones(ages, kind), np.ones(ages, kind)
    fill_scales(options, by_age1, by_age2)

    for k in range(start, stop):
        now = np.uint64(step + (k - start) + 1)
        load(inputs, stream, k, np.uint64(options.batch), work.rows, work.values, work.listed)
        loss, performance = 0.0, 0.0
        for which in range(0 if slow.size > 0 else 1, 2):  # the performance is that of the slow weights, if any
            forward_all(slow if which == 0 else p, shape, options, work, one)
            loss, value = losses(options, inputs, stream, k, last, shape[OUTPUTS, last], work, one)
            performance = value if which == 0 or slow.size == 0 else performance
        total[run] += performance
        if not abs(loss) <= largest:
            broken[run] = k
            break
        backward_all(p, grad, shape, options, work, one)
        checks = options.reset_period > 0 and now % np.uint64(max(options.reset_period, 1)) == _ZERO
        if checks and state.score.size > 0:
            score_gradients(run, shape, state, grad, work.incoming, work.outgoing)
        redraws = now % np.uint64(options.reinit_period) == _ZERO
        if worth.size > 0 and (redraws or options.averages):
            measure_weights(p, grad, worth, shape, options, typed[11], largest)
        add_terms(p, grad, anchor, shape, typed[2], typed[3], zero)
        ticked = np.int64(now) - 1  # steps that continual backpropagation has counted
        for number in range(len(acts)):
            what = acts[number]
            if what == _NOISE:  # before the update it is UPGD's
                inside = number == 0
                std = numbers.step_noise_std[run] if inside else numbers.noise_std[run]
                target = noise if inside else p
                if inside:
                    noise[:] = zero
                if std > 0.0:
                    perturb(target, shape, options, _IN_UPDATE if inside else _AFTER_UPDATE, seed, now, std, one, words)
            elif what == _UPDATE:
                if options.optimizer < _ADAM:
                    descend(p, grad, first, typed[0], typed[1])
                    continue
                advance_powers(options, power1, power2, scale1, scale2)
                if options.optimizer == _ADAM:
                    adam(
                        p, grad, first, second, shape, options, typed[0], typed[9], typed[4], typed[5], typed[6],
                        typed[7], scale1, scale2, drawn, by_age1, by_age2, now, zero,
                    )  # fmt: skip
                else:
                    spare_useful(
                        p, grad, first, noise, shape, options, typed[10], typed[4], typed[9], tiny, scale1, length, one
                    )  # fmt: skip
            elif what == _SLOW:
                copies = options.slow_period > 0 and now % np.uint64(max(options.slow_period, 1)) == _ZERO
                follow(p, slow, typed[8], copies)
            elif what == _REINIT:
                if redraws:
                    redraw_weights(
                        run, shape, options, state, numbers.reinit[run], worth, p, first, second, anchor, slow, now,
                        seed, one,
                    )  # fmt: skip
            elif what == _CLIP:
                clip(p, shape, options, numbers.clip[run], one)
            else:
                replaces = what == _REPLACE
                work.places[:] = 0
                if replaces:
                    ticked = np.int64(now)
                    choose_useless(run, shape, options, state, numbers, work, p, now, seed, largest, one)
                elif options.reset_by == _SILENCE:
                    choose_by_silence(run, shape, options, state, numbers.threshold[run], checks, work)
                elif checks and options.reset_by == _ACTIVITY:
                    choose_silent(shape, options, numbers.threshold[run], work)
                elif checks:
                    choose_by_score(run, shape, state, numbers.threshold[run], work)
                rewrite(
                    run, shape, options, state, state.replaced if replaces else state.reset, replaces, work, p, first,
                    second, anchor, slow, power1, power2, now, seed, ticked, tiny, one,
                )  # fmt: skip
