"""The randomised tester: `python -m tests.fuzz --seconds 60 --seed 1 --family merge`.

A program is a call of a public function with all that is static drawn (types, sizes, attributes), under drawn
transformations. It is compiled once and runs over many draws of values; each run is a case, compared with an oracle in
NumPy. The calls and their oracles are `DRAWN` of tests/families/; they share `draw.py`, `operators.py` and `shared.py`.
Those of `rows.py`, `functions.py` and `any_order.py` go across families. `modes.py` has the transformations,
`derivatives.py` turns a call into one that gives derivatives, `programs.py` chains operations, `broken.py` and
`misuse.py` break what a caller has to keep, `sizes.py` traces what no test machine holds.
"""
