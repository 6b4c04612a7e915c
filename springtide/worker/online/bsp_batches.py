"""Batches of a stream for a bsp group. All ranks read the same offsets, and each rank trains its part.

In: leases of data/ledger/bsp_ledger.py, in the same order for all ranks. Out: batches for the loop, and a pause
while no records arrive. Each rank decodes the whole batch, so that all ranks agree on which records can be trained.
The ranks divide the trainable records into contiguous runs, or as a schedule chooses
(worker/cache/sample_allocation.py).
"""

import dataclasses
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from springtide import errors
from springtide.data import shards
from springtide.data.source import as_batch
from springtide.data.stream import records as columns
from springtide.data.stream.records import Records
from springtide.data.stream.stream import Chunk, Stream, StreamDataset, StreamReader
from springtide.domain.data.leases import Grant
from springtide.domain.data.samples import DatasetCard, SampleRange
from springtide.domain.data.streams import PartitionRange, PartitionView, StreamUse
from springtide.rpc.messages import messages
from springtide.rpc.messages.coordination import Regroup
from springtide.worker.bsp.group import BspGroup, GroupPlace
from springtide.worker.cache.coordinator import CacheCoordinator
from springtide.worker.input.batch_plan import PAUSE, PAUSED, BatchOrder, Indices, ReadBatch
from springtide.worker.input.feeds import BatchReadahead
from springtide.worker.link.lease_tracker import BatchClaim
from springtide.worker.link.master_link import MasterLink
from springtide.worker.online.stream_batches import RecordDecoder
from springtide.worker.online.usage_report import StreamMeter
from springtide.worker.step.step import StepListener

log = logging.getLogger(__name__)
# number of recent batches to keep: the current batch, the next batch, the batch that is being read, and one in reserve
KEPT = 4
POLL_S = 0.2  # seconds between two checks for the end of the job, while expected records do not arrive


class RecentBatch(NamedTuple):
    """Recent batch with the number of its first record. Trainable records are numbered through the pass."""

    claim: BatchClaim
    partition: int
    first: int
    records: Records
    event_s: int
    """Event time of the stream in seconds, up to and including this batch."""


class BspStreamFeed(StepListener):
    """Feed of a stream in a bsp job. Each `job.prepare` has one such feed; call `batches` once per pass."""

    def __init__(
        self,
        dataset: StreamDataset,
        stream: Stream,
        card: DatasetCard,
        link: MasterLink,
        *,
        each: int | None = None,
        idle: Callable[[], None] = lambda: None,
    ) -> None:
        """Create the feed. `each`: number of records per rank, if a batch grows with the group. `idle` is called at
        each pause."""
        self.stream, self.card, self.link, self.each, self._idle = stream, card, link, each, idle
        self.use = StreamMeter()
        self.making = RecordDecoder(dataset, self.use)
        self._group: BspGroup | None = None
        self._sharing: CacheCoordinator | None = None
        self.event_s = 0
        """Event time of the stream in seconds, up to the current batch."""
        self._stands: dict[int, int] = {}
        """Offset of the reader in its current partition."""
        self._places: dict[int, int] = {}
        """Offsets up to which the loop has received each partition."""
        self._bounds: tuple[PartitionRange, ...] = ()
        self._recent: tuple[RecentBatch, ...] = ()

    def join_group(self, group: BspGroup, sharing: CacheCoordinator | None) -> None:
        self._group, self._sharing = group, sharing

    def batches(self) -> Iterator[ReadBatch]:
        feed, sharing = self.read(), self._sharing
        if sharing is not None:  # read one batch ahead, so that the scheduler can plan it
            sharing.restart(self.place)
            feed = iter(BatchReadahead(feed, sharing.allotting.make_ready, sharing.allotting.review, pauses=True))
        for handed in feed:
            if handed is PAUSED:
                self.use.waits(True)
                self._idle()
            elif handed.order.claim is not None:
                self._hand_out(handed.order, handed.order.claim)
            yield handed

    @property
    def place(self) -> GroupPlace:
        assert self._group is not None
        return self._group.place

    def on_trained(self, claims: Sequence[BatchClaim]) -> None:
        self.use.trained(claims)

    def row_clock(self) -> int:
        return self.event_s

    def read(self) -> Iterator[ReadBatch]:
        tracker = self.link.leases.tracker
        tracker.begin_pass(self.card)
        reader = self.stream.open()
        self._stands = {}
        try:
            while not self.link.draining:
                place = self.place
                size = self.card.batch_size if self.each is None else self.each * place.workers
                claimed = tracker.claim(size, group=place.workers)
                if claimed is not None:
                    records = self._read(reader, claimed[0].nth, claimed[1])
                    if records is None:
                        return
                    handed = self._made(*claimed, records, place)
                    if handed is not None:
                        yield handed
                    else:  # no record can be trained; all ranks get the same result
                        tracker.acknowledge([claimed[1]])
                    continue
                answer = self.link.leases.lease(self.card, 1, self._read_bounds())
                if isinstance(answer, messages.DataEnd):
                    return
                if isinstance(answer, Regroup):
                    yield ReadBatch(BatchOrder(indices=PAUSE.indices, regroups=place.generation), None)
                elif not isinstance(answer, messages.LeaseReply):
                    yield PAUSED
        finally:
            reader.close()

    def fetch(self, samples: Indices) -> Any:
        for recent in self._recent:
            if recent.first <= samples[0] < recent.first + len(recent.records):
                return shaped(self.making.again(recent.partition, recent.records[samples - recent.first]))
        raise errors.JobFailed(f"record {samples[0]} of the stream's pass is no longer in memory")

    def pick(self, batch: Any, samples: Indices, places: Indices, *, jagged: bool) -> Any:
        """Decode the records at these positions again, because this feed does not know the structure of decoded
        batches.
        """
        return self.fetch(samples[places])

    def report(self) -> StreamUse:
        """Return the stream use for the worker's reports; only rank 0 reports the positions in partitions."""
        use = self.use.report(())
        if self.place.rank:
            return use
        places = dict(self._places)
        views = [
            PartitionView(bound.partition, min(bound.end, places.get(bound.partition, bound.start)), bound.end, 0.0)
            for bound in self._bounds
        ]
        return dataclasses.replace(use, partitions=tuple(views))

    def close(self) -> None:
        self.making.close()
        self.stream.close()

    def _read_bounds(self) -> tuple[PartitionRange, ...]:
        assert self.card.stream is not None
        try:
            seen = self.stream.bounds(self.card.stream.start)
        except errors.TemporaryError as error:
            log.warning("%s", error)
            return ()
        now = self.card.stream.until == "now"
        self._bounds = tuple(partition._replace(final=partition.final or now) for partition in seen)
        return self._bounds

    def _read(self, reader: StreamReader, partition: int, claim: BatchClaim) -> Records | None:
        """Read all records of a batch. Return None if the job drains before the records arrive."""
        if self._stands != {partition: claim.begin}:
            reader.assign({partition: claim.begin})
        at, parts = claim.begin, [Records.none()]
        while at < claim.end:
            for chunk in self._poll(reader):
                if chunk.partition == partition and chunk.next > at:
                    parts.append(chunk.records.between(at, claim.end))
                    self.use.read(parts[-1], chunk.expired)
                    at = chunk.next
            if at < claim.end and self.link.draining:
                return None
        self._stands = {partition: at}
        return columns.concat(parts)

    def _poll(self, reader: StreamReader) -> list[Chunk]:
        try:
            chunks = reader.poll(POLL_S, self.card.batch_size)
        except errors.TemporaryError as error:
            log.warning("%s", error)
            return []
        return chunks

    def _made(self, grant: Grant, claim: BatchClaim, records: Records, place: GroupPlace) -> ReadBatch | None:
        """Return this rank's part of the batch, or the whole batch. With fewer records than ranks, each rank trains all
        records."""
        batch, records = self.making.whole(grant.nth, records, tell=place.rank == 0)
        before, count = self._recent[-1] if self._recent else None, len(records)
        self.link.leases.tracker.note_void(claim, claim.end - claim.begin - count)
        if not count:
            return None
        first = 0 if before is None else before.first + len(before.records)
        recent = RecentBatch(claim, grant.nth, first, records, self.making.event_s)
        # replace the tuple in one assignment, because the loop's thread may read it at the same time
        self._recent = (*self._recent[1 - KEPT :], recent)
        if count < place.workers:
            return ReadBatch(order_of(claim, count, share=1.0 / place.workers), shaped(batch))
        run = shards.rank_part(count, rank=place.rank, workers=place.workers)
        mine, whole = np.arange(run.start, run.stop), first + np.arange(count)
        order = order_of(claim, len(mine), share=len(mine) / count, whole=whole, places=mine)
        if self._sharing is not None and self._sharing.allotting.wholes:
            return ReadBatch(order, shaped(batch), whole=True)
        return ReadBatch(order, shaped(batch) if place.workers == 1 else self.fetch(whole[run]))

    def _hand_out(self, order: BatchOrder, claim: BatchClaim) -> None:
        recent = next(recent_claim for recent_claim in self._recent if recent_claim.claim == claim)
        mine = recent.records if order.places is None else recent.records[order.places]
        self.event_s, self._places[recent.partition] = recent.event_s, claim.begin
        self.use.waits(False, len(mine))
        self.use.handed(claim, mine, len(mine))


def order_of(
    claim: BatchClaim, count: int, *, share: float, whole: Indices | None = None, places: Indices | None = None
) -> BatchOrder:
    """Return the order of `count` records of a batch. If the ranks share the batch, the order contains the records at
    `places` of `whole`.
    """
    ranges = (SampleRange(epoch=0, shard=claim.shard, first=claim.begin, count=count),)
    indices = PAUSE.indices if whole is None or places is None else whole[places]
    return BatchOrder(indices=indices, ranges=ranges, share=share, claim=claim, whole=whole, places=places)


def shaped(batch: Any) -> Any:
    return as_batch(batch) if isinstance(batch, tuple) else batch
