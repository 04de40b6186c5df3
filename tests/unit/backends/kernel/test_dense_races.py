"""The barriers of the dense CUDA kernel, looked for by gcc's thread sanitizer in its text compiled for the host."""

from __future__ import annotations

import pytest

from support.dense_learners import LEARNERS
from support.dense_races import RACE, sanitizer, watch

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _sanitizer() -> None:
    if not sanitizer():
        pytest.skip("needs gcc's thread sanitizer")


def test_no_two_threads_of_a_block_touch_a_place_without_a_barrier_between_them() -> None:
    watched = watch(list(LEARNERS))
    assert watched.stdout.splitlines() == list(LEARNERS), watched.stderr
    assert watched.returncode == 0, watched.stderr


def test_a_barrier_that_is_missing_is_found() -> None:
    watched = watch(["Adam, regression"], unguarded="sync();\n    run.old1 = scale1[UNITS]")
    assert watched.returncode == RACE, watched.stderr
    assert "data race" in watched.stderr
