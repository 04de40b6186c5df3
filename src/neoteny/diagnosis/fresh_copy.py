"""The freshly initialised copy that a diagnosis compares a network with, on the same inputs."""

from __future__ import annotations

import copy
import inspect
import re
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from neoteny.attachment.registry import attachments
from neoteny.draws.fit import UNIFORM, is_uniform
from neoteny.draws.initial import Initial, declared_distributions, declared_for, distribution_of
from neoteny.layers.kinds import BOUNDARIES, is_input_first_linear
from neoteny.text import compact
from neoteny.units.law_search import Found, search
from neoteny.units.own_initialisation import redraw
from neoteny.wiring.sandbox import call

_WITHOUT_CONTROL = "pass control=False, or a fresh model as control"
_LARGEST_GAIN = 1.1 * 5.0 / 3.0  # of the known rules, tanh's, with some room


def copy_model(model: nn.Module, who: str = "control=True", instead: str = _WITHOUT_CONTROL) -> nn.Module:
    """A copy of a model; ValueError if it cannot be copied, with the argument that needs it and what to do instead."""
    try:
        return copy.deepcopy(model)
    except Exception as error:
        raise ValueError(
            f"{who} needs a copy of the model, but copying it raised {type(error).__name__}: {error}: {instead}."
        ) from error


class FreshCopies:
    """Copies of a model with every weight drawn again.

    Each weight is drawn from the first of these that is known: what an attachment draws new units from; what the model
    declares in `initial_distributions`; what the model's own code draws; what the weight still looks drawn from;
    torch's own. Parameters of unknown distribution keep their values.

    Attributes:
        notes: what limits the comparison, known after the first draw.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._looks = search(model)
        self._known = _known(model)
        self._named = named_spread(type(model))
        self._laws: dict[str, Initial] | None = None
        self.notes: list[str] = []

    @torch.no_grad()
    def draw(self, seed: int) -> nn.Module:
        """A fresh copy; torch's random state is left changed."""
        fresh = copy_model(self._model)
        before = {name: (parameter, parameter._version) for name, parameter in fresh.named_parameters()}
        torch.manual_seed(seed)
        called: dict[str, str] = {}
        redraw(fresh, called)
        if self._laws is None:
            self._laws = self._choose(search(fresh) if called else {})
        for name, initial in self._laws.items():
            owner, _, key = name.rpartition(".")
            _draw(fresh.get_parameter(name), initial)
            if key == "weight":
                _draw_bias(fresh.get_submodule(owner), self._model.get_submodule(owner))
        after = dict(fresh.named_parameters())
        kept = [name for name, (old, version) in before.items() if after.get(name) is old and old._version == version]
        if kept and not seed:
            self.notes.append(
                f"the fresh copy keeps parameters whose initial distribution is not known: {compact(kept)}"
            )
        return fresh

    def _choose(self, drawn: Mapping[str, Found]) -> dict[str, Initial]:
        """The weights to draw from another law than the methods of the model's modules have drawn them from.

        Args:
            drawn: what these methods gave, where the model has a way of its own.
        """
        laws: dict[str, Initial] = {}
        guessed: list[str] = []
        for name, look in self._looks.items():
            owner, _, key = name.rpartition(".")
            initial = self._known.get(owner) if key == "weight" else None
            if initial is None and (name not in drawn or drawn[name].own or drawn[name].initial is None):
                initial, sure = _looks_fresh(look, self._named)
                guessed += [] if sure else [name.removesuffix(".weight")]
            if initial is not None and initial.name != "default":  # that has just been drawn
                laws[name] = initial
        if guessed:
            self.notes.append(
                f"no rule says how large the weights of {compact(guessed)} should be, so they are taken for freshly "
                "drawn; if they are not, pass a fresh model as control"
            )
        return laws


def _known(model: nn.Module) -> dict[str, Initial]:
    """The layers whose initial distribution was declared, or found when something was attached."""
    known: dict[str, Initial] = {}
    declared = declared_distributions(model, None)
    for name, module in model.named_modules():
        given = declared_for(name, declared)
        if (isinstance(module, BOUNDARIES) or is_input_first_linear(module)) and given != "default":
            known[name] = Initial(given) if isinstance(given, str) else given
    for each in attachments(model):
        known |= {name: law.initial for name, law in each.view.laws.items()}
    return known


def named_spread(kind: type) -> float | None:
    """The standard deviation of normal weights that the source file of a class names, if it names one alone.

    Models such as ConvNeXt draw all weights with one spread, in their constructor or in a function beside the class.
    """
    try:
        source = inspect.getsource(sys.modules[kind.__module__])
    except (OSError, TypeError, KeyError):
        return None
    named = {float(number) for number in re.findall(r"\bnormal_\([^()]*\bstd=(\d*\.\d+)", source.replace("trunc_", ""))}
    return named.pop() if len(named) == 1 else None


def _looks_fresh(look: Found, named: float | None = None) -> tuple[Initial | None, bool]:
    """What a weight looks drawn from (None for torch's own, or nothing), and whether that can be relied upon.

    Weights that grew as a whole still look drawn. A gain beyond all known ones is therefore not believed: the usual one
    of the same rule takes its place, so that the growth is seen. So does the spread that the model's source names.
    """
    rule, initial = look.rule, look.initial
    if initial is not None and initial.name == "orthogonal" and (initial.scale or 0.0) > _LARGEST_GAIN:
        return replace(initial, scale=1.0), True
    if look.own or rule is None or rule.known:
        return (None if look.own else look.initial), True
    if rule.family == UNIFORM and rule.mode in ("constant", "fan_in"):
        return None, True  # torch's own, grown or shrunk: nobody else draws uniform weights of any size
    if rule.mode == "constant":
        if named is not None:
            return replace(rule, gain=named).initial(), True
        grown = look.fit.spread > _LARGEST_GAIN / min(look.fans) ** 0.5
        return (None, True) if grown else (look.initial, False)
    if rule.gain <= _LARGEST_GAIN:
        return look.initial, True
    return replace(rule, gain=2.0**0.5 if rule.mode == "fan_out" else 1.0).initial(), True


def _draw(parameter: Tensor, initial: Initial) -> None:
    """Draw a parameter again, from torch's generator."""
    distribution = distribution_of(parameter, initial)
    scale = distribution.scale
    if distribution.family == "uniform":
        parameter.uniform_(-scale, scale)
    elif distribution.family == "cut":
        nn.init.trunc_normal_(parameter, 0.0, scale, -distribution.cut * scale, distribution.cut * scale)
    elif initial.name == "orthogonal" and initial.scale is not None:
        nn.init.orthogonal_(parameter, initial.scale)
    else:
        parameter.normal_(0.0, scale)


def _draw_bias(fresh: nn.Module, model: nn.Module) -> None:
    """Set a bias that torch's own reset has just drawn to zero, unless the model's is drawn in that way."""
    bias, own = getattr(fresh, "bias", None), getattr(model, "bias", None)
    if isinstance(bias, nn.Parameter) and isinstance(own, Tensor):
        weight = cast(Tensor, model.weight)
        if not bool(own.any()) or not is_uniform(own, (weight[0].numel() or 1) ** -0.5):
            bias.zero_()


def checked_copy(model: nn.Module, fresh: nn.Module) -> nn.Module:
    """The user's fresh model, copied to the model's device and precision; the original stays as it is."""
    shapes, others = ({name: tuple(p.shape) for name, p in some.named_parameters()} for some in (model, fresh))
    if shapes != others:
        name = next(name for name in {**shapes, **others} if shapes.get(name) != others.get(name))
        raise ValueError(
            f"control must be a fresh model of the same architecture; its {name!r} has shape {others.get(name)}, "
            f"the model's {shapes.get(name)}."
        )
    like = next(model.parameters())
    return copy_model(fresh).to(like.device, like.dtype)


def has_seen_data(model: nn.Module) -> bool:
    """Whether the batch norms have statistics; those of a model that never trained are as fresh as a fresh copy's."""
    counts = [module.num_batches_tracked for module in model.modules() if isinstance(module, _NormBase)]
    return any(count is not None and bool(count) for count in counts)


def set_norm_statistics(fresh: nn.Module, inputs: Any) -> None:
    """Let batch norms take their statistics from these inputs.

    With the mean 0 and variance 1 that they start with they would not normalise at all, as no network in training does.
    """
    tracking = [module for module in fresh.modules() if isinstance(module, _NormBase) and module.track_running_stats]
    if not tracking:
        return
    fresh.eval()
    momenta = [module.momentum for module in tracking]
    for module in tracking:
        module.train()
        module.momentum = 1.0
    with torch.no_grad():
        call(fresh, inputs)
    for module, momentum in zip(tracking, momenta, strict=True):
        module.eval()
        module.momentum = momentum
