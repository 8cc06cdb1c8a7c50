"""Turns descriptions of operations into JAX primitives, and loads the kernels. It knows no single operation."""
