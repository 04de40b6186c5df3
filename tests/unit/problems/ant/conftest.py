"""Both simulators of the Slippery Ant, and environments that are closed at the end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(params=["pybullet", "mujoco"])
def simulator(request: pytest.FixtureRequest) -> str:
    pytest.importorskip(request.param, reason=f"{request.param} is an optional simulator")
    return request.param


@pytest.fixture
def make(simulator: str) -> Iterator[Any]:
    from neoteny.problems.ant.env import SlipperyAntEnv  # needs gymnasium, which is optional

    made: list[SlipperyAntEnv] = []

    def make(**options: Any) -> SlipperyAntEnv:
        made.append(SlipperyAntEnv(simulator=simulator, **options))
        return made[-1]

    yield make
    for env in made:
        env.close()
