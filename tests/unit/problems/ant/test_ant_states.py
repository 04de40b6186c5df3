"""The Slippery Ant: a clock and a state that continue to the last bit."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from support.ants import REST, go

gymnasium = pytest.importorskip("gymnasium", reason="the Slippery Ant is an environment of gymnasium")


def test_a_continuation_is_the_same_to_the_last_bit(make: Any, simulator: str, tmp_path: Path) -> None:
    options = {"period_steps": 150, "episode_steps": 130}
    neighbour, env = make(**options), make(**options)
    neighbour.reset(seed=1)
    go(neighbour, 0, 30)
    env.reset(seed=11)
    parts: list[str] = []
    files: list[Path] = []
    for first, last in ((0, 3), (3, 60), (60, 200), (200, 500)):  # in the air, in contact, in a later episode and task
        parts.append(go(env, first, last))
        files.append(tmp_path / f"{last}.pt")
        torch.save(env.state_dict(), files[-1])
        env.load_state_dict(env.state_dict())
        neighbour.step(REST)
    for file, (first, last), expected in zip(files, ((3, 60), (60, 200), (200, 500)), parts[1:], strict=False):
        resumed = make(**options)
        resumed.load_state_dict(torch.load(file, weights_only=True))
        assert go(resumed, first, last) == expected
    if simulator == "pybullet":  # whose worlds hold more than their states say
        assert go_elsewhere(files[2], options, 200, 500) == parts[3]


def go_elsewhere(file: Path, options: dict[str, Any], first: int, last: int) -> str:
    """What `go` says in a process of its own; nothing else may be on its stdout, though PyBullet speaks on import."""
    program = (
        "import torch; from neoteny.problems.ant.env import SlipperyAntEnv; from support.ants import go\n"
        f"env = SlipperyAntEnv('pybullet', **{options!r}); env.load_state_dict(torch.load({str(file)!r}))\n"
        f"print(go(env, {first}, {last}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"},
    )
    return done.stdout.removesuffix("\n")


def test_a_state_is_made_of_plain_values(make: Any) -> None:
    def check(value: Any) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                assert type(key) is str
                check(inner)
        elif isinstance(value, list):
            for inner in value:
                check(inner)
        else:
            assert type(value) in (int, float, str, bool)

    env = make()
    env.reset(seed=0)
    env.step(REST)
    check(env.state_dict())
    buffer = io.BytesIO()
    torch.save(env.state_dict(), buffer)
    buffer.seek(0)
    assert torch.load(buffer, weights_only=True) == env.state_dict()


def test_a_state_of_the_other_simulator_is_refused(make: Any) -> None:
    env = make()
    env.reset(seed=0)
    with pytest.raises(ValueError, match=r"Expected a state of .*; got one of 'brax'"):
        env.load_state_dict({**env.state_dict(), "simulator": "brax"})
