"""Methods, one file each: what keeps a network plastic, and the optimizers of a stack."""

from neoteny.methods.ada_upgd import AdaUPGD
from neoteny.methods.adam import Adam
from neoteny.methods.adam_o import AdamO
from neoteny.methods.adam_rel import AdamRel
from neoteny.methods.adam_w import AdamW
from neoteny.methods.c_chain import CChain
from neoteny.methods.calibrated_partial_resets import CalibratedPartialResets
from neoteny.methods.continual_backprop import ContinualBackprop
from neoteny.methods.dash import DASH
from neoteny.methods.feature_upgd import FeatureUPGD
from neoteny.methods.fire import FIRE
from neoteny.methods.hard_reset import HardReset
from neoteny.methods.hare_and_tortoise import HareAndTortoise
from neoteny.methods.l2 import L2
from neoteny.methods.l2_er import L2ER
from neoteny.methods.l2_init import L2Init
from neoteny.methods.method import Method
from neoteny.methods.muon import Muon
from neoteny.methods.normalize_and_project import NormalizeAndProject
from neoteny.methods.parseval import Parseval
from neoteny.methods.plasticity_injection import PlasticityInjection
from neoteny.methods.redo import ReDo
from neoteny.methods.regrama import ReGraMa
from neoteny.methods.selective_weight_reinit import SelectiveWeightReinit
from neoteny.methods.self_normalized_resets import SelfNormalizedResets
from neoteny.methods.sgd import SGD
from neoteny.methods.shrink_and_perturb import ShrinkAndPerturb
from neoteny.methods.soft_shrink_and_perturb import SoftShrinkAndPerturb
from neoteny.methods.spectral import Spectral
from neoteny.methods.trac import TRAC
from neoteny.methods.unit_method import UnitMethod
from neoteny.methods.upgd import UPGD
from neoteny.methods.warm_start_shrink_and_perturb import WarmStartShrinkAndPerturb
from neoteny.methods.wasserstein import Wasserstein
from neoteny.methods.weight_clipping import WeightClipping

__all__ = [
    "DASH",
    "FIRE",
    "L2",
    "L2ER",
    "SGD",
    "TRAC",
    "UPGD",
    "AdaUPGD",
    "Adam",
    "AdamO",
    "AdamRel",
    "AdamW",
    "CChain",
    "CalibratedPartialResets",
    "ContinualBackprop",
    "FeatureUPGD",
    "HardReset",
    "HareAndTortoise",
    "L2Init",
    "Method",
    "Muon",
    "NormalizeAndProject",
    "Parseval",
    "PlasticityInjection",
    "ReDo",
    "ReGraMa",
    "SelectiveWeightReinit",
    "SelfNormalizedResets",
    "ShrinkAndPerturb",
    "SoftShrinkAndPerturb",
    "Spectral",
    "UnitMethod",
    "WarmStartShrinkAndPerturb",
    "Wasserstein",
    "WeightClipping",
]
