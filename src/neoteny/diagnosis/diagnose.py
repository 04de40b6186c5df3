"""diagnose: whether a network is losing its ability to learn, layer by layer and in words.

The flow: `wiring/trace.py` finds the hidden units, one pass on the user's inputs reads them, and `metrics/` measures
them. A freshly initialised copy of the same network (`fresh_copy.py`), measured on the same inputs, shows what would be
normal. `result.py` puts the difference into words, `advice.py` what to do where something is attached already. With
`probe=`, copies are trained as well (`probe.py`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from neoteny import metrics
from neoteny.diagnosis.advice import with_attached
from neoteny.diagnosis.fresh_copy import FreshCopies, checked_copy, copy_model, has_seen_data, set_norm_statistics
from neoteny.diagnosis.measure import Bounds, find_bounds, measure
from neoteny.diagnosis.probe import Probe, Probed, run_probe
from neoteny.diagnosis.result import (
    REPLACE,
    Diagnosis,
    LayerDiagnosis,
    findings,
    needs_more,
    sentences_on,
    with_copy,
)
from neoteny.wiring.modules import unwrap
from neoteny.wiring.recurrent import without_hidden
from neoteny.wiring.sandbox import Sandbox, few_examples, leaves
from neoteny.wiring.trace import Norm, find
from neoteny.wiring.wiring import Wiring

MOST_COPIES = 8
"""Fresh copies that are drawn where the first differs from the model: small layers differ from copy to copy."""


def diagnose(
    model: nn.Module,
    inputs: Any,
    *,
    control: bool | nn.Module = True,
    norm: Norm = "accept",
    probe: Probe | None = None,
) -> Diagnosis:
    """The measures of every layer of hidden units on some inputs, and in words what is wrong.

    The model runs in evaluation mode without gradients, and is left exactly as it was. Frozen layers count too.

    Args:
        model: any feed-forward module.
        inputs: a batch the model accepts: a tensor, a tuple of positional or a dict of keyword arguments. The more
            examples the better: a unit is dead if it is silent on all of them, and no rank exceeds their number.
        control: compare with a copy of the model whose weights are drawn again and whose batch norms, if the model's
            have seen data, have seen these inputs. Weights are drawn as an attachment draws new units, else as the
            model declares in `initial_distributions`, else by the model's own code (`_init_weights`, `init_weights`,
            `reset_parameters`), else as they still look drawn, else by torch's own. If none of these is how the model
            was initialised, pass a fresh model instead. False: no comparison.
        norm: "accept" includes units behind a LayerNorm, "strict" leaves them out.
        probe: trains a discarded copy of the model, and fresh ones beside it, on data that is new to the model, and
            says which learns faster.

    Raises:
        TypeError: not a module, or data of a probe that is no batch.
        ValueError: inputs the model does not accept, fewer than two examples, or no hidden units.

    Example:
        >>> import torch
        >>> _ = torch.manual_seed(0)
        >>> model = nn.Sequential(nn.Linear(4, 10), nn.ReLU(), nn.Linear(10, 2))
        >>> with torch.no_grad():
        ...     _ = model[0].bias[:3].fill_(-1e3)
        >>> found = diagnose(model, torch.randn(64, 4))
        >>> found.layers[0].dead
        3
        >>> print(found.verdict[0])
        30% of 0's units (3 of 10) never fire on these inputs; in a fresh copy: 0%.
    """
    model = unwrap(model)
    if not isinstance(control, (bool, nn.Module)):
        raise TypeError(f"control must be True, False or a fresh nn.Module; got {type(control).__name__}.")
    if probe is not None and not isinstance(probe, Probe):
        raise TypeError(f"probe must be a neoteny.Probe, as Probe(batches, updates=100); got {type(probe).__name__}.")
    _check_examples(inputs)
    wiring, example = find_units(model, inputs, norm)
    notes: list[str] = []
    with Sandbox(model, inputs) as sandbox:  # it also puts the random states back that the fresh copy is drawn with
        bounds = find_bounds(sandbox, wiring, example)
        layers = measure(sandbox, wiring, bounds)
        fresh_magnitude: float | None = None
        copies: FreshCopies | None = None
        if control is not False:
            copies = FreshCopies(model) if control is True else None
            fresh = checked_copy(model, unwrap(cast(nn.Module, control))) if copies is None else copies.draw(0)
            twins = _measure_fresh(model, fresh, inputs, wiring, bounds)
            layers = {name: replace(layer, fresh=twins.get(name)) for name, layer in layers.items()}
            fresh_magnitude = float(metrics.weight_magnitude(fresh.parameters()))
            if copies is not None:
                notes += copies.notes
                more = any(needs_more(layer) for layer in layers.values())
                for seed in range(1, MOST_COPIES) if more else ():
                    twins = _measure_fresh(model, copies.draw(seed), inputs, wiring, bounds)
                    layers = {name: with_copy(layer, twins.get(name)) for name, layer in layers.items()}
        probed = None if probe is None else _probe(sandbox, control, copies, probe)
    silent = {group.name: "not called on these inputs" for group in wiring if group.name not in layers}
    short = [layer.name for layer in layers.values() if layer.rows < layer.units]
    if short:
        notes.append(f"fewer rows than units, so that no rank can reach the number of units: {', '.join(short)}")
    found = Diagnosis(
        tuple(layers.values()),
        float(metrics.weight_magnitude(model.parameters())),
        fresh_magnitude,
        (),
        {**wiring.left_out, **silent},
        wiring.refused,
        tuple(notes),
        probed,
    )
    losing = [layer.name for layer in found.layers if any(REPLACE in each for each in findings(layer).values())]
    return replace(found, verdict=with_attached(sentences_on(found), model, losing))


def _probe(sandbox: Sandbox, control: bool | nn.Module, copies: FreshCopies | None, probe: Probe) -> Probed:
    """What copies learn; the sandbox puts random states back at its end."""
    fresh: list[nn.Module] = []
    with torch.inference_mode(False):
        learner = copy_model(sandbox.model, "probe", "leave the probe out")
        if isinstance(control, nn.Module):
            fresh = [checked_copy(learner, unwrap(control))]
        elif copies is not None:
            fresh = [copies.draw(seed) for seed in range(probe.fresh_copies)]
        sandbox.rewind()  # data that is drawn with torch's generator does not depend on the copies' draws
        return run_probe(probe, learner, fresh)


# --- where the units are ---------------------------------------------------------------------------------------------


def _check_examples(inputs: Any) -> None:
    """At least two examples: the first axis of the first tensor."""
    sizes = [leaf.shape[0] for leaf in leaves(inputs) if isinstance(leaf, Tensor) and leaf.dim()]
    if not sizes:
        raise ValueError(
            f"inputs must be a batch of examples (a tensor, a tuple or a dict of tensors); got {type(inputs).__name__} "
            "without any."
        )
    if sizes[0] < 2:
        raise ValueError(f"inputs must hold at least 2 examples, better hundreds: a rank needs rows; got {sizes[0]}.")


def find_units(model: nn.Module, inputs: Any, norm: Norm) -> tuple[Wiring, Any]:
    """The unit groups, and the batch they were found with: a few examples, or all where few are not enough."""
    wiring: Wiring | None = None
    inputs = (inputs,) if isinstance(inputs, list) else inputs  # a list of inputs is one argument here
    example = few_examples(inputs)
    if example is not inputs:
        try:
            wiring = find(model, example, norm=norm, frozen=False)
        except Exception:  # not the batch axis, or a fixed batch size: go on with all inputs
            wiring = None
    if wiring is None or not wiring.groups:
        example = inputs
        wiring = find(model, example, norm=norm, frozen=False)
    wiring = without_hidden(model, wiring)
    if not wiring.groups:
        reasons = {**wiring.left_out, **wiring.refused}
        listed = "".join(f"\n  {name or 'the model itself'}: {reason}" for name, reason in reasons.items())
        raise ValueError(
            "expected a model with at least one layer of hidden units (a Linear or Conv layer that feeds another one); "
            f"found none.{listed or ' The model has no linear layer or convolution.'}"
        )
    return wiring, example


def _measure_fresh(
    model: nn.Module, fresh: nn.Module, inputs: Any, wiring: Wiring, bounds: Bounds
) -> dict[str, LayerDiagnosis]:
    if has_seen_data(model):
        set_norm_statistics(fresh, inputs)
    with Sandbox(fresh, inputs) as sandbox:
        return measure(sandbox, wiring, bounds)
