"""What `python -m jax_mgpu --benchmark` runs and draws."""
