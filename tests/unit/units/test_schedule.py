"""The replacement schedule: how many units, when; a function of rates and ages and of nothing else."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reference.cbp import choose_units
from support.schedules import Simulation, make

RATES = st.one_of(st.sampled_from([0.0, 1e-4, 1e-2, 0.1, 0.5, 1.0]), st.floats(0.0, 1.0))
THRESHOLDS = st.integers(0, 40)
UNITS = st.integers(1, 30)
COUNTS = st.sampled_from(["eligible", "layer"])


@given(units=UNITS, rate=RATES, threshold=THRESHOLDS, count=COUNTS)
@settings(max_examples=150, deadline=None)
def test_never_more_units_are_due_than_are_eligible(units: int, rate: float, threshold: int, count: str) -> None:
    simulation = Simulation(make(units, [rate], [threshold], count))
    for _ in range(150):
        eligible = int(simulation.eligible_before().sum())
        assert 0 <= simulation.tick()[0] <= eligible


@given(units=UNITS, rate=RATES, threshold=THRESHOLDS)
@settings(max_examples=150, deadline=None)
def test_as_many_are_replaced_as_the_rate_times_the_eligible_unit_steps_within_one(
    units: int, rate: float, threshold: int
) -> None:
    simulation = Simulation(make(units, [rate], [threshold], "eligible"))
    eligible_unit_steps = replaced = 0
    for _ in range(300):
        eligible_unit_steps += int(simulation.eligible_before().sum())
        replaced += int(simulation.tick()[0])
        assert -1e-9 <= rate * eligible_unit_steps - replaced < 1.0 + 1e-9


@given(units=UNITS, rate=RATES, threshold=THRESHOLDS, count=COUNTS)
@settings(max_examples=100, deadline=None)
def test_the_number_of_eligible_units_follows_from_the_births(
    units: int, rate: float, threshold: int, count: str
) -> None:
    simulation = Simulation(make(units, [rate], [threshold], count))
    for _ in range(120):
        simulation.tick()
        older = simulation.schedule.step - simulation.born > threshold
        assert simulation.schedule.eligible[0] == older.sum()


@given(units=UNITS, rate=RATES, threshold=THRESHOLDS, count=COUNTS)
@settings(max_examples=100, deadline=None)
def test_nothing_is_due_before_a_unit_is_older_than_the_threshold(
    units: int, rate: float, threshold: int, count: str
) -> None:
    schedule = make(units, [rate], [threshold], count)
    for _ in range(threshold):
        assert schedule.tick() is None


@given(units=UNITS, rate=RATES, threshold=THRESHOLDS, count=COUNTS, data=st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_the_schedule_does_not_depend_on_which_units_are_chosen(
    units: int, rate: float, threshold: int, count: str, data
) -> None:
    order = list(range(units))
    data.shuffle(order)
    one = Simulation(make(units, [rate], [threshold], count))
    other = Simulation(make(units, [rate], [threshold], count), np.array(order))
    for _ in range(120):
        np.testing.assert_array_equal(one.tick(), other.tick())


@given(units=UNITS, rate=RATES, threshold=THRESHOLDS, count=COUNTS)
@settings(max_examples=100, deadline=None)
def test_the_schedule_equals_the_naive_reference(units: int, rate: float, threshold: int, count: str) -> None:
    simulation = Simulation(make(units, [rate], [threshold], count))
    ages, accumulator = np.zeros(units, dtype=np.int64), 0.0
    for _ in range(150):
        ages += 1
        due, accumulator = choose_units(
            np.arange(units),
            ages,
            accumulator,
            replacement_rate=rate,
            maturity_threshold=threshold,
            count=count,  # type: ignore[arg-type]
        )
        ages[due] = 0
        assert simulation.tick()[0] == len(due)
        np.testing.assert_array_equal(simulation.schedule.step - simulation.born[0], ages)


@pytest.mark.parametrize("rate", [0.3, 0.5, 1.0])
@pytest.mark.parametrize("threshold", [0, 7, 50])
def test_no_debt_builds_up_while_nothing_is_eligible(rate: float, threshold: int) -> None:
    # By layer, more units fall due than are eligible: after each burst what could not be paid is forgotten, so the next
    # burst comes when units mature again and never holds more than those.
    units = 10
    simulation = Simulation(make(units, [rate], [threshold], "layer"))
    bursts = np.array([int(simulation.tick()[0]) for _ in range(20 * (threshold + 1))])
    per_step = int(np.ceil(rate * units))
    assert bursts.max() <= per_step
    assert simulation.schedule.accumulator[0] < 1.0
    assert bursts.sum() > 0


def test_a_late_layer_owes_nothing_for_the_steps_before_its_units_mature() -> None:
    schedule = make(4, [0.25], [1000], "layer")  # one unit a step, if any is eligible
    assert [schedule.tick() for _ in range(1000)] == [None] * 1000
    assert schedule.tick() == [1]


@pytest.mark.parametrize("count", ["eligible", "layer"])
def test_rate_zero_replaces_nothing(count: str) -> None:
    schedule = make(5, [0.0], [0], count)
    assert all(schedule.tick() is None for _ in range(500))


@pytest.mark.parametrize("count", ["eligible", "layer"])
def test_rate_one_replaces_every_unit_as_soon_as_it_is_eligible(count: str) -> None:
    simulation = Simulation(make(5, [1.0], [3], count))
    assert [int(simulation.tick()[0]) for _ in range(12)] == [0, 0, 0, 5] * 3


def test_small_rates_replace_one_unit_every_so_many_steps() -> None:
    simulation = Simulation(make(10, [1 / 64], [0], "eligible"))
    # With threshold 0 a unit is eligible at age 1 again: 10 eligible units at every step, 10/64 of a unit a step.
    steps = [step for step in range(1, 129) if simulation.tick()[0]]
    assert len(steps) == 20
    assert {later - earlier for earlier, later in itertools.pairwise(steps)} <= {6, 7}


@given(
    units=UNITS,
    runs=st.lists(st.tuples(RATES, THRESHOLDS), min_size=1, max_size=5),
    count=COUNTS,
)
@settings(max_examples=60, deadline=None)
def test_many_runs_in_one_schedule_equal_schedules_of_one(
    units: int, runs: list[tuple[float, int]], count: str
) -> None:
    rates, thresholds = [rate for rate, _ in runs], [threshold for _, threshold in runs]
    together = Simulation(make(units, rates, thresholds, count))
    alone = [Simulation(make(units, [rate], [threshold], count)) for rate, threshold in runs]
    for _ in range(120):
        counts = together.tick()
        assert counts.tolist() == [int(one.tick()[0]) for one in alone]
        assert together.schedule.accumulator.tolist() == [one.schedule.accumulator[0] for one in alone]


@given(
    units=UNITS,
    runs=st.lists(st.tuples(RATES, THRESHOLDS), min_size=1, max_size=3),
    count=COUNTS,
    before=st.integers(0, 130),
)
@settings(max_examples=80, deadline=None)
def test_a_restored_schedule_continues_identically(
    units: int, runs: list[tuple[float, int]], count: str, before: int
) -> None:
    rates, thresholds = [rate for rate, _ in runs], [threshold for _, threshold in runs]
    original = Simulation(make(units, rates, thresholds, count))
    for _ in range(before):
        original.tick()
    restored = Simulation(make(units, rates, thresholds, count))
    state = original.schedule.state()
    restored.schedule.load(state["step"], state["accumulator"], original.born.copy())  # type: ignore[arg-type]
    restored.born = original.born.copy()
    for _ in range(120):
        np.testing.assert_array_equal(original.tick(), restored.tick())
    np.testing.assert_array_equal(original.born, restored.born)
    assert original.schedule.state() == restored.schedule.state()
