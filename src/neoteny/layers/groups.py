"""Port and UnitGroup: the wiring of hidden units, as names and index maps.

`wiring/trace.py` finds groups in a module, or a user declares them; `units/view.py` binds them to live tensors.
Nothing here touches a tensor of the network.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Port:
    """Which features of one module belong to which unit.

    For a producer the features are the rows of its weight (its outputs), for a consumer the columns (its inputs), for
    a norm its channels. A convolution's features are its channels.

    Args:
        module: the module's dotted name in the model.
        features: (units, repeat) int64, the features of each unit. None: unit i is feature i, or, for a consumer whose
            width is a multiple of the number of units, the neighbouring columns that a flatten gives it.
        offset: with `features=None`, where the first unit's features start (after a concatenation).
        weight: the parameter whose rows or columns the features are, in a module that has several ("weight_hh_l0").
        norm_behind: of a consumer without bias, the norm whose running mean takes the compensation; found by tracing.
    """

    module: str
    features: Tensor | None = None
    offset: int = 0
    weight: str = "weight"
    norm_behind: str | None = None

    @property
    def key(self) -> str:
        """The module's name; with the parameter's where a module has several weights."""
        return self.module if self.weight == "weight" else join(self.module, self.weight)

    def resolve(self, units: int, width: int) -> Port:
        """The same port with `features` spelled out, for `units` units in a module of `width` features."""
        if self.features is not None:
            features = torch.as_tensor(self.features, dtype=torch.int64)
            features = features.unsqueeze(-1) if features.dim() == 1 else features
            if features.dim() != 2 or features.shape[0] != units:
                raise ValueError(
                    f"Port({self.module!r}): features must have shape ({units}, repeat), one row per unit; "
                    f"got {tuple(features.shape)}."
                )
        else:
            repeat = (width - self.offset) // units if self.offset == 0 and width % units == 0 else 1
            features = torch.arange(units * repeat).reshape(units, repeat) + self.offset
        if features.min() < 0 or features.max() >= width:
            raise ValueError(
                f"Port({self.module!r}): features must lie in 0..{width - 1} (the module has {width}); "
                f"got {int(features.min())}..{int(features.max())}."
            )
        if features.unique().numel() != features.numel():
            raise ValueError(f"Port({self.module!r}): a feature belongs to one unit only, but some are listed twice.")
        return Port(self.module, features, weight=self.weight)

    @property
    def repeat(self) -> int:
        """Features per unit, of a resolved port."""
        return 1 if self.features is None else self.features.shape[1]

    def __str__(self) -> str:
        return describe_port(self)


@dataclass(frozen=True, eq=False)
class UnitGroup:
    """One layer of hidden units: who produces them, who consumes them, where to read them.

    Args:
        producers: modules whose output rows are the units (usually one Linear or Conv; two for a gated product).
        consumers: modules whose input columns read the units.
        norms: normalisation modules between the two.
        read: name of the consumer (or norm) at whose input the units' activations are read; the first consumer
            by default.

    Example:
        >>> group = UnitGroup("fc1", ["fc2"])
        >>> group.name
        'fc1'
    """

    producers: tuple[Port, ...]
    consumers: tuple[Port, ...]
    norms: tuple[Port, ...] = ()
    read: str | None = None
    notes: tuple[str, ...] = field(default=())

    def __init__(
        self,
        producers: str | Port | Sequence[str | Port],
        consumers: str | Port | Sequence[str | Port],
        norms: str | Port | Sequence[str | Port] = (),
        read: str | None = None,
        notes: Sequence[str] = (),
    ) -> None:
        object.__setattr__(self, "producers", _ports(producers))
        object.__setattr__(self, "consumers", _ports(consumers))
        object.__setattr__(self, "norms", _ports(norms))
        object.__setattr__(self, "read", read)
        object.__setattr__(self, "notes", tuple(notes))
        if not self.producers or not self.consumers:
            raise ValueError("UnitGroup needs at least one producer and one consumer.")
        known = [port.module for port in (*self.consumers, *self.norms)]
        if read is not None and read not in known:
            raise ValueError(
                f"UnitGroup({self.name!r}): read must be one of its consumers or norms {known}; got {read!r}."
            )

    @property
    def name(self) -> str:
        """The first producer's name; with its rows where they do not start at row 0, so that names stay distinct."""
        first = self.producers[0]
        start = first.offset if first.features is None else int(torch.as_tensor(first.features).min())
        if first.weight == "in_proj_weight":
            return join(first.module, "heads")
        if first.weight != "weight":  # "lstm.l0" for the rows of lstm.weight_ih_l0
            return join(first.module, first.weight.removeprefix("weight_ih").lstrip("_"))
        return describe_port(first) if start > 0 else first.module

    @property
    def units(self) -> int:
        """The number of units of a resolved group."""
        features = self.producers[0].features
        if features is None:
            raise ValueError(f"UnitGroup({self.name!r}) is not resolved yet: its number of units is not known.")
        return features.shape[0]

    def declaration(self) -> str:
        """The Python expression that declares this group."""
        parts = [_declare_ports(self.producers), f"consumers={_declare_ports(self.consumers)}"]
        if self.norms:
            parts.append(f"norms={_declare_ports(self.norms)}")
        if self.read is not None:
            parts.append(f"read={self.read!r}")
        return f"neoteny.UnitGroup({', '.join(parts)})"


def describe_port(port: Port) -> str:
    """A short text for tables: "fc1[0:128]", "fc1[0:8192, 16 each]"."""
    features = port.features
    if features is None:
        return port.key
    low, high = int(features.min()), int(features.max())
    contiguous = features.numel() == high - low + 1 and bool((features.flatten().diff() == 1).all())
    each = "" if port.repeat == 1 else f", {port.repeat} each"
    mapped = "" if contiguous else ", mapped"
    return f"{port.key}[{low}:{high + 1}{each}{mapped}]"


def join(module: str, name: str) -> str:
    """The name in the model of something that a module has under a name."""
    return ".".join(filter(None, (module, name)))


def _ports(ports: str | Port | Sequence[str | Port]) -> tuple[Port, ...]:
    if isinstance(ports, (str, Port)):
        ports = (ports,)
    return tuple(Port(port) if isinstance(port, str) else port for port in ports)


def _declare_ports(ports: tuple[Port, ...]) -> str:
    def one(port: Port) -> str:
        features = port.features
        if features is None:
            return repr(port.module) if port.offset == 0 else f"neoteny.Port({port.module!r}, offset={port.offset})"
        first = int(features.min())
        if port.weight == "weight" and torch.equal(features.flatten(), torch.arange(features.numel()) + first):
            if first == 0:
                return repr(port.module)
            if port.repeat == 1:
                return f"neoteny.Port({port.module!r}, offset={first})"
        weight = "" if port.weight == "weight" else f", weight={port.weight!r}"
        return f"neoteny.Port({port.module!r}, features=...{weight})"

    return f"[{', '.join(one(port) for port in ports)}]"
