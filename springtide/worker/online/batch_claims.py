"""Pure. Tracks the records that were read from each partition: where the next batch ends, and whether that batch is
complete.

A batch ends at the next multiple of the batch size, at a cut that the master has noted, or at the end of the
partition. A worker that has requested a cut waits for the answer, even if the batch fills up meanwhile. After the
master has recorded the cut, every other reader of the partition ends the batch there. Next: stream_reader.py claims
the batches.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from springtide.data.stream.records import Records, concat
from springtide.data.stream.stream import Chunk
from springtide.domain.data.leases import LeaseKey
from springtide.domain.data.streams import BatchCut
from springtide.worker.link.lease_tracker import LeaseTail

MOST_AHEAD = 8  # most batches to read ahead in a partition that waits for a cut


class ReadyBatch(NamedTuple):
    """Batch that the worker can claim: the records from `tail.begin` to `end`. A batch without records is a gap in
    the offsets.
    """

    tail: LeaseTail
    end: int
    records: Records


class ReadPiece(NamedTuple):
    """Records with the time at which they were read."""

    read_at: float
    records: Records


@dataclass(slots=True)
class PartitionHead:
    """Read position in one lease of a partition."""

    tail: LeaseTail
    position: int
    """Next offset to read."""
    pieces: deque[ReadPiece] = field(default_factory=deque)
    asked: int | None = None
    """Cut that was requested and that the master has not confirmed yet."""

    @property
    def key(self) -> LeaseKey:
        return LeaseKey(self.tail.grant.shard, self.tail.grant.first)

    @property
    def first(self) -> int:
        return int(self.pieces[0].records.offsets[0]) if self.pieces else self.position


def batch_end(begin: int, batch_size: int, cuts: Iterable[int], end: int) -> int:
    full = (begin // batch_size + 1) * batch_size
    return min([full, end, *(at for at in cuts if at > begin)])


class PartitionHeads:
    """Read positions in all partitions of this worker."""

    def __init__(self, batch_size: int) -> None:
        self._batch_size = batch_size
        self._heads: dict[int, PartitionHead] = {}

    def follow(self, tails: Iterable[LeaseTail]) -> None:
        """Follow the current leases and claims. Forget the records of all other leases or positions."""
        heads: dict[int, PartitionHead] = {}
        for tail in sorted(tails, key=lambda tail: tail.begin):
            partition = tail.grant.nth
            # if a partition has two leases, read the earlier one first
            if tail.begin >= tail.end or partition in heads:
                continue
            head = self._heads.get(partition)
            if head is None or head.tail.begin != tail.begin or head.key != (tail.grant.shard, tail.grant.first):
                head = PartitionHead(tail, tail.begin)
            head.tail = tail
            if head.asked is not None and (head.asked in tail.cuts or not tail.begin < head.asked < tail.end):
                # the master has recorded the cut, or the cut is not needed because the lease ends there
                head.asked = None
            heads[partition] = head
        self._heads = heads

    def positions(self) -> dict[int, int]:
        return {
            number: head.position
            for number, head in self._heads.items()
            if head.position < head.tail.end and not self._stuck(head)
        }

    def take_in(self, chunk: Chunk, at: float) -> int:
        """Add a chunk of records, unless its offset is unexpected. Return how many records of the chunk retention has
        deleted."""
        head = self._heads.get(chunk.partition)
        if head is None or chunk.first != head.position:
            return 0
        head.position = chunk.next
        if len(chunk.records):
            head.pieces.append(ReadPiece(at, chunk.records))
        return chunk.expired

    def whole(self) -> Iterator[ReadyBatch]:
        """Yield complete batches, partition after partition. For each batch, the caller must call `claimed` or
        `dropped`."""
        for head in list(self._heads.values()):
            while (found := self._next(head)) is not None:
                before = head.tail.begin
                yield found
                if head.tail.begin == before:
                    break

    def claimed(self, whole: ReadyBatch) -> None:
        head = self._heads[whole.tail.grant.nth]
        head.tail = whole.tail._replace(begin=whole.end)
        while head.pieces and head.pieces[0].records.offsets[-1] < whole.end:
            head.pieces.popleft()
        if head.pieces and head.pieces[0].records.offsets[0] < whole.end:
            read_at, records = head.pieces.popleft()
            head.pieces.appendleft(ReadPiece(read_at, records.between(whole.end, head.position)))
        head.position = max(head.position, whole.end)

    def dropped(self, whole: ReadyBatch) -> None:
        self._heads.pop(whole.tail.grant.nth, None)

    def lingering(self, ends: Mapping[int, int], before: float) -> tuple[BatchCut, ...]:
        """Return the cuts to request: cuts of incomplete batches that got no new record since `before`, and earlier
        requests that the master has not confirmed.
        """
        cuts: list[BatchCut] = []
        for number, head in self._heads.items():
            if head.asked is None and self._waits(head, ends.get(number, 0), before):
                head.asked = head.position
            if head.asked is not None:
                cuts.append(BatchCut(head.key.shard, head.key.first, head.asked))
        return tuple(cuts)

    def oldest(self) -> dict[int, float]:
        return {
            number: float(head.pieces[0].records.appended_at[0]) for number, head in self._heads.items() if head.pieces
        }

    def _stuck(self, head: PartitionHead) -> bool:
        """Return True if the partition waits until the master confirms a cut, and has already read `MOST_AHEAD` batches
        ahead."""
        return head.asked is not None and head.position >= head.tail.begin + MOST_AHEAD * self._batch_size

    def _waits(self, head: PartitionHead, end: int, before: float) -> bool:
        return bool(head.pieces) and head.pieces[0].read_at <= before and head.position >= end and not self._full(head)

    def _full(self, head: PartitionHead) -> bool:
        tail = head.tail
        return head.position >= batch_end(tail.begin, self._batch_size, tail.cuts, tail.end)

    def _next(self, head: PartitionHead) -> ReadyBatch | None:
        tail = head.tail
        if tail.begin >= tail.end or head.asked is not None:
            return None
        first = head.first
        gap = tail.end if first >= tail.end else first // self._batch_size * self._batch_size
        if gap > tail.begin:  # a gap in the offsets is one batch, even if it is longer than a batch
            return ReadyBatch(tail, gap, Records.none())
        if not self._full(head):
            return None
        end = batch_end(tail.begin, self._batch_size, tail.cuts, tail.end)
        parts = (piece.records.between(tail.begin, end) for piece in head.pieces)
        return ReadyBatch(tail, end, concat([part for part in parts if len(part)]))
