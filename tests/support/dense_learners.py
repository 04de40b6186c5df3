"""Learners that every dense kernel is compared on: each option of `dense.terms` somewhere, other numbers in every run.

Before this: `dense_cases`; after it: `unit/backends/kernel/test_dense_kernel.py` and `test_dense_cuda.py`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from neoteny.methods import (
    L2,
    SGD,
    UPGD,
    Adam,
    AdamW,
    ContinualBackprop,
    HareAndTortoise,
    L2Init,
    ReDo,
    ReGraMa,
    SelectiveWeightReinit,
    SelfNormalizedResets,
    ShrinkAndPerturb,
    WeightClipping,
)
from support.dense_cases import Learner

SIZES = (3e-3, 1e-3, 5e-3)
NORMED: dict[str, Any] = {"normalization": "layer"}
DOUBLED: dict[str, Any] = {"activation": "crelu"}
CBP = ContinualBackprop((0.02, 0.01, 0.05), (10, 5, 20), (0.9, 0.99, 0.5))
SNR = SelfNormalizedResets((0.05, 0.2, 0.0), first_threshold=16, longest=20, period=30)

LEARNERS = {
    "SGD": Learner((SGD(SIZES), L2((1e-2, 0.0, 1e-3)))),
    "SGD, linear": Learner((SGD(SIZES),), hidden=()),
    "momentum, one example": Learner((SGD(SIZES, (0.9, 0.0, 0.5)),), {"activation": "tanh"}, batch=1),
    "momentum, 16 examples": Learner((SGD(SIZES, 0.9),), {"activation": "swish"}, batch=16),
    "Adam, regression": Learner((Adam(SIZES),), {"activation": "elu"}, batch=0),
    "AdamW, clipping, layer norm": Learner(
        (AdamW(1e-3, weight_decay=(0.1, 0.0, 0.5)), WeightClipping((0.5, 0.2, 1.0))), NORMED
    ),
    "clipping without the output": Learner((SGD(1e-2), WeightClipping(0.5, spare_output=True)), batch=1),
    "L2-init": Learner((Adam(1e-3), L2Init((1e-2, 0.1, 0.0)))),
    "L2-init and L2, layer norm": Learner((SGD(SIZES, 0.9), L2(1e-3), L2Init(1e-2)), NORMED),
    "leaky ReLU": Learner((SGD(SIZES),), {"activation": "leaky_relu(negative_slope=0.2)"}),
    "Smooth-Leaky": Learner((SGD(SIZES),), {"activation": "smooth_leaky"}),
    "CReLU, layer norm": Learner((Adam(1e-3),), {**DOUBLED, **NORMED}),
    "shrink and perturb": Learner((SGD(SIZES), ShrinkAndPerturb(1e-3, (1e-3, 0.0, 1e-2))), NORMED),
    "UPGD": Learner((UPGD(SIZES, 0.9, (1e-2, 0.0, 1e-1), (1e-2, 0.0, 1e-1)),), batch=1),
    "UPGD, raw": Learner((UPGD(SIZES, 0.9, 1e-2, scale="raw", protect=False),), NORMED),
    "UPGD, local": Learner((UPGD(SIZES, 0.9, 1e-2, scale="local", factor=2.0),), {**DOUBLED, **NORMED}),
    "Hare and Tortoise": Learner((Adam(1e-3), HareAndTortoise((0.9, 0.99, 0.5), 13)), NORMED),
    "Hare and Tortoise, no copies": Learner((SGD(SIZES), HareAndTortoise(0.9, 0))),
    "ReDo, everything hears of it": Learner(
        (Adam(1e-3), L2Init(1e-2), ReDo(5, (0.1, 0.5, 0.3)), HareAndTortoise(0.9, 13)), NORMED
    ),
    "ReDo, CReLU, UPGD": Learner((UPGD(SIZES), ReDo(5, (0.5, 0.6, 0.7))), DOUBLED),
    "ReGraMa": Learner((Adam(1e-3), L2(1e-2), ReGraMa(5, (0.3, 0.5, 0.7))), NORMED),
    "SWR": Learner(
        (SGD(SIZES, 0.9), L2Init(1e-2), SelectiveWeightReinit(7, (0.003, 0.0, 0.1)), HareAndTortoise(0.9, 13)), NORMED
    ),
    "SWR by a threshold, averaged": Learner(
        (SGD(SIZES), SelectiveWeightReinit(7, (0.5, 0.0, 0.9), rule="threshold", decay_rate=(0.5, 0.0, 0.9))), DOUBLED
    ),
    "SWR, Adam": Learner((Adam(1e-3), L2Init(1e-2), SelectiveWeightReinit(7, (0.003, 0.0, 0.1))), NORMED),
    "SWR, AdamW, CReLU, averaged": Learner(
        (
            AdamW(1e-3, (0.9, 0.99), weight_decay=(0.1, 0.0, 0.5)),
            SelectiveWeightReinit(5, (0.5, 0.0, 0.9), rule="threshold", decay_rate=(0.5, 0.0, 0.9)),
            WeightClipping(2.0),
        ),
        DOUBLED,
        batch=16,
    ),
    "SWR by magnitude": Learner((SGD(SIZES), SelectiveWeightReinit(5, 0.01, "magnitude"), L2(1e-3)), batch=1),
    "SNR": Learner((SGD(SIZES, 0.9), SNR)),
    "CBP": Learner((Adam(1e-3), CBP)),
    "CBP, CReLU, layer norm": Learner((SGD(SIZES, 0.9), CBP), {**DOUBLED, **NORMED}),
    "CBP by contribution": Learner((Adam(1e-3), replace(CBP, utility="contribution", compensate=False))),
    "CBP after ReDo": Learner((Adam(1e-3), ReDo(7, 0.3), replace(CBP, utility="random", count="layer")), batch=1),
    "CBP before ReDo": Learner((Adam(1e-3), replace(CBP, utility="weight_magnitude"), ReDo(7, 0.3)), DOUBLED),
    "CBP and SNR": Learner((Adam(1e-3), SNR, replace(CBP, utility="adaptation"), L2Init(1e-3)), batch=1),
}
REWRITES = (ReDo, ReGraMa, SelfNormalizedResets, ContinualBackprop)
RESUMED = ["AdamW, clipping, layer norm", "ReDo, everything hears of it", "UPGD, local", "CBP and SNR", "ReGraMa"]
RESUMED += ["SWR by a threshold, averaged", "SWR, AdamW, CReLU, averaged"]
