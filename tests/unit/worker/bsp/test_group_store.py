"""gloo finds its ranks through the link to the master, and hears from there when one will not come."""

import threading

import pytest
import torch

from springtide import errors
from springtide.worker.bsp import allreduce
from springtide.worker.bsp.group_store import GroupStore
from springtide.worker.link.clients import GroupClient
from tests.unit.worker.ranks import Meeting, RankMaster


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


def test_ranks_that_know_nothing_but_their_master_sum_over_gloo():
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


def test_a_rank_whose_group_is_over_hears_it_from_the_master_and_not_from_a_clock():
    with pytest.raises(errors.GroupChanged, match="group 7 is over"):
        allreduce.form_group(GroupStore(LostLink(), 7), rank=0, workers=2, host="127.0.0.1")
