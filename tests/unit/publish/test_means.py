"""Means over bins of tasks: what is kept of a large folder says what the folder said."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from neoteny import experiments
from neoteny.cli import parser as cli
from neoteny.publish.entries import ENTRIES, REGRESSION_BIN
from neoteny.publish.keep import keep, write_command
from neoteny.publish.means import MADE, MEANS, average_bins, read_means, write_means
from neoteny.publish.summary import judge, read_summary
from neoteny.report.statistics import per_run
from neoteny.report.trends import early_and_late
from neoteny.suite.store.files import read_json
from neoteny.suite.store.results import Results

pytest.importorskip("pyarrow", reason="pyarrow reads what is published (the extra suite)")
EVIDENCE = Path(__file__).parents[3] / "evidence"
KEPT = sorted(path.parent.name for path in EVIDENCE.glob(f"*/{MEANS}"))
SMOKE_BIN = 2
"""Of the twelve tasks of smoke runs: early and late ones are whole bins, as with tens of 300."""


def make_rows(tasks: int, seeds: int = 3) -> pd.DataFrame:
    values = np.random.default_rng(1).normal(1.0, 0.2, (seeds, tasks))
    rows = [
        {"setting": "BP (l2=nan)", "method": "BP", "l2": np.nan, "metric": "error", "seed": seed, "task": task}
        for seed in range(seeds)
        for task in range(tasks)
    ]
    return pd.DataFrame(rows).assign(value=values.ravel(), run_id="x", hyperparameters="{}", scale="paper")


def test_bins_of_ten_of_the_papers_300_tasks_keep_what_claims_compare() -> None:
    rows = make_rows(300)
    bins = average_bins(rows, REGRESSION_BIN)
    assert bins["task"].nunique() == 30
    pairs = [*zip(early_and_late(rows), early_and_late(bins), strict=True), (per_run(rows), per_run(bins))]
    for whole, kept in pairs:
        np.testing.assert_allclose(kept, whole, rtol=1e-5)


def test_a_bin_in_which_a_run_diverged_has_no_value_and_an_incomplete_one_is_refused() -> None:
    rows = make_rows(20)
    rows.loc[(rows["seed"] == 1) & (rows["task"] == 13), "value"] = np.nan
    bins = average_bins(rows, 10).set_index(["seed", "task"])["value"]
    assert bins.isna().sum() == 1
    assert np.isnan(bins.loc[(1, 1)])
    with pytest.raises(ValueError, match=r"Bins of 10 tasks need whole bins of every run; .* has fewer tasks"):
        average_bins(rows[(rows["seed"] != 2) | (rows["task"] < 15)], 10)


def test_a_table_reads_back_as_it_was_judged(tmp_path: Path) -> None:
    table = average_bins(make_rows(20), 10)
    write_means(tmp_path, table)
    pd.testing.assert_frame_equal(read_means(tmp_path), table, check_dtype=False)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with results of scr-activations at smoke scale."""
    root = tmp_path_factory.mktemp("means")
    out = root / "results" / "scr-activations-paper"
    arguments = ["run", "scr-activations", "--scale", "smoke", "--out", str(out), "--jobs", "1", "--device", "cpu"]
    assert cli.main(arguments) == 0
    return root


def test_a_large_folder_is_kept_as_means_that_give_its_verdicts_again(made: Path) -> None:
    entry = replace(next(one for one in ENTRIES if one.name == "scr-activations-paper"), bin_tasks=SMOKE_BIN)
    frame = Results.open(made / "results" / entry.folder).frame()
    kept = keep(made, [entry], largest_whole=0)
    assert sorted(path.name for path in kept.iterdir()) == [MADE, MEANS, "summary.json"]
    summary = read_summary(kept / "summary.json")
    experiment = experiments.load("scr-activations")
    assert summary.verdicts == judge(experiment, read_means(kept))
    assert [one.outcome for one in summary.verdicts] == [one.outcome for one in judge(experiment, frame)]
    (where,) = read_json(kept / MADE)["made"]
    assert (where["device"], where["kernel"]) == ("cpu", "cpu")
    assert where["versions"]["neoteny"]
    # Without results/ the means are judged again; charts stay.
    shutil.rmtree(made / "results")
    before = (kept / "summary.json").read_bytes()
    spoilt = replace(summary.verdicts[0], outcome="spoilt")
    (kept / "summary.json").write_bytes(before.replace(summary.verdicts[0].outcome.encode(), b"spoilt", 1))
    assert read_summary(kept / "summary.json").verdicts[0] == spoilt
    keep(made, [entry], largest_whole=0)
    assert (kept / "summary.json").read_bytes() == before


@pytest.mark.parametrize("name", KEPT)
def test_published_verdicts_are_those_of_the_means(name: str) -> None:
    summary = read_summary(EVIDENCE / name / "summary.json")
    assert summary.verdicts == judge(experiments.load(summary.experiment), read_means(EVIDENCE / name))


def test_the_command_of_an_entry_names_its_methods() -> None:
    (entry,) = [one for one in ENTRIES if one.methods]
    expected = 'neoteny run scr-cbp --scale paper --methods "CBP,Linear" --out results/scr-cbp-more'
    assert write_command(entry, "paper") == expected
