"""Records what random problems run: plain JAX or kernels, and how much scratch memory the kernels take on CUDA.

A choice depends only on shapes, types and attributes, so comparing choices runs no operation. See `python -m
tests.plans`.
"""
