"""The two-stage protocol."""

from __future__ import annotations

import math

import pandas as pd

from neoteny.methods import SGD, ContinualBackprop
from neoteny.suite.selection import choose
from neoteny.suite.sweep import Selection, Setting
from support.small_sweeps import NET, make_sweep


def test_the_best_setting_of_each_method_is_chosen_and_one_that_diverged_is_not() -> None:
    settings = [Setting("BP", NET, (SGD(size),), {"step_size": size}) for size in (0.1, 0.2, 0.3)]
    settings.append(Setting("CBP", NET, (SGD(0.1), ContinualBackprop(1e-4))))
    sweep = make_sweep(*settings, selection=Selection(more_runs=3))
    values = {settings[0].label: [3.0, 2.0], settings[1].label: [1.0, math.nan], settings[2].label: [2.0, 2.0]}
    values[settings[3].label] = [9.0, 9.0]
    frame = pd.DataFrame(
        [
            {"setting": label, "seed": seed, "metric": "error", "value": value, "task": 0}
            for label, each in values.items()
            for seed, value in enumerate(each)
        ]
        # a run beyond the first round must not count
        + [{"setting": settings[0].label, "seed": 2, "metric": "error", "value": -100.0, "task": 0}]
    )
    assert choose(sweep, frame) == [settings[2], settings[3]]
