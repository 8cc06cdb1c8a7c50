"""The operations, one module per family: checks, shape rule, plain-JAX form, derivative rules."""
