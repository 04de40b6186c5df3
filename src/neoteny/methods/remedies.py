"""REMEDIES: layers that keep a network able to learn, with what the table of methods says of each.

A method acts on a network; a remedy is a part of it. Most are classes of `neoteny.nets`, for any model; all are options
of its networks.
"""

from __future__ import annotations

from dataclasses import dataclass

from neoteny.methods.card import Card


@dataclass(frozen=True)
class Remedy:
    """One layer that is a remedy.

    Attributes:
        what: what it is, in one line.
        use: how to get it in a network of `neoteny.nets`.
        card: its row of the table of methods.
    """

    what: str
    use: str
    card: Card


REMEDIES: dict[str, Remedy] = {
    "LayerNorm": Remedy(
        "Layer norm before every activation; with some L2 the field's usual strong baseline.",
        'MLP(..., normalization="layer")',
        Card(
            "networks",
            "the input of every activation",
            "in every pass",
            "nothing",
            "Lyle et al. 2024, Disentangling the Causes of Plasticity Loss in Neural Networks",
        ),
    ),
    "OnlineNorm": Remedy(
        "Online normalisation of a batch (B, F), feature by feature.",
        'MLP(..., normalization="online")',
        Card(
            "networks",
            "the input of every activation",
            "in every pass",
            "four numbers per unit",
            "Chiley et al. 2019, Online Normalization for Training Neural Networks",
        ),
    ),
    "Dropout": Remedy(
        "Set each element to zero with probability p in training, and scale the others by 1 / (1 - p).",
        "MLP(..., dropout=0.1)",
        Card(
            "networks",
            "the output of every activation",
            "in training passes",
            "a step count",
            "Srivastava et al. 2014, Dropout: A Simple Way to Prevent Neural Networks from Overfitting",
        ),
    ),
    "CReLU": Remedy(
        "Concatenated ReLU: the positive and the negative part of every unit, so that no unit is ever silent.",
        'MLP(..., activation="crelu")',
        Card(
            "networks",
            "activations; the next layer has twice the inputs",
            "in every pass",
            "nothing",
            "Abbas et al. 2023, Loss of Plasticity in Continual Deep Reinforcement Learning",
        ),
    ),
    "DeepFourier": Remedy(
        "Deep Fourier features: sine and cosine of every unit, of which one is always steep.",
        'MLP(..., activation="fourier")',
        Card(
            "networks",
            "activations, of half as many units",
            "in every pass",
            "nothing",
            "Lewandowski et al. 2024, Plastic Learning with Deep Fourier Features",
        ),
    ),
    "AID": Remedy(
        "ReLU that in training now and then lets the negative part pass instead of the positive one.",
        'MLP(..., activation="aid(p=0.99)")',
        Card(
            "networks",
            "activations",
            "in training passes by draws, in evaluation by their mean",
            "a step count",
            "AID: Activation by Interval-wise Dropout, ICML 2025",
        ),
    ),
    "SmoothLeaky": Remedy(
        "Leaky ReLU without a corner, steep enough on both sides of zero for every unit to keep learning.",
        'MLP(..., activation="smooth_leaky")',
        Card("networks", "activations", "in every pass", "nothing", "Smooth-Leaky, ICLR 2026"),
    ),
    "RandomizedSmoothLeaky": Remedy(
        "Smooth-Leaky whose slope below zero is drawn for each element in training.",
        'MLP(..., activation="randomized_smooth_leaky")',
        Card("networks", "activations", "in training passes by draws", "a step count", "Smooth-Leaky, ICLR 2026"),
    ),
}
"""By name: the class in `neoteny.nets`, or torch's own (`nn.LayerNorm`)."""
