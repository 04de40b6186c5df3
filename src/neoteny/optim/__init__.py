"""Optimizers for a user's own module."""

from neoteny.optim.adam import Adam

__all__ = ["Adam"]
