"""Whether a change kept every number: all experiments at smoke scale, before and after.

    python tests/robustness/same_tables.py run BEFORE        with the old code
    python tests/robustness/same_tables.py run AFTER         with the new code
    python tests/robustness/same_tables.py compare BEFORE AFTER

`run` trains every experiment on the CPU and keeps its results folder. `compare` reads the Parquet parts with pandas
alone and compares run ids, columns and values bit by bit; it ends with status 1 if anything differs.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pandas as pd


def run(out: Path) -> int:
    """Train every experiment at smoke scale; one folder per experiment."""
    from neoteny.experiments import NAMES

    failed = 0
    for name in NAMES:
        begun = time.monotonic()
        command = [sys.executable, "-m", "neoteny", "run", name, "--scale", "smoke", "--device", "cpu", "--jobs", "1"]
        done = subprocess.run([*command, "--out", str(out / name)], capture_output=True, text=True)
        failed += done.returncode != 0
        print(f"{name}: {time.monotonic() - begun:.1f} s, exit {done.returncode}", flush=True)
        if done.returncode:
            print(done.stderr, flush=True)
    return 1 if failed else 0


def table_of(folder: Path) -> pd.DataFrame:
    """All parts of a results folder as one table, in an order that does not depend on how stacks were cut."""
    parts = sorted((folder / "parts").glob("*.parquet"))
    if not parts:
        raise FileNotFoundError(f"{folder} has no finished parts.")
    frame = pd.concat([pd.read_parquet(part) for part in parts], ignore_index=True)
    return frame.sort_values([name for name in frame.columns if name != "value"], ignore_index=True)


def difference(before: Path, after: Path) -> str:
    """In words what differs between two results folders, or ""."""
    old, new = table_of(before), table_of(after)
    if list(old.columns) != list(new.columns):
        return f"columns {list(old.columns)} became {list(new.columns)}"
    if len(old) != len(new):
        return f"{len(old)} rows became {len(new)}"
    changed = [name for name in old.columns if not old[name].equals(new[name])]
    return f"values differ in {', '.join(changed)}" if changed else ""


def compare(before: Path, after: Path) -> int:
    """Print one line per experiment; 1 if any table differs or is missing."""
    names = sorted(folder.name for folder in before.iterdir() if folder.is_dir())
    differing = 0
    for name in names:
        why = difference(before / name, after / name)
        differing += bool(why)
        print(f"{name}: {why or f'identical, {len(table_of(after / name)):,} rows'}")
    print(f"{len(names) - differing} of {len(names)} tables identical")
    return 1 if differing else 0


if __name__ == "__main__":
    what, *folders = sys.argv[1:] or ["help"]
    if what == "run" and len(folders) == 1:
        raise SystemExit(run(Path(folders[0])))
    if what == "compare" and len(folders) == 2:
        raise SystemExit(compare(Path(folders[0]), Path(folders[1])))
    raise SystemExit(__doc__)
