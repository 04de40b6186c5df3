"""Units that have stopped responding: dead (ReLU), saturated (sigmoid, tanh) and linearised (ReLU) units.

Activations are (*R, n, U): n inputs, U units. For a convolution a unit is a channel; make every position a row first,
for example `activations.movedim(-3, -1).flatten(-4, -2)` for (*R, B, C, H, W).
"""

from __future__ import annotations

import torch
from torch import Tensor

from neoteny.metrics.shapes import check_matrices


def dead_units(activations: Tensor) -> Tensor:
    """Which units are exactly zero on every input, like a ReLU unit that no longer learns.

    Args:
        activations: (*R, n, U), behind the activation function.

    Returns:
        bool (*R, U). A unit with a nan is not dead.

    Example:
        >>> dead_units(torch.tensor([[0.0, 1.0], [0.0, 0.0]]))
        tensor([ True, False])
    """
    activations = check_matrices(activations, "dead_units", "activations", "inputs, units")
    return (activations == 0).all(-2)


def dead_share(activations: Tensor) -> Tensor:
    """The share of units that `dead_units` finds.

    Args:
        activations: (*R, n, U), behind the activation function.

    Returns:
        float64 (*R), from 0 to 1; nan for a run with a value that is not finite.

    Example:
        >>> dead_share(torch.tensor([[0.0, 1.0], [0.0, 0.0]]))
        tensor(0.5000, dtype=torch.float64)
    """
    activations = check_matrices(activations, "dead_share", "activations", "inputs, units")
    return share_of_units(dead_units(activations), activations)


def saturated_units(activations: Tensor, low: float = -1.0, high: float = 1.0, epsilon: float = 0.01) -> Tensor:
    """Which units are within `epsilon` of an extreme value of their activation function on every input.

    A unit may be near `low` on some inputs and near `high` on the others: it still has hardly any gradient.

    Args:
        activations: (*R, n, U), behind the activation function.
        low: the function's lower extreme: -1 for tanh, 0 for sigmoid.
        high: its upper extreme.
        epsilon: the largest distance that counts as saturated, included.

    Returns:
        bool (*R, U). A unit with a nan is not saturated.

    Example:
        >>> saturated_units(torch.tensor([[-1.0, 0.2], [0.995, 1.0]]))
        tensor([ True, False])
    """
    activations = check_matrices(activations, "saturated_units", "activations", "inputs, units")
    if not low < high:
        raise ValueError(f"saturated_units: low must be below high, got low={low!r} and high={high!r}.")
    if not 0 <= epsilon < (high - low) / 2:
        raise ValueError(
            f"saturated_units: epsilon must be at least 0 and below (high - low) / 2 = {(high - low) / 2}, "
            f"got {epsilon!r}."
        )
    return (((activations - low).abs() <= epsilon) | ((high - activations).abs() <= epsilon)).all(-2)


def saturated_share(activations: Tensor, low: float = -1.0, high: float = 1.0, epsilon: float = 0.01) -> Tensor:
    """The share of units that `saturated_units` finds.

    Args:
        activations: (*R, n, U), behind the activation function.
        low: the function's lower extreme: -1 for tanh, 0 for sigmoid.
        high: its upper extreme.
        epsilon: the largest distance that counts as saturated, included.

    Returns:
        float64 (*R), from 0 to 1; nan for a run with a value that is not finite.

    Example:
        >>> saturated_share(torch.tensor([[0.0, 0.5], [1.0, 1.0]]), low=0.0)
        tensor(0.5000, dtype=torch.float64)
    """
    activations = check_matrices(activations, "saturated_share", "activations", "inputs, units")
    return share_of_units(saturated_units(activations, low, high, epsilon), activations)


def linearised_units(activations: Tensor, share: float = 0.9) -> Tensor:
    """Which units are positive on at least a share of the inputs: there a ReLU unit is a linear function.

    Args:
        activations: (*R, n, U), behind the activation function.
        share: of the inputs, above 0 and at most 1.

    Returns:
        bool (*R, U). A nan is not positive.

    Example:
        >>> linearised_units(torch.tensor([[0.1, 1.0], [2.0, 0.0]]))
        tensor([ True, False])
    """
    activations = check_matrices(activations, "linearised_units", "activations", "inputs, units")
    if not 0.0 < share <= 1.0:
        raise ValueError(f"linearised_units: share must be above 0 and at most 1, got {share!r}.")
    return (activations > 0).sum(-2) >= share * activations.shape[-2]


def linearised_share(activations: Tensor, share: float = 0.9) -> Tensor:
    """The share of units that `linearised_units` finds.

    Args:
        activations: (*R, n, U), behind the activation function.
        share: of the inputs on which such a unit is positive, above 0 and at most 1.

    Returns:
        float64 (*R), from 0 to 1; nan for a run with a value that is not finite.

    Example:
        >>> linearised_share(torch.tensor([[0.1, 1.0], [2.0, 0.0]]))
        tensor(0.5000, dtype=torch.float64)
    """
    activations = check_matrices(activations, "linearised_share", "activations", "inputs, units")
    return share_of_units(linearised_units(activations, share), activations)


def share_of_units(mask: Tensor, activations: Tensor) -> Tensor:
    """The mean of a mask (*R, U); nan where activations are not finite: a run that diverged is not healthy."""
    finite = torch.isfinite(activations).flatten(-2).all(-1)
    return torch.where(finite, mask.to(torch.float64).mean(-1), torch.nan)
