"""A network seen as units: live tensors, activations, sums of weights, statistics, the replacement schedule, resets."""
