"""The randomised tester: `python -m tests.fuzz --seconds 60 --seed 1 --family merge`.

A program is a call of a public function with all that is static drawn (types, sizes, attributes), under drawn
transformations. It is compiled once and runs over many draws of values; each run is a case, compared with an oracle in
NumPy. `draw.py` draws, `ordered.py` and `ragged.py` have a call and its oracle for each public function, `modes.py` the
transformations, `derivatives.py` turns a call into one that gives derivatives, `programs.py` chains operations,
`broken.py` and `misuse.py` break what a caller has to keep, `sizes.py` traces what no test machine holds.
"""
