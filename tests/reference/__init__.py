"""Naive NumPy transcriptions of the algorithms, written from the paper and independent of the library.

Everything is float64, one run, loops over units; clarity comes before speed. The tests of the library compare every
backend with these.
"""
