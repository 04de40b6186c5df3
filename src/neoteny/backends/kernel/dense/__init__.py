"""Compiled updates on the CPU that touch every weight: batches of examples, and methods that act on all weights.

`terms` says what is covered, `pack` lays a stack's tensors out, `network` has the passes through the network, `passes`
what happens to weights, `units` to units, `run` puts one update together, `kernel` is called.
"""
