"""The first placement of slots over servers."""

import pytest

from springtide import errors
from springtide.embedding.placement import placement


@pytest.mark.parametrize("servers", [1, 2, 3, 5, 64])
def test_slots_are_spread_evenly_in_contiguous_runs(servers):
    laid = placement.even(64, servers)
    sizes = [len(laid.slots_of(server)) for server in range(servers)]
    assert sum(sizes) == 64 and max(sizes) - min(sizes) <= 1
    assert list(laid.server_of_slot) == sorted(laid.server_of_slot)
    assert laid.epoch == 1


def test_more_servers_than_slots_are_refused():
    with pytest.raises(errors.BadInput, match="cannot place 64 slots on 65 servers"):
        placement.even(64, 65)
