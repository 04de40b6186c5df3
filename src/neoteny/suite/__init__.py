"""From a sweep to a table of results: configurations, stacks, the run loop, checkpoints and the store."""
