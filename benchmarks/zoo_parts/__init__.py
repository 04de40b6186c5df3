"""The parts of `benchmarks/zoo.py`."""
