"""A sweep survives every failing system call: a sample of `crash_injection.py`, which does them all."""

from __future__ import annotations

import random

import pytest

from support.crash_cases import AFTERMATHS, Sweeps
from support.failing_calls import CRASHES, ERRORS, all_faults
from support.suite import Zygote

FOR_GOOD = ("create", "write", "rename", "open")
"""Kinds that are also made to fail for good: a full disk, one that was taken away."""


@pytest.fixture(scope="module")
def sweeps(tmp_path_factory: pytest.TempPathFactory, zygote: Zygote) -> Sweeps:
    if zygote.preload is None:
        pytest.skip("failing system calls need a C compiler (cc) and Linux")
    return Sweeps(tmp_path_factory.mktemp("sweeps"), zygote)


@pytest.mark.parametrize("kind", [kind for kind in ERRORS if kind != "ftruncate"])
def test_a_failing_call_ends_in_a_clear_error_and_loses_nothing(sweeps: Sweeps, kind: str) -> None:
    """One call of the kind with each error it can have, of some kinds one from which on all fail, and half a write."""
    draw = random.Random(kind)
    faults = [fault for fault in all_faults(sweeps.calls) if fault.kind == kind and not fault.crashes]
    groups = [(fault.action, fault.error if fault.action == "fails" else 0) for fault in faults]
    for group in sorted(set(groups)):
        if group[0] == "fails from here on" and kind not in FOR_GOOD:
            continue
        fault = draw.choice([fault for fault, its_group in zip(faults, groups, strict=True) if its_group == group])
        for ending in sweeps.check(fault):
            assert not ending.problem, str(ending)


@pytest.mark.parametrize("kind", CRASHES)
def test_a_crash_leaves_what_the_same_command_finishes(sweeps: Sweeps, kind: str) -> None:
    """Killed before one call of the kind, with what was not synced gone as well, and after one."""
    draw = random.Random(kind)
    faults = [fault for fault in all_faults(sweeps.calls) if fault.kind == kind and fault.crashes]
    for action, aftermath in (("killed before", AFTERMATHS[-1]), ("killed after", AFTERMATHS[0])):
        fault = draw.choice([fault for fault in faults if fault.action == action])
        for ending in sweeps.check(fault, (aftermath,)):
            assert not ending.problem, str(ending)


def test_the_undisturbed_sweep_makes_calls_of_every_kind(sweeps: Sweeps) -> None:
    """Otherwise the tests above would be about nothing."""
    assert {call.kind for call in sweeps.calls} == set(ERRORS) - {"ftruncate"}
