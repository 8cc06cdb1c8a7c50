"""Benchmarks of every family against XLA's way, CUB's and Thrust's, and NumPy's: `python -m benchmarks`."""
