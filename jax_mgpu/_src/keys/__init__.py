"""Keys as unsigned words in the order of the keys: bits of floats, long numbers as lists of digits, several columns."""
