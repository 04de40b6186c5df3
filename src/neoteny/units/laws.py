"""The law of every layer: what its new units are drawn from, where that was learned, and how it is said.

For each layer the first of these that is known:

1. what the user declares (`init=`), or the model (`initial_distributions`);
2. what a saved attachment had (`Laws.restore`);
3. the law that the weights look drawn from (`law_search.py`), unless the network is said to be trained;
4. the law that the model's own code draws (`own_initialisation.py`);
5. torch's own, for a network that is said to be trained or whose weights are about that large.

Weights that fit none of these are an error with the line to write.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from torch import nn

from neoteny.draws.initial import (
    Declared,
    Distribution,
    Initial,
    ModuleDistribution,
    declared_distributions,
    declared_for,
    find_weight,
    resolve,
)
from neoteny.layers.parametrized import computed_from, weight_of
from neoteny.text import compact
from neoteny.units.law_search import Found, law_of, search
from neoteny.units.own_initialisation import redrawn_copy

STRICT = "strict"
"""`attach(..., init="strict")`: refuse weights that were not drawn as declared, or else by `reset_parameters`."""

_TOO_FEW = 12  # weights of a layer, to tell anything from their spread
_CLOSE = 0.25  # a spread this near to torch's own may be torch's own after a little training
_ENOUGH = 1000  # weights that show a known rule beyond doubt


@dataclass(frozen=True)
class Law:
    """What new units of one layer are drawn from.

    Attributes:
        initial: the distribution.
        source: "declared", "found" (the weights look drawn from it), "stored" (by an earlier attachment), "own" (the
            model's own code), "close" or "torch" (torch's own, for want of another).
        by: the code behind "own".
    """

    initial: Initial
    source: str
    by: str = ""


Laws = dict[str, Law]
"""Layers by name, each with its law."""


def choose_laws(model: nn.Module, producers: Sequence[str], init: Declared | None, trained: bool) -> Laws:
    """The law of every layer that new units may be drawn for.

    Args:
        model: the network.
        producers: names of the layers.
        init: what the user declares, for all layers or by name; `STRICT` for what `reset_parameters` draws.
        trained: the weights are no longer those that were drawn.

    Raises:
        ValueError: the weights of some layers look drawn from something else than declared, or from nothing known;
            names all of them, and the line to write.
    """
    strict = init == STRICT
    declared = declared_distributions(model, None if strict else init)
    said = {name: _said(name, declared, strict) for name in producers}
    laws = {name: Law(initial, "declared") for name, initial in said.items() if initial is not None}
    unknown = [name for name in producers if name not in laws]
    found = search(model) if unknown or not trained else {}
    looks = {name: found[_weight_name(model, name)] for name in producers if found}
    if not trained:
        check_declared(model, {name: law.initial for name, law in laws.items()}, looks)
        laws |= {name: law for name in unknown if (law := _found(model, name, looks[name])) is not None}
        unknown = [name for name in unknown if name not in laws]
    if unknown:
        laws |= _own(model, unknown)
        if not trained:
            _warn_of_own({name: laws[name] for name in unknown if name in laws})
        unknown = [name for name in unknown if name not in laws]
    misfits: dict[str, Found] = {}
    for name in unknown:
        look = looks[name]
        if trained and look.rule is not None and look.rule.known and look.fit.weights >= _ENOUGH:
            laws[name] = Law(look.rule.initial(), "found")
        elif trained or look.constant:
            laws[name] = Law(Initial(), "torch")
        elif _is_close(model, name, look):
            laws[name] = Law(Initial(), "close")
        else:
            misfits[name] = look
    if misfits:
        _refuse_misfits(model, misfits)
    return {name: laws[name] for name in producers}


def check_declared(
    model: nn.Module, declared: Mapping[str, str | Initial], looks: Mapping[str, Found] | None = None, label: str = ""
) -> None:
    """Raise if weights clearly do not come from what was declared (their spread is off by more than a quarter).

    Args:
        model: the network.
        declared: layers by name, each with its distribution.
        looks: what their weights look like, where that is known already.
        label: what to put before a layer's name.

    Raises:
        ValueError: names every such layer, both spreads, and the line to write.
    """
    wrong: dict[str, tuple[float, float]] = {}
    for name, initial in declared.items():
        module, key = find_weight(model, name)
        weight = weight_of(module, key).double()
        spread = weight.square().mean().sqrt().item()
        expected = resolve(module, initial, key).std
        # The relative error of the sample is below 1/sqrt(2 n); at five times that, false alarms do not occur, unless
        # there are only a few weights, which may all be near zero.
        if weight.numel() >= _TOO_FEW and not _near(spread, expected, max(_CLOSE, 5.0 / (2.0 * weight.numel()) ** 0.5)):
            wrong[name] = expected, spread
    if not wrong:
        return
    fitting = {name: (looks or {}).get(name) or law_of(*find_weight(model, name)) for name in wrong}
    better = {name: _suggestion(look) for name, look in fitting.items()}
    said = " ".join(
        f"{label}{name}: the initial distribution has a standard deviation of {expected:.4g}, but the weights at "
        f"attach have {spread:.4g}{_looks_like(fitting[name])}."
        for name, (expected, spread) in wrong.items()
    )
    raise ValueError(
        f"{said} New units would not look like the initial ones. Declare how the network was initialised, e.g. "
        f"attach(..., init={paste(better)}), or say that it is already trained: attach(..., trained=True). Without "
        "init=... attach finds the distribution of each layer by itself."
    )


def paste(laws: Mapping[str, Initial]) -> str:
    """The declaration of these layers as code."""
    return "{" + ", ".join(f"{name!r}: {code(initial)}" for name, initial in laws.items()) + "}"


def code(initial: Initial) -> str:
    """A distribution as code."""
    usual = Initial("normal", scale=1.0)
    given = [
        f"{each.name}={getattr(initial, each.name):.4g}"
        if isinstance(getattr(initial, each.name), float)
        else f"{each.name}={getattr(initial, each.name)!r}"
        for each in fields(initial)[1:]
        if getattr(initial, each.name) != (None if each.name == "scale" else getattr(usual, each.name))
    ]
    return f"neoteny.Initial({', '.join([repr(initial.name), *given])})" if given else repr(initial.name)


def describe(laws: Laws) -> list[str]:
    """One line per distinct law, with the layers that have it."""
    lines: dict[str, list[str]] = {}
    for name, law in laws.items():
        why = {
            "declared": "as declared",
            "found": "as the weights were drawn",
            "stored": "as saved",
            "own": f"as {law.by} draws it",
            "close": "the weights are about as large",
            "torch": "for want of another: declare init=... if the network was initialised in another way",
        }[law.source]
        lines.setdefault(f"{law.initial}; {why}", []).append(name)
    return [f"new units of {compact(names)}: {text}" for text, names in lines.items()]


def saved(laws: Laws) -> dict[str, dict[str, Any]]:
    """Laws as plain values, for a state dict."""
    return {name: {"source": law.source, "by": law.by, **asdict(law.initial)} for name, law in laws.items()}


def restored(laws: Laws, stored: Mapping[str, Mapping[str, Any]]) -> Laws:
    """The laws with those of an earlier attachment in the place of all that were not declared."""
    merged = dict(laws)
    for name, values in stored.items():
        if name in laws and laws[name].source != "declared":
            given = {each.name: values[each.name] for each in fields(Initial) if each.name in values}
            source = "stored" if values["source"] != "found" else "found"
            merged[name] = Law(Initial(**given), source, str(values.get("by", "")))
    return merged


def _said(name: str, declared: Declared, strict: bool) -> Initial | None:
    """What was declared for a layer; None if nothing was."""
    if isinstance(declared, Mapping):
        if declared_for(name, declared) == "default":
            return Initial() if strict or name in declared else None
    elif declared == "default" and not strict:
        return None
    given = declared_for(name, declared)
    return Initial(given) if isinstance(given, str) else given


def _found(model: nn.Module, name: str, look: Found) -> Law | None:
    """The law that a weight looks drawn from; None if it is none, or if it may be torch's own after some training."""
    if look.initial is None:
        return None
    alone = look.rule is not None and not look.rule.known and look.votes < 2
    return None if alone and _is_close(model, name, look) else Law(look.initial, "found")


def _own(model: nn.Module, names: Sequence[str]) -> Laws:
    """The laws that the model's own code draws, measured on a copy that it has drawn."""
    drawn = redrawn_copy(model)
    if drawn is None:
        return {}
    twin, by = drawn
    looks = search(twin)
    laws: Laws = {}
    for name in names:
        look = looks[_weight_name(model, name)]
        computed = computed_from(find_weight(twin, name)[0])  # then drawing the layer again has no effect
        if look.initial is not None and not computed:
            laws[name] = Law(look.initial, "own", by) if not look.own else Law(Initial(), "own", by)
    return laws


def _warn_of_own(laws: Laws) -> None:
    if laws:
        by = next(iter(laws.values())).by
        warnings.warn(
            f"The weights of {compact(list(laws))} do not look freshly drawn, so the network is taken for a trained "
            f"one: new units are drawn as {by} would. Say so with attach(..., trained=True), or declare init=....",
            stacklevel=4,
        )


def _refuse_misfits(model: nn.Module, misfits: Mapping[str, Found]) -> None:
    said = ", ".join(
        f"{name} (standard deviation {look.fit.spread:.4g}; torch's own has {_default(model, name).std:.4g})"
        for name, look in misfits.items()
    )
    raise ValueError(
        f"The weights of these layers fit no initial distribution, so it is not known what new units should be drawn "
        f"from: {said}. If the network is already trained, say so: attach(..., trained=True). Else declare how it was "
        f"initialised, e.g. attach(..., init={paste({name: _suggestion(look) for name, look in misfits.items()})})."
    )


def _suggestion(look: Found) -> Initial:
    if look.initial is not None:
        return look.initial
    return Initial("normal", scale=float(f"{look.fit.spread:.4g}")) if look.fit.spread > 0 else Initial()


def _looks_like(look: Found) -> str:
    return "" if look.initial is None else f" (they look like: {look.initial})"


def _is_close(model: nn.Module, name: str, look: Found) -> bool:
    own = _default(model, name).std
    return _near(look.fit.spread, own, max(_CLOSE, 5.0 / (2.0 * look.fit.weights) ** 0.5))


def _default(model: nn.Module, name: str) -> Distribution | ModuleDistribution:
    module, key = find_weight(model, name)
    return resolve(module, "default", key)


def _weight_name(model: nn.Module, name: str) -> str:
    key = find_weight(model, name)[1]
    return name if key != "weight" else f"{name}.weight" if name else "weight"


def _near(value: float, expected: float, tolerance: float) -> bool:
    return expected / (1.0 + tolerance) <= value <= expected * (1.0 + tolerance)
