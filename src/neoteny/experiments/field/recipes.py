"""RECIPES: every method of the field with its published setting and what is searched beside it.

Numbers come from the authors' papers and code where `source` names them. A further method is one row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from neoteny.experiments.field.bench import Bench, Build, Recipe
from neoteny.methods import (
    DASH,
    FIRE,
    L2,
    L2ER,
    SGD,
    TRAC,
    UPGD,
    Adam,
    AdamO,
    AdamRel,
    AdamW,
    AdaUPGD,
    CalibratedPartialResets,
    CChain,
    ContinualBackprop,
    FeatureUPGD,
    HardReset,
    HareAndTortoise,
    L2Init,
    Muon,
    NormalizeAndProject,
    Parseval,
    PlasticityInjection,
    ReDo,
    ReGraMa,
    SelectiveWeightReinit,
    SelfNormalizedResets,
    ShrinkAndPerturb,
    SoftShrinkAndPerturb,
    Spectral,
    WarmStartShrinkAndPerturb,
    Wasserstein,
    WeightClipping,
)
from neoteny.methods.method import Method

SCRATCH = "From scratch"
PLAIN = ("SGD", "Adam")
BASELINES = (*PLAIN, SCRATCH, "Head reset")


def _plain(bench: Bench, step_size: float) -> Method:
    """The optimizer that methods of a bench sit on."""
    return Adam(step_size) if bench.base == "Adam" else SGD(step_size)


def _with(make: Callable[..., Method]) -> Build:
    """A method beside the plain optimizer: `make(bench, value, **options)` gives it."""

    def build(bench: Bench, step_size: float, value: float | None, **options: Any) -> tuple[Method, ...]:
        return _plain(bench, step_size), make(bench, value, **options)

    return build


def _optimizer(make: Callable[..., Method]) -> Build:
    """A method that is the optimizer: `make(step_size, value, **options)` gives it."""

    def build(bench: Bench, step_size: float, value: float | None, **options: Any) -> tuple[Method, ...]:
        return (make(step_size, value, **options),)

    return build


def _alone(bench: Bench, step_size: float, value: float | None) -> tuple[Method, ...]:
    """The plain optimizer: what differs is in the network."""
    return (_plain(bench, step_size),)


def _c_chain(bench: Bench, beta: float) -> Method:
    kind = "cross_entropy" if "cross_entropy" in bench.problem.loss else "mse"
    return CChain(1.0, beta, kind, window=1000, warmup=100)


def _snr(bench: Bench, rejection: float) -> Method:
    batch = getattr(bench.problem, "batch_size", 1)
    return SelfNormalizedResets(rejection, first_threshold=bench.updates_per_silence * batch)


_DEFAULT = "the authors' default, for other problems"
RECIPES: dict[str, Recipe] = {
    "SGD": Recipe(_optimizer(lambda step_size, _: SGD(step_size)), optimizer="SGD"),
    "Adam": Recipe(_optimizer(lambda step_size, _, **more: Adam(step_size, **more)), optimizer="Adam"),
    SCRATCH: Recipe(_with(lambda bench, _: HardReset("all", **bench.boundary)), source="a baseline"),
    "Head reset": Recipe(_with(lambda bench, _: HardReset("last", **bench.boundary)), source="a baseline"),
    "AdamW": Recipe(
        _optimizer(lambda step_size, decay, **more: AdamW(step_size, weight_decay=decay, **more)),
        *("weight_decay", (0.01, 0.1), "torch's default"),
        optimizer="Adam",
    ),
    "Adam-Rel": Recipe(
        lambda bench, step_size, _: (Adam(step_size), AdamRel(bench.boundary["period"])),
        optimizer="Adam",
        source="the authors' rule, from memory",
    ),
    "AdamO": Recipe(
        _optimizer(lambda step_size, strength: AdamO(step_size, strength=strength)),
        *("strength", (1e-3, 1e-2)),
        optimizer="Adam",
    ),
    "UPGD": Recipe(
        _optimizer(lambda step_size, noise, **more: UPGD(step_size, noise_std=noise, **more)),
        *("noise_std", (1e-3, 1e-1), _DEFAULT),
        optimizer="SGD",
    ),
    "AdaUPGD": Recipe(
        _optimizer(lambda step_size, noise: AdaUPGD(step_size, noise_std=noise)),
        *("noise_std", (1e-3, 1e-2), _DEFAULT),
        optimizer="Adam",
    ),
    "Feature UPGD": Recipe(
        lambda bench, step_size, noise: (SGD(step_size), FeatureUPGD(noise_std=noise)),
        *("noise_std", (1e-3, 1e-2), _DEFAULT),
        optimizer="SGD",
    ),
    "TRAC": Recipe(_with(lambda bench, _: TRAC()), source=_DEFAULT),
    "Muon": Recipe(_optimizer(lambda step_size, _: Muon(step_size)), optimizer="Muon", source=_DEFAULT, costly=True),
    "L2": Recipe(_with(lambda bench, strength: L2(strength)), "strength", (1e-4, 1e-3), "permuted MNIST of L2-ER"),
    "L2-init": Recipe(_with(lambda bench, strength: L2Init(strength)), "strength", (1e-2, 1e-3), _DEFAULT),
    "L2-ER": Recipe(_with(lambda bench, strength: L2ER(strength)), "strength", (1e-3, 1e-4), "their permuted MNIST"),
    "Wasserstein": Recipe(
        _with(lambda bench, strength: Wasserstein(strength)),
        *("strength", (1e-2, 1e-3), "the baseline of a study of PPO"),
        costly=True,
    ),
    "Parseval": Recipe(_with(lambda bench, strength: Parseval(strength)), "strength", (1e-3, 1e-4), _DEFAULT),
    "Spectral": Recipe(
        _with(lambda bench, strength: Spectral(strength)), "strength", (1e-3, 1e-2), "baseline of L2-ER on MNIST"
    ),
    "C-CHAIN": Recipe(_with(_c_chain), "beta", (0.01, 0.05), "the authors' beta in Q-learning"),
    "CBP": Recipe(
        _with(lambda bench, rate, **more: ContinualBackprop(rate, **more)),
        *("replacement_rate", (1e-4, 1e-3), "the paper's algorithm"),
    ),
    "CBP by contribution": Recipe(
        _with(lambda bench, rate: ContinualBackprop(rate, utility="contribution", compensate=False, count="layer")),
        *("replacement_rate", (1e-5, 1e-4), "the version in Nature, for CIFAR-100"),
    ),
    "ReDo": Recipe(_with(lambda bench, limit: ReDo(bench.steps, limit)), "threshold", (0.1, 0.0), _DEFAULT),
    "ReGraMa": Recipe(
        _with(lambda bench, limit: ReGraMa(bench.steps, limit)), "threshold", (0.25, 0.01), "MNIST of another study"
    ),
    "SNR": Recipe(_with(_snr), "rejection", (0.01, 0.04), "the authors' code"),
    "CPR": Recipe(
        _with(lambda bench, strength: CalibratedPartialResets(100, strength)),
        *("strength", (0.01, 0.05), "the authors' MNIST"),
    ),
    "SWR": Recipe(_with(lambda bench, amount: SelectiveWeightReinit(100, amount)), "amount", (0.001, 0.01)),
    "Shrink and perturb": Recipe(
        _with(lambda bench, noise, strength=1e-4: ShrinkAndPerturb(strength, noise)),
        *("noise_std", (1e-5, 1e-4), "the paper's permuted MNIST"),
    ),
    "Soft shrink and perturb": Recipe(
        _with(lambda bench, rate: SoftShrinkAndPerturb(rate)), "rate", (1e-6, 1e-4), "the authors' PPO"
    ),
    "Boundary shrink and perturb": Recipe(
        _with(lambda bench, shrink: WarmStartShrinkAndPerturb(shrink, 0.1, **bench.boundary)),
        *("shrink", (0.4, 0.8), "the default of the authors' code"),
    ),
    "Weight clipping": Recipe(_with(lambda bench, bound: WeightClipping(bound)), "bound", (1.0, 3.0), _DEFAULT),
    "Hare and Tortoise": Recipe(
        _with(lambda bench, decay: HareAndTortoise(decay, period=bench.steps)), "decay", (0.999, 0.99), _DEFAULT
    ),
    "FIRE": Recipe(_with(lambda bench, _: FIRE(**bench.boundary)), source=_DEFAULT),
    "DASH": Recipe(_with(lambda bench, floor: DASH(0.3, floor)), "floor", (0.3, 0.05), _DEFAULT, needs_tasks=True),
    "Plasticity injection": Recipe(
        _with(
            lambda bench, _: PlasticityInjection(at=max(1, bench.problem.tasks * bench.steps // 2), at_boundaries=False)
        ),
        source="the authors' rule",
    ),
    "Normalize and project": Recipe(
        _with(lambda bench, _: NormalizeAndProject()), source="the authors' rule", options={"normalization": "layer"}
    ),
    "Layer norm": Recipe(_alone, options={"normalization": "layer"}),
    "Layer norm and L2": Recipe(
        _with(lambda bench, strength: L2(strength)),
        *("strength", (1e-4, 1e-3), "Lyle et al. 2024"),
        options={"normalization": "layer"},
    ),
    "Online norm": Recipe(_alone, options={"normalization": "online"}, source="the defaults of its authors"),
    "Dropout": Recipe(_alone, options={"dropout": 0.1}, source="the paper's permuted MNIST"),
    "CReLU": Recipe(_alone, options={"activation": "crelu"}),
    "Deep Fourier": Recipe(_alone, options={"activation": "fourier"}),
    "AID": Recipe(_alone, options={"activation": "aid(p=0.99)"}, source="the authors' permuted MNIST"),
    "Leaky ReLU": Recipe(_alone, options={"activation": "leaky_relu"}),
    "Smooth-Leaky": Recipe(_alone, options={"activation": "smooth_leaky"}, source="the authors' constants"),
    "Randomized Smooth-Leaky": Recipe(_alone, options={"activation": "randomized_smooth_leaky"}),
}
COSTS = {
    "CBP": "ContinualBackprop",
    "CBP by contribution": "ContinualBackprop",
    "CPR": "CalibratedPartialResets",
    "SWR": "SelectiveWeightReinit",
    "SNR": "SelfNormalizedResets",
    "C-CHAIN": "CChain",
    "L2-init": "L2Init",
    "L2-ER": "L2ER",
    "Adam-Rel": "AdamRel",
    "Feature UPGD": "FeatureUPGD",
    "Shrink and perturb": "ShrinkAndPerturb",
    "Soft shrink and perturb": "SoftShrinkAndPerturb",
    "Boundary shrink and perturb": "WarmStartShrinkAndPerturb",
    "Weight clipping": "WeightClipping",
    "Hare and Tortoise": "HareAndTortoise",
    "Plasticity injection": "PlasticityInjection",
    "Normalize and project": "NormalizeAndProject",
    SCRATCH: "HardReset",
    "Head reset": "HardReset",
    "Layer norm and L2": "L2",
}
"""The class of a method, where it is not its name here; for what an update costs."""
