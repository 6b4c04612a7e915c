"""Allreduce over gloo with ranks as threads on loopback."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import distributed, nn

from springtide import errors
from springtide.worker.bsp import allreduce
from springtide.worker.bsp.allreduce import GroupStore
from springtide.worker.link.clients import GroupClient
from tests.unit.worker.ranks import Meeting, RankMaster


def on_ranks(count, work):
    """Results of `work(rank, group)` by rank."""
    store = distributed.HashStore()

    def rank_work(rank):
        group = allreduce.form_group(store, rank=rank, workers=count, host="127.0.0.1")
        try:
            return work(rank, group)
        finally:
            group.shutdown()

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(rank_work, range(count)))


def param(*values, dtype=torch.float32):
    return nn.Parameter(torch.tensor(values, dtype=dtype))


def test_gradients_are_averaged_weighted_by_each_ranks_share():
    def work(rank, group):
        first, second = param(0.0, 0.0), param(0.0, dtype=torch.float64)
        reducer = allreduce.Reducer([first, second], group)
        first.grad = torch.tensor([1.0, 2.0]) * (rank + 1)
        second.grad = torch.tensor([3.0], dtype=torch.float64) * (rank + 1)
        reducer.load(share=(0.25, 0.75)[rank], skip=False)
        assert not reducer.reduce()
        assert not reducer.reduce(), "once more gives the same: the rank's own gradients are kept"
        return first.grad.tolist(), second.grad.tolist()

    assert on_ranks(2, work) == [([1.75, 3.5], [5.25])] * 2


def test_missing_gradient_counts_as_zero_unless_all_ranks_lack_it():
    def work(rank, group):
        some, none = param(0.0), param(0.0)
        if rank == 1:
            some.grad = torch.tensor([4.0])
        reducer = allreduce.Reducer([some, none], group)
        reducer.load(share=0.5, skip=False)
        reducer.reduce()
        return some.grad.tolist(), none.grad

    assert on_ranks(2, work) == [([2.0], None)] * 2


def test_reduce_sends_the_current_words_on_each_call():
    def work(rank, group):
        reducer = allreduce.Reducer([param(0.0)], group, words=2)
        reducer.words = [1.0, float(rank)]
        reducer.load(share=0.5, skip=False)
        reducer.reduce()
        before, reducer.words = reducer.sums, [float(rank), 5.0]
        reducer.reduce()
        return before, reducer.sums

    assert on_ranks(2, work) == [([2.0, 1.0], [1.0, 10.0])] * 2


def test_all_ranks_skip_a_step_that_one_rank_skips():
    def work(rank, group):
        one = param(0.0)
        one.grad = torch.tensor([4.0])
        reducer = allreduce.Reducer([one], group)
        reducer.load(share=0.5, skip=rank == 1)
        return reducer.reduce(), one.grad.tolist()

    assert on_ranks(2, work) == [(True, [4.0])] * 2


def test_reduce_without_a_group_keeps_the_gradients():
    one = param(1.0)
    one.grad = torch.tensor([4.0])
    reducer = allreduce.Reducer([one], None)
    reducer.load(share=1.0, skip=True)
    assert reducer.reduce()
    assert one.grad.item() == pytest.approx(4.0)


def test_learning_rates_follow_the_elder_rank():
    # made by one thread: the first optimizer of a process imports the compiler
    optimizers = [torch.optim.SGD([param(0.0)], lr=0.1 * (rank + 1), weight_decay=rank) for rank in range(3)]

    def work(rank, group):
        optimizer = optimizers[rank]
        reducer = allreduce.Reducer([], group)
        reducer.follow([optimizer])
        assert optimizer.param_groups[0]["lr"] == 0.1 * (rank + 1), "while all began together each has its own"
        reducer.elder = 1
        reducer.follow([optimizer])
        return optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["weight_decay"]

    assert on_ranks(3, work) == [(0.2, 1)] * 3


def test_lost_member_raises_group_changed():
    gone = threading.Event()

    def work(rank, group):
        if rank == 1:
            gone.set()
            return "left"
        gone.wait()
        with pytest.raises(errors.GroupChanged):
            allreduce.broadcast(group, torch.zeros(1), 1)
        return "noticed"

    assert on_ranks(2, work) == ["noticed", "left"]


TABLES = (3, 5, 8)
SAID = st.builds(
    allreduce.RankWords,
    flush=st.booleans(),
    empty=st.booleans(),
    last=st.booleans(),
    ready=st.booleans(),
    paper=st.booleans(),
    digest=st.integers(0, 2**32 - 1),
    refused=st.frozensets(st.sampled_from(TABLES)),
)


def combined_verdict(said):
    """The verdict over sums as gloo makes them, in float32."""
    numbers = np.array([allreduce.encode_words(one, TABLES) for one in said], dtype=np.float32)
    assert numbers.shape[1] == allreduce.words_needed(TABLES)
    return allreduce.decode_words(numbers.sum(axis=0, dtype=np.float32).tolist(), TABLES, len(said))


@given(st.lists(SAID, min_size=1, max_size=128))
def test_rank_words_combine_flags_by_any_or_all(said):
    verdict = combined_verdict(said)
    assert verdict.flush == any(one.flush for one in said)
    assert verdict.paper == any(one.paper for one in said)
    assert verdict.last == any(one.last for one in said)
    assert verdict.ready == all(one.ready for one in said)
    assert verdict.refused == frozenset().union(*(one.refused for one in said))
    assert verdict.torn == (len({one.empty for one in said}) == 2)
    assert verdict.alike == (len({one.digest for one in said}) == 1)


@given(st.integers(0, 2**32 - 1), st.integers(1, 128))
def test_equal_digests_are_reported_equal_for_any_number_of_ranks(digest, ranks):
    assert combined_verdict([allreduce.RankWords(digest=digest)] * ranks).alike


@given(st.integers(0, 2**32 - 1), st.integers(0, 31), st.integers(2, 128), st.data())
def test_one_differing_digest_bit_is_detected_by_all_ranks(digest, bit, ranks, data):
    said = [allreduce.RankWords(digest=digest)] * ranks
    said[data.draw(st.integers(0, ranks - 1))] = allreduce.RankWords(digest=digest ^ 1 << bit)
    assert not combined_verdict(said).alike


def test_group_uses_the_lowest_effort_of_its_ranks():
    assert combined_verdict([allreduce.RankWords(effort=12), allreduce.RankWords(), allreduce.RankWords()]).effort == 12


def link_of(rank, meeting):
    master = RankMaster.__new__(RankMaster)
    master.rank, master.meeting = rank, meeting
    return GroupClient(master.ask)


class LostLink:
    """A master that knows that the other rank is lost."""

    def meet(self, asked):
        if asked.wanted:
            raise errors.GroupChanged(f"group {asked.generation} is over")
        return asked.given


def test_ranks_form_a_gloo_group_through_the_master():
    meeting, sums = Meeting(3), {}

    def run(rank):
        store = GroupStore(link_of(rank, meeting), 1)
        group = allreduce.form_group(store, rank=rank, workers=3, host="127.0.0.1")
        tensor = torch.full((4,), float(rank + 1))
        group.allreduce([tensor]).wait()
        sums[rank] = tensor.tolist()

    ranks = [threading.Thread(target=run, args=(rank,)) for rank in range(3)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    assert sums == {rank: [6.0] * 4 for rank in range(3)}
    assert set(meeting.given) == {1} and len(meeting.given[1]) >= 3


def test_forming_a_group_that_has_ended_raises_group_changed_without_a_timeout():
    with pytest.raises(errors.GroupChanged, match="group 7 is over"):
        allreduce.form_group(GroupStore(LostLink(), 7), rank=0, workers=2, host="127.0.0.1")
