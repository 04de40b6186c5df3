"""The CUDA kernel in the shapes of large networks: clusters of blocks, rows on their way through shared memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from support.kernel_cases import Case
from support.kernel_comparison import compare

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

TEAMS: dict[str, dict[str, Any]] = {
    "four blocks": {"threads": 64, "blocks": 4},
    "two blocks": {"threads": 128, "blocks": 2},
    "one block": {"threads": 64},
    "four blocks and a ring": {"threads": 64, "blocks": 4, "stages": 3},
    "one block and a ring": {"threads": 128, "stages": 2},
    "eight blocks that keep": {"threads": 64, "blocks": 8, "keeps": True},
    "two blocks that keep": {"threads": 128, "blocks": 2, "keeps": True},
    "as chosen": {},
}
WIDE: dict[str, Any] = {"problem": "digits", "hidden": (40, 100, 33)}
CASES = [
    ("four blocks and a ring", Case(**WIDE, activation="relu", utility="overall", shrink="l2")),
    ("four blocks and a ring", Case(**WIDE, activation="relu", utility="overall", shrink="perturb first")),
    ("four blocks and a ring", Case(**WIDE, activation="tanh", dropout=0.2)),
    ("one block and a ring", Case("digits", (600, 300), utility="overall")),
    ("one block", Case("regression", (5,), utility="overall", optimizer="adam")),
    ("four blocks", Case(**WIDE, activation="relu")),
    ("four blocks", Case(**WIDE, activation="relu", utility="overall", shrink="l2")),
    ("four blocks", Case(**WIDE, activation="relu", utility="overall", dropout=0.2)),
    ("two blocks", Case(**WIDE, activation="tanh", optimizer="adam", utility="overall", shrink="l2 and perturb")),
    ("four blocks", Case(**WIDE, activation="relu", optimizer="adam", utility="adaptation", shrink="perturb last")),
    ("four blocks", Case(**WIDE, activation="elu", optimizer="momentum", utility="random", count="layer")),
    ("four blocks", Case(**WIDE, norm="online", dropout=0.2, shrink="perturb first")),
    ("four blocks", Case(**WIDE, activation="relu", shrink="l2 and perturb")),
    ("one block and a ring", Case("digits", (600, 300), shrink="l2 and perturb")),
    ("one block", Case(**WIDE, activation="leaky_relu", dropout=0.2, shrink="perturb last")),
    ("two blocks", Case(**WIDE, norm="online", optimizer="adam")),
    ("four blocks", Case("digits", (70,), utility="overall")),
    ("four blocks", Case("digits", (33, 64), utility="overall", optimizer="momentum")),
    ("eight blocks that keep", Case("digits", (100, 100, 100), optimizer="adam")),
    ("eight blocks that keep", Case("digits", (100, 98), optimizer="adam", utility="overall", shrink="l2 and perturb")),
    ("eight blocks that keep", Case("digits", (100, 100), utility="overall", shrink="perturb last")),
    ("two blocks that keep", Case(**WIDE, activation="relu", utility="overall", dropout=0.2)),
    ("two blocks that keep", Case(**WIDE, norm="online", optimizer="momentum", shrink="perturb first")),
    ("as chosen", Case("digits", (100, 100, 100), optimizer="adam")),
    ("as chosen", Case("digits", (100, 100, 100), shrink="perturb first")),
    ("as chosen", Case("digits", (100, 100, 100), utility="overall", shrink="l2")),
    ("as chosen", Case("digits", (400, 500), utility="overall", shrink="l2")),
    ("as chosen", Case("digits", (400, 500), optimizer="adam", utility="overall")),
    ("one block", Case("digits", (600, 40), utility="overall")),
    ("one block", Case("digits", (600, 300), optimizer="momentum", shrink="l2")),
]


@pytest.mark.parametrize(("team", "case"), CASES, ids=[f"{team}, {case.name}" for team, case in CASES])
def test_every_shape_of_the_kernel_equals_the_library(team: str, case: Case) -> None:
    from neoteny.backends.kernel.cuda.kernel import CudaKernel
    from neoteny.backends.kernel.cuda.plan import Team

    shape = Team(**TEAMS[team]) if TEAMS[team] else None
    kernel = type("Shaped", (CudaKernel,), {"team": shape})
    assert compare(case, 700, {team: kernel}, "cuda").failure == ""
