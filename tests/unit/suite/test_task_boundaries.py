"""Task boundaries in a sweep: methods act between tasks, get one pass of the new data, and go on after a stop."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from neoteny.methods import DASH, FIRE, SGD, HardReset, Method, PlasticityInjection, WarmStartShrinkAndPerturb
from neoteny.nets import ConvNet
from neoteny.problems import ContinualImageNet
from neoteny.suite.stacks import runs_of, stacks_of
from neoteny.suite.sweep import Setting, network
from neoteny.suite.training import Training
from support.small_sweeps import CPU, make_sweep

PROBLEM = ContinualImageNet(tasks=3, source="synthetic", train_images=6, test_images=4, batch_size=4, epochs=2)
METHODS = [DASH(), FIRE(5), HardReset.from_scratch(), PlasticityInjection(), WarmStartShrinkAndPerturb()]


def begin(method: Method) -> Training:
    sweep = make_sweep(Setting("one", network(ConvNet), (SGD(0.01, momentum=0.9), method)), problem=PROBLEM, runs=1)
    (one,) = stacks_of(sweep, runs_of(sweep, sweep.settings, "reference"), ())
    return Training(one, PROBLEM.open(), CPU)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
def test_methods_act_between_tasks_and_go_on_after_a_stop(method: Method) -> None:
    training = begin(method)
    first = {name: value.clone() for name, value in training._stack.view.tensors.items()}
    training._begin_task(training._backend.plan(0))
    for name, value in training._stack.view.tensors.items():  # before the first task nothing but the head changes
        assert torch.equal(value, first[name]) == (not name.startswith("out.")), name

    states: list[Any] = []
    whole = begin(method)
    whole.run(lambda: states.append(whole.state_dict()))
    assert [len(values) for values in whole.rows.values()] == [3]
    resumed = begin(method)
    resumed.load_state_dict(states[1])
    resumed.run(lambda: None)
    assert torch.equal(resumed.table()["accuracy"], whole.table()["accuracy"])
    for name, value in whole._stack.view.tensors.items():
        assert torch.equal(value, resumed._stack.view.tensors[name]), name


def test_the_data_of_the_new_task_is_gone_through_once() -> None:
    training = begin(DASH())
    plan = training._backend.plan(1)
    batches = list(training._one_pass(plan))
    assert len(batches) == plan.steps // 2 == 3
    seen = torch.cat([inputs for inputs, _ in batches], 1).flatten(2)
    assert seen.shape[:2] == (1, 12)
    assert len(seen[0].unique(dim=0)) == 12
