"""What runs for drawn problems: plain JAX or kernels, and the scratch memory of these on CUDA.

A choice depends only on shapes, types and attributes, so it can be compared without running anything. See `python -m
tests.plans`.
"""
