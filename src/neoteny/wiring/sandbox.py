"""Sandbox: run any model many times, each time from the same state, and leave it exactly as it was.

The probe and the verification both run the model many times under conditions that training never sees. Everything a
forward pass can change (buffers, modes, attributes, random states, global switches) is restored before each run and at
the end, also when a run raises.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import random
import sys
import types
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Distribution
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.optim import Optimizer

from neoteny.wiring.progress import Progress

Forward = Callable[..., Any]
# Objects that a forward pass does not change in place, or that are tracked in another way.
_CODE = (nn.Module, type, types.ModuleType, types.FunctionType, types.MethodType)
_NOT_FOLLOWED = (*_CODE, Optimizer, str, bytes, int, float, complex)
_DEEPEST = 3  # plain objects inside plain objects: a simulator that a module holds is not copied completely
FEW = 2
"""Examples that tracing needs: more than one, for batch norms in training mode."""


class Sandbox:
    """A model, an example, and a snapshot of everything a forward pass can change. Use as a context manager.

    Args:
        model: the model.
        example: its arguments.
        parameters: whether the snapshot holds the parameters too; passes alone do not change them.
    """

    def __init__(self, model: nn.Module, example: Any, *, parameters: bool = True) -> None:
        self.model = model
        self._without_parameters = not parameters
        self.example = as_plain(example)
        self._attributes = [(module.__dict__, dict(module.__dict__)) for module in model.modules()]
        self._containers: list[tuple[Any, Any]] = []
        self._tensors: list[tuple[Tensor, Tensor]] = []
        self._loose: list[tuple[Tensor, Tensor]] = []  # tensors of plain objects, which no copy stands in for
        self._arrays: list[tuple[np.ndarray, np.ndarray]] = []
        self._places: list[tuple[dict[str, Any], str, Tensor]] = []  # where buffers and tensor attributes are kept
        seen: set[int] = set()
        for live, attributes in self._attributes:
            for home in (live, live["_buffers"]):
                self._places += [(home, key, item) for key, item in home.items() if isinstance(item, Tensor)]
            for value in attributes.values():
                self._remember(value, seen)
        self._random = _random_states()
        self.progress = Progress(type(model).__name__)
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Sandbox:
        self._stack.enter_context(_quiet_switches())
        return self

    def __exit__(self, *exception: object) -> None:
        self.progress.close()
        self._stack.close()
        self.rewind()
        for tensor, saved in self._tensors:
            _put_back(tensor, saved)

    def forward(
        self,
        fakes: Mapping[nn.Module, Forward] | None = None,
        *,
        training: bool = False,
        example: Any = None,
    ) -> Any:
        """One forward pass from the remembered state; `fakes` replace the forward of some modules.

        The pass works on copies of the buffers, so the originals see neither its updates nor a raised version counter.
        """
        copies: dict[int, Tensor] = {}
        self.progress.tick()
        try:
            self.model.train(training)
            for home, key, tensor in self._places:
                home[key] = copies.setdefault(id(tensor), tensor.detach().clone())
            for module, fake in (fakes or {}).items():
                module.__dict__["forward"] = fake
            with torch.no_grad():
                return call(self.model, self.example if example is None else example)
        finally:
            self.rewind()

    def rewind(self) -> None:
        """Restore attributes and random states; the contents of tensors follow at the end."""
        for attributes, saved in self._attributes:
            if not _same_items(attributes, saved):
                attributes.clear()
                attributes.update(saved)
        for container, saved in self._containers:
            if container or saved:
                _put_back_items(container, saved)
        for array, kept in self._arrays:
            if array.flags.writeable and array.shape == kept.shape:
                array[...] = kept
        for tensor, value in self._loose:
            _put_back(tensor, value)
        _set_random_states(self._random)

    def _remember(self, value: Any, seen: set[int], depth: int = 0) -> None:
        """Follow containers, and plain objects (a running normaliser, say) a few levels deep."""
        if id(value) in seen or value is None or isinstance(value, _NOT_FOLLOWED):
            return
        seen.add(id(value))
        if isinstance(value, nn.Parameter) and self._without_parameters:
            return
        if isinstance(value, Tensor):
            # A plain object may hold the model's parameters, too, which `verify` edits between passes.
            loose = depth > 0 and not isinstance(value, nn.Parameter)
            (self._loose if loose else self._tensors).append((value, value.detach().clone()))
        elif isinstance(value, np.ndarray):
            self._arrays.append((value, value.copy()))
        elif isinstance(value, (dict, list, set, deque)):
            self._containers.append((value, dict(value) if isinstance(value, dict) else list(value)))
            for item in value.values() if isinstance(value, dict) else value:
                self._remember(item, seen, depth)
        elif isinstance(value, tuple):
            for item in value:
                self._remember(item, seen, depth)
        elif depth < _DEEPEST and isinstance(getattr(value, "__dict__", None), dict):
            self._remember(value.__dict__, seen, depth + 1)


def call(model: nn.Module, example: Any) -> Any:
    """The model on a copy of the example: a tuple holds positional arguments, a dict keyword arguments."""
    example = map_tensors(lambda tensor: tensor.detach().clone(), as_plain(example))
    if isinstance(example, dict):
        return model(**example)
    return model(*example) if type(example) is tuple else model(example)


def as_plain(example: Any) -> Any:
    """The example, its keyword arguments in a plain dict: a tokenizer returns a mapping of its own."""
    return dict(example) if isinstance(example, Mapping) and not isinstance(example, dict) else example


def as_example(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A call as `attach` takes it: positional arguments as a tuple, or all of them by name."""
    if not kwargs:
        return args
    bound = inspect.signature(model.forward).bind(*args, **kwargs)
    named: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        kind = bound.signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_KEYWORD:
            named.update(value)
        elif kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.POSITIONAL_ONLY):
            raise ValueError(f"{type(model).__name__} is called with *{name} and keywords: pass example=... yourself.")
        else:
            named[name] = value
    return named


def few_examples(example: Any) -> Any:
    """The first few examples of a batch: the example itself if it is small.

    Tracing runs the model dozens of times, and the wiring does not depend on how many examples it sees. The batch axis
    is taken to be the first axis of the first tensor and of all others of that length; where that is wrong the model
    raises, and the caller takes the whole example.
    """
    example = as_plain(example)
    rows = batch_rows(example)
    if rows <= FEW:
        return example
    return map_tensors(lambda each: each[:FEW] if each.dim() and each.shape[0] == rows else each, example)


def batch_rows(example: Any) -> int:
    """How many examples a batch holds; 0 if it has no axis of examples that could be cut.

    Integers of another length may be indices into the rows (a graph's edges). With fewer rows they would point beyond
    the end, which on a GPU ends the process.
    """
    tensors = [leaf for leaf in leaves(example) if isinstance(leaf, Tensor) and leaf.dim()]
    if not tensors:
        return 0
    rows = tensors[0].shape[0]
    indices = (each for each in tensors if not each.is_floating_point() and each.dtype != torch.bool)
    return 0 if any(each.shape[0] not in (1, rows) for each in indices) else rows


def map_tensors(function: Callable[[Tensor], Tensor], value: Any) -> Any:
    """`value` with every tensor in it replaced by `function` of it: in tuples, lists, dicts, and copies of objects."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, dict):
        copied = {key: map_tensors(function, item) for key, item in value.items()}
        return copied if type(value) is dict else _rebuild(value, copied)
    if isinstance(value, (tuple, list)):
        items = [map_tensors(function, item) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)  # a namedtuple takes fields
    return _map_object(function, value)


def _map_object(function: Callable[[Tensor], Tensor], value: Any) -> Any:
    """A copy of an object that holds tensors (a graph's data, a cache of keys and values), each of them replaced."""
    if value is None or isinstance(value, (*_NOT_FOLLOWED, Distribution)):
        return value
    tensors = [leaf for leaf in leaves(value) if isinstance(leaf, Tensor)]
    if not tensors:
        return value
    try:
        return copy.deepcopy(value, {id(tensor): function(tensor) for tensor in tensors})
    except Exception:  # it cannot be copied: the model gets the object itself
        return value


def leaves(value: Any) -> list[Tensor | float]:
    """Every tensor and number in a model's output: nested containers, dataclasses, distributions and other objects."""
    return list(_walk(value, set()))


def _walk(value: Any, seen: set[int]) -> Iterator[Tensor | float]:
    if isinstance(value, (Tensor, int, float)):
        yield value
    elif value is None or isinstance(value, (str, bytes, type, nn.Module)) or id(value) in seen:
        return
    else:
        seen.add(id(value))
        if isinstance(value, Mapping):
            children = list(value.values())
        elif isinstance(value, (tuple, list, set, frozenset)):
            children = list(value)
        else:
            slots = [name for cls in type(value).__mro__ for name in getattr(cls, "__slots__", ())]
            children = [getattr(value, name) for name in slots if hasattr(value, name)]
            children += getattr(value, "__dict__", {}).values()
        for child in children:
            yield from _walk(child, seen)


def _rebuild(original: dict[Any, Any], items: dict[Any, Any]) -> Any:
    try:
        return type(original)(items)
    except TypeError:
        return items


def _same_items(now: dict[Any, Any], saved: dict[Any, Any]) -> bool:
    return len(now) == len(saved) and all(key in saved and saved[key] is item for key, item in now.items())


def _put_back_items(container: Any, saved: Any) -> None:
    if isinstance(container, dict):
        if not _same_items(container, saved):
            container.clear()
            container.update(saved)
    elif len(container) != len(saved) or any(now is not then for now, then in zip(container, saved, strict=True)):
        container.clear()
        container.update(saved) if isinstance(container, set) else container.extend(saved)


def _put_back(tensor: Tensor, saved: Tensor) -> None:
    # .data leaves the version counter alone, so that a graph that is waiting for its backward pass stays valid
    if tensor.shape != saved.shape:
        tensor.data = saved.clone()
    elif not torch.equal(tensor.detach(), saved):
        tensor.data.copy_(saved)


def _random_states() -> dict[str, Any]:
    states: dict[str, Any] = {"torch": torch.get_rng_state(), "python": random.getstate()}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        states["cuda"] = torch.cuda.get_rng_state_all()
    if "numpy" in sys.modules:
        states["numpy"] = sys.modules["numpy"].random.get_state()
    return states


def _set_random_states(states: dict[str, Any]) -> None:
    torch.set_rng_state(states["torch"])
    random.setstate(states["python"])
    if "cuda" in states:
        torch.cuda.set_rng_state_all(states["cuda"])
    if "numpy" in states:
        sys.modules["numpy"].random.set_state(states["numpy"])


@contextlib.contextmanager
def _quiet_switches() -> Iterator[None]:
    """Global switches: no fused attention (it bypasses modules, swallows NaN), no argument checks that reject NaN.

    Under autocast, no copies of weights in half precision that are kept: passes would not see weights that were edited.
    """
    fastpath = torch.backends.mha.get_fastpath_enabled()
    validate = Distribution._validate_args
    benchmark = torch.backends.cudnn.benchmark
    cached = torch.is_autocast_cache_enabled()
    compiled = "torch._dynamo" in sys.modules  # else nothing is, and importing the compiler takes seconds
    try:
        torch.backends.mha.set_fastpath_enabled(False)
        Distribution.set_default_validate_args(False)
        torch.set_autocast_cache_enabled(False)
        torch.backends.cudnn.benchmark = False  # it may pick another algorithm, hence another rounding, at each call
        with contextlib.ExitStack() as stack:
            stack.enter_context(sdpa_kernel(SDPBackend.MATH))
            if compiled:
                stack.enter_context(torch.compiler.set_stance("force_eager"))
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fastpath)
        Distribution.set_default_validate_args(validate)
        torch.set_autocast_cache_enabled(cached)
        torch.backends.cudnn.benchmark = benchmark
