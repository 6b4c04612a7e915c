"""Ranks as threads over gloo on loopback."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import distributed, nn

from springtide.train import allreduce


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
        assert not reducer.reduce(share=(0.25, 0.75)[rank], skip=False)
        return first.grad.tolist(), second.grad.tolist()

    assert on_ranks(2, work) == [([1.75, 3.5], [5.25])] * 2


def test_a_parameter_without_gradient_somewhere_counts_as_zero_there_and_nowhere_has_none():
    def work(rank, group):
        some, none = param(0.0), param(0.0)
        if rank == 1:
            some.grad = torch.tensor([4.0])
        allreduce.Reducer([some, none], group).reduce(share=0.5, skip=False)
        return some.grad.tolist(), none.grad

    assert on_ranks(2, work) == [([2.0], None)] * 2


def test_one_rank_that_skips_makes_all_skip():
    def work(rank, group):
        one = param(0.0)
        one.grad = torch.tensor([4.0])
        return allreduce.Reducer([one], group).reduce(share=0.5, skip=rank == 1), one.grad.tolist()

    assert on_ranks(2, work) == [(True, [4.0])] * 2


def test_everyone_begins_with_rank_zeros_values():
    def work(rank, group):
        tensors = [torch.full((2, 3), float(rank)).t(), torch.tensor(rank), param(float(rank)).detach()]
        allreduce.Reducer([], group).broadcast(tensors)
        return [tensor.sum().item() for tensor in tensors]

    assert on_ranks(3, work) == [[0.0, 0, 0.0]] * 3


def test_alone_nothing_is_summed():
    one = param(1.0)
    one.grad = torch.tensor([4.0])
    assert allreduce.Reducer([one], None).reduce(share=1.0, skip=True)
    assert one.grad.item() == pytest.approx(4.0)
