"""The library's update recorded as a CUDA graph."""
