"""OwnDraws: a layer whose random numbers belong to one run, counter-based instead of from torch's shared generator.

torch's own random layers draw from a generator that all runs share, so a network inside a stack would see other numbers
than alone. Here they follow from the layer's own `seed` and `step`, both of which are in its state dict: a resumed
run goes on with the numbers that it would have drawn next.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from neoteny.draws import rng


class OwnDraws(nn.Module):
    """A layer that draws one uniform number per element in every training pass.

    Args:
        purpose: what the numbers are for; see `rng.uniform`.

    Attributes:
        seed: int64 scalar, drawn with torch.randint at construction, so torch.manual_seed reproduces it.
        step: int64 scalar, the number of training passes so far.
    """

    seed: Tensor
    step: Tensor

    def __init__(self, purpose: str) -> None:
        super().__init__()
        self.purpose = purpose
        self.register_buffer("seed", torch.randint(0, 2**63 - 1, (), dtype=torch.int64))
        self.register_buffer("step", torch.zeros((), dtype=torch.int64))

    def draw(self, x: Tensor) -> Tensor:
        """Numbers in (0, 1) of the shape of x (*R, B, ...), float64, and one step on; R is () unless buffers have runs.

        They are `rng.uniform(seed, step, purpose)` at row b (example) and column j (feature, all other axes flattened).
        """
        runs = self.seed.dim()
        if x.dim() < runs + 2:
            raise ValueError(f"{type(self).__name__}: x must have shape (batch, features, ...), got {tuple(x.shape)}.")
        rows = torch.arange(x.shape[runs], device=x.device)
        features = x.shape[runs + 1 :].numel()
        draws = rng.uniform(self.seed.unsqueeze(-1), self.step.unsqueeze(-1), self.purpose, rows, features)
        self.step.add_(1)
        return draws.reshape(x.shape)
