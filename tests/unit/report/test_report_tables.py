"""Performance tables: intervals, pairing with the right setting of the baseline, divergence, text for the terminal."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from neoteny.report.statistics import Estimate
from neoteny.report.tables import Table, performance_table, show, to_text
from support.frames import Curve, make_frame


def read(table: Table, row: str, column: str) -> str:
    """The cell of a row (by its start) and column."""
    (found,) = [cells for cells in table.rows if cells[0].startswith(row)]
    return found[list(table.header).index(column)]


def read_number(table: Table, row: str, column: str) -> float:
    return float(read(table, row, column).split(" ")[0])


def test_first_last_and_mean_are_those_of_the_curve() -> None:
    frame = make_frame([Curve("BP", {}, {"error": np.arange(20.0)})], runs=3, tasks=20)
    table = performance_table(frame, "error", higher_is_better=False)
    assert read(table, "BP", "runs") == "3"
    assert read_number(table, "BP", "first tasks") == 0.5  # tasks 0 and 1
    assert read_number(table, "BP", "last tasks") == 18.5
    assert read_number(table, "BP", "all tasks") == 9.5
    assert table.header == ["setting", "runs", "first tasks", "last tasks", "all tasks", "last tasks against BP"]


def test_with_few_tasks_the_first_and_last_are_one_task() -> None:
    frame = make_frame([Curve("BP", {}, {"error": np.arange(4.0)})], runs=3, tasks=4)
    table = performance_table(frame, "error", higher_is_better=False)
    assert read_number(table, "BP", "first tasks") == 0.0
    assert read_number(table, "BP", "last tasks") == 3.0


def test_accuracy_is_in_per_cent_and_says_so() -> None:
    frame = make_frame([Curve("BP", {}, {"accuracy": 0.945})], runs=3)
    table = performance_table(frame, "accuracy", higher_is_better=True)
    assert table.title == "Accuracy of every setting (%)"
    assert read_number(table, "BP", "all tasks") == 94.5


def test_differences_are_paired_and_so_far_narrower_than_either_interval() -> None:
    curves = [Curve("BP", {}, {"accuracy": 0.90}), Curve("CBP", {}, {"accuracy": 0.91})]
    table = performance_table(make_frame(curves, runs=20, noise=0.05), "accuracy", higher_is_better=True)
    cell = read(table, "CBP", "last tasks against BP")
    assert cell.startswith("+")
    low, high = (float(end) for end in cell.split("[")[1].rstrip("]").split(", "))
    own = read(table, "CBP", "last tasks").split("[")[1].rstrip("]").split(", ")
    assert high - low < 0.6 * (float(own[1]) - float(own[0]))
    assert read(table, "BP", "last tasks against BP") == "-"


def test_a_setting_is_compared_with_the_baseline_that_shares_its_details() -> None:
    curves = [
        Curve("BP", {"activation": "relu", "step_size": 0.1}, {"error": 1.0}),
        Curve("BP", {"activation": "relu", "step_size": 0.01}, {"error": 2.0}),
        Curve("BP", {"activation": "tanh", "step_size": 0.01}, {"error": 4.0}),
        Curve("CBP", {"activation": "relu", "step_size": 0.01, "replacement_rate": 1e-4}, {"error": 0.5}),
        Curve("CBP", {"activation": "tanh", "step_size": 0.5, "replacement_rate": 1e-4}, {"error": 0.5}),
        Curve("L2", {"activation": "relu", "step_size": 0.7}, {"error": 0.5}),
        Curve("L2", {"activation": "elu", "step_size": 0.01}, {"error": 0.5}),
    ]
    table = performance_table(make_frame(curves, runs=3), "error", higher_is_better=False)
    column = "last tasks against BP"
    assert read_number(table, "CBP (activation=relu", column) == -1.5  # the same step size, though 0.1 is better
    assert read_number(table, "CBP (activation=tanh", column) == -3.5  # words before numbers
    assert read_number(table, "L2 (activation=relu", column) == -0.5  # no such step size: the best of those with relu
    assert read(table, "L2 (activation=elu", column) == "-"  # no baseline with that activation
    assert "L2 (activation=relu, step_size=0.7) against BP (activation=relu, step_size=0.1)" in table.caption
    assert "CBP (activation=relu" not in table.caption
    assert "below zero is better" in table.caption


def test_without_the_baseline_there_is_no_difference() -> None:
    frame = make_frame([Curve("CBP", {}, {"error": 1.0})], runs=3)
    assert "against" not in " ".join(performance_table(frame, "error", higher_is_better=False).header)
    table = performance_table(frame, "error", higher_is_better=False, baseline="CBP")
    assert read(table, "CBP", "last tasks against CBP") == "-"


def test_correlates_are_shown_where_they_were_measured() -> None:
    curves = [
        Curve("BP", {}, {"accuracy": 0.9, "dead_units": lambda task: task / 100, "effective_rank": 50.0}),
        Curve("CBP", {}, {"accuracy": 0.9, "effective_rank": 60.0}),
    ]
    frame = make_frame(curves, runs=3, tasks=40, measure_every={"dead_units": 2})
    table = performance_table(frame, "accuracy", higher_is_better=True)
    assert read_number(table, "BP", "dead units at the end (%)") == 37.0  # tasks 36 and 38
    assert read(table, "CBP", "dead units at the end (%)") == "-"
    assert read_number(table, "CBP", "effective rank at the end") == 60.0
    assert "mean |w| at the end" not in table.header


def test_diverged_runs_are_counted_and_never_averaged_away() -> None:
    curves = [Curve("BP", {}, {"error": 1.0}), Curve("Adam", {}, {"error": 0.5}, diverged={1: 30, 2: 39})]
    table = performance_table(make_frame(curves, runs=5, tasks=40), "error", higher_is_better=False)
    assert read(table, "Adam", "diverged runs") == "2"
    assert read(table, "BP", "diverged runs") == "0"
    assert read(table, "Adam", "last tasks") == "diverged"
    assert read(table, "Adam", "last tasks against BP") == "diverged"
    assert read_number(table, "Adam", "first tasks") == 0.5


def test_a_measure_without_a_number_is_not_called_a_divergence() -> None:
    curves = [
        Curve("BP", {}, {"error": 1.0, "probe_excess": np.nan}),
        Curve("Adam", {}, {"error": 0.5}, diverged={1: 30}),
    ]
    heading = "probe loss above a fresh network's at the end (%)"
    table = performance_table(make_frame(curves), "error", higher_is_better=False)
    assert read(table, "BP", heading) == "not finite"
    assert read(table, "BP", "diverged runs") == "0"


def test_a_table_of_nothing_has_no_rows() -> None:
    assert performance_table(make_frame([]), "error", higher_is_better=False).rows == []


def test_one_run_shows_no_interval() -> None:
    frame = make_frame([Curve("BP", {}, {"error": 0.25})], runs=1)
    assert read(performance_table(frame, "error", higher_is_better=False), "BP", "all tasks") == "0.25"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Estimate(0.0, 0.0, 0.0, 5), "0.0 [0.0, 0.0]"),
        (Estimate(1234.5, 1200.0, 1269.0, 5), "1234 [1200, 1269]"),
        (Estimate(3e-7, 2e-7, 4e-7, 5), "0.00000030 [0.00000020, 0.00000040]"),
        (Estimate(3e9, 2e9, 4e9, 5), "3e+09 [2e+09, 4e+09]"),
    ],
)
def test_cells_have_the_digits_that_their_interval_supports(value: Estimate, text: str) -> None:
    assert show(value) == text


def test_very_long_names_lose_their_middle_in_the_terminal_alone() -> None:
    long = "long" * 50
    names = [f"avery {long}", f"bvery {long}", f"c{long}d{long}", f"c{long}e{long}"]
    curves = [Curve(name, {}, {"accuracy": 0.9}) for name in names]
    table = performance_table(make_frame(curves, runs=5, noise=0.01), "accuracy", higher_is_better=True)
    assert {row[0] for row in table.rows} == set(names)
    lines = to_text(table, width=200).splitlines()
    assert max(map(len, lines)) <= 200
    for start in ("avery long", "bvery long", "clong"):
        assert any(line.startswith(start) for line in lines)
    assert len({line.partition("  ")[0] for line in lines if line.startswith("clong")}) == 2


def test_text_fits_the_terminal_by_repeating_the_first_column() -> None:
    curves = [Curve(name, {"step_size": 0.01}, {"accuracy": 0.9, "dead_units": 0.1}) for name in ("BP", "CBP")]
    table = performance_table(make_frame(curves, runs=5, noise=0.01), "accuracy", higher_is_better=True)
    text = to_text(table, width=80)
    assert max(map(len, text.splitlines())) <= 80
    assert text.count("CBP (step_size=0.01)") >= 2
    for heading in table.header:
        assert heading in text
    wide = to_text(table, width=300)
    assert wide.splitlines()[0] == table.title
    assert wide.count("CBP (step_size=0.01)") == 1


def test_a_row_of_the_wrong_length_is_refused() -> None:
    with pytest.raises(ValueError, match="every row needs 2 cells"):
        Table("T", ["a", "b"], [["1"]])


def test_details_may_be_missing_in_object_columns() -> None:
    frame = make_frame([Curve("BP", {"optimizer": "SGD"}, {"error": 1.0}), Curve("CBP", {}, {"error": 0.5})], runs=3)
    frame["optimizer"] = frame["optimizer"].astype(object).where(frame["optimizer"].notna(), None)
    assert isinstance(frame, pd.DataFrame)
    table = performance_table(frame, "error", higher_is_better=False)
    assert read_number(table, "CBP", "last tasks against BP") == -0.5
