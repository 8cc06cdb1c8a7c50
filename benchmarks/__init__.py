"""Benchmarks against XLA, CUB, Thrust, NumPy and other libraries: `python -m benchmarks`."""
