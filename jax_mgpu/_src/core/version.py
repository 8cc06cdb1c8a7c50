"""The version of the package, which builds read; a package of CUDA kernels must have the same one."""

__version__ = "0.1.0"
