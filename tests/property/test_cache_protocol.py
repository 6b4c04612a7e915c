"""Model checker of the cache protocol: in any order of events every read sees the latest version."""

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.property.cache_world import RULES, SERVERS, SLOTS, Violated, World

SEEDS = range(40)
SEEDS_TO_BREAK = range(600)
RANKS = st.integers(1, 3)
ANY = st.integers(0, 10**6)


def test_random_cache_histories_have_no_stale_read_and_no_lost_update():
    for seed in SEEDS:
        World(random.Random(seed)).run()


@pytest.mark.parametrize("rule", RULES)
def test_dropping_any_cache_rule_gives_a_wrong_value(rule):
    """This shows that each rule is needed and that the tests beside this would detect a broken one."""
    for seed in SEEDS_TO_BREAK:
        try:
            World(random.Random(seed), dropped=rule).run()
        except Violated as error:
            print(f"without {rule!r} ({RULES[rule]}), seed {seed}: {error}")
            return
    pytest.fail(f"nothing went wrong without {rule!r} in {len(SEEDS_TO_BREAK)} seeds: the world is too kind to test it")


class Histories(RuleBasedStateMachine):
    """The same moves, chosen by hypothesis, so that a violation is shrunk to its shortest history."""

    @initialize(chance=st.randoms(use_true_random=False))
    def begin(self, chance):
        self.world = World(chance)

    @precondition(lambda self: self.world.movable())
    @rule(which=ANY)
    def a_rank_goes_on(self, which):
        movable = self.world.movable()
        self.world.go(movable[which % len(movable)])

    @precondition(lambda self: self.world.wire)
    @rule(which=ANY, twice=st.booleans())
    def a_message_arrives(self, which, twice):
        self.world.deliver(which % len(self.world.wire), twice=twice)

    @rule(which=ANY, what=st.sampled_from(["save", "look", "change"]))
    def a_rank_wants_a_flush(self, which, what):
        self.world.wish(which % len(self.world.ranks), what)

    @precondition(lambda self: self.world.settled())
    @rule(ranks=RANKS)
    def the_group_changes(self, ranks):
        self.world.change(ranks)

    @rule(ranks=RANKS)
    def a_member_is_lost(self, ranks):
        self.world.lose(ranks)

    @rule(slot=st.integers(0, SLOTS - 1), server=st.integers(0, SERVERS - 1))
    def a_slot_moves(self, slot, server):
        self.world.move(slot, server)

    def teardown(self):
        if hasattr(self, "world"):
            self.world.finish()


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=20, stateful_step_count=60, deadline=None)
