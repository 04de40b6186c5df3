"""Initial distributions d_l (Algorithm 1): what a new unit's incoming weights are drawn from.

`resolve` turns a declaration (or a module's own `reset_parameters`) into a distribution that can be drawn with the
counter-based generator. Where nothing is declared, `units/laws.py` finds a declaration for each layer.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.rnn import RNNBase, RNNCellBase

from neoteny.draws import rng
from neoteny.draws.fit import cut_moments
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
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_OTHERS = {"Conv1D": 0.02}  # layers of other libraries, by class: the standard deviation of their normal weights


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
        mode: "fan_in" or "fan_out", for Kaiming.
        gain: of Kaiming and Xavier as a number, instead of a nonlinearity.
        cut: normal weights beyond this many standard deviations are drawn again. As in `torch.nn.init.trunc_normal_`,
            the `scale` of "normal" is the standard deviation before the cut; Kaiming, Xavier and LeCun have theirs
            after it.

    Example:
        >>> Initial("kaiming_uniform", nonlinearity="tanh").name
        'kaiming_uniform'
        >>> print(Initial("kaiming_normal", mode="fan_out"))
        normal, kaiming fan_out, gain sqrt(2)
    """

    name: str = "default"
    nonlinearity: str | None = None
    slope: float | None = None
    scale: float | None = None
    mode: str = "fan_in"
    gain: float | None = None
    cut: float | None = None

    def __post_init__(self) -> None:
        if self.name not in NAMES:
            raise ValueError(f"init must be one of {', '.join(NAMES)}; got {self.name!r}.{nearest(self.name, NAMES)}")
        if self.name in _SCALED:
            if self.scale is None or not self.scale > 0:
                raise ValueError(f"Initial({self.name!r}) needs scale > 0, e.g. Initial({self.name!r}, scale=0.1).")
        elif self.scale is not None:
            raise ValueError(f"Initial({self.name!r}) takes no scale; scale belongs to {', '.join(_SCALED)}.")
        if self.mode not in ("fan_in", "fan_out"):
            raise ValueError(f"Initial: mode must be 'fan_in' or 'fan_out'; got {self.mode!r}.")
        if self.mode == "fan_out" and not self.name.startswith("kaiming"):
            raise ValueError(f"Initial({self.name!r}) takes no mode; mode belongs to kaiming_uniform, kaiming_normal.")
        if self.gain is not None:
            if not self.name.startswith(("kaiming", "xavier")) or self.nonlinearity is not None:
                raise ValueError("Initial: gain belongs to Kaiming and Xavier, and takes the place of nonlinearity.")
            if not self.gain > 0:
                raise ValueError(f"Initial: gain must be above 0; got {self.gain!r}.")
        if self.cut is not None and (not self.name.endswith("normal") or not self.cut > 0):
            raise ValueError(f"Initial: cut belongs to normal distributions and is above 0; got {self.cut!r}.")

    def __str__(self) -> str:
        if self.name == "default":
            return "torch's own (reset_parameters)"
        if self.name == "orthogonal":
            return f"orthogonal, gain {_readable(self.scale or 0.0)}"
        how, _, family = self.name.rpartition("_")
        family += "" if self.cut is None else f", cut at {self.cut:g} standard deviations"
        if self.scale is not None:
            return f"{family}, {'bound' if self.name == 'uniform' else 'standard deviation'} {self.scale:.4g}"
        if how == "lecun":
            return f"{family}, lecun (fan_in, gain 1)"
        return f"{family}, {how}{f' {self.mode}' if how == 'kaiming' else ''}, gain {_readable(self.factor)}"

    @property
    def factor(self) -> float:
        """The gain of Kaiming, Xavier and LeCun."""
        if self.gain is not None:
            return self.gain
        usual = "relu" if self.name.startswith("kaiming") else "linear"
        return 1.0 if self.name.startswith("lecun") else _gain(self.nonlinearity or usual, self.slope)


Declared = str | Initial | Mapping[str, str | Initial]
"""One initial distribution for all layers, or one for each producer by name."""


@dataclass(frozen=True)
class Distribution:
    """A distribution of weights that is drawn row by row.

    Args:
        family: "uniform" on (-scale, scale), "normal" with standard deviation `scale`, or "cut": normal with standard
            deviation `scale`, without what lies beyond `cut` of them.
        scale, cut: see family.
    """

    family: str
    scale: float
    cut: float = math.inf

    @property
    def std(self) -> float:
        """Standard deviation of one weight."""
        if self.family == "cut":
            return self.scale * cut_moments(self.cut)[0]
        return self.scale / math.sqrt(3.0) if self.family == "uniform" else self.scale

    def draw(self, seeds: Tensor, step: int, purpose: str, rows: Tensor, columns: int) -> Tensor:
        """Fresh weights (..., columns), float64, for the given rows; see `rng.uniform`."""
        if self.family == "uniform":
            return (rng.uniform(seeds, step, purpose, rows, columns) * 2.0 - 1.0) * self.scale
        if self.family == "cut":
            outside = math.erfc(self.cut / math.sqrt(2.0)) / 2.0
            inside = outside + rng.uniform(seeds, step, purpose, rows, columns) * (1.0 - 2.0 * outside)
            return torch.special.ndtri(inside) * self.scale
        return rng.normal(seeds, step, purpose, rows, columns) * self.scale

    def draw_weight(self, seeds: Tensor, step: int, purpose: str, shape: Sequence[int]) -> Tensor:
        """A whole fresh weight (*R, *shape), float64, for run seeds (*R)."""
        rows = torch.arange(shape[0], device=seeds.device).expand(*seeds.shape, shape[0])
        drawn = self.draw(seeds.unsqueeze(-1), step, purpose, rows, math.prod(shape[1:]))
        return drawn.reshape(*seeds.shape, *shape)


@dataclass(frozen=True, eq=False)
class ModuleDistribution:
    """The distribution of a module class with a `reset_parameters` of its own.

    A copy of the module is reset under a random state that is set from the counter-based generator, so the draw still
    depends on (run seed, step, purpose) alone.
    """

    module: nn.Module
    std: float
    key: str = "weight"

    def draw(self, seeds: Tensor, step: int, purpose: str, rows: Tensor, columns: int) -> Tensor:
        """Fresh weights (..., columns), float64, for the given rows (...)."""
        fresh: dict[int, Tensor] = {}
        drawn: list[Tensor] = []
        for seed, row in zip(seeds.expand(rows.shape).flatten().tolist(), rows.flatten().tolist(), strict=True):
            if seed not in fresh:
                weight = self._fresh(seed, step, purpose)
                if getattr(self.module, "transposed", False):  # (in, out / groups, *kernel)
                    groups: int = self.module.groups  # pyright: ignore[reportAssignmentType]
                    weight = weight.unflatten(0, (groups, -1)).transpose(1, 2).flatten(0, 1)
                fresh[seed] = weight.flatten(1).to(torch.float64)
            drawn.append(fresh[seed][row])
        return torch.stack(drawn).reshape(*rows.shape, columns).to(rows.device)

    def draw_weight(self, seeds: Tensor, step: int, purpose: str, shape: Sequence[int]) -> Tensor:
        """A whole fresh weight (*R, *shape), float64, for run seeds (*R)."""
        drawn = [self._fresh(seed, step, purpose).to(torch.float64) for seed in seeds.flatten().tolist()]
        return torch.stack(drawn).reshape(*seeds.shape, *shape).to(seeds.device)

    def _fresh(self, seed: int, step: int, purpose: str) -> Tensor:
        zero = torch.zeros(1, dtype=torch.int64)
        number = rng.uniform(torch.tensor([seed]), step, f"{purpose}/reset", zero, 1).item()
        return fresh_weight(self.module, int(number * 2**53), self.key)


def fresh_weight(module: nn.Module, torch_seed: int, key: str = "weight") -> Tensor:
    """A weight of a freshly reset copy of `module`; torch's random state is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch_seed)
        twin = copy.deepcopy(module).to("cpu")
        twin.reset_parameters()  # pyright: ignore[reportCallIssue]
    return getattr(twin, key).detach()


def fans_of(weight: Tensor) -> tuple[int, int]:
    """(fan in, fan out) of a weight (out, in, *kernel), as `torch.nn.init` computes them.

    It takes the second axis for inputs also where the first one is (a transposed convolution).
    """
    receptive = math.prod(weight.shape[2:])
    return weight.shape[1] * receptive, weight.shape[0] * receptive


def resolve(module: nn.Module, declared: str | Initial, key: str = "weight") -> Distribution | ModuleDistribution:
    """The distribution of new rows of `module`'s weight.

    Args:
        module: a Linear, Conv or recurrent layer.
        declared: what the user declared, "default" if nothing.
        key: the weight's name in the module.
    """
    init = Initial(declared) if isinstance(declared, str) else declared
    if init.name == "default":
        return _default(module, key)
    return distribution_of(getattr(module, key), init)


def distribution_of(weight: Tensor, init: Initial) -> Distribution:
    """The distribution of a weight (out, in, *kernel) by any name but "default"."""
    fan_in, fan_out = fans_of(weight)
    family = "uniform" if init.name.endswith("uniform") else "normal" if init.cut is None else "cut"
    if init.name == "orthogonal" and init.scale is not None:
        return Distribution("normal", init.scale / math.sqrt(max(fan_in, len(weight))))
    scale = init.scale
    if scale is None:
        if init.name.startswith("xavier"):
            std = init.factor * math.sqrt(2.0 / (fan_in + fan_out))
        else:
            std = init.factor / math.sqrt(fan_out if init.mode == "fan_out" else fan_in)
        scale = std * math.sqrt(3.0) if family == "uniform" else std
        if family == "cut" and init.cut is not None:
            scale /= cut_moments(init.cut)[0]
    return Distribution(family, scale) if init.cut is None else Distribution(family, scale, init.cut)


def declared_distributions(model: nn.Module, init: Declared | None) -> Declared:
    """What the user declared, else the model's `initial_distributions`, else "default"."""
    if init is None:
        return getattr(model, "initial_distributions", "default")
    if isinstance(init, Mapping):
        modules = dict(model.named_modules())
        weights = dict(model.named_parameters())  # "lstm.weight_ih_l0", in a module that has several
        for name in init:
            if name not in modules and name not in weights:
                raise ValueError(f"init names {name!r}, but the model has no such module.{nearest(name, modules)}")
    return init


def initial_of(model: nn.Module, weight: str, init: Declared | None) -> Distribution | ModuleDistribution:
    """The initial distribution of one weight of a model, by the weight's name."""
    name = weight.rpartition(".")[0]
    return resolve(model.get_submodule(name), declared_for(name, declared_distributions(model, init)))


def declared_for(name: str, init: Declared) -> str | Initial:
    """What was declared for one producer: a module, a module that holds it, or one weight of a module with several."""
    if isinstance(init, Mapping):
        return next((init[each] for each in (name, *holders(name)) if each in init), "default")
    return init


def holders(name: str) -> list[str]:
    """The names of the modules that hold this one, the innermost first; the whole model is left out."""
    parts = name.split(".")
    return [".".join(parts[:length]) for length in range(len(parts) - 1, 0, -1)]


def find_weight(model: nn.Module, name: str) -> tuple[nn.Module, str]:
    """The module of a producer and the name of its weight there: "fc1", or "lstm.weight_ih_l0"."""
    module, _, weight = name.rpartition(".")
    owner = dict(model.named_modules()).get(name)
    return (model.get_submodule(module), weight) if owner is None else (owner, "weight")


def _default(module: nn.Module, key: str) -> Distribution | ModuleDistribution:
    reset = getattr(type(module), "reset_parameters", None)
    plain = [nn.Linear.reset_parameters, *(kind.reset_parameters for kind in _CONVOLUTIONS)]
    if reset is None and type(module).__name__ in _OTHERS:
        return Distribution("normal", _OTHERS[type(module).__name__])
    if isinstance(module, nn.MultiheadAttention):
        return distribution_of(getattr(module, key), Initial("xavier_uniform"))
    if reset is None or reset in plain:
        fan_in = fans_of(getattr(module, key))[0]
        return Distribution("uniform", 1.0 / math.sqrt(fan_in))  # kaiming_uniform_(a=sqrt(5)) of torch
    if isinstance(module, (RNNBase, RNNCellBase)) and reset in (RNNBase.reset_parameters, RNNCellBase.reset_parameters):
        return Distribution("uniform", 1.0 / math.sqrt(module.hidden_size))
    std = fresh_weight(module, 0, key).double().square().mean().sqrt().item()
    return ModuleDistribution(module, std, key)


def _gain(nonlinearity: str, slope: float | None) -> float:
    try:
        return nn.init.calculate_gain(nonlinearity, slope)  # pyright: ignore[reportArgumentType]
    except ValueError as error:
        raise ValueError(
            f"Initial: nonlinearity must be one that torch.nn.init.calculate_gain knows; got {nonlinearity!r}."
        ) from error


def _readable(value: float) -> str:
    """A gain as people write it."""
    for text, known in (("sqrt(2)", 2.0**0.5), ("5/3", 5.0 / 3.0), ("1/sqrt(3)", 3.0**-0.5)):
        if math.isclose(value, known, rel_tol=1e-9):
            return text
    return f"{value:.4g}"
