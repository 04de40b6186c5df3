"""The tick of continual backpropagation on a CUDA device: a few launches for all groups of a model together."""
