"""How many processors this process may use: what a batch system or a container leaves it, not what the machine has."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path("/")


@functools.cache  # measures ask for every layer
def processors(root: Path = _ROOT) -> int:
    """Those of its affinity (Slurm, `taskset`), or fewer where its control group has a smaller quota (containers).

    Args:
        root: where /proc and /sys are.
    """
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, math.ceil(min([allowed, *_quotas(root)])))


def _quotas(root: Path) -> Iterator[float]:
    """Processors' worth of time that each control group above this process grants, where it is limited."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        number, names, path = line.split(":", 2)
        if number == "0":  # version 2: one tree for all controllers
            mount, files = root / "sys/fs/cgroup", ("cpu.max",)
        elif "cpu" in names.split(","):  # version 1: a tree of its own
            mount, files = root / "sys/fs/cgroup" / names, ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        else:
            continue
        inner = mount / path.lstrip("/")
        for folder in (inner, *inner.parents):
            if folder.is_relative_to(mount):
                words = " ".join(_read(folder / name) for name in files).split()
                if len(words) == 2 and all(word.isdigit() for word in words) and int(words[1]) > 0:  # else "max" or -1
                    yield int(words[0]) / int(words[1])


def _read(path: Path) -> str:
    """The text of a file of the kernel, "" where there is none."""
    try:
        return path.read_text()
    except OSError:
        return ""
