"""Records what random problems run: plain JAX or kernels, with their scratch memory on CUDA.

This follows from shapes, types and attributes, so nothing is run. See `python -m tests.plans`.
"""
