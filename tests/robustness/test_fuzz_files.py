"""Drawn damage to one file of a results folder: the commands give the right numbers or a clear error.

`fuzz.py` draws more of them.
"""

from __future__ import annotations

from pathlib import Path

from support.fuzzed_files import Folders
from support.fuzzing import problems


def test_a_damaged_file_gives_the_right_numbers_or_a_clear_error(tmp_path: Path) -> None:
    assert not problems(Folders(tmp_path), 30)
