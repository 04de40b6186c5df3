"""Methods, one file each: what keeps a network plastic, and the optimizers of a stack."""

from neoteny.methods.adam import Adam
from neoteny.methods.continual_backprop import ContinualBackprop
from neoteny.methods.l2 import L2
from neoteny.methods.method import Method
from neoteny.methods.sgd import SGD
from neoteny.methods.shrink_and_perturb import ShrinkAndPerturb

__all__ = ["L2", "SGD", "Adam", "ContinualBackprop", "Method", "ShrinkAndPerturb"]
