"""What to do where methods are attached already: `result.py` advises to attach one, which the user may have done."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from torch import nn

from neoteny.attachment.registry import attachments
from neoteny.diagnosis.result import REPLACE, SHRINK
from neoteny.methods import L2, ContinualBackprop, ShrinkAndPerturb
from neoteny.methods.method import Method


def with_attached(sentences: Iterable[str], model: nn.Module, losing: Collection[str] = ()) -> tuple[str, ...]:
    """The sentences of a verdict, in which advice names what is attached to the model or to its parts.

    Args:
        sentences: of a verdict.
        model: the model that was measured.
        losing: the layers whose units ought to be replaced.
    """
    methods: list[Method] = []
    replaced: dict[str, int] = {}
    for prefix, module in model.named_modules():
        for each in attachments(module):
            methods += each.methods
            replaced |= {f"{prefix}.{name}".strip("."): count for name, count in each.replaced.items()}
    if not methods:
        return tuple(sentences)
    instead = {REPLACE: _on_replacing(methods, replaced, losing), SHRINK: _on_shrinking(methods)}
    return tuple(instead.get(sentence, sentence) for sentence in sentences)


def _on_replacing(methods: Sequence[Method], replaced: Mapping[str, int], losing: Collection[str]) -> str:
    names = _names(methods)
    if not replaced:
        return (
            f"Consider neoteny.ContinualBackprop too: the model has {names} attached, which replaces no units. Call "
            "neoteny.detach(model), then attach all methods at once, with trained=True."
        )
    if missing := [name for name in losing if name not in replaced]:
        return (
            f"Consider why {', '.join(missing)} is left out: the model has {names} attached, which replaces no units "
            "there. print(plastic) gives the reason."
        )
    rates = [method.replacement_rate for method in methods if isinstance(method, ContinualBackprop)]
    change = f"a replacement_rate above {rates[0]}" if rates else "settings that replace more units"
    count = sum(replaced.values())
    return f"Consider {change}: the model has {names} attached, which has replaced {count} units so far."


def _on_shrinking(methods: Sequence[Method]) -> str:
    shrinking = [method for method in methods if isinstance(method, (L2, ShrinkAndPerturb))]
    if not shrinking:
        return SHRINK
    strength = max(method.strength for method in shrinking)  # one number each: attach takes no sequence
    return f"Consider a strength above {strength}, or a smaller step size: the model has {_names(shrinking)} attached."


def _names(methods: Sequence[Method]) -> str:
    return " and ".join(dict.fromkeys(type(method).__name__ for method in methods))
