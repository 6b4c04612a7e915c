"""Random histories of online jobs on real stores, slot images and partition ledgers."""

import pytest

from tests.property.stream_world import RULES, StreamWorld

SEEDS = range(15)
MANY_SEEDS = range(15, 2000)


@pytest.mark.parametrize("seeds", [SEEDS, pytest.param(MANY_SEEDS, marks=[pytest.mark.soak, pytest.mark.timeout(900)])])
def test_random_losses_forwards_cuts_and_delays_apply_every_record_once(seeds):
    for seed in seeds:
        found = StreamWorld(seed).run()
        assert not found, f"seed {seed}: {'; '.join(found)}"


@pytest.mark.parametrize("rule", RULES)
def test_dropping_any_stream_rule_loses_records_or_tears_batches(rule):
    """This shows that each rule is needed and that the test above would detect a broken one."""
    for seed in range(100):
        found = StreamWorld(seed, dropped=rule).run()
        if found and "stuck" not in found[0]:
            return
    pytest.fail(f"nothing went wrong without {rule!r}: the world is too kind to test it")
