"""Sweeps: what is refused, what identifies a run, and which runs share a stack."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from neoteny.methods import L2, SGD, ContinualBackprop
from neoteny.nets import MLP
from neoteny.suite.configuration import canonical
from neoteny.suite.environment import choose_device, choose_kernel
from neoteny.suite.identity import RESULTS_VERSION, digest
from neoteny.suite.stacks import PlannedStack, runs_of, stacks_of
from neoteny.suite.sweep import Setting, Sweep, network
from support.small_sweeps import CPU, NET, PROBLEM, make_sweep

# What is refused


def test_an_unknown_network_option_names_the_nearest() -> None:
    with pytest.raises(TypeError, match=r"MLP has no option 'activatoin'. Did you mean 'activation'\?"):
        network(MLP, hidden=(5,), activatoin="relu")


def test_two_settings_of_one_label_are_refused() -> None:
    with pytest.raises(ValueError, match="two settings have the label 'BP'"):
        make_sweep(Setting("BP", NET, (SGD(0.01),)), Setting("BP", NET, (SGD(0.1),)))


def test_two_settings_of_one_configuration_are_refused() -> None:
    sweep = make_sweep(Setting("BP", NET, (SGD(0.01),)), Setting("Plain", NET, (SGD(0.01),)))
    with pytest.raises(ValueError, match="have the same configuration"):
        runs_of(sweep, sweep.settings, "reference")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"runs": 0}, "runs must be a whole number"),
        ({"runs": True}, "runs must be a whole number"),
        ({"stack_size": 1.5}, "stack_size must be a whole number"),
        ({"dtype": "float16"}, "dtype must be"),
        ({"settings": ()}, "settings is empty"),
    ],
)
def test_impossible_values_of_a_sweep_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(make_sweep(), **change)


def test_a_setting_refuses_sequences_and_things_that_are_no_methods() -> None:
    with pytest.raises(ValueError, match="one value for each"):
        Setting("BP", NET, (SGD((0.01, 0.1)),))
    with pytest.raises(TypeError, match="tuple of Method values"):
        Setting("BP", NET, (torch.optim.SGD,))  # pyright: ignore[reportArgumentType]


def test_an_unknown_measure_names_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"Unknown measure 'dead_unit'. Did you mean 'dead_units'\?"):
        make_sweep(measures=("dead_unit",))


def test_unknown_devices_and_kernels_are_refused() -> None:
    with pytest.raises(ValueError, match=r"Unknown device 'gpu'. Did you mean 'cuda'"):
        choose_device("gpu")
    with pytest.raises(ValueError, match=r"Did you mean 'reference'"):
        choose_kernel("referense", CPU)


# Identity


def test_the_id_of_a_run_depends_on_what_changes_its_numbers_and_on_nothing_else() -> None:
    def run_id(sweep: Sweep, number: int = 0) -> str:
        return runs_of(sweep, sweep.settings, "reference")[number].run_id

    sweep = make_sweep()
    same = [
        dataclasses.replace(sweep, runs=5),
        dataclasses.replace(sweep, stack_size=3),
        make_sweep(Setting("Another name", NET, (SGD(0.01),), {"step_size": 0.01})),
    ]
    different = [
        make_sweep(Setting("BP", NET, (SGD(0.02),))),
        make_sweep(Setting("BP", NET, (SGD(0.01), L2(0.0)))),
        make_sweep(Setting("BP", network(MLP, hidden=(6,)), (SGD(0.01),))),
        dataclasses.replace(sweep, problem=dataclasses.replace(PROBLEM, tasks=4)),
        dataclasses.replace(sweep, dtype="float64"),
        dataclasses.replace(sweep, measures=("dead_units",)),
    ]
    assert {run_id(each) for each in same} == {run_id(sweep)}
    ids = [run_id(each) for each in different] + [run_id(sweep), run_id(sweep, 1)]
    assert len(set(ids)) == len(ids)


def test_the_id_is_fixed_over_versions_of_the_code() -> None:
    """If this fails, old results are no longer found: raise RESULTS_VERSION on purpose, or correct the change."""
    assert digest(canonical((SGD(0.01), ContinualBackprop(1e-4)))) == "d10cb98d05b8a2a7"
    assert RESULTS_VERSION == 1


def test_a_configuration_refuses_what_it_cannot_describe() -> None:
    with pytest.raises(TypeError, match="Describe it by its parameters"):
        canonical(torch.zeros(3))
    sweep = make_sweep(Setting("Mine", network(MLP, hidden=(...,)), (SGD(0.01),)))
    with pytest.raises(TypeError, match="Setting 'Mine': a configuration may hold"):
        runs_of(sweep, sweep.settings, "reference")


# Stacks


def test_runs_that_differ_in_seeds_and_numbers_share_a_stack() -> None:
    sweep = make_sweep(
        Setting("BP", NET, (SGD(0.01),), {"step_size": 0.01}),
        Setting("BP", NET, (SGD(0.1),), {"step_size": 0.1}),
        Setting("CBP", NET, (SGD(0.01), ContinualBackprop(1e-4))),
        Setting("CBP", NET, (SGD(0.01), ContinualBackprop(1e-3, utility="random")), {"utility": "random"}),
        Setting("BP", network(MLP, hidden=(7,)), (SGD(0.1),), {"width": 7}),
    )
    stacks = stacks_of(sweep, runs_of(sweep, sweep.settings, "reference"), ())
    assert [len(one.runs) for one in stacks] == [4, 2, 2, 2]
    assert stacks[0].methods() == (SGD((0.01, 0.01, 0.1, 0.1)),)
    assert stacks[1].methods() == (SGD(0.01), ContinualBackprop(1e-4))


def test_a_stack_keeps_its_members_when_others_finish() -> None:
    sweep = make_sweep(runs=10, stack_size=4)
    runs = runs_of(sweep, sweep.settings, "reference")
    stacks = stacks_of(sweep, runs, ())
    assert [len(one.runs) for one in stacks] == [4, 4, 2]
    finished = [run.run_id for run in stacks[0].runs]
    assert [one.stack_id for one in stacks_of(sweep, runs, finished)] == [one.stack_id for one in stacks[1:]]


def test_a_stack_that_has_begun_stays_together_when_more_runs_are_asked_for() -> None:
    sweep = make_sweep(runs=3)
    (begun,) = stacks_of(sweep, runs_of(sweep, sweep.settings, "reference"), ())
    more = dataclasses.replace(sweep, runs=5)
    stacks = stacks_of(
        more, runs_of(more, more.settings, "reference"), (), [[run.run_id for run in begun.runs], ["of another sweep"]]
    )
    assert stacks[0].stack_id == begun.stack_id
    assert [[run.seed for run in one.runs] for one in stacks] == [[0, 1, 2], [3, 4]]


# The two-stage protocol


def test_the_name_of_a_stack_says_what_its_settings_share() -> None:
    sweep = make_sweep(
        *(Setting("BP", NET, (SGD(s),), {"activation": "relu", "step_size": s}) for s in (0.1, 0.2)), runs=1
    )
    (one,) = stacks_of(sweep, runs_of(sweep, sweep.settings, "reference"), ())
    assert isinstance(one, PlannedStack)
    assert one.name == "BP (activation=relu), 2 settings"
