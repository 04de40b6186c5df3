"""Initial distributions d_l (Algorithm 1): what a new unit's incoming weights are drawn from.

`resolve` turns what a user declares (or a module's own `reset_parameters`) into a distribution that can be drawn with
the counter-based generator; `check_spread` refuses weights that clearly do not come from it.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from neoteny.draws import rng
from neoteny.text import nearest

NAMES = (
    "default",
    "kaiming_uniform",
    "kaiming_normal",
    "xavier_uniform",
    "xavier_normal",
    "lecun_uniform",
    "lecun_normal",
    "uniform",
    "normal",
    "orthogonal",
)
_SCALED = NAMES[-3:]
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


@dataclass(frozen=True)
class Initial:
    """A named initial distribution.

    Args:
        name: "default" (the module's own `reset_parameters`), "kaiming_uniform", "kaiming_normal", "xavier_uniform",
            "xavier_normal", "lecun_uniform", "lecun_normal", "uniform" (give `scale`, the bound), "normal" (give
            `scale`, the standard deviation) or "orthogonal" (give `scale`, the gain; a new row is normal with the
            length the others had: it cannot be orthogonal to rows that have learned).
        nonlinearity: whose gain Kaiming and Xavier use, as `torch.nn.init.calculate_gain` names it. Kaiming takes
            "relu" and Xavier "linear" if none is given, as `torch.nn.init` does.
        slope: the negative slope of "leaky_relu".
        scale: the bound, standard deviation or gain of "uniform", "normal" and "orthogonal".

    Example:
        >>> Initial("kaiming_uniform", nonlinearity="tanh").name
        'kaiming_uniform'
    """

    name: str = "default"
    nonlinearity: str | None = None
    slope: float | None = None
    scale: float | None = None

    def __post_init__(self) -> None:
        if self.name not in NAMES:
            raise ValueError(f"init must be one of {', '.join(NAMES)}; got {self.name!r}.")
        if self.name in _SCALED:
            if self.scale is None or not self.scale > 0:
                raise ValueError(f"Initial({self.name!r}) needs scale > 0, e.g. Initial({self.name!r}, scale=0.1).")
        elif self.scale is not None:
            raise ValueError(f"Initial({self.name!r}) takes no scale; scale belongs to {', '.join(_SCALED)}.")


Declared = str | Initial | Mapping[str, str | Initial]
"""One initial distribution for all layers, or one for each producer by name."""


@dataclass(frozen=True)
class Distribution:
    """A distribution of weights that is drawn row by row.

    Args:
        family: "uniform" on (-scale, scale), or "normal" with standard deviation `scale`.
        scale: see family.
    """

    family: str
    scale: float

    @property
    def std(self) -> float:
        """Standard deviation of one weight."""
        return self.scale / math.sqrt(3.0) if self.family == "uniform" else self.scale

    def draw(self, seeds: Tensor, step: int, purpose: str, rows: Tensor, columns: int) -> Tensor:
        """Fresh weights (..., columns), float64, for the given rows; see `rng.uniform`."""
        if self.family == "uniform":
            return (rng.uniform(seeds, step, purpose, rows, columns) * 2.0 - 1.0) * self.scale
        return rng.normal(seeds, step, purpose, rows, columns) * self.scale


@dataclass(frozen=True, eq=False)
class ModuleDistribution:
    """The distribution of a module class with a `reset_parameters` of its own.

    A copy of the module is reset under a random state that is set from the counter-based generator, so the draw still
    depends on (run seed, step, purpose) alone.
    """

    module: nn.Module
    std: float

    def draw(self, seeds: Tensor, step: int, purpose: str, rows: Tensor, columns: int) -> Tensor:
        """Fresh weights (..., columns), float64, for the given rows (...)."""
        zero = torch.zeros(1, dtype=torch.int64)
        fresh: dict[int, Tensor] = {}
        drawn: list[Tensor] = []
        for seed, row in zip(seeds.expand(rows.shape).flatten().tolist(), rows.flatten().tolist(), strict=True):
            if seed not in fresh:
                number = rng.uniform(torch.tensor([seed]), step, f"{purpose}/reset", zero, 1).item()
                fresh[seed] = fresh_weight(self.module, int(number * 2**53)).flatten(1).to(torch.float64)
            drawn.append(fresh[seed][row])
        return torch.stack(drawn).reshape(*rows.shape, columns).to(rows.device)


def fresh_weight(module: nn.Module, torch_seed: int) -> Tensor:
    """The weight of a freshly reset copy of `module`; torch's random state is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch_seed)
        twin = copy.deepcopy(module).to("cpu")
        twin.reset_parameters()  # pyright: ignore[reportCallIssue]
    return twin.weight.detach()  # pyright: ignore[reportCallIssue, reportReturnType]


def fans(module: nn.Module) -> tuple[int, int]:
    """(fan in, fan out) of a Linear or Conv."""
    weight: Tensor = module.weight  # pyright: ignore[reportAssignmentType]
    receptive = math.prod(weight.shape[2:])
    return weight.shape[1] * receptive, weight.shape[0] * receptive


def resolve(module: nn.Module, declared: str | Initial) -> Distribution | ModuleDistribution:
    """The distribution of new rows of `module`'s weight.

    Args:
        module: a Linear or Conv.
        declared: what the user declared, "default" if nothing.
    """
    init = Initial(declared) if isinstance(declared, str) else declared
    fan_in, fan_out = fans(module)
    if init.name == "default":
        return _default(module, fan_in)
    family = "uniform" if init.name.endswith("uniform") else "normal"
    if init.name == "orthogonal" and init.scale is not None:
        return Distribution("normal", init.scale / math.sqrt(max(fan_in, len(module.weight))))  # pyright: ignore[reportArgumentType]
    if init.scale is not None:
        return Distribution(family, init.scale)
    if init.name.startswith("kaiming"):
        std = _gain(init.nonlinearity or "relu", init.slope) / math.sqrt(fan_in)
    elif init.name.startswith("xavier"):
        std = _gain(init.nonlinearity or "linear", init.slope) * math.sqrt(2.0 / (fan_in + fan_out))
    else:
        std = 1.0 / math.sqrt(fan_in)
    return Distribution(family, std * math.sqrt(3.0) if family == "uniform" else std)


def check_spread(name: str, module: nn.Module, distribution: Distribution | ModuleDistribution) -> None:
    """Raise if a weight clearly does not come from the distribution (its spread is off by more than a quarter).

    Raises:
        ValueError: names the layer, both spreads, the named distributions that would fit, and the ways out.
    """
    weight: Tensor = module.weight.detach().double()  # pyright: ignore[reportCallIssue, reportAttributeAccessIssue]
    spread = weight.square().mean().sqrt().item()
    # The relative error of the sample is below 1/sqrt(2 n); at five times that, false alarms do not occur in practice.
    tolerance = max(0.25, 5.0 / math.sqrt(2.0 * weight.numel()))
    if _close(spread, distribution.std, tolerance):
        return
    fitting = [
        candidate
        for candidate in NAMES[1:-3]
        if _close(spread, resolve(module, candidate).std, min(tolerance, 0.1))  # close enough to name it
    ]
    measured = f"neoteny.Initial('normal', scale={spread:.4g})"
    suggestion = repr(fitting[0]) if fitting else f"{{{name!r}: {measured}}}"
    hint = f" Its spread fits init={fitting[0]!r}." if fitting else ""
    gain = _orthogonal_gain(weight.flatten(1))
    if gain is not None:
        suggestion = f"neoteny.Initial('orthogonal', scale={gain:.4g})"
        hint = f" It is orthogonal; where other layers are not, name it: init={{{name!r}: {suggestion}}}."
    raise ValueError(
        f"{name}: the initial distribution has a standard deviation of {distribution.std:.4g}, but the weights at "
        f"attach have {spread:.4g}, so new units would not look like the initial ones.{hint} Declare how the network "
        f"was initialised, e.g. attach(..., init={suggestion}), or say that it is already trained: "
        "attach(..., trained=True)."
    )


def declared_distributions(model: nn.Module, init: Declared | None) -> Declared:
    """What the user declared, else the model's `initial_distributions`, else "default"."""
    if init is None:
        return getattr(model, "initial_distributions", "default")
    if isinstance(init, Mapping):
        modules = dict(model.named_modules())
        for name in init:
            if name not in modules:
                raise ValueError(f"init names {name!r}, but the model has no such module.{nearest(name, modules)}")
    return init


def initial_of(model: nn.Module, weight: str, init: Declared | None) -> Distribution | ModuleDistribution:
    """The initial distribution of one weight of a model, by the weight's name."""
    name = weight.rpartition(".")[0]
    return resolve(model.get_submodule(name), declared_for(name, declared_distributions(model, init)))


def declared_for(name: str, init: Declared) -> str | Initial:
    """What was declared for one producer."""
    if isinstance(init, Mapping):
        return init.get(name, "default")
    return init


def _default(module: nn.Module, fan_in: int) -> Distribution | ModuleDistribution:
    reset = getattr(type(module), "reset_parameters", None)
    plain = [nn.Linear.reset_parameters, *(kind.reset_parameters for kind in _CONVOLUTIONS)]
    if reset is None or reset in plain:
        return Distribution("uniform", 1.0 / math.sqrt(fan_in))  # kaiming_uniform_(a=sqrt(5)) of torch
    std = fresh_weight(module, 0).double().square().mean().sqrt().item()
    return ModuleDistribution(module, std)


def _gain(nonlinearity: str, slope: float | None) -> float:
    try:
        return nn.init.calculate_gain(nonlinearity, slope)  # pyright: ignore[reportArgumentType]
    except ValueError as error:
        raise ValueError(
            f"Initial: nonlinearity must be one that torch.nn.init.calculate_gain knows; got {nonlinearity!r}."
        ) from error


def _orthogonal_gain(matrix: Tensor) -> float | None:
    """The gain of an orthogonal matrix (of its rows or its columns, whichever are fewer); None if it is not one."""
    rows, columns = matrix.shape
    gram = matrix @ matrix.T if rows <= columns else matrix.T @ matrix
    squared = gram.diagonal().mean()
    identity = squared * torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    if len(gram) < 2 or squared == 0 or not torch.allclose(gram, identity, rtol=0.0, atol=1e-4 * squared.item()):
        return None
    return math.sqrt(squared.item())


def _close(value: float, expected: float, tolerance: float) -> bool:
    return expected / (1.0 + tolerance) <= value <= expected * (1.0 + tolerance)
