"""Random histories of the exactly-once protocol on real stores, real slot images and the real ledger."""

import pytest

from tests.property.exactly_once_world import RULES, World

SEEDS = range(200)
SEEDS_TO_BREAK = range(1000)  # the first few dozen will do; more, so that a change of the ledger does not matter


def test_random_losses_duplicates_and_delays_apply_every_batch_once():
    for seed in SEEDS:
        found = World(seed).run()
        assert not found, f"seed {seed}: {'; '.join(found)}"


@pytest.mark.parametrize("rule", RULES)
def test_dropping_any_exactly_once_rule_loses_batches(rule):
    """This shows that each rule is needed and that the test above would detect a broken one."""
    for seed in SEEDS_TO_BREAK:
        found = World(seed, dropped=rule).run()
        if found and "stuck" not in found[0]:
            print(f"without {rule!r} ({RULES[rule]}), seed {seed}: {'; '.join(found)}")
            return
    pytest.fail(f"nothing went wrong without {rule!r} in {len(SEEDS_TO_BREAK)} seeds: the world is too kind to test it")
