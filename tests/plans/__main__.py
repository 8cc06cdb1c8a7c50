"""Prints what runs for the drawn problems, or writes it down for the test that compares.

python -m tests.plans                     a line a problem, 100,000 of all operations: to compare two trees with diff
python -m tests.plans --operations scan   of these operations alone
python -m tests.plans --write             writes tests/plans/choices.txt, from which tests/test_plans.py knows
"""

from __future__ import annotations

import argparse

from tests.plans.choices import BLOCKS, block, write
from tests.plans.problems import OPERATIONS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operations", nargs="+", choices=OPERATIONS, default=OPERATIONS)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    if options.write:
        write()
        return
    for operation in options.operations:
        for number in range(BLOCKS):
            print("\n".join(block(operation, number)))


if __name__ == "__main__":
    main()
