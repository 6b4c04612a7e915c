"""Whatever is killed, cut off, slowed or scaled, a job ends, and every batch is in every slot exactly once.

A failing seed is in the message; `long_histories.tell(SEED, folder)` is that history again.
"""

import logging
from collections import Counter

import pytest

from tests.virtual_jobs.long_histories import USUAL, tell


@pytest.fixture(autouse=True)
def _quiet():
    """Masters warn of all that goes wrong."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def search(seeds, folder, **given):
    """What went wrong in these histories, by kind, and how often each kind of trouble was met."""
    wrong, met = [], Counter()
    for seed in seeds:
        try:
            history = tell(seed, folder / str(seed), **given)
        except (AssertionError, TimeoutError) as error:
            wrong.append(f"seed {seed}: {type(error).__name__}: {error}")
            continue
        met += history.happened
        outcome = history.outcome
        if not outcome.right:
            wrong.append(f"seed {seed}: {outcome.phase}: {outcome.why}; {outcome.counts}")
    return wrong, met


def test_every_batch_is_applied_once_in_random_histories_of_whole_jobs(seed, tmp_path):
    wrong, met = search(range(seed, seed + 2), tmp_path, batches=(60, 200))
    assert not wrong, "\n".join(wrong)
    assert met, "nothing went wrong"


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_every_batch_is_applied_once_in_hundreds_of_histories(seed, tmp_path):
    wrong, met = search(range(seed, seed + 400), tmp_path, batches=(200, 4000))
    assert not wrong, "\n".join(wrong)
    assert not [kind for kind in USUAL.__slots__ if not met[kind]], f"some trouble was never met: {met}"


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("seed", "what"),
    [
        (305, "a slot was taken once more by a server that had given it on"),
        (265, "the same, after a move that was interrupted"),
        (231, "a drained server left while slots were on their way to it"),
        (5, "slots arrived before a new server was placed"),
        (183, "slow, and right in the end"),
    ],
)
def test_histories_that_went_wrong_once_are_right(seed, what, tmp_path):
    wrong, _ = search([seed], tmp_path, batches=(200, 4000))
    assert not wrong, f"{what}: {wrong[0]}"


def test_the_same_seed_is_the_same_history(tmp_path):
    once, again = (tell(2, tmp_path / name, batches=(60, 100)).outcome for name in ("once", "again"))
    assert (once.jct_s, once.told, once.moved, once.eras) == (again.jct_s, again.told, again.moved, again.eras)
