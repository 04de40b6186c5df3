"""Processors are counted as the process may use them: by affinity, and by the quota of its control groups."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from neoteny.processors import processors

MINE = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def system(folder: Path, groups: str, **limits: str) -> Path:
    """A folder with /proc/self/cgroup, and files below /sys/fs/cgroup."""
    files = {"proc/self/cgroup": groups, **{f"sys/fs/cgroup/{name}": text for name, text in limits.items()}}
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize(
    ("groups", "limits", "expected"),
    [
        ("0::/\n", {"cpu.max": "50000 100000\n"}, 1),
        ("0::/pod/worker\n", {"pod/cpu.max": "100000 100000\n", "pod/worker/cpu.max": "max 100000\n"}, 1),
        ("0::/\n", {"cpu.max": "max 100000\n"}, MINE),
        ("0::/\n", {"cpu.max": "9900000 100000\n"}, MINE),  # more than there are
        ("0::/\n", {"cpu.max": "what\n"}, MINE),
        ("", {}, MINE),
        (
            "3:cpu,cpuacct:/\n2:memory:/x\n",
            {"cpu,cpuacct/cpu.cfs_quota_us": "100000\n", "cpu,cpuacct/cpu.cfs_period_us": "100000\n"},
            1,
        ),
        ("1:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, MINE),
    ],
)
def test_a_quota_counts_where_it_is_smaller(groups: str, limits: dict[str, str], expected: int, tmp_path: Path) -> None:
    assert processors(system(tmp_path, groups, **limits)) == expected


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no affinity")
def test_a_process_that_is_bound_to_one_processor_counts_one() -> None:
    bind = f"import os; os.sched_setaffinity(0, {{{min(os.sched_getaffinity(0))}}})"
    code = f"{bind}\nfrom neoteny.processors import processors; print(processors())"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "1"
