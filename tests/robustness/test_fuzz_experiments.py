"""Drawn mistakes in an experiment file: each is named with its place, and what was finished stays.

`fuzz.py` draws more of them.
"""

from __future__ import annotations

from pathlib import Path

from support.fuzzed_experiments import Experiments
from support.fuzzing import problems


def test_a_mistake_is_named_with_its_place_and_finished_runs_stay(tmp_path: Path) -> None:
    assert not problems(Experiments(tmp_path), 40)
