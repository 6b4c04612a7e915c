"""Slow workers of a stream get others beside them."""

from springtide.domain.straggling import StragglerRules
from springtide.job.backups import wanted

RULES = StragglerRules()


def test_one_that_trains_half_of_what_its_peers_do_gets_a_backup_and_the_reason_names_it():
    backups = wanted({0: 100.0, 1: 102.0, 2: 45.0, 3: 98.0}, frozenset(), RULES)
    assert backups.workers == 1 and backups.slow == (2,)
    assert "worker-2 trains 45 samples/s, 45% of its peers' median" in backups.why


def test_equals_with_some_spread_get_none():
    assert wanted({0: 100.0, 1: 90.0, 2: 110.0}, frozenset(), RULES) == (0, "", ())
    assert wanted({0: 100.0}, frozenset(), RULES).workers == 0


def test_two_that_lack_a_worker_and_a_half_together_get_two():
    assert wanted({0: 25.0, 1: 25.0, 2: 100.0, 3: 100.0, 4: 100.0, 5: 100.0}, frozenset(), RULES).workers == 2


def test_a_backup_stays_until_the_slow_one_is_near_its_peers_again():
    nearly = {0: 100.0, 1: 100.0, 2: 80.0}
    assert wanted(nearly, frozenset(), RULES).workers == 0
    assert wanted(nearly, frozenset({2}), RULES).workers == 1
    assert wanted({**nearly, 2: 90.0}, frozenset({2}), RULES).workers == 0


def test_one_whose_batches_were_cut_short_is_not_called_slow_and_stays_so_until_it_is_known():
    paces = {0: 100.0, 1: 100.0, 2: 40.0}
    assert wanted(paces, frozenset(), RULES, sure={0, 1}).workers == 0
    assert wanted(paces, frozenset(), RULES, sure={2}).slow == (2,)
    assert wanted({**paces, 2: 99.0}, frozenset({2}), RULES, sure={0}).slow == (2,)


def test_where_most_are_slow_it_is_not_them():
    assert wanted({0: 10.0, 1: 10.0, 2: 100.0}, frozenset({0, 1}), RULES).workers == 0
