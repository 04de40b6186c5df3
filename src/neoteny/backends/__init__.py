"""What trains a stack of runs: the library, CUDA graphs, or the compiled kernels."""
