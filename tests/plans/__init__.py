"""Records what runs for random problems, plain JAX or kernels, and how much scratch memory the kernels take on CUDA.

A choice depends only on shapes, types and attributes, so it can be compared without running anything. See `python -m
tests.plans`.
"""
