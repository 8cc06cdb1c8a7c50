"""The version of the package, which builds read and which libraries of kernels must have."""

__version__ = "0.1.0"
