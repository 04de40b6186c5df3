"""The initial distribution ("law") that each weight of a model looks drawn from.

`draws/fit.py` says which families a weight may come from. Here its spread is compared with the rules that people use
(Kaiming, Xavier and LeCun by fan in or fan out, a constant), and the layers vote: a small weight agrees with several
rules, and takes the one that most weights of the model agree with. Before this, `attach` and `diagnose` ask what was
declared, and after it what the model itself would draw (`units/laws.py`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from neoteny.draws.fit import CUTS, NORMAL, UNIFORM, Fit, cut_moments, fit, is_uniform, relative_error
from neoteny.draws.initial import Initial, ModuleDistribution, fans_of, resolve
from neoteny.layers.parametrized import computed_from, weight_of
from neoteny.layers.recurrent import RECURRENT

_GAINS = {
    "fan_in": (2.0**0.5, 1.0, 5.0 / 3.0),
    "fan_out": (2.0**0.5, 1.0, 5.0 / 3.0),
    "xavier": (1.0, 2.0**0.5, 5.0 / 3.0),
    "constant": (0.02, 0.01, 0.001, 1.0, 0.1),
}
_MODES = ("constant", "fan_in", "fan_out", "xavier")
_AGREES = 4.0  # standard errors between a spread and a rule; a fresh weight is further away once in 16,000 times
_OWN_SPREAD = 0.25  # how far the spread of a class with its own way of drawing may be from one that was drawn to look


@dataclass(frozen=True)
class Rule:
    """How the spread of a weight follows from its shape: gain / sqrt(fan), or the gain itself ("constant").

    Attributes:
        family: of `draws/fit.py`.
        mode: "constant", "fan_in", "fan_out" or "xavier" (the mean of both fans).
        gain: see above.
        error: relative standard error of a gain that was measured; 0 for a known one.
    """

    family: str
    mode: str
    gain: float
    error: float = 0.0

    @property
    def known(self) -> bool:
        """Whether this is a rule that people use by name."""
        return self.error == 0.0

    def spread(self, fans: tuple[int, int]) -> float:
        """The standard deviation of a weight with these fans."""
        return self.gain / math.sqrt(_fan(self.mode, fans))

    def initial(self) -> Initial:
        """The rule as a declaration."""
        normal = "uniform" if self.family == UNIFORM else "normal"
        cut = CUTS.get(self.family)
        if self.mode == "constant":
            return Initial(normal, scale=_round(_scale(self.family, self.gain), 1e-12), cut=cut)
        if self.mode == "fan_in" and self.gain == 1.0:
            return Initial(f"lecun_{normal}", cut=cut)
        usual = 1.0 if self.mode == "xavier" else 2.0**0.5
        nonlinearity = {1.0: "linear", 2.0**0.5: "relu", 5.0 / 3.0: "tanh", usual: None}
        gain = None if self.gain in nonlinearity else self.gain
        name = "xavier" if self.mode == "xavier" else "kaiming"
        mode = "fan_out" if self.mode == "fan_out" else "fan_in"
        return Initial(f"{name}_{normal}", nonlinearity.get(self.gain), mode=mode, gain=gain, cut=cut)


@dataclass(frozen=True)
class Found:
    """What one weight looks like.

    Attributes:
        fit: what was measured.
        fans: (fan in, fan out).
        own: it fits torch's own distribution for its layer, or that of the layer's class.
        initial: the law; None if it fits none, or if all weights are equal.
        rule: the rule behind the law, if there is one.
        votes: how many weights of the model agree with the rule.
    """

    fit: Fit
    fans: tuple[int, int]
    own: bool = False
    initial: Initial | None = None
    rule: Rule | None = None
    votes: int = 0

    @property
    def constant(self) -> bool:
        """Whether all weights are equal."""
        return not self.fit.families and self.fit.constant


def search(model: nn.Module) -> dict[str, Found]:
    """The law of every parameter with two or more axes, by its name.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> model = nn.Sequential(nn.Conv2d(8, 32, 3), nn.ReLU(), nn.Conv2d(32, 16, 3))
        >>> for layer in (model[0], model[2]):
        ...     _ = nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
        >>> print(search(model)["2.weight"].initial)
        normal, kaiming fan_out, gain sqrt(2)
    """
    found: dict[str, Found] = {}
    for prefix, module in model.named_modules():
        for key, parameter in module.named_parameters(recurse=False):
            if parameter.dim() >= 2 and parameter.numel() and parameter.is_floating_point():
                found[f"{prefix}.{key}" if prefix else key] = _look_at(module, key, parameter)
        if computed_from(module):
            found[f"{prefix}.weight" if prefix else "weight"] = _look_at(module, "weight", weight_of(module))
    return _by_vote(found)


def law_of(module: nn.Module, key: str = "weight") -> Found:
    """The law of one weight of a layer by itself."""
    return _by_vote({"": _look_at(module, key, weight_of(module, key))})[""]


def _look_at(module: nn.Module, key: str, weight: Tensor) -> Found:
    """What can be said of one weight without the others."""
    fans = fans_of(weight)
    layer = isinstance(module, (nn.Linear, _ConvNd)) and key == "weight"
    if (layer or (isinstance(module, RECURRENT) and key.startswith("weight_"))) and _is_own(module, key, weight):
        return Found(_measured(weight), fans, own=True, initial=Initial())
    gain = _orthogonal_gain(weight.detach().flatten(1))
    if gain is not None:
        return Found(_measured(weight), fans, initial=Initial("orthogonal", scale=gain))
    return Found(fit(weight), fans)


def _is_own(module: nn.Module, key: str, weight: Tensor) -> bool:
    own = resolve(module, "default", key)
    if isinstance(own, ModuleDistribution):
        spread = weight.detach().double().square().mean().sqrt().item()
        return own.std > 0 and max(spread / own.std, own.std / max(spread, 1e-300)) <= 1.0 + _OWN_SPREAD
    return is_uniform(weight, own.scale)


def _measured(weight: Tensor) -> Fit:
    return Fit(weight.detach().double().square().mean().sqrt().item(), {}, weight.numel())


def _by_vote(found: dict[str, Found]) -> dict[str, Found]:
    """The same with laws, where a rule agrees."""
    open_ones = {name: each for name, each in found.items() if each.initial is None and each.fit.families}
    rules = _known_rules() + _measured_rules(open_ones)
    agreeing = {name: [rule for rule in rules if _agrees(each, rule)] for name, each in open_ones.items()}
    votes: dict[Rule, int] = {}
    for some in agreeing.values():
        for rule in some:
            votes[rule] = votes.get(rule, 0) + 1
    decided = dict(found)
    for name, each in open_ones.items():
        likely = each.fit.families
        # A rule with a known gain is taken before a measured one that hardly more weights agree with.
        best = max(agreeing[name], key=lambda rule: (votes[rule] * (1.2 if rule.known else 1.0), likely[rule.family]))
        decided[name] = Found(each.fit, each.fans, initial=best.initial(), rule=best, votes=votes[best])
    return decided


def _agrees(found: Found, rule: Rule) -> bool:
    if rule.family not in found.fit.families:
        return False
    error = math.hypot(relative_error(rule.family, found.fit.weights), rule.error)
    return abs(found.fit.spread / rule.spread(found.fans) - 1.0) <= _AGREES * error + found.fit.rounding


def _known_rules() -> list[Rule]:
    return [
        Rule(family, mode, gain / (_scale(family, 1.0) if mode == "constant" else 1.0))
        for family in (NORMAL, UNIFORM, *CUTS)
        for mode, gains in _GAINS.items()
        for gain in gains
    ]


def _measured_rules(found: Mapping[str, Found]) -> list[Rule]:
    """Gains as the weights show them; the largest weight, which knows its gain best, speaks first."""
    rules: list[Rule] = []
    ordered = sorted(found.values(), key=lambda each: -each.fit.weights)
    for mode in _MODES:
        for family in (NORMAL, UNIFORM, *CUTS):
            some: list[Rule] = []
            for each in ordered:
                if family in each.fit.families and not any(_agrees(each, rule) for rule in some):
                    error = relative_error(family, each.fit.weights)
                    gain = each.fit.spread * math.sqrt(_fan(mode, each.fans))
                    factor = _scale(family, 1.0) if mode == "constant" else 1.0  # round what will be printed
                    some.append(Rule(family, mode, _round(gain * factor, 3.0 * error) / factor, error))
            rules += some
    return rules


def _fan(mode: str, fans: tuple[int, int]) -> float:
    return {"constant": 1.0, "fan_in": fans[0], "fan_out": fans[1], "xavier": (fans[0] + fans[1]) / 2.0}[mode]


def _scale(family: str, spread: float) -> float:
    """What `Initial` calls the scale of a family with this spread."""
    if family == UNIFORM:
        return spread * math.sqrt(3.0)
    return spread / cut_moments(CUTS[family])[0] if family in CUTS else spread


def _round(value: float, error: float) -> float:
    """The number with the fewest digits within a relative error."""
    for digits in range(1, 5):
        rounded = float(f"{value:.{digits}g}")
        if abs(rounded / value - 1.0) <= error:
            return rounded
    return value


@torch.no_grad()
def _orthogonal_gain(matrix: Tensor) -> float | None:
    """The gain of an orthogonal matrix (of its rows or its columns, whichever are fewer); None if it is not one."""
    rows = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    if len(rows) < 2:
        return None
    tolerance = 1e-4 if matrix.dtype in (torch.float32, torch.float64) else 3e-3
    squares = rows.float().square().sum(1)
    squared = squares.mean().item()
    # Rows of one length are rare, and lengths are quick to measure. Of the angles 256 rows are enough.
    if squared == 0 or not squares.isfinite().all() or (squares / squared - 1.0).abs().max().item() > tolerance:
        return None
    some = rows[:256].double()
    gram = some @ some.T / squared
    if not torch.allclose(gram, torch.eye(len(some), dtype=gram.dtype, device=gram.device), rtol=0.0, atol=tolerance):
        return None
    gain = math.sqrt(squared)
    known = next((each for each in _GAINS["fan_in"] if math.isclose(each, gain, rel_tol=tolerance)), None)
    return _round(gain, tolerance) if known is None else known
