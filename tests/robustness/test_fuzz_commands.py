"""Drawn command lines: each ends with a result or a message, and writes into its own folder only.

`fuzz.py` draws more of them.
"""

from __future__ import annotations

from pathlib import Path

from support.fuzzed_commands import CommandLines
from support.fuzzing import problems


def test_any_command_line_ends_with_a_result_or_a_message(tmp_path: Path) -> None:
    assert not problems(CommandLines(tmp_path), 100)
