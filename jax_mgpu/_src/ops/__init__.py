"""The operations, a module a family: checks, shape rule, plain-JAX form, derivative rules."""
