"""Where numbers come from: the commit of the code, and digests of initial weights.

Before this: `training`, whose networks have initial weights; after it: `session`, which records both beside the
results, and `verification`, which compares them.
"""

from __future__ import annotations

import functools
import hashlib
import os
import subprocess
from pathlib import Path
from typing import Any

import torch
from torch import nn

import neoteny

COMMIT = "NEOTENY_COMMIT"
"""Name of the environment variable that tells the commit where the code is a copy without its history."""
_SECONDS = 10


@functools.cache
def commit() -> dict[str, Any]:
    """The commit of the code and whether the tree was clean; else what `COMMIT` says, or nothing."""
    found = read_commit(Path(neoteny.__file__).resolve().parents[2])
    told = os.environ.get(COMMIT)
    return found or ({"commit": told} if told else {})


def read_commit(root: Path) -> dict[str, Any]:
    """The commit of a git checkout (`commit`) and whether its tree is `clean`; nothing if there is none, or no git."""
    if not (root / ".git").exists():
        return {}
    try:
        number = _git(root, "rev-parse", "HEAD")
        changed = _git(root, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return {}
    return {"commit": number, "clean": not changed}


def _git(root: Path, *arguments: str) -> str:
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}  # reading must not disturb a git that works beside it
    return subprocess.run(
        ["git", "-C", str(root), *arguments],
        check=True,
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        env=environment,
    ).stdout.strip()


def digest_weights(module: nn.Module) -> str:
    """16 hexadecimal digits that stand for all parameters and buffers of a module, bit for bit.

    Example:
        >>> digest_weights(nn.Linear(2, 1)) == digest_weights(nn.Linear(2, 1))
        False
    """
    hashing = hashlib.sha256()
    for name, value in sorted(module.state_dict().items()):
        tensor = value.detach().cpu().contiguous()
        hashing.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        hashing.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return hashing.hexdigest()[:16]
