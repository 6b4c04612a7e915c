"""Random histories of slots under way while servers and masters die: every slot has one owner, and nothing outdated."""

import pytest

from tests.property.roll_call_world import RULES, World

SEEDS = range(150)
SEEDS_TO_BREAK = range(2000)


def test_whoever_dies_every_slot_has_one_owner_at_any_time_and_the_newest_copy():
    for seed in SEEDS:
        found = World(seed).run()
        assert not found, f"seed {seed}: {'; '.join(found)}"


@pytest.mark.parametrize("rule", RULES)
def test_without_one_of_the_rules_a_slot_has_two_owners_or_none_or_an_old_copy(rule):
    """So each rule is needed, and a broken one would be seen by the test above."""
    for seed in SEEDS_TO_BREAK:
        if found := World(seed, dropped=rule).run():
            print(f"without {rule!r} ({RULES[rule]}), seed {seed}: {'; '.join(found)}")
            return
    pytest.fail(f"nothing went wrong without {rule!r} in {len(SEEDS_TO_BREAK)} seeds: the world is too kind to test it")
