"""Trains random programs for a given time, each without and with data workers, and counts the differences.

    python -m tests.unit.worker.random_hour --seconds 3600 --seed 1

Hypothesis draws the programs (random_programs.py) in rounds of 1,000, each round with a seed of its own. The last line
counts programs, those that were split, those that gave up data workers while they trained, and differences.
"""

import argparse
import collections
import contextlib
import io
import sys
import time

import hypothesis

from tests.unit.worker.random_programs import recipes
from tests.unit.worker.test_random_programs import ANY, compare

ROUND = 1000


def train_one(recipe, counts, deadline):
    if time.monotonic() > deadline:
        return
    comparison = compare(recipe)
    counts["programs"] += 1
    counts["changed"] += bool(recipe.changes)
    counts["raised"] += bool(comparison.error)
    counts["split"] += comparison.answered > 0
    counts["batches answered"] += comparison.answered
    counts["gave up"] += bool(comparison.gave_up)
    if counts["programs"] % 100 == 0:
        print(dict(counts), flush=True)
    if comparison.difference:
        counts["differences"] += 1
        print(f"DIFFERENCE {comparison.difference}\n  {recipe}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=3600, help="train programs for this long [default: 3600]")
    parser.add_argument("--seed", type=int, default=1, help="seed of the first round [default: 1]")
    options = parser.parse_args()
    counts = collections.Counter({"differences": 0, "split": 0})
    begun, seed = time.monotonic(), options.seed
    deadline = begun + options.seconds
    while time.monotonic() < deadline:
        settings = hypothesis.settings(
            max_examples=ROUND,
            deadline=None,
            database=None,
            suppress_health_check=ANY,
            phases=[hypothesis.Phase.generate],
        )
        draw = hypothesis.given(recipes())(lambda recipe: train_one(recipe, counts, deadline))
        with contextlib.redirect_stderr(io.StringIO()):  # the job's own words
            hypothesis.seed(seed)(settings(draw))()
        print(f"{time.monotonic() - begun:.0f} s, seeds {options.seed} to {seed}: {dict(counts)}", flush=True)
        seed += 1
    sys.exit(1 if counts["differences"] else 0)


if __name__ == "__main__":
    main()
