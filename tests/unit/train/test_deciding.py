"""The lowest rank finds out whether a cache pays: it watches, tries a schedule on paper, begins, and looks again."""

from collections import deque

import pytest

from springtide.domain.profile import StepTiming
from springtide.train import deciding
from springtide.train.deciding import Deciding, Sent, Surroundings

AROUND = Surroundings(workers=4, deaths=0, watched_s=100.0, checkpoint_s=30.0, saved_once=True, read_s=0.001)


def step(total_s=0.1, waited_s=0.06):
    times = dict.fromkeys(("data_s", "forward_s", "backward_s", "gradient_s", "update_s", "synchronization_s"), 0.0)
    return StepTiming(
        samples=1, total_s=total_s, pull_wait_s=waited_s / 2, push_wait_s=waited_s / 2, lookup_s=0.0, **times
    )


class Paper:
    """Spares half of what is sent once it is warm."""

    def __init__(self, with_caches=100):
        self.with_caches, self.seen = with_caches, 0

    def look(self, features, samples):
        self.seen += 1
        return Sent(200 if self.seen <= deciding.TRIED // 2 else self.with_caches, 200)


def watch(one, times, count, *, on=False):
    """So many steps; the wishes that came of them."""
    wishes = []
    for _ in range(count):
        times.append(times[-1])
        if one.trying:
            one.look([], 10)
        one.stepped(on=on)
        wishes.append(one.wish)
    return [wish for wish in wishes if wish is not None]


def made(times, around=AROUND, paper=None):
    return Deciding(times, lambda: around, lambda: paper or Paper())


def test_a_group_that_waits_begins_after_a_schedule_on_paper_and_keeps_a_cache_that_helps():
    times = deque([step()], maxlen=4096)
    one = made(times)
    assert watch(one, times, deciding.WATCHED) == [] and one.trying
    assert watch(one, times, deciding.TRIED + 1) == [True]
    assert "spares 50% of what is sent" in one.why
    times.append(step(total_s=0.07))
    assert watch(one, times, deciding.WARM + deciding.WATCHED + 1, on=True) == []
    assert "a step took 100.0 ms without a cache and 70.0 ms with it" in one.why


def test_a_cache_that_made_steps_longer_is_given_up():
    times = deque([step()], maxlen=4096)
    one = made(times)
    assert watch(one, times, deciding.WATCHED + deciding.TRIED + 1) == [True]
    times.append(step(total_s=0.13))
    assert watch(one, times, deciding.WARM + deciding.WATCHED + 1, on=True) == [False]
    assert "130.0 ms with it" in one.why


@pytest.mark.parametrize(
    ("timing", "paper", "why"),
    [(step(waited_s=0.002), None, "a cache could not spare more"), (step(), Paper(with_caches=195), "wanted 5% net")],
)
def test_a_group_that_would_not_gain_goes_on_as_it_is_and_is_looked_at_again_later(timing, paper, why):
    times = deque([timing], maxlen=4096)
    one = made(times, paper=paper)
    assert watch(one, times, deciding.WATCHED + deciding.TRIED + 1) == []
    assert why in one.why and not one.trying
    times.append(step())
    assert any(one.trying or watch(one, times, 1) for _ in range(deciding.AGAIN + deciding.WATCHED + 1))


def test_a_new_group_hears_again_what_was_decided():
    times = deque([step()], maxlen=4096)
    one = made(times)
    one.regrouped()
    assert one.wish is None
    watch(one, times, deciding.WATCHED + deciding.TRIED + 2)
    one.regrouped()
    assert one.wish is True
