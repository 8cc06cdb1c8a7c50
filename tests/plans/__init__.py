"""What runs for drawn problems: plain JAX or kernels, and how much scratch memory these have on CUDA.

A choice follows from shapes, types and attributes alone, so it can be compared without running anything. `python -m
tests.plans` says how.
"""
