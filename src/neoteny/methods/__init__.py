"""Methods, one file each: what keeps a network plastic, and the optimizers of a stack."""

from neoteny.methods.adam import Adam
from neoteny.methods.c_chain import CChain
from neoteny.methods.continual_backprop import ContinualBackprop
from neoteny.methods.hare_and_tortoise import HareAndTortoise
from neoteny.methods.l2 import L2
from neoteny.methods.l2_er import L2ER
from neoteny.methods.l2_init import L2Init
from neoteny.methods.method import Method
from neoteny.methods.parseval import Parseval
from neoteny.methods.redo import ReDo
from neoteny.methods.sgd import SGD
from neoteny.methods.shrink_and_perturb import ShrinkAndPerturb
from neoteny.methods.spectral import Spectral
from neoteny.methods.unit_method import UnitMethod
from neoteny.methods.upgd import UPGD
from neoteny.methods.wasserstein import Wasserstein

__all__ = [
    "L2",
    "L2ER",
    "SGD",
    "UPGD",
    "Adam",
    "CChain",
    "ContinualBackprop",
    "HareAndTortoise",
    "L2Init",
    "Method",
    "Parseval",
    "ReDo",
    "ShrinkAndPerturb",
    "Spectral",
    "UnitMethod",
    "Wasserstein",
]
