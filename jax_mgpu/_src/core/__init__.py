"""Turns descriptions of operations into JAX primitives, and loads the kernels. It depends on no single operation."""
