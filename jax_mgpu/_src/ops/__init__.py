"""The operations: modules of families, and modules that families share."""
