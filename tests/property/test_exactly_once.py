"""Random histories of the exactly-once protocol on real stores, real slot images and the real ledger."""

import pytest

from tests.property.exactly_once_world import RULES, World

SEEDS = range(200)
MOST_SEEDS_TO_BREAK = 1000  # the first few dozen will do, but need not after a change of the ledger
FIRST_SEEDS_TO_BREAK = {"revoke": 140}  # near the first one that shows it, to save time


def test_random_losses_duplicates_and_delays_apply_every_batch_once():
    for seed in SEEDS:
        found = World(seed).run()
        assert not found, f"seed {seed}: {'; '.join(found)}"


@pytest.mark.parametrize("rule", RULES)
def test_dropping_any_exactly_once_rule_loses_batches(rule):
    """This shows that each rule is needed and that the test above would detect a broken one."""
    first = FIRST_SEEDS_TO_BREAK.get(rule, 0)
    for seed in range(first, first + MOST_SEEDS_TO_BREAK):
        found = World(seed, dropped=rule).run()
        if found and "stuck" not in found[0]:
            print(f"without {rule!r} ({RULES[rule]}), seed {seed}: {'; '.join(found)}")
            return
    pytest.fail(f"nothing went wrong without {rule!r} in {MOST_SEEDS_TO_BREAK} seeds: the world is too kind to test it")
