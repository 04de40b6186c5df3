"""Experiments of our own: other sizes and settings of the paper's."""
