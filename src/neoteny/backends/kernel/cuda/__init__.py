"""The compiled kernel for GPUs (CUDA C++, compiled when first used)."""
