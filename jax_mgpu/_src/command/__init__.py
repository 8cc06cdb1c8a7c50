"""The benchmark of the command line, `python -m jax_mgpu --benchmark`: measures operations and draws their times."""
