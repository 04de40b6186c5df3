"""The Slippery Ant."""
