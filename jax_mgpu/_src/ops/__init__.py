"""The operations, one module per family, with checks, shape rules, plain-JAX forms and derivative rules."""
