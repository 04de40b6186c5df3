"""A sample of what `bit_flips.py` does at length: no flipped bit changes a number without a word."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from support.flipped_bits import KINDS, count_flips


def test_a_flipped_bit_is_named_or_changes_nothing(tmp_path: Path) -> None:
    counts = count_flips(tmp_path, 7 * len(KINDS), seed=1)
    total = sum(counts.values(), Counter())
    assert total["other"] == total["traceback"] == 0
    assert all(ended["refused"] == 7 for kind, ended in counts.items() if kind != "checkpoint"), counts
    assert counts["checkpoint"]["refused"] + counts["checkpoint"]["harmless"] == 7  # the older one is not looked at
