"""Units that compute what another unit of their layer computes, up to a factor and a constant.

Activations are (*R, n, U): n inputs, U units; for a convolution see `activity`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from neoteny.metrics.activity import share_of_units
from neoteny.metrics.shapes import check_matrices

_CONSTANT = 1e-12  # deviations from the mean below this share of a unit's length are roundings of the mean


def duplicate_units(activations: Tensor, correlation: float = 0.95) -> Tensor:
    r"""Which units are strongly correlated with another unit of the layer.

    Unit i counts if :math:`|\rho_{ij}|` is above `correlation` for some unit :math:`j \ne i`, with :math:`\rho` the
    Pearson correlation over the inputs. Both units of a pair count. A unit that is the same on all inputs, as a dead
    one, is correlated with nothing.

    Args:
        activations: (*R, n, U), behind the activation function.
        correlation: from 0 to 1, 1 left out.

    Returns:
        bool (*R, U). A unit with a value that is not finite is not a duplicate.

    Example:
        >>> duplicate_units(torch.tensor([[1.0, -2.0, 5.0], [2.0, -4.0, 0.0], [3.0, -6.0, 4.0]]))
        tensor([ True,  True, False])
    """
    activations = check_matrices(activations, "duplicate_units", "activations", "inputs, units")
    if not 0.0 <= correlation < 1.0:
        raise ValueError(f"duplicate_units: correlation must be at least 0 and below 1, got {correlation!r}.")
    values = activations.to(torch.float64)
    values = torch.where(torch.isfinite(values).all(-2, keepdim=True), values, 0.0)
    largest = values.abs().amax(-2, keepdim=True)
    values = values / torch.where(largest > 0, largest, 1.0)  # squares stay in range
    centred = values - values.mean(-2, keepdim=True)
    length = torch.linalg.vector_norm(centred, dim=-2, keepdim=True)
    varies = length > _CONSTANT * torch.linalg.vector_norm(values, dim=-2, keepdim=True)
    unit = torch.where(varies, centred / torch.where(varies, length, 1.0), 0.0)
    found = (unit.mT @ unit).abs() > correlation
    itself = torch.eye(values.shape[-1], dtype=torch.bool, device=values.device)
    return (found & ~itself).any(-1)


def duplicate_share(activations: Tensor, correlation: float = 0.95) -> Tensor:
    """The share of units that `duplicate_units` finds.

    Args:
        activations: (*R, n, U), behind the activation function.
        correlation: from 0 to 1, 1 left out.

    Returns:
        float64 (*R), from 0 to 1; nan for a run with a value that is not finite.

    Example:
        >>> duplicate_share(torch.tensor([[1.0, -2.0], [2.0, -4.0], [3.0, -6.0]]))
        tensor(1., dtype=torch.float64)
    """
    activations = check_matrices(activations, "duplicate_share", "activations", "inputs, units")
    return share_of_units(duplicate_units(activations, correlation), activations)
