"""The Triton kernels (fused tick, Adam, pooling) compute what the library does: interpreted, on any machine."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from support.device_ticks import NETS

pytestmark = pytest.mark.skipif(
    find_spec("triton") is None,
    reason="Triton is not installed: `pip install triton` (a gigabyte), or torch for CUDA, which brings it",
)
TESTS = Path(__file__).parents[2]


@pytest.mark.parametrize("net", [*NETS, "adam", "pool"])
def test_interpreted_kernels_equal_the_library(net: str) -> None:
    path = os.pathsep.join([str(TESTS.parent / "src"), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-W", "ignore", "-m", "support.interpreted", net]
    done = subprocess.run(command, cwd=TESTS, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert "ok" in done.stdout
