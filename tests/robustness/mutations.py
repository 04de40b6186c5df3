"""Breaks methods in the ways in which public code of them is broken, and shows that the tests notice.

    PYTHONPATH=src:tests python tests/robustness/mutations.py [NAME ...]

Each mutation changes one place of a copy of the package; the tests named beside it must then fail. Takes some minutes.
"""

from __future__ import annotations

import sys

from support.mutations import MUTATIONS, run


def main(names: list[str]) -> int:
    """Try every mutation, or those whose names begin so; returns 1 if one was not noticed."""
    chosen = [each for each in MUTATIONS if not names or each.name.startswith(tuple(names))]
    missed = 0
    for mutation in chosen:
        noticed, closing = run(mutation)
        missed += not noticed
        print(f"{'caught' if noticed else 'MISSED'}: {mutation.name} ({closing})", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} caught")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
