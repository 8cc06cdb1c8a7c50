"""The randomised tester: `python -m tests.fuzz --seconds 60 --seed 1 --family merge`.

A program is a call of a public function under random transformations. Its static parts (types, sizes, attributes) are
drawn at random. It is compiled once and runs over many draws of values. Each run is a case. Most cases are compared
with an oracle in NumPy; those of `broken.py`, `misuse.py`, `sizes.py` and `wide.py` have none.

`DRAWN` of tests/families/ has the calls and their oracles. `rows.py`, `segments.py`, `functions.py`, `any_order.py` and
`programs.py` have calls that belong to several families. `modes.py` has the transformations.
"""
