"""What makes a described operation a JAX primitive, and the libraries of kernels that it calls. Knows no operation."""
