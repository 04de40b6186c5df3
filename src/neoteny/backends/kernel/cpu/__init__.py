"""The compiled kernel for processors (numba)."""
