"""Parts of `benchmarks/methods.py`."""
