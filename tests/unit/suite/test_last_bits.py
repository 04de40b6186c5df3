"""What the last bits of a run do not depend on: how many runs were asked for (kernels), which methods (any backend)."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from neoteny.cli import parser as cli
from neoteny.suite.store.results import Results
from support.suite import write_experiment

KEYS = ["run_id", "task", "metric"]


def run(experiment: Path, out: Path, *options: str) -> pd.DataFrame:
    """The table of a run, one row per number."""
    assert cli.main(["run", str(experiment), "--jobs", "1", "--out", str(out), *options]) == 0
    return Results.open(out).frame().set_index(KEYS)["value"].sort_index().to_frame()


def assert_same_where_both_have_it(part: pd.DataFrame, whole: pd.DataFrame) -> None:
    """Every number of the smaller table is in the larger one, bit for bit."""
    assert len(part) > 0
    assert part.index.is_unique
    assert part.equals(whole.loc[part.index])


@pytest.mark.usefixtures("capsys")
def test_the_number_of_runs_changes_no_bit_of_a_run_that_a_kernel_trains(tmp_path: Path) -> None:
    pytest.importorskip("numba")
    experiment = write_experiment(tmp_path / "small.py", tasks=3)
    one, three = (run(experiment, tmp_path / str(runs), "--runs", str(runs)) for runs in (1, 3))
    assert len(three) == 3 * len(one)
    assert_same_where_both_have_it(one, three)
    assert all(part["kernel"] == "cpu" for part in Results.open(tmp_path / "3").parts())
    later = run(experiment, tmp_path / "1", "--runs", "3")
    assert later.equals(three)


@pytest.mark.usefixtures("capsys")
def test_methods_that_are_left_for_later_change_no_bit_of_the_others(tmp_path: Path) -> None:
    experiment = write_experiment(tmp_path / "small.py", tasks=2)
    options = ("--runs", "2", "--kernel", "reference")
    whole = run(experiment, tmp_path / "whole", *options)
    assert_same_where_both_have_it(run(experiment, tmp_path / "some", *options, "--methods", "CBP"), whole)
    assert run(experiment, tmp_path / "some", *options).equals(whole)
