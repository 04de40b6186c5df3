"""Optimizers for a user's own module.

- `Adam`: torch's, with a step count for every weight, so that a reset weight starts afresh; `AdamW` likewise;
- `from_method`: any method that is an optimizer, as a torch optimizer.
"""

from neoteny.optim.adam import Adam, AdamW
from neoteny.optim.from_method import from_method

__all__ = ["Adam", "AdamW", "from_method"]
