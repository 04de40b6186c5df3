"""The recording pass: what every layer returned, in which order layers were called, and what may flow where.

Before this: `sandbox.py`; after it: `probe.py` replays the recording with some units marked.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd
from torch.overrides import TorchFunctionMode

from neoteny.layers.kinds import loose_parameters, watched_modules
from neoteny.layers.parametrized import computed_from
from neoteny.layers.recurrent import RECURRENT, returned_states
from neoteny.wiring.flow import OUTPUT, Flow
from neoteny.wiring.sandbox import Forward, Sandbox, leaves, map_tensors

# Reading a parameter's type or shape is not using it.
_HARMLESS = {"type_as", "new_zeros", "new_ones", "new_empty", "new_full", "new_tensor", "zeros_like", "ones_like"}


class Recording:
    """One pass of a model, and the calls of one in training mode.

    Args:
        sandbox: runs the model.
        example: the batch to run it on.
        training: record in training mode, for layers that are called there only.
        closed: names of modules to take for opaque ones.

    Attributes:
        watched: every boundary, norm and opaque module with its kind, by name.
        order: names of the watched modules in the order of their calls.
        calls: how often each was called.
        kept: what each returned, call by call.
        outputs: what the model returned.
        outside: parameters used outside the forward of the module that owns them, owner -> parameter names.
        functional: modules that are never called, while operations use their weights: id of the parameter -> name.
        loose: parameters of custom modules, by name.
        states: which leaves of the model's output are states of recurrent modules, each with the module's name.
        reach: for each layer, opaque module and loose parameter, the places its values may reach; None if not known.
    """

    def __init__(self, sandbox: Sandbox, example: Any, *, training: bool = False, closed: Collection[str] = ()) -> None:
        self.sandbox = sandbox
        self.example = example
        self.training = training
        self.closed = frozenset(closed)
        self.watched = watched_modules(sandbox.model, closed)
        self.loose = loose_parameters(sandbox.model)
        self.reach: dict[str, set[str]] | None = None
        flow = Flow()
        try:
            with flow:
                self._record(flow)
            self.reach = flow.reach
        except Exception:  # perhaps an operation that cannot be followed: once more without
            self._record(None)
        self.calls = Counter(self.order)
        self.functional = {
            id(parameter): name
            for name, keys in self.outside.items()
            if not self.calls[name]
            for key, parameter in self.module(name).named_parameters(recurse=False)
            if key in keys
        }

    def module(self, name: str) -> nn.Module:
        """A watched module by name."""
        return self.watched[name][0]

    def named(self, kind: str) -> list[str]:
        """Called modules of one kind in the order of their first calls."""
        return [name for name in dict.fromkeys(self.order) if self.watched[name][1] == kind]

    def without_noise(self) -> dict[nn.Module, Forward]:
        """The forwards of dropout layers in a recording of training mode: a dropped unit would not be followed."""
        noisy = [m for m in self.sandbox.model.modules() if self.training and isinstance(m, _DropoutNd)]
        return dict.fromkeys(noisy, torch.clone)

    def listen_in_training(self) -> list[str] | None:
        """The order of calls in training mode, where `reach` grows by what flows there; None if the model raises.

        Norms pass on their input: BatchNorm would refuse an example of one row.
        """
        flow = Flow()
        try:
            with flow:
                order = self._listen(flow)
        except Exception:
            flow = None
            try:
                order = self._listen(None)
            except Exception:  # only the order of calls of a pass that works counts
                return None
        if flow is None or self.reach is None:
            self.reach = None
        else:
            for name, places in flow.reach.items():
                self.reach[name] = self.reach.get(name, set()) | places
        return order

    def _record(self, flow: Flow | None) -> None:
        self.order: list[str] = []
        self.kept: dict[str, list[Any]] = defaultdict(list)
        self.outside: dict[str, set[str]] = defaultdict(set)
        inside: list[str] = [""]
        states: list[tuple[str, Tensor]] = []

        def recorder(name: str, module: nn.Module, kind: str) -> Forward:
            original = module.forward

            def forward(*args: Any, **kwargs: Any) -> Any:
                self.order.append(name)
                inside.append(name)
                if flow:
                    flow.arrive(name, [args, kwargs])
                try:
                    result = original(*args, **kwargs)
                except ValueError:  # a batch norm in training mode, given one value per channel
                    if not (self.training and kind == "norm"):
                        raise
                    result = (args[0] if args else next(iter(kwargs.values()))).clone()
                finally:
                    inside.pop()
                if flow and kind != "norm":
                    flow.start(name, result, [args, kwargs])
                if isinstance(module, RECURRENT):
                    states.extend((name, state) for state in returned_states(module, result))
                self.kept[name].append(map_tensors(lambda tensor: tensor.detach().clone(), result))
                return result

            return forward

        owners = {
            id(parameter): (name, key)
            for name, (module, kind) in self.watched.items()
            if kind != "opaque"
            for key, parameter in module.named_parameters(recurse=False)
            if key not in computed_from(module)  # a hook computes the weight from these just before the forward
        }
        with _ParameterUse(owners, inside, self.outside, flow):
            self.outputs = leaves(self._run(recorder, flow, training=self.training))
        self.states = {
            place: name
            for place, leaf in enumerate(self.outputs)
            for name, state in states
            if isinstance(leaf, Tensor) and _is_same(leaf, state)
        }

    def _listen(self, flow: Flow | None) -> list[str]:
        order: list[str] = []

        def ear(name: str, module: nn.Module, kind: str) -> Forward:
            original = module.forward

            def forward(*args: Any, **kwargs: Any) -> Any:
                order.append(name)
                if flow:
                    flow.arrive(name, [args, kwargs])
                if kind == "norm":
                    return (args[0] if args else next(iter(kwargs.values()))).clone()
                result = original(*args, **kwargs)
                if flow:
                    flow.start(name, result, [args, kwargs])
                return result

            return forward

        self._run(ear, flow, training=True)
        return order

    def _run(self, fake: Any, flow: Flow | None, *, training: bool) -> Any:
        fakes = {**self.without_noise(), **{m: fake(name, m, kind) for name, (m, kind) in self.watched.items()}}
        if flow:
            for name, parameter in self.loose.items():
                flow.start(name, parameter)
        output = self.sandbox.forward(fakes, training=training, example=self.example)
        if flow:
            flow.arrive(OUTPUT, output)
        return output


class _ParameterUse(TorchFunctionMode):
    """Notes parameters that an operation reads while no call of the module that owns them is running."""

    def __init__(
        self,
        owners: dict[int, tuple[str, str]],
        inside: list[str],
        outside: dict[str, set[str]],
        flow: Flow | None,
    ) -> None:
        super().__init__()
        self.owners, self.inside, self.outside, self.flow = owners, inside, outside, flow

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if any(isinstance(leaf, Tensor) for leaf in leaves([result])) and name not in _HARMLESS:
            for position, leaf in enumerate(_flat([args, kwargs])):
                owner, key = self.owners.get(id(leaf), ("", ""))
                if key and owner != self.inside[-1] and not (name == "to" and position > 0):
                    self.outside[owner].add(key)
                    if self.flow:
                        self.flow.arrive(owner, [args, kwargs])
        return result


class FunctionalUse(TorchFunctionMode):
    """Notes modules whose weights an operation combines with NaN, while the module itself is never called.

    Args:
        functional: of the recording.
        reached: the names are added here.
    """

    def __init__(self, functional: dict[int, str], reached: list[str]) -> None:
        super().__init__()
        self.functional, self.reached = functional, reached

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = list(_flat([args, kwargs]))
        for name in {self.functional[id(leaf)] for leaf in given if id(leaf) in self.functional}:
            if any(isinstance(leaf, Tensor) and has_nan(leaf) for leaf in given) and name not in self.reached:
                self.reached.append(name)
        return func(*args, **(kwargs or {}))


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, (tuple, list)):
        for item in value:
            yield from _flat(item)
    elif isinstance(value, dict):
        yield from _flat(list(value.values()))
    else:
        yield value


def record(sandbox: Sandbox, example: Any, *, training: bool = False, closed: Collection[str] = ()) -> Recording:
    """The recording of a model; errors say what to do about the example."""
    try:
        recording = Recording(sandbox, example, training=training, closed=closed)
    except Exception as error:
        if type(sandbox.model).forward is nn.Module.forward:
            raise ValueError(
                f"expected a model with a forward; {type(sandbox.model).__name__} has none, so that it cannot be "
                "called with an example: use the parts that your loop calls, one by one (model.actor, model.critic), "
                "or a module around it whose forward makes the calls of your loop."
            ) from error
        raise ValueError(
            f"expected an example batch the model accepts; with {describe_example(example)} the model raised "
            f"{type(error).__name__}: {error}: pass an example batch the model accepts (a tensor, a tuple of "
            f"positional or a dict of keyword arguments; a list holds several calls).{first_alone(sandbox, example)}"
        ) from error
    if not any(isinstance(leaf, Tensor) for leaf in recording.outputs):
        raise ValueError("expected the model to return at least one tensor; found none in what it returned.")
    spoilt = [name for name in recording.order if any(_nan_tensor(leaf) for leaf in leaves(recording.kept[name]))]
    if spoilt or any(_nan_tensor(leaf) for leaf in recording.outputs):
        broken = [name for name, value in sandbox.model.named_parameters() if not bool(torch.isfinite(value).all())]
        if broken:
            raise ValueError(f"expected finite weights; the network has diverged: {', '.join(broken)} are not finite.")
        where = f" (first in {spoilt[0]})" if spoilt else ""
        raise ValueError(f"expected finite activations; the model gives NaN on the example{where}: pass another one.")
    return recording


def _is_same(left: Tensor, right: Tensor) -> bool:
    """Whether two tensors are one, or one is the other without its gradient."""
    return (left.data_ptr(), left.shape, left.stride()) == (right.data_ptr(), right.shape, right.stride())


def has_nan(value: Tensor | float) -> bool:
    """Whether a tensor holds NaN, or a number is it."""
    if isinstance(value, Tensor):
        return value.is_floating_point() and value.numel() > 0 and bool(torch.isnan(value.amax()))  # NaN is the maximum
    return bool(value != value)


def _nan_tensor(value: Tensor | float) -> bool:
    return isinstance(value, Tensor) and has_nan(value)


def first_alone(sandbox: Sandbox, example: Any) -> str:
    """A hint for a batch of a data loader: whether the model takes a dict whole, or the first part without targets."""
    if isinstance(example, Mapping):
        try:
            sandbox.forward(example=(example,))
        except Exception:  # then that is not the reason
            return ""
        return " The model accepts the dict itself as its one argument: pass it in a tuple, example=(batch,)."
    if not isinstance(example, (tuple, list)) or len(example) < 2 or not isinstance(example[0], Tensor):
        return ""
    try:
        sandbox.forward(example=example[0])
    except Exception:  # then that is not the reason
        return ""
    return " The model accepts the first of them alone: pass example=batch[0]."


def describe_example(example: Any) -> str:
    """A batch in words."""
    if isinstance(example, Tensor):
        return f"a {str(example.dtype).removeprefix('torch.')} tensor of shape {tuple(example.shape)}"
    if isinstance(example, dict):
        return "{" + ", ".join(f"{key!r}: {describe_example(value)}" for key, value in example.items()) + "}"
    if isinstance(example, (tuple, list)):
        parts = list(map(describe_example, example))
        if len(parts) > 4 and len(set(parts)) == 1:
            return f"a {type(example).__name__} of {len(parts)}, each {parts[0]}"
        return f"a {type(example).__name__} of ({', '.join(parts)})"
    return type(example).__name__
