"""The experiments on the Slippery Ant."""
