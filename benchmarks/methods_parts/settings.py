"""Every method with the settings that its authors use, or that the literature uses for images; one row per method."""

from __future__ import annotations

from neoteny import methods
from neoteny.methods import Method


def settings() -> list[Method]:
    """The methods to measure; a test checks that none is missing."""
    found: list[Method] = [
        methods.Adam(1e-3),
        methods.AdaUPGD(1e-3),
        methods.AdamO(1e-3, strength=1e-3),
        methods.AdamRel(),
        methods.AdamW(1e-3, weight_decay=1e-2),
        methods.CChain(),
        methods.CalibratedPartialResets(),
        methods.ContinualBackprop(1e-4),
        methods.DASH(),
        methods.FIRE(),
        methods.FeatureUPGD(),
        methods.HardReset.head(),
        methods.HareAndTortoise(),
        methods.L2(1e-4),
        methods.L2ER(),
        methods.L2Init(1e-2),
        methods.Muon(1e-2),
        methods.NormalizeAndProject(presume_norms=True),
        methods.Parseval(1e-3),
        methods.PlasticityInjection(),
        methods.ReDo(),
        methods.ReGraMa(),
        methods.SGD(1e-2, momentum=0.9),
        methods.SelectiveWeightReinit(1000, 0.01),
        methods.SelfNormalizedResets(),
        methods.ShrinkAndPerturb(1e-4, noise_std=1e-5),
        methods.SoftShrinkAndPerturb(),
        methods.Spectral(1e-3),
        methods.TRAC(),
        methods.UPGD(0.01),
        methods.WarmStartShrinkAndPerturb(),
        methods.Wasserstein(1e-3),
        methods.WeightClipping(2.0),
    ]
    return found
