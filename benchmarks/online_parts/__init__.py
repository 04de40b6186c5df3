"""The parts of `online.py`: the sides that are compared, their rows on the CPU and on the GPU, and the table."""
