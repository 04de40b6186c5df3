"""Neoteny keeps neural networks able to learn.

The public names are resolved when they are first used (PEP 562), so that importing the package is cheap.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

if TYPE_CHECKING:
    from neoteny import methods, metrics, nets, optim
    from neoteny.attachment.attachment import Attachment, attach
    from neoteny.attachment.registry import detach
    from neoteny.diagnosis.diagnose import diagnose
    from neoteny.diagnosis.monitor import Monitor
    from neoteny.draws.initial import Initial
    from neoteny.layers.groups import Port, UnitGroup
    from neoteny.methods import L2, UPGD, ContinualBackprop, HareAndTortoise, L2Init, ReDo, ShrinkAndPerturb, Spectral
    from neoteny.stacking.stack import Stack, stack
    from neoteny.wiring.trace import trace
    from neoteny.wiring.wiring import Wiring, WiringError

_HOMES = {
    "Attachment": "attachment.attachment",
    "ContinualBackprop": "methods",
    "Initial": "draws.initial",
    "L2": "methods",
    "UPGD": "methods",
    "Spectral": "methods",
    "ReDo": "methods",
    "L2Init": "methods",
    "HareAndTortoise": "methods",
    "Monitor": "diagnosis.monitor",
    "Port": "layers.groups",
    "ShrinkAndPerturb": "methods",
    "Stack": "stacking.stack",
    "UnitGroup": "layers.groups",
    "Wiring": "wiring.wiring",
    "WiringError": "wiring.wiring",
    "attach": "attachment.attachment",
    "detach": "attachment.registry",
    "diagnose": "diagnosis.diagnose",
    "stack": "stacking.stack",
    "trace": "wiring.trace",
}
_MODULES = ("methods", "metrics", "nets", "optim")

__all__ = [
    "L2",
    "UPGD",
    "Attachment",
    "ContinualBackprop",
    "HareAndTortoise",
    "Initial",
    "L2Init",
    "Monitor",
    "Port",
    "ReDo",
    "ShrinkAndPerturb",
    "Spectral",
    "Stack",
    "UnitGroup",
    "Wiring",
    "WiringError",
    "__version__",
    "attach",
    "detach",
    "diagnose",
    "methods",
    "metrics",
    "nets",
    "optim",
    "stack",
    "trace",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"neoteny.{_HOMES[name]}"), name)
    if name in _MODULES:
        return importlib.import_module(f"neoteny.{name}")
    raise AttributeError(f"module 'neoteny' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
