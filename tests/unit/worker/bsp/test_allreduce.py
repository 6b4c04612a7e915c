"""Ranks as threads over gloo on loopback."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import distributed, nn

from springtide import errors
from springtide.worker.bsp import allreduce


def on_ranks(count, work):
    """What `work(rank, group)` returns on each rank."""
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


def test_gradients_are_averaged_by_each_ranks_share():
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


def test_a_parameter_without_gradient_somewhere_counts_as_zero_there_and_nowhere_has_none():
    def work(rank, group):
        some, none = param(0.0), param(0.0)
        if rank == 1:
            some.grad = torch.tensor([4.0])
        reducer = allreduce.Reducer([some, none], group)
        reducer.load(share=0.5, skip=False)
        reducer.reduce()
        return some.grad.tolist(), none.grad

    assert on_ranks(2, work) == [([2.0], None)] * 2


def test_words_are_those_of_the_moment_also_when_gradients_are_summed_once_more():
    def work(rank, group):
        reducer = allreduce.Reducer([param(0.0)], group, words=2)
        reducer.words = [1.0, float(rank)]
        reducer.load(share=0.5, skip=False)
        reducer.reduce()
        before, reducer.words = reducer.sums, [float(rank), 5.0]
        reducer.reduce()
        return before, reducer.sums

    assert on_ranks(2, work) == [([2.0, 1.0], [1.0, 10.0])] * 2


def test_one_rank_that_skips_makes_all_skip():
    def work(rank, group):
        one = param(0.0)
        one.grad = torch.tensor([4.0])
        reducer = allreduce.Reducer([one], group)
        reducer.load(share=0.5, skip=rank == 1)
        return reducer.reduce(), one.grad.tolist()

    assert on_ranks(2, work) == [(True, [4.0])] * 2


def test_alone_nothing_is_summed():
    one = param(1.0)
    one.grad = torch.tensor([4.0])
    reducer = allreduce.Reducer([one], None)
    reducer.load(share=1.0, skip=True)
    assert reducer.reduce()
    assert one.grad.item() == pytest.approx(4.0)


def test_learning_rates_are_the_elders():
    def work(rank, group):
        optimizer = torch.optim.SGD([param(0.0)], lr=0.1 * (rank + 1), weight_decay=rank)
        reducer = allreduce.Reducer([], group)
        reducer.follow([optimizer])
        assert optimizer.param_groups[0]["lr"] == 0.1 * (rank + 1), "while all began together each has its own"
        reducer.elder = 1
        reducer.follow([optimizer])
        return optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["weight_decay"]

    assert on_ranks(3, work) == [(0.2, 1)] * 3


def test_a_lost_member_is_told_as_such():
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
