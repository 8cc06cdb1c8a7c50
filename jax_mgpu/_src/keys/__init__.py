"""Converts keys to integers of the same order: floats by their bits, several columns as one long number."""
