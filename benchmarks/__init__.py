"""Benchmarks of every family against XLA, CUB, Thrust and NumPy: `python -m benchmarks`."""
