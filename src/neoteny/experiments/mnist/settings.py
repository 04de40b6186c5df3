"""The learners of the experiments on online permuted MNIST: one function per method, each giving a `Setting`.

All are fully connected networks with three hidden layers of equal width.
"""

from __future__ import annotations

from typing import Any

from neoteny.experiments.scales import CBP_COUNT, assume
from neoteny.methods import L2, SGD, Adam, ContinualBackprop, ShrinkAndPerturb
from neoteny.nets import MLP
from neoteny.suite.sweep import Assumption, Network, Setting, network

LAYERS = 3
CORRELATES = ("dead_units", "weight_magnitude", "effective_rank")
"""What the paper measures at the start of each task, beside accuracy."""


def layers(width: int, **options: Any) -> Network:
    """Three hidden layers of `width` ReLU units."""
    return network(MLP, hidden=(width,) * LAYERS, **options)


def bp(width: int, step_size: float) -> Setting:
    """Plain backpropagation with SGD."""
    return Setting("BP", layers(width), (SGD(step_size),), {"step_size": step_size})


def l2(width: int, step_size: float, strength: float) -> Setting:
    """SGD with L2 regularisation."""
    return Setting("L2", layers(width), (SGD(step_size), L2(strength)), {"step_size": step_size, "l2": strength})


def shrink_and_perturb(width: int, step_size: float, strength: float, noise_std: float) -> Setting:
    """SGD with L2 regularisation and noise on the weights."""
    details = {"step_size": step_size, "l2": strength, "noise_std": noise_std}
    return Setting("S&P", layers(width), (SGD(step_size), ShrinkAndPerturb(strength, noise_std)), details)


def dropout(width: int, step_size: float, probability: float) -> Setting:
    """SGD on a network with dropout."""
    details = {"step_size": step_size, "dropout": probability}
    return Setting("Dropout", layers(width, dropout=probability), (SGD(step_size),), details)


def online_norm(width: int, step_size: float, forward_decay: float, backward_decay: float) -> Setting:
    """SGD on a network with online normalisation before each activation."""
    normalized = layers(width, normalization="online", forward_decay=forward_decay, backward_decay=backward_decay)
    details = {"step_size": step_size, "forward_decay": forward_decay, "backward_decay": backward_decay}
    return Setting("Online norm", normalized, (SGD(step_size),), details)


def adam(width: int, step_size: float) -> Setting:
    """Adam with the default decay rates of its moments."""
    return Setting("Adam", layers(width), (Adam(step_size),), {"step_size": step_size})


def cbp(width: int, step_size: float, replacement_rate: float) -> Setting:
    """SGD with continual backpropagation; maturity threshold 100, decay rate 0.99."""
    details = {"step_size": step_size, "replacement_rate": replacement_rate}
    return Setting("CBP", layers(width), (SGD(step_size), ContinualBackprop(replacement_rate)), details)


SMALLER, RUNS_CHOSEN = assume("""
- network, tasks, step size and strengths at this scale | as the settings say | Narrow networks lose plasticity sooner,
  and the number of tasks matters more than their length; with a larger step size it happens within minutes.
- number of runs | 30 | The paper gives none for this experiment; Section 7 speaks of thirty or more for every method.
""")
SHARED_CHOSEN = assume("""
- initial weights and biases | Kaiming uniform, with ReLU's gain in hidden layers and gain 1 in the output layer;
  biases zero | The paper names Kaiming's distribution and no more; the output layer is linear, which gives its gain.
- scale of the pixels | 0 to 1 | The paper does not say; a byte's share of 255 is the common form.
""")
"""Of all experiments on this problem, at any scale."""
_METHODS = assume("""
- noise of shrink and perturb | its amounts are standard deviations; it is added to weights and biases after every
  update | The paper speaks of a variance; but with a variance of 1e-6, its least amount, the noise of one task (60,000
  updates) would add up to several times the spread of the initial weights.
- accuracy of dropout | of the outputs from which it learns, with units dropped | The paper does not say; without
  dropped units each example would have to pass the network once more.
- decay rate and maturity threshold of continual backpropagation | 0.99 and 100 | The paper gives neither for this
  problem; these are the examples beside its algorithm, and 100 is its threshold on Continual ImageNet too. Beside the
  version for Adam its example is 1,000.
""")
METHODS_CHOSEN = (*SHARED_CHOSEN, *_METHODS, CBP_COUNT)
"""Of the experiments with all methods, at any scale."""
NORM_DECAY_CHOSEN = Assumption(
    "decay rates of online normalisation",
    "0.999 for the statistics, 0.99 for the control of gradients",
    "The paper names two rates and gives neither, and shows the pair with the best mean accuracy; these are the "
    "defaults of online normalisation's own authors. mnist-sensitivity has two other pairs.",
)
