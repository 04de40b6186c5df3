"""Fail if a Python file of the repository is longer than 400 lines.

python tests/support/file_lengths.py
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

MOST_LINES = 400


def too_long(root: Path) -> list[str]:
    """One text per tracked Python file that is too long."""
    listed = subprocess.run(["git", "ls-files", "-z", "*.py"], cwd=root, check=True, capture_output=True, text=True)
    paths = (root / name for name in listed.stdout.split("\0") if name)
    counts = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in paths if path.exists()}
    return [
        f"{path.relative_to(root)} has {lines} lines, at most {MOST_LINES} are allowed: split it by subject"
        for path, lines in counts.items()
        if lines > MOST_LINES
    ]


if __name__ == "__main__":
    found = too_long(Path(__file__).parents[2])
    print("\n".join(found) or f"No Python file has more than {MOST_LINES} lines.")
    sys.exit(bool(found))
