"""The version, which a package of CUDA kernels must share."""

__version__ = "0.1.0"
