"""The operations, one module per family."""
