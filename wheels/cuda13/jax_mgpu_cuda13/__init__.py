"""The CUDA kernels of jax_mgpu, for CUDA 13 and every Python: a library that jax_mgpu loads by itself."""
