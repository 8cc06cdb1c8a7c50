"""Turns descriptions of operations into JAX primitives, and loads the kernels."""
