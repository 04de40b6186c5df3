"""Every method with settings under which it acts often, the small networks it acts on, and two ways to run it.

A new method needs a row in `EXAMPLES`; `tests/conformance` then tests it.
"""

from __future__ import annotations

import dataclasses
import inspect
import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

import neoteny
from neoteny import methods
from neoteny.methods import SGD, Adam, Method

INPUTS, OUTPUTS, BATCH = 5, 2, 4
STEP_SIZE = 0.02
ADAM_STEP_SIZE = 0.01


@dataclass(frozen=True)
class Example:
    """Settings of one method.

    Attributes:
        settings: with them the method acts several times in 40 updates of the small network.
        off: changes that switch it off, so that a run equals the plain optimizer's; None for an optimizer, and for a
            method that wraps one, whose rule is then another optimizer.
    """

    settings: dict[str, Any]
    off: dict[str, Any] | None = field(default=None)


EXAMPLES: dict[str, Example] = {
    "AdaUPGD": Example({"step_size": 1e-2, "noise_std": 1e-2, "weight_decay": 1e-2}),
    "Adam": Example({"step_size": 1e-2}),
    "AdamO": Example({"step_size": 1e-2, "strength": 1e-1}),
    "AdamRel": Example({"period": 7}, off={"period": 0}),
    "AdamW": Example({"step_size": 1e-2, "weight_decay": 1e-1}),
    "CChain": Example({"coefficient": 0.2, "beta": None}, off={"coefficient": 0.0}),
    "CalibratedPartialResets": Example({"period": 5, "strength": 0.1, "decay_rate": 0.8}, off={"strength": 0.0}),
    "ContinualBackprop": Example(
        {"replacement_rate": 0.05, "maturity_threshold": 5, "decay_rate": 0.9}, off={"replacement_rate": 0.0}
    ),
    "DASH": Example({"rate": 0.3, "floor": 0.3}, off={}),
    "FIRE": Example({"iterations": 5, "period": 9}, off={"period": 0}),
    "FeatureUPGD": Example(
        {"decay_rate": 0.9, "noise_std": 1e-2, "weight_decay": 1e-2},
        off={"protect": False, "noise_std": 0.0, "weight_decay": 0.0},
    ),
    "HardReset": Example({"layers": "last", "period": 13}, off={"period": 0}),
    "HareAndTortoise": Example({"decay": 0.9, "period": 10}, off={"period": 0}),
    "L2": Example({"strength": 1e-2}, off={"strength": 0.0}),
    "L2ER": Example({"strength": 1e-2, "period": 5}, off={"strength": 0.0, "rank_step_size": 0.0}),
    "L2Init": Example({"strength": 1e-2}, off={"strength": 0.0}),
    "Muon": Example({"step_size": STEP_SIZE, "weight_decay": 1e-2}),
    "NormalizeAndProject": Example({"presume_norms": True}, off={"period": 10**9}),
    "Parseval": Example({"strength": 1e-4}, off={"strength": 0.0}),
    "PlasticityInjection": Example({"at": 9, "at_boundaries": True}, off={"at": 0}),
    "ReDo": Example({"period": 5, "threshold": 0.3}, off={"period": 10**9}),
    "ReGraMa": Example({"period": 5, "threshold": 0.3}, off={"period": 10**9}),
    "SGD": Example({"step_size": STEP_SIZE, "momentum": 0.9}),
    "SelectiveWeightReinit": Example({"period": 5, "amount": 0.05, "decay_rate": 0.5}, off={"amount": 0.0}),
    "SelfNormalizedResets": Example(
        {"rejection": 0.1, "first_threshold": 8, "longest": 10, "period": 7}, off={"rejection": 0.0}
    ),
    "ShrinkAndPerturb": Example({"strength": 1e-2, "noise_std": 1e-3}, off={"strength": 0.0, "noise_std": 0.0}),
    "SoftShrinkAndPerturb": Example({"rate": 1e-2}, off={"rate": 0.0}),
    "Spectral": Example({"strength": 1e-2}, off={"strength": 0.0}),
    "TRAC": Example({"initial_scale": 0.1, "initial_sigma": 0.1, "eps": 0.1}),
    "UPGD": Example({"step_size": STEP_SIZE, "noise_std": 1e-2, "weight_decay": 1e-2}),
    "WarmStartShrinkAndPerturb": Example({"shrink": 0.95, "perturb": 0.1, "period": 9}, off={"period": 0}),
    "Wasserstein": Example({"strength": 1e-2}, off={"strength": 0.0}),
    "WeightClipping": Example({"bound": 1.0}, off={"bound": 1e9}),
}


def discover() -> dict[str, type[Method]]:
    """Every concrete method that `neoteny.methods` exports, by name."""
    exported = {name: getattr(methods, name) for name in methods.__all__}
    return {
        name: value
        for name, value in sorted(exported.items())
        if dataclasses.is_dataclass(value) and inspect.isclass(value) and issubclass(value, Method)
    }


FOUND = discover()
OPTIMIZERS = [name for name, kind in FOUND.items() if kind.is_optimizer]
OTHERS = [name for name, kind in FOUND.items() if not kind.is_optimizer]


def make(name: str, **changes: Any) -> Method:
    """The example of a method, with some settings changed."""
    return FOUND[name](**{**EXAMPLES[name].settings, **changes})


def network(seed: int = 0, dtype: torch.dtype = torch.float64) -> nn.Sequential:
    """5-9-8-2 with a ReLU layer, some units of which are silent, and a tanh layer."""
    torch.manual_seed(seed)
    layers = [nn.Linear(INPUTS, 9), nn.ReLU(), nn.Linear(9, 8), nn.Tanh(), nn.Linear(8, OUTPUTS)]
    return nn.Sequential(*layers).to(dtype)


def networks(runs: int = 3) -> list[nn.Sequential]:
    return [network(seed) for seed in range(runs)]


def stream(steps: int, runs: int = 3, seed: int = 4) -> list[tuple[Tensor, Tensor]]:
    """Batches (runs, B, inputs) and targets (runs, B, outputs) that can be learned."""
    generator = torch.Generator().manual_seed(seed)
    found: list[tuple[Tensor, Tensor]] = []
    for _ in range(steps):
        x = torch.randn(runs, BATCH, INPUTS, generator=generator, dtype=torch.float64)
        found.append((x, x[..., :2] - x[..., 2:4].tanh()))
    return found


def needs_adam(*chain: Method | type[Method]) -> bool:
    """Whether some method acts on a step count, which SGD does not have."""
    return any(method.needs_step_count for method in chain)


def torch_optimizer(
    method: Method | None, model: nn.Module, seed: int = 7, adam: bool = False
) -> torch.optim.Optimizer:
    """The torch optimizer of a method that is one; without a method SGD with momentum, or Adam."""
    if method is None:
        if adam:
            return neoteny.optim.Adam(model.parameters(), lr=ADAM_STEP_SIZE)
        return torch.optim.SGD(model.parameters(), lr=STEP_SIZE, momentum=0.9)
    return neoteny.optim.from_method(method, model.named_parameters(), seed=seed)


class Attached:
    """Methods attached to one network and its optimizer, with the user's loop as `step`.

    Args:
        methods: an optimizer among them takes the place of SGD with momentum.
        adam: Adam takes its place; also where a method needs it.
    """

    def __init__(self, *chain: Method, model: nn.Sequential | None = None, seed: int = 7, adam: bool = False) -> None:
        self.model = network() if model is None else model
        optimizers = [method for method in chain if method.is_optimizer]
        others = [method for method in chain if not method.is_optimizer]
        adam = adam or needs_adam(*chain)
        self.optimizer = torch_optimizer(optimizers[0] if optimizers else None, self.model, seed, adam)
        dtype = next(self.model.parameters()).dtype
        example = torch.zeros(2, INPUTS, dtype=dtype)
        self.plastic = (
            neoteny.attach(self.model, self.optimizer, *others, example=example, seed=seed) if others else None
        )

    def step(self, x: Tensor, y: Tensor) -> float:
        """One update on a batch of one run; the loss from before it."""
        loss = self.update(x, y)
        if self.plastic is not None:
            self.plastic.step()
        return loss

    def update(self, x: Tensor, y: Tensor) -> float:
        """The part of `step` before the methods act on what the optimizer did."""
        self.optimizer.zero_grad()
        loss = (self.model(x) - y).square().mean()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def train(self, batches: list[tuple[Tensor, Tensor]]) -> list[float]:
        return [self.step(x[0], y[0]) for x, y in batches]

    def weights(self) -> list[Tensor]:
        return [parameter.detach().clone() for parameter in self.model.parameters()]

    def save(self) -> io.BytesIO:
        """Everything a continuation needs, as a file."""
        file = io.BytesIO()
        saved: dict[str, Any] = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        if self.plastic is not None:
            saved["plastic"] = self.plastic.state_dict()
        torch.save(saved, file)
        file.seek(0)
        return file

    def load(self, file: io.BytesIO) -> None:
        saved = torch.load(file, weights_only=True)
        if self.plastic is not None:  # first: it gives the network the structure that it had
            self.plastic.load_state_dict(saved["plastic"])
        self.model.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])


def plain_method(*chain: Method, adam: bool = False) -> Method:
    """The optimizer of a stack where no method is one: SGD with momentum, or Adam where a method needs it."""
    return Adam(ADAM_STEP_SIZE) if adam or needs_adam(*chain) else SGD(STEP_SIZE, momentum=0.9)


def stacked(
    *chain: Method,
    members: list[nn.Sequential] | None = None,
    seeds: list[int] | None = None,
    adam: bool = False,
) -> Any:
    """A stack of runs; SGD with momentum, or Adam, where no method of the chain is an optimizer."""
    members = networks() if members is None else members
    seeds = list(range(7, 7 + len(members))) if seeds is None else seeds
    optimizers = [method for method in chain if method.is_optimizer] or [plain_method(*chain, adam=adam)]
    others = [method for method in chain if not method.is_optimizer]
    example = torch.zeros(2, INPUTS, dtype=torch.float64)
    return neoteny.stack(members, *optimizers, *others, example=example, seeds=seeds)


def go_together(*chain: str) -> bool:
    """Whether these methods may be combined; what they say when not is tested for all pairs."""
    together = [make(name) for name in chain]
    return not any(one.why_not_with([other for other in together if other is not one]) for one in together)


def acts_at_boundaries_alone(name: str) -> bool:
    """Whether a method needs the data of a new task, so that no update lets it act."""
    return FOUND[name].needs_boundary_data


def per_element(state: Any, shapes: Mapping[str, torch.Size], name: str | None = None) -> Iterator[tuple[str, Tensor]]:
    """(parameter, tensor) for every tensor of a method's state that has a number for each element of a parameter."""
    if isinstance(state, Mapping):
        for key, value in state.items():
            yield from per_element(value, shapes, key if key in shapes else name)
    elif isinstance(state, Tensor) and name is not None and state.shape == shapes[name]:
        yield name, state


def settings_per_run(name: str) -> list[str]:
    """The fractional settings of a method that a stack takes one value per run of; the others refuse a sequence."""
    found: list[str] = []
    for setting, value in make(name).hyperparameters().items():
        if type(value) is float:
            try:
                make(name, **{setting: (value, value, value)})
            except TypeError:
                continue
            found.append(setting)
    return found
