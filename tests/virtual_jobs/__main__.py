"""Runs random histories of virtual jobs: `python -m tests.virtual_jobs --seconds 60 --seed 1`.

`--replay SEED` tells one history. The exit code is 1 if a history was wrong.
"""

import argparse
import sys
import time

from tests.virtual_jobs import histories, search


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.virtual_jobs", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="core time to spend [default: 60]")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="first seed [default: the time]")
    parser.add_argument("--replay", type=int, metavar="SEED", help="tell the history of this seed")
    given = parser.parse_args()
    if given.replay is not None:
        with search.quiet():
            history = histories.happen(histories.draw(given.replay))
        print(*search.tell(history), sep="\n")
        return bool(history.violations)
    report = search.search(given.seed, lambda so_far: so_far.core_s < given.seconds)
    print(*report.lines(), sep="\n")
    for history in report.wrong[:3]:
        print("\nthe shortest story found; replay the whole one with --replay", history.case.seed)
        print(*search.tell(search.shrink(history)), sep="\n")
    print(*report.wrong_long, sep="\n", end="\n" if report.wrong_long else "")
    return bool(report.wrong or report.wrong_long)


if __name__ == "__main__":
    sys.exit(main())
