"""A stack that does not fit into the device's memory is trained in parts; the fault itself is injected."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from neoteny.methods import SGD, ContinualBackprop
from neoteny.nets import MLP
from neoteny.problems import SlowlyChangingRegression
from neoteny.suite import training
from neoteny.suite.environment import open_problems
from neoteny.suite.progress import status_text
from neoteny.suite.session import Job
from neoteny.suite.stacks import runs_of
from neoteny.suite.store.results import Results
from neoteny.suite.sweep import Setting, Sweep, network
from neoteny.suite.worker import Worker

SWEEP = Sweep(
    problem=SlowlyChangingRegression(tasks=4, examples_per_task=60),
    settings=(Setting("CBP", network(MLP, hidden=(5,)), (SGD(0.01), ContinualBackprop(1e-2, 10))),),
    runs=5,
)


def carry_out(root: Path) -> tuple[Results, list[str], list[str]]:
    """The results of the sweep, what failed, and what was said."""
    about = {"experiment": "memory", "scale": "smoke", "data": "", "configuration": {}, "versions": {}}
    results = Results.create(root, about)
    wanted = [run.run_id for run in runs_of(SWEEP, SWEEP.settings, "cpu")]
    results.write_plan({"runs": wanted, "settings": [], "more": "", "command": "neoteny run memory", "folder": ""})
    said: list[str] = []
    job = Job(results, open_problems(SWEEP, None), torch.device("cpu"), "cpu", 0.0, notify=said.append)
    return results, Worker(SWEEP, job).run(), said


def table(results: Results) -> pd.DataFrame:
    kept = results.frame()[["seed", "task", "metric", "value"]]
    return kept.sort_values(["seed", "metric", "task"]).reset_index(drop=True)


def limit_memory(monkeypatch: pytest.MonkeyPatch, most: int, good_blocks: int) -> None:
    """Let every stack of more than `most` runs run out of memory after some blocks."""
    make_backend = training.make_backend

    def make(name: str, stack: Any, stream: Any, seeds: list[int], *rest: Any) -> Any:
        path, left = make_backend(name, stack, stream, seeds, *rest), [good_blocks]
        advance = path.advance

        def limited(start: int, stop: int) -> Any:
            if len(seeds) > most:
                if left[0] == 0:
                    raise torch.OutOfMemoryError("no memory left")
                left[0] -= 1
            return advance(start, stop)

        path.advance = limited
        return path

    monkeypatch.setattr(training, "make_backend", make)


@pytest.mark.parametrize("good_blocks", [0, 2])
def test_a_stack_that_does_not_fit_is_split_and_gives_the_same_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, good_blocks: int
) -> None:
    whole, failures, _ = carry_out(tmp_path / "whole")
    assert failures == []
    limit_memory(monkeypatch, most=2, good_blocks=good_blocks)
    split, failures, said = carry_out(tmp_path / "split")
    assert failures == []
    assert [line for line in said if "5 runs do not fit into the memory of cpu; they are trained as 2 and 3" in line]
    assert [line for line in said if "3 runs do not fit into the memory of cpu; they are trained as 1 and 2" in line]
    assert table(split).equals(table(whole))
    assert "5 runs finished, 0 of 5 planned left" in status_text(split)
    assert not list(split.root.glob("checkpoints/*/*"))


def test_a_single_run_that_does_not_fit_fails_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit_memory(monkeypatch, most=0, good_blocks=0)
    results, failures, _ = carry_out(tmp_path / "none")
    assert len(failures) == 5
    assert all("OutOfMemoryError: no memory left" in failure for failure in failures)
    assert not results.finished_runs()
