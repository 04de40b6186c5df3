"""Methods, one file each: what keeps a network plastic, and the optimizers of a stack."""

from neoteny.methods.ada_upgd import AdaUPGD
from neoteny.methods.adam import Adam
from neoteny.methods.adam_o import AdamO
from neoteny.methods.adam_rel import AdamRel
from neoteny.methods.adam_w import AdamW
from neoteny.methods.continual_backprop import ContinualBackprop
from neoteny.methods.feature_upgd import FeatureUPGD
from neoteny.methods.hare_and_tortoise import HareAndTortoise
from neoteny.methods.l2 import L2
from neoteny.methods.l2_init import L2Init
from neoteny.methods.method import Method
from neoteny.methods.muon import Muon
from neoteny.methods.redo import ReDo
from neoteny.methods.sgd import SGD
from neoteny.methods.shrink_and_perturb import ShrinkAndPerturb
from neoteny.methods.spectral import Spectral
from neoteny.methods.trac import TRAC
from neoteny.methods.unit_method import UnitMethod
from neoteny.methods.upgd import UPGD

__all__ = [
    "L2",
    "SGD",
    "TRAC",
    "UPGD",
    "AdaUPGD",
    "Adam",
    "AdamO",
    "AdamRel",
    "AdamW",
    "ContinualBackprop",
    "FeatureUPGD",
    "HareAndTortoise",
    "L2Init",
    "Method",
    "Muon",
    "ReDo",
    "ShrinkAndPerturb",
    "Spectral",
    "UnitMethod",
]
