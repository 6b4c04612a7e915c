"""Random histories of moving slots while servers and masters die: every slot has one owner and the newest copy."""

import pytest

from tests.property.roll_call_world import RULES, World

SEEDS = range(40)
BEGIN = {"call": 20, "stop": 2338, "turn": 60, "heir": 23, "let go": 512, "once": 1919}
"""Where the search for a history that goes wrong without a rule finds one soon: some are rare."""


def test_every_slot_has_one_owner_with_the_newest_copy_after_any_death():
    for seed in SEEDS:
        found = World(seed).run()
        assert not found, f"seed {seed}: {'; '.join(found)}"


@pytest.mark.soak
def test_slot_ownership_holds_in_two_thousand_more_histories():
    for seed in range(len(SEEDS), 2000):
        found = World(seed).run()
        assert not found, f"seed {seed}: {'; '.join(found)}"


@pytest.mark.parametrize("rule", RULES)
def test_dropping_any_rule_gives_a_slot_two_owners_none_or_an_old_copy(rule):
    """This shows that each rule is needed and that the test above would detect a broken one."""
    for seed in range(BEGIN[rule], BEGIN[rule] + 2000):
        if found := World(seed, dropped=rule).run():
            print(f"without {rule!r} ({RULES[rule]}), seed {seed}: {'; '.join(found)}")
            return
    pytest.fail(f"nothing went wrong without {rule!r}: the world is too kind to test it")
