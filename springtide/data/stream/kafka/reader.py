"""Reads partitions of one topic from given offsets on, and knows at every moment where it stands.

In: `assign({partition: offset})` by the worker. Out: chunks (base.Chunk), each from where the reader stood to where it
stands: gaps of compaction and transactions are inside, what retention has deleted is counted as expired. A broker that
is away is nothing to read. Next: worker/online/ makes batches of it. Messages become records in librdkafka.py.
"""

import logging
import time
from collections.abc import Mapping

from confluent_kafka import KafkaError

from springtide import errors
from springtide.data.stream.kafka import client
from springtide.data.stream.kafka.address import Address
from springtide.data.stream.kafka.librdkafka import BrokerQueryFailed, PartitionNotice, RawConsumer
from springtide.data.stream.records import Records
from springtide.data.stream.stream import Chunk

log = logging.getLogger(__name__)

AWAY_S = 60.0  # a broker that is away for longer is an error, told again every so often
LOOK_S = 5.0  # one question to the broker
AGAIN_S = 0.5  # between two questions about a partition that is out of range
SHRUNK_S = 5.0  # a broker that has just started may not know yet how much it has
OUT_OF_RANGE = {KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE}


class KafkaReader:
    """base.StreamReader. Used by one thread."""

    def __init__(self, address: Address, *, away_s: float = AWAY_S) -> None:
        self._address = address
        self._away_s = away_s
        self._away: tuple[float, str] | None = None
        self._next: dict[int, int] = {}
        """Where it stands, of each partition assigned."""
        self._astray: dict[int, float] = {}
        """Partitions whose offset the broker does not have, and when to ask about them."""
        self._shrunk: dict[int, float] = {}
        """Of those, the ones that end before where we stand, and since when."""
        self._ends: dict[int, int] = {}
        self._handle: RawConsumer | None = RawConsumer(address.topic, client.consuming(address), self._note)

    def assign(self, positions: Mapping[int, int]) -> None:
        """Read these from now on. Partitions that stand where they should are not disturbed."""
        wrong = [each for each, offset in self._next.items() if positions.get(each) != offset]
        if wrong:
            self._it.unassign(wrong)
            for each in wrong:
                del self._next[each]
                self._astray.pop(each, None)
                self._shrunk.pop(each, None)
                self._ends.pop(each, None)
        new = {each: offset for each, offset in positions.items() if each not in self._next}
        if new:
            self._it.assign(new)
            self._next |= new

    def poll(self, timeout_s: float, most: int = 65536) -> list[Chunk]:
        """What there is, at most about `most` records. What is heard but no record does not end the wait."""
        until = time.monotonic() + timeout_s
        while True:
            found = self._astray_ones()
            left_s = max(until - time.monotonic(), 0.0)
            wait_s = 0.0 if found else min(left_s, AGAIN_S) if self._astray else left_s
            found += self._read(wait_s, most)
            if found:
                self._away = None
                return found
            if self._away is not None:
                self._look()
            if time.monotonic() >= until:
                return found

    def ends(self) -> Mapping[int, int]:
        """Ends as told with the last fetch."""
        for partition in self._next:
            if (end := self._it.known_end(partition)) is not None:
                self._ends[partition] = end
        return {each: max(end, self._next[each]) for each, end in self._ends.items() if each in self._next}

    def close(self) -> None:
        """Let go of the connection."""
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.close()

    @property
    def _it(self) -> RawConsumer:
        if self._handle is None:
            raise errors.BadInput("this reader is closed; open another one of the stream")
        return self._handle

    def _read(self, wait_s: float, most: int) -> list[Chunk]:
        """Go on by what there is; records of partitions that are not ours any more, or came before, are dropped."""
        stood = dict(self._next)
        found, news = self._it.consume(most, wait_s)
        for partition, read in list(found.items()):
            at = self._next.get(partition)
            if at is None:
                continue
            if read.offsets[0] < at:
                read = found[partition] = read.between(at, int(read.offsets[-1]) + 1)
            if len(read):
                self._next[partition] = int(read.offsets[-1]) + 1
        for one in news:
            self._hear(one)
        return [
            Chunk(partition=each, first=first, next=self._next[each], records=found.get(each, Records.none()))
            for each, first in stood.items()
            if self._next[each] > first
        ]

    def _hear(self, news: PartitionNotice) -> None:
        """What comes in place of a record: the end of a partition, or trouble with it."""
        partition, code, offset = news
        if code in client.REFUSED:
            raise client.refused(self._address, self._it.text(code))
        if partition not in self._next:
            if code != KafkaError.GROUP_AUTHORIZATION_FAILED:  # a group is a name only, unless the user wants commits
                self._note(code, self._it.text(code))
        elif code == KafkaError._PARTITION_EOF:
            self._next[partition] = max(self._next[partition], offset)
            self._ends[partition] = self._next[partition]
        elif code in OUT_OF_RANGE:
            self._astray.setdefault(partition, 0.0)
        else:
            self._note(code, self._it.text(code))

    def _astray_ones(self) -> list[Chunk]:
        """Find the way back for partitions whose offset is not there: on to the oldest record that is."""
        found = []
        for partition, when in list(self._astray.items()):
            if time.monotonic() < when:
                continue
            try:
                low, high = self._it.bounds(partition, LOOK_S)
            except BrokerQueryFailed as error:
                self._astray[partition] = time.monotonic() + AGAIN_S
                self._note(error.code, str(error))
                continue
            at = self._next[partition]
            if at > high:
                self._astray[partition] = time.monotonic() + AGAIN_S
                if time.monotonic() - self._shrunk.setdefault(partition, time.monotonic()) < SHRUNK_S:
                    continue
                raise errors.StreamShrunk(
                    f"partition {partition} of topic {self._address.topic!r} ends at {high}, but the job has read up "
                    f"to {at}: was the topic deleted and made again, or did a broker lose data? Begin a new job on it"
                )
            del self._astray[partition]
            self._shrunk.pop(partition, None)
            on = max(at, low)
            self._it.unassign([partition])
            self._it.assign({partition: on})
            if on > at:
                log.warning("partition %d: %d records were deleted before they were read", partition, on - at)
                self._next[partition] = on
                found.append(
                    Chunk(partition=partition, first=at, next=on, records=Records.none(), expired=on - at)
                )  # fmt: skip
        return found

    def _note(self, code: int, why: str) -> None:
        """Trouble that may pass. When it began counts, and what it began with says more than that nobody is left."""
        if self._away is None:
            log.warning("reading topic %r: %s", self._address.topic, why)
            self._away = (time.monotonic(), why)
        elif code != KafkaError._ALL_BROKERS_DOWN:
            self._away = (self._away[0], why)

    def _look(self) -> None:
        """Whether a broker that was away for long still is. TemporaryError then."""
        assert self._away is not None
        since, why = self._away
        away_s = time.monotonic() - since
        if away_s < self._away_s or not self._next:
            return
        try:
            self._it.bounds(min(self._next), min(LOOK_S, self._away_s))
        except BrokerQueryFailed:
            self._away = (time.monotonic(), why)
            raise client.unreachable(self._address, away_s, why) from None
        self._away = None
