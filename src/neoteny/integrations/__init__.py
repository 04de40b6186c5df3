"""Callbacks for frameworks that own the training loop: each attaches, ticks, saves, restores and logs by itself."""
