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
    from neoteny.diagnosis.probe import Probe
    from neoteny.draws.initial import Initial
    from neoteny.layers.groups import Port, UnitGroup
    from neoteny.methods import (
        DASH,
        FIRE,
        L2,
        L2ER,
        TRAC,
        UPGD,
        AdamO,
        AdamRel,
        AdaUPGD,
        CalibratedPartialResets,
        CChain,
        ContinualBackprop,
        FeatureUPGD,
        HardReset,
        HareAndTortoise,
        L2Init,
        Muon,
        NormalizeAndProject,
        Parseval,
        PlasticityInjection,
        ReDo,
        ReGraMa,
        SelectiveWeightReinit,
        SelfNormalizedResets,
        ShrinkAndPerturb,
        SoftShrinkAndPerturb,
        Spectral,
        WarmStartShrinkAndPerturb,
        Wasserstein,
        WeightClipping,
    )
    from neoteny.stacking.stack import Stack, stack
    from neoteny.wiring.trace import trace
    from neoteny.wiring.wiring import Wiring, WiringError

_HOMES = {
    "AdaUPGD": "methods",
    "AdamO": "methods",
    "AdamRel": "methods",
    "Attachment": "attachment.attachment",
    "CalibratedPartialResets": "methods",
    "CChain": "methods",
    "ContinualBackprop": "methods",
    "FeatureUPGD": "methods",
    "Initial": "draws.initial",
    "L2": "methods",
    "L2ER": "methods",
    "TRAC": "methods",
    "UPGD": "methods",
    "Spectral": "methods",
    "ReDo": "methods",
    "ReGraMa": "methods",
    "SelectiveWeightReinit": "methods",
    "SelfNormalizedResets": "methods",
    "L2Init": "methods",
    "HareAndTortoise": "methods",
    "WeightClipping": "methods",
    "WarmStartShrinkAndPerturb": "methods",
    "SoftShrinkAndPerturb": "methods",
    "PlasticityInjection": "methods",
    "NormalizeAndProject": "methods",
    "HardReset": "methods",
    "FIRE": "methods",
    "DASH": "methods",
    "Monitor": "diagnosis.monitor",
    "Parseval": "methods",
    "Muon": "methods",
    "Port": "layers.groups",
    "Probe": "diagnosis.probe",
    "ShrinkAndPerturb": "methods",
    "Stack": "stacking.stack",
    "UnitGroup": "layers.groups",
    "Wasserstein": "methods",
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
    "DASH",
    "FIRE",
    "L2",
    "L2ER",
    "TRAC",
    "UPGD",
    "AdaUPGD",
    "AdamO",
    "AdamRel",
    "Attachment",
    "CChain",
    "CalibratedPartialResets",
    "ContinualBackprop",
    "FeatureUPGD",
    "HardReset",
    "HareAndTortoise",
    "Initial",
    "L2Init",
    "Monitor",
    "Muon",
    "NormalizeAndProject",
    "Parseval",
    "PlasticityInjection",
    "Port",
    "Probe",
    "ReDo",
    "ReGraMa",
    "SelectiveWeightReinit",
    "SelfNormalizedResets",
    "ShrinkAndPerturb",
    "SoftShrinkAndPerturb",
    "Spectral",
    "Stack",
    "UnitGroup",
    "WarmStartShrinkAndPerturb",
    "Wasserstein",
    "WeightClipping",
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
    from neoteny.text import nearest

    raise AttributeError(f"module 'neoteny' has no attribute {name!r}.{nearest(name, __all__)}")


def __dir__() -> list[str]:
    return sorted(__all__)
