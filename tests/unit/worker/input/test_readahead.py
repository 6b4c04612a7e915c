"""One batch ahead: what follows is read while a batch is trained, and never past a change of the group."""

import threading

import numpy as np
import pytest

from springtide.domain.data.samples import SampleRange
from springtide.worker.input.batch_plan import BatchOrder
from springtide.worker.input.read_batch import PAUSED, ReadBatch
from springtide.worker.input.readahead import BatchReadahead


def batch(number):
    whole = np.arange(number, number + 4)
    one = SampleRange(epoch=0, shard=0, first=number, count=4)
    return ReadBatch(BatchOrder(indices=whole, ranges=(one,), whole=whole), number, whole=True)


REGROUP = ReadBatch(BatchOrder(indices=np.empty(0, dtype=np.int64), regroups=1), None)


def test_every_batch_knows_what_follows_it_and_pauses_are_no_part_of_the_sequence():
    ahead = iter(BatchReadahead(iter([batch(0), PAUSED, batch(4), PAUSED]), lambda one: one))
    first = next(ahead)
    assert first.batch == 0 and first.following().batch == 4
    second = next(ahead)
    assert second.batch == 4 and second.following() is None
    assert list(ahead) == []


def test_where_more_may_come_at_any_time_nothing_follows_a_batch_before_a_pause_and_the_loop_gets_the_pause():
    ahead = iter(BatchReadahead(iter([batch(0), PAUSED, PAUSED, batch(4)]), lambda one: one, pauses=True))
    first = next(ahead)
    assert first.batch == 0 and first.following() is None
    assert next(ahead) is PAUSED and next(ahead) is PAUSED
    assert next(ahead).batch == 4
    assert list(ahead) == []


def test_nothing_is_read_past_a_change_of_the_group_before_it_has_changed():
    read = []

    def feed():
        for one in (batch(0), REGROUP, batch(4)):
            read.append(one.batch)
            yield one

    ahead = iter(BatchReadahead(feed(), lambda one: one))
    assert next(ahead).following() is None, "no batch of this group follows"
    assert next(ahead) is REGROUP
    assert read == [0, None]
    assert next(ahead).batch == 4


def test_the_next_batch_is_made_ready_while_this_one_is_trained_and_reviewed_when_it_is_through():
    begun, here = threading.Event(), threading.current_thread()

    def make_ready(one):
        assert threading.current_thread() is not here
        if one.batch == 4:
            begun.set()
        return one

    reviewed = []
    ahead = iter(BatchReadahead(iter([batch(0), batch(4)]), make_ready, lambda one: reviewed.append(one.batch) or one))
    next(ahead)
    assert begun.wait(30) and reviewed == [0]
    next(ahead)
    assert reviewed == [0, 4]


def test_what_the_reader_raises_comes_to_the_loop_and_leaving_early_ends_the_thread_and_the_feed():
    closed = []

    def feed():
        try:
            yield batch(0)
            raise OSError("no such file")
        finally:
            closed.append(True)

    ahead = iter(BatchReadahead(feed(), lambda one: one))
    with pytest.raises(OSError, match="no such file"):
        next(ahead).following()
    ahead.close()
    assert closed
    endless = iter(BatchReadahead(iter(lambda: PAUSED, None), lambda one: one))
    one = iter(BatchReadahead(iter([batch(0)]), lambda each: each))
    next(one)
    one.close()
    endless.close()
    assert not [each for each in threading.enumerate() if each.name.startswith("springtide-ahead")]
