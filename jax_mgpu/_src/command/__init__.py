"""Runs and draws `python -m jax_mgpu --benchmark`."""
