"""Shared memory is reused once its last view is dropped, and not before."""

import gc
import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from springtide import errors
from springtide.dataworker.transport import shared_memory
from springtide.rpc.transport.frames import BadFrame

MIB = 1 << 20
Pair = Callable[..., tuple[shared_memory.OutgoingSegments, shared_memory.IncomingSegments]]


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = []

    def make(
        most_bytes: int = 64 * MIB, segments: int = 4
    ) -> tuple[shared_memory.OutgoingSegments, shared_memory.IncomingSegments]:
        made.append(shared_memory.OutgoingSegments(most_bytes, segments))
        return made[-1], shared_memory.IncomingSegments()

    yield make
    for each in made:
        each.close()


def send_through(
    outgoing: shared_memory.OutgoingSegments, incoming: shared_memory.IncomingSegments, size: int
) -> object:
    """One message from side to side, without a socket."""
    segment = outgoing.take(size)
    assert segment is not None
    if not segment.told:
        incoming.map(segment.number, os.dup(segment.fd))
        segment.told = True
    return incoming.view(segment.number, size)


def test_data_written_to_a_segment_is_read_by_the_other_side(pair: Pair) -> None:
    outgoing, incoming = pair()
    view = send_through(outgoing, incoming, 4 * 100)
    first, second = torch.arange(60, dtype=torch.int32), torch.arange(60, 100, dtype=torch.int32)
    outgoing.segments[0].fill([(0, first.data_ptr(), 240), (240, second.data_ptr(), 160)])
    assert torch.frombuffer(view, dtype=torch.int32, count=100).tolist() == list(range(100))
    with pytest.raises(errors.BadInput, match="65472 bytes"):
        outgoing.segments[0].fill([(1 << 16, first.data_ptr(), 4)])


VIEWS: dict[str, Callable[[Any], Any]] = {
    "tensor": lambda buffer: torch.frombuffer(buffer, dtype=torch.int32, count=9),
    "array": lambda buffer: np.frombuffer(buffer, np.int32, 9),
    "view of a tensor": lambda buffer: torch.frombuffer(buffer, dtype=torch.int32, count=9).view(3, 3)[1:].T,
    "view of an array": lambda buffer: np.frombuffer(buffer, np.int32, 9).reshape(3, 3)[1:].T,
    "tensor of an array": lambda buffer: torch.from_numpy(np.frombuffer(buffer, np.int32, 9)),
}


@pytest.mark.parametrize("kind", VIEWS)
def test_segment_stays_busy_while_any_view_lives(pair: Pair, kind: str) -> None:
    outgoing, incoming = pair()
    buffer = send_through(outgoing, incoming, 400)
    held = VIEWS[kind](buffer)
    del buffer
    gc.collect()
    assert outgoing.segments[0].busy
    del held
    assert not outgoing.segments[0].busy


def test_free_segments_are_reused_smallest_and_latest_first(pair: Pair) -> None:
    outgoing, incoming = pair()
    large, small, other = (send_through(outgoing, incoming, size) for size in (MIB, 1000, 1000))
    del large, small, other
    assert outgoing.take(500).number == 2, "the latest of the small ones"  # type: ignore[union-attr]
    assert outgoing.take(500).number == 1  # type: ignore[union-attr]
    assert outgoing.take(500).number == 0, "the large one, rather than a new one"  # type: ignore[union-attr]


def test_too_small_free_segment_is_replaced_by_a_larger_one(pair: Pair) -> None:
    outgoing, incoming = pair(segments=2)
    kept = send_through(outgoing, incoming, 1000)
    send_through(outgoing, incoming, 1000)
    send_through(outgoing, incoming, MIB)
    assert {number: segment.capacity for number, segment in outgoing.segments.items()} == {0: 1 << 16, 1: 2 * MIB}
    assert len(incoming.mapped) == 2
    del kept


def test_taking_a_segment_does_not_block_when_all_are_held(pair: Pair) -> None:
    outgoing, incoming = pair(segments=3)
    held = [send_through(outgoing, incoming, 1000) for _ in range(3)]
    assert outgoing.take(1000) is None
    held.pop()
    assert outgoing.take(1000) is not None


def test_segments_never_exceed_their_limit(pair: Pair) -> None:
    outgoing, _ = pair(most_bytes=3 * MIB, segments=30)
    taken = [outgoing.take(MIB - 64) for _ in range(5)]
    assert [one is not None for one in taken] == [True, True, True, False, False]
    assert outgoing.take(8 * MIB) is None


def test_segment_without_a_shrink_seal_is_refused() -> None:
    unsealed = os.memfd_create("t", os.MFD_ALLOW_SEALING)
    os.ftruncate(unsealed, MIB)
    with pytest.raises(BadFrame, match="shrink"):
        shared_memory.IncomingSegments().map(0, unsealed)
    read, write = os.pipe()
    os.close(write)
    with pytest.raises(BadFrame, match="cannot map the segment"):
        shared_memory.IncomingSegments().map(0, read)


def test_payload_larger_than_its_segment_is_refused(pair: Pair) -> None:
    outgoing, incoming = pair()
    send_through(outgoing, incoming, 1000)
    with pytest.raises(BadFrame, match="the segment is smaller"):
        incoming.view(0, (1 << 16) - 63)
    with pytest.raises(BadFrame, match="segment 7"):
        incoming.view(7, 1)


def test_blocks_are_reused_once_no_view_remains() -> None:
    blocks = shared_memory.BlockPool()
    first = blocks.take(100_000)
    tensor = torch.frombuffer(first, dtype=torch.uint8)
    address = tensor.data_ptr()
    del first
    second = torch.frombuffer(blocks.take(100_000), dtype=torch.uint8)
    assert second.data_ptr() != address, "the first is still held"
    del tensor
    assert torch.frombuffer(blocks.take(100_000), dtype=torch.uint8).data_ptr() == address


def test_number_of_free_blocks_kept_is_bounded() -> None:
    blocks = shared_memory.BlockPool(spare=2)
    held = [blocks.take(1000) for _ in range(5)]
    held.clear()
    assert len(blocks.spare) == 2


def test_forked_child_with_a_view_does_not_free_its_segment(pair: Pair) -> None:
    outgoing, incoming = pair()
    view = send_through(outgoing, incoming, 1000)
    child = os.fork()
    if child == 0:
        del view
        gc.collect()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert outgoing.segments[0].busy
