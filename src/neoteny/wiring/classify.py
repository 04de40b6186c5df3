"""classify: sort every layer into exactly one place by the evidence of the probe.

A layer is in a group, left out (understood, but its units cannot be reset one by one) or refused (not understood).
Before this: `evidence.py`; this file rules out what a single layer's evidence rules out, then `families.py` forms the
groups; after it: `trace.py` reports the result.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import nn

from neoteny.layers.kinds import couples, input_first, width_out
from neoteny.layers.parametrized import why_rows_coupled
from neoteny.text import compact
from neoteny.wiring.evidence import Evidence
from neoteny.wiring.families import Check, Families
from neoteny.wiring.probe import Probe
from neoteny.wiring.verify import inert
from neoteny.wiring.wiring import IDLE, Wiring


def classify(
    evidence: Evidence, check: Check, *, accept: bool, everywhere: bool = False, heads: bool = False
) -> Wiring:
    """The groups of a model, and the reasons for every layer that is in none.

    Args:
        evidence: of the recording to work with; this runs its passes.
        check: the verification that groups must pass.
        accept: include units behind norms that couple them.
        everywhere: also follow what else the columns carry that no group reads.
        heads: include attention heads.
    """
    probe = evidence.probe
    if not evidence.gather():
        return Wiring((), evidence.left_out, evidence.refused, evidence.guesses, evidence.avoidable)
    for name in evidence.open_layers:
        _classify_layer(evidence, name, accept)
    evidence.gather_foreign(everywhere)
    groups = Families(evidence, check, heads=heads).groups()
    inside = {port.module for group in groups for port in group.producers}
    for name in probe.named("opaque"):
        if name in inside or (heads and name in evidence.left_out):
            continue
        evidence.left_out[name] = f"{evidence.class_name(name)}: {_closed(probe.module(name))}"
    for name, class_name in _unknown(probe.recording.loose, evidence.model, probe.watched):
        evidence.left_out[name] = f"{class_name}: a class that tracing does not know, so its weights stay as they are"
    evidence.left_out.update(_fused(probe))
    called = {name: place for place, name in enumerate(dict.fromkeys(probe.order))}
    order = sorted(evidence.left_out, key=lambda name: called.get(name.split("[")[0], len(called)))
    left_out = {name: evidence.left_out[name] for name in order}
    reasons = (evidence.refused, evidence.guesses, evidence.avoidable)
    return Wiring(tuple(groups), left_out, *reasons, uncalled=tuple(evidence.uncalled))


def _fused(probe: Probe) -> dict[str, str]:
    """Custom modules that hold several matrices in one parameter, each with the reason why they have no units."""
    found: dict[str, list[str]] = {}
    for name, parameter in probe.recording.loose.items():
        if parameter.dim() == 3 and min(parameter.shape) > 1:
            owner, _, key = name.rpartition(".")
            found.setdefault(owner, []).append(key)
    return {
        owner: f"{type(probe.sandbox.model.get_submodule(owner)).__name__}: its {', '.join(keys)} hold one matrix per "
        "expert in one parameter, and units of such fused experts are not replaced"
        for owner, keys in found.items()
    }


def _classify_layer(evidence: Evidence, name: str, accept: bool) -> None:
    """Leave out or refuse what a single layer's evidence rules out."""
    base, module = evidence.bases[name], evidence.probe.module(name)
    consumers = evidence.consumers(base)
    names = ", ".join(consumers)
    written = [sink for sink in (*consumers, *evidence.norms(base)) if sink in evidence.unwritable]
    if name in evidence.unwritable:
        evidence.left_out[name] = evidence.unwritable[name]
    elif reason := why_rows_coupled(module, int(input_first(module))):
        evidence.left_out[name] = reason
    elif base.error is not None:
        error = f"{type(base.error).__name__}: {base.error}".splitlines()[0]
        evidence.left_out[name] = f"its values leave through code that rejects NaN ({error})"
    elif base.leaked and not consumers:
        evidence.left_out[name] = "output layer: its values are the model's output"
    elif base.leaked:
        evidence.left_out[name] = (
            f"its values reach the model's output directly and also feed {names} (a residual stream)"
        )
    elif evidence.closed.intersection(base.opaque):
        some = compact([sink for sink in base.opaque if sink in evidence.closed])
        evidence.left_out[name] = f"feeds {some}, which run for some inputs only"
    elif base.opaque:
        closed = ", ".join(f"{sink} ({evidence.class_name(sink)})" for sink in base.opaque)
        evidence.left_out[name] = f"feeds {closed}, whose weights cannot be rewritten unit by unit"
    elif name in evidence.lost:
        sinks = [sink for sink in evidence.lost[name] if evidence.probe.watched[sink][1] == "boundary"]
        reason = f"something between it and {', '.join(sinks)} swallows NaN (torch.where, nan_to_num, a cast)"
        evidence.refuse(name, reason, sinks)
    elif not consumers and name in evidence.probe.recording.states.values():
        evidence.left_out[name] = "output layer: its values are the model's output"
    elif not consumers:
        if inert(evidence.probe.recording, name, torch.arange(width_out(evidence.probe.module(name)))):
            evidence.left_out[name] = IDLE
        else:
            evidence.refuse(name, "the output depends on it, but where its values go was lost on the way")
    elif written:
        evidence.left_out[name] = f"feeds {written[0]}, which is not rewritten: {evidence.unwritable[written[0]]}"
    else:
        _check_norms(evidence, name, accept)


def _closed(module: nn.Module) -> str:
    if getattr(module, "proj_size", 0):
        return "its hidden features are projected (proj_size), so that they are no units of their own"
    if isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
        return "a table of the network's input, which has no units"
    return "its units are not rows and columns of a Linear or Conv"


def _unknown(
    loose: Mapping[str, nn.Parameter], model: nn.Module, watched: Mapping[str, object]
) -> Iterator[tuple[str, str]]:
    """Custom modules that hold a matrix and no known layer, with their classes."""
    for owner in dict.fromkeys(name.rpartition(".")[0] for name, each in loose.items() if each.dim() > 1):
        if not any(not owner or name.startswith(f"{owner}.") for name in watched):
            yield owner, type(model.get_submodule(owner)).__name__


def _check_norms(evidence: Evidence, name: str, accept: bool) -> None:
    for sink in evidence.norms(evidence.bases[name]):
        module = evidence.probe.module(sink)
        if isinstance(module, (nn.LayerNorm, nn.RMSNorm)) and len(module.normalized_shape) > 1:
            evidence.left_out[name] = (
                f"{evidence.class_name(sink)} {sink} couples its units over {module.normalized_shape}"
            )
        elif couples(module) and not accept:
            reason = f'{evidence.class_name(sink)} {sink} couples its units; norm="accept" includes them'
            evidence.left_out.setdefault(name, reason)
