"""Prints what the random problems run, or writes it to the file with which a test compares.

python -m tests.plans                     prints one line per problem, so that diff can compare two trees
python -m tests.plans --operations scan   prints only the lines of these operations
python -m tests.plans --write             writes tests/plans/choices.txt, with which tests/test_plans.py compares
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
