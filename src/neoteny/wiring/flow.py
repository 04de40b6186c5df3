"""Flow: which places a layer's values may reach, read off the operations of one pass.

Every operation is taken to carry all of its inputs into all of its outputs, so what is found is at least what is true.
Two layers that reach no common place cannot disturb each other, so passes of the probe and of the verification take
them together (`evidence.py`, `verify.py`). Where a value leaves torch (`.item()`, `.numpy()`), everything after it may
depend on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from neoteny.wiring.sandbox import leaves

T = TypeVar("T")
OUTPUT = "the model's output"
_READS_VALUES = {"numpy", "tolist", "__array__", "__dlpack__"}  # without an operation that could be seen


class Flow(TorchDispatchMode):
    """Follows values from their sources to the places they arrive at. Use as a context manager around a pass.

    Attributes:
        reach: for each source, the places that its values may reach.
    """

    def __init__(self) -> None:
        super().__init__()
        self.reach: dict[str, set[str]] = {}
        self._sources: list[str] = []
        self._carried: dict[int, int] = {}  # storage -> bits of the sources whose values it may hold
        self._storages: list[StorageWeakRef] = []  # as long as they live, no other storage gets their number
        self._everywhere = 0  # bits of sources whose values left torch
        self._escapes = _Escapes(self)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Compiled code is run eagerly here; otherwise torch imports its compiler, which takes two seconds."""
        return False

    def __enter__(self) -> Flow:
        super().__enter__()
        self._escapes.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._escapes.__exit__(*exception)
        super().__exit__(*exception)

    def start(self, source: str, values: Any, given: Any = ()) -> None:
        """From here on `values` are those of a source alone, unless they share memory with what it was `given`."""
        if source not in self.reach:
            self._sources.append(source)
            self.reach[source] = set()
        bit = 1 << self._sources.index(source)
        shared = {_number(tensor) for tensor in _tensors(leaves(given))}
        for tensor in _tensors(leaves(values)):
            number = _number(tensor)
            if number is None:
                self._everywhere |= bit
            else:
                self._keep(tensor, number, bit if number not in shared else bit | self._carried.get(number, 0))

    def arrive(self, place: str, values: Any) -> None:
        """Note that `values` arrive at a place."""
        bits = self._bits(_tensors(leaves(values)))
        for number, source in enumerate(self._sources):
            if bits >> number & 1:
                self.reach[source].add(place)

    def escape(self, values: Any) -> None:
        """Note that values are read without an operation."""
        self._everywhere |= self._bits(_tensors(values))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        bits = self._bits(_tensors([args, kwargs]))
        if not bits:
            return result
        made = list(_tensors(result))
        for argument, value in [*zip(func._schema.arguments, args, strict=False), *_named(func, kwargs)]:
            if argument.alias_info is not None and argument.alias_info.is_write:
                made += _tensors(value)
        if not made:
            self._everywhere |= bits
        for tensor in made:
            number = _number(tensor)
            if number is None:
                self._everywhere |= bits
            else:
                self._keep(tensor, number, bits | self._carried.get(number, 0))
        return result

    def _keep(self, tensor: Tensor, number: int, bits: int) -> None:
        if number not in self._carried:
            self._storages.append(StorageWeakRef(tensor.untyped_storage()))
        self._carried[number] = bits

    def _bits(self, tensors: Iterable[Tensor]) -> int:
        bits = self._everywhere
        for tensor in tensors:
            number = _number(tensor)
            bits |= 0 if number is None else self._carried.get(number, 0)
        return bits


def apart(items: Iterable[T], clash: Callable[[T, T], bool]) -> list[list[T]]:
    """The items in few lists, such that no two of one list clash."""
    lists: list[list[T]] = []
    for item in items:
        fitting = next((some for some in lists if not any(clash(item, other) for other in some)), None)
        if fitting is None:
            lists.append([item])
        else:
            fitting.append(item)
    return lists


class _Escapes(TorchFunctionMode):
    """Tells a flow of values that are read without an operation."""

    def __init__(self, flow: Flow) -> None:
        super().__init__()
        self.flow = flow

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in _READS_VALUES:
            self.flow.escape([args, kwargs])
        return func(*args, **(kwargs or {}))


def _number(tensor: Tensor) -> int | None:
    try:
        return tensor.untyped_storage()._cdata
    except (NotImplementedError, RuntimeError):  # a sparse tensor, say
        return None


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _tensors(item)


def _named(func: Any, kwargs: dict[str, Any]) -> list[tuple[Any, Any]]:
    return [(argument, kwargs[argument.name]) for argument in func._schema.arguments if argument.name in kwargs]
