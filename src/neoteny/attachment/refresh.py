"""Following a model that changed after attach: the same unit groups in other modules, or other groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor, nn

from neoteny.attachment.checks import owned_groups, prepare_state
from neoteny.attachment.module_view import ModuleView
from neoteny.layers.kinds import watched_modules
from neoteny.layers.ports import ProducerPort
from neoteny.methods.chain import Chain
from neoteny.units.bind import bind_groups, producers_of
from neoteny.units.laws import choose_laws
from neoteny.units.view import LiveGroup
from neoteny.wiring.wiring import Wiring


def follow(model: nn.Module, wiring: Wiring | None, view: ModuleView, chain: Chain, retraced: bool) -> None:
    """Bind a view and the states of its methods to a model's modules of today; nothing is changed if that fails.

    Args:
        model, wiring, view, chain: of the attachment; no wiring if no method needs units.
        retraced: whether the wiring was traced from the model as it is now.

    Raises:
        ValueError: the groups do not fit the modules, or the optimizer does not own their parameters.
    """
    live = [] if wiring is None else _bind_again(model, wiring, view, retraced)
    gone = view.rebind(live)
    chain.forget(gone)
    chain.extend()


def _bind_again(model: nn.Module, wiring: Wiring, view: ModuleView, retraced: bool) -> list[LiveGroup]:
    """The groups bound to the modules of today, and the view's laws for them."""
    state = view.optimizer_state
    try:
        owned = {group.name for group in owned_groups(wiring, model, state).groups}
    except ValueError:  # none is left
        owned = set()
    strangers = [group.name for group in wiring.groups if group.name not in owned]
    if strangers:
        raise ValueError(
            "The model changed after attach, and the optimizer does not own all weights of the units of "
            f"{', '.join(strangers)}: give it the new ones (optimizer.add_param_group), then call plastic.refresh()."
        )
    laws = view.laws
    if retraced:  # new layers among trained ones
        new = [name for name in producers_of(wiring) if name not in laws]
        laws = {**laws, **choose_laws(model, new, view.init, trained=True)}
    else:
        _check_modules(model, view.groups)
    live = bind_groups(model, wiring, {name: laws[name].initial for name in producers_of(wiring)})
    if not retraced:
        for group, before in zip(live, view.groups, strict=True):
            group.initial = before.initial
    prepare_state(state, live, model)
    units = {port.key for group in view.groups for port in group.producers}
    others = {name: law for name, law in laws.items() if name not in units}  # of methods that redraw all weights
    view.laws = {**others, **{name: laws[name] for name in producers_of(wiring)}}
    return live


def with_added(wiring: Wiring | None, model: nn.Module) -> Wiring | None:
    """The wiring with layers that were added to the model since it was traced among those that no example reached."""
    if wiring is None or not wiring.shapes:
        return wiring
    layers = [name for name, (_, kind) in watched_modules(model).items() if kind == "boundary"]
    parameters = {name: [each for each, _ in model.get_submodule(name).named_parameters(name)] for name in layers}
    added = [name for name, own in parameters.items() if own and wiring.shapes.keys().isdisjoint(own)]
    return replace(wiring, uncalled=tuple(dict.fromkeys([*wiring.uncalled, *added])))


def _check_modules(model: nn.Module, groups: Sequence[LiveGroup]) -> None:
    """Refuse modules in which the groups cannot be found again."""
    for group in groups:
        for port in (*group.producers, *group.consumers):
            module = dict(model.named_modules()).get(port.module)
            weight = getattr(module, port.weight.rpartition(".")[2], None)
            axis = int(isinstance(port, ProducerPort) == port.input_first)
            found = weight.shape[axis] * (port.groups if axis else 1) if isinstance(weight, Tensor) else None
            if found != port.width:
                shape = f" with a weight of shape {tuple(weight.shape)}" if isinstance(weight, Tensor) else ""
                now = "is gone" if module is None else f"is {module}{shape}"
                raise ValueError(
                    f"The model changed after attach: {port.module} {now}, where the units of {group.name!r} had "
                    f"{port.width} features. Trace the model again: plastic.refresh(example=...)."
                )
