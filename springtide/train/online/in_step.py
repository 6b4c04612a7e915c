"""A bsp group's batches of a stream: ranks read the same stretches of partitions, each trains its part of a batch.

In: leases of data/convoy.py, in the same order for all ranks. Out: batches like those of train/batches.py, with a pause
when no records have come. Each rank reads and decodes the whole batch, so that all agree which of its records can be
trained; these are shared evenly. Next: step.py.
"""

import dataclasses
import logging
from collections.abc import Callable, Iterator

from springtide import errors
from springtide.data.source import as_batch
from springtide.data.stream import records as columns
from springtide.data.stream.base import Chunk, Stream, StreamReader
from springtide.data.stream.dataset import StreamDataset
from springtide.data.stream.records import Records
from springtide.domain.leases import Grant
from springtide.domain.samples import DatasetCard, SampleRange
from springtide.domain.streams import PartitionView, Seen, StreamUse
from springtide.rpc import messages
from springtide.train.batches import PAUSED, Handed
from springtide.train.group import Place
from springtide.train.hands import Claim
from springtide.train.link import Link
from springtide.train.online.making import Making
from springtide.train.online.use import Use
from springtide.train.orders import PAUSE, Order

log = logging.getLogger(__name__)
POLL_S = 0.2  # between two looks whether the job is to stop, while records that are known to be there do not come


class InStep:
    """One a `job.prepare` of a stream in a bsp job; `batches` once a pass."""

    def __init__(
        self, dataset: StreamDataset, stream: Stream, card: DatasetCard, link: Link, place: Callable[[], Place]
    ) -> None:
        self.stream, self.card, self.link, self.place = stream, card, link, place
        self.use = Use()
        self.making = Making(dataset, self.use)
        self.idle: Callable[[], None] = lambda: None
        """Called whenever there is nothing to train."""
        self._stands: dict[int, int] = {}
        """Where the reader is in the partition that it reads."""
        self._places: dict[int, int] = {}
        """Up to where the loop has been given partitions."""
        self._bounds: tuple[Seen, ...] = ()

    def batches(self) -> Iterator[Handed]:
        """Until the stream is over, or the group for this worker."""
        hands = self.link.hands
        hands.open(self.card)
        reader = self.stream.open()
        self._stands = {}
        try:
            while not self.link.draining:
                place = self.place()
                claimed = hands.claim(self.card.batch_size, group=place.workers)
                if claimed is not None:
                    records = self._read(reader, claimed[0].nth, claimed[1])
                    if records is None:
                        return
                    self._places[claimed[0].nth] = claimed[1].begin
                    handed = self._part(*claimed, records, place)
                    if handed is not None:
                        yield handed
                    else:  # nothing of it can be trained, as all ranks find
                        hands.acknowledge([claimed[1]])
                    continue
                answer = self.link.lease(self.card, 1, self._seen())
                if isinstance(answer, messages.End):
                    return
                if isinstance(answer, messages.Regroup):
                    yield Handed(Order(indices=PAUSE.indices, regroups=place.generation), None)
                elif not isinstance(answer, messages.Leased):
                    self.use.waits(True)
                    self.idle()
                    yield PAUSED
        finally:
            reader.close()

    def report(self) -> StreamUse:
        """For the worker's reports; how far partitions are is told by one rank."""
        use = self.use.report(())
        if self.place().rank:
            return use
        places = dict(self._places)
        views = [
            PartitionView(one.partition, min(one.end, places.get(one.partition, one.start)), one.end, 0.0)
            for one in self._bounds
        ]
        return dataclasses.replace(use, partitions=tuple(views))

    def close(self) -> None:
        """The script is through."""
        self.making.close()
        self.stream.close()

    def _seen(self) -> tuple[Seen, ...]:
        assert self.card.stream is not None
        try:
            seen = self.stream.bounds(self.card.stream.start)
        except errors.TemporaryError as error:
            log.warning("%s", error)
            return ()
        now = self.card.stream.until == "now"
        self._bounds = tuple(one._replace(final=one.final or now) for one in seen)
        return self._bounds

    def _read(self, reader: StreamReader, partition: int, claim: Claim) -> Records | None:
        """All records of a batch; None: the job is to stop before they have come."""
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
        """What there is. A stream that cannot be reached is waited for."""
        try:
            chunks = reader.poll(POLL_S, self.card.batch_size)
        except errors.TemporaryError as error:
            log.warning("%s", error)
            return []
        return chunks

    def _part(self, grant: Grant, claim: Claim, records: Records, place: Place) -> Handed | None:
        """This rank's part. Of fewer records than ranks each trains all, and counts for its part of the group."""
        part = self.making.part(grant.nth, records, rank=place.rank, workers=place.workers)
        if part is None:
            return None
        self.use.waits(False, len(part.records))
        self.use.handed(claim, part.records)
        ranges = (SampleRange(epoch=0, shard=claim.shard, first=claim.begin, count=len(part.records)),)
        order = Order(indices=PAUSE.indices, ranges=ranges, share=part.share, claim=claim)
        return Handed(order, as_batch(part.batch) if isinstance(part.batch, tuple) else part.batch)
