"""Read the same clicks in several ways: a bare Kafka consumer, NumPy, and Springtide's streams as a job reads them.

The bare consumer is hand-written code with our client settings. `ours` does everything that a worker does before its
model sees a batch: it reads records, cuts them into batches, claims the batches and decodes them into tensors.
"""

import pathlib
import time
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from springtide import config, errors
from springtide.data.stream.decode import Field, Fixed
from springtide.data.stream.stream import Stream, open_stream
from springtide.data.stream.stream import stream as stream_dataset
from springtide.domain.data.samples import DatasetCard
from springtide.worker.input.batch_plan import PAUSE
from springtide.worker.link.master_link import local_link
from springtide.worker.online.shuffle_unit import ShuffleUnit
from springtide.worker.online.stream_batches import StreamFeed

CLICK: dict[str, Field] = {"at": "f8", "dense": ("f4", 13), "ids": ("i8", 26), "label": "f4"}
SMALL: dict[str, Field] = {"at": "f8", "id": "i8", "label": "f4"}
KINDS = {"click": CLICK, "small": SMALL}
CHUNK = 1000  # records per append


def dtype_of(kind: str) -> np.dtype[np.void]:
    return Fixed(KINDS[kind]).dtype


def draw(kind: str, count: int, seed: int) -> NDArray[np.void]:
    """Return records of random bytes; only their size matters."""
    rng = np.random.default_rng(seed)
    return np.frombuffer(rng.bytes(count * dtype_of(kind).itemsize), dtype_of(kind))


def fill(stream: Stream, rows: NDArray[np.void], partitions: int) -> None:
    writer = stream.writer()
    for number, begin in enumerate(range(0, len(rows), CHUNK)):
        run = rows[begin : begin + CHUNK]
        ends = np.arange(1, len(run) + 1, dtype=np.int64) * run.dtype.itemsize
        writer.append(number % partitions, run.tobytes(), ends)
    writer.close()


def bare(url: str, count: int, partitions: int, at_once: int) -> float:
    """Return the records per second of consume() and value() calls, between the first and the last records."""
    from confluent_kafka import Consumer, TopicPartition

    from springtide.data.stream.kafka.client import CONSUMING, parse

    address = parse(url)
    usual = {**CONSUMING, "auto.offset.reset": "earliest", "enable.partition.eof": False}
    consumer = Consumer(address.settings({**usual, "group.id": "bare", "enable.auto.commit": False}))
    consumer.assign([TopicPartition(address.topic, number, 0) for number in range(partitions)])
    pace, size = Pace(count), 0
    while not pace.over:
        messages = consumer.consume(at_once, 1.0)
        for message in messages:
            if message.error() is None:
                size += len(message.value() or b"")
        pace.came(len(messages))
    consumer.close()
    assert size, "no bytes came"
    return pace.rate


def ours(url: str, kind: str, count: int, batch_size: int) -> float:
    """Return the records per second that a worker gets as batches of tensors, between the first and the last batch."""
    pace = Pace(count)
    for batch in batches_of(url, kind, batch_size):
        pace.came(len(batch["label"]))
    if not pace.over:
        raise errors.SpringtideError(f"only {pace.got} of {count} records arrived: this benchmark has an error")
    return pace.rate


class Pace:
    """Rate of incoming records. For every reader, the time to connect and to close does not count."""

    def __init__(self, count: int) -> None:
        self.count, self.got, self.first = count, 0, 0
        self.began = self.ended = 0.0

    def came(self, records: int) -> None:
        if not records or self.over:
            return
        if not self.got:
            self.first, self.began = records, time.perf_counter()
        self.got += records
        self.ended = time.perf_counter()

    @property
    def over(self) -> bool:
        return self.got >= self.count

    @property
    def rate(self) -> float:
        return (self.got - self.first) / (self.ended - self.began)


def batches_of(url: str, kind: str, batch_size: int) -> Iterator[dict[str, torch.Tensor]]:
    """Yield batches of all records that the stream holds now; mark each batch as trained before the next."""
    dataset = stream_dataset(url, decode=Fixed(KINDS[kind]), until="now", linger_s=0.05, shuffle="none")
    link = local_link(config.Settings())
    link.join()
    card = DatasetCard(samples=0, batch_size=batch_size, shuffle=False, shard_batches=1, stream=dataset.card)
    feed = StreamFeed(dataset, open_stream(url), card, link, ShuffleUnit(link.leases.tracker, strategy="none"))
    try:
        for handed in feed.batches():
            order = handed.order
            if order is not PAUSE and order.claim is not None:
                yield handed.batch
                feed.on_trained([order.claim])
    finally:
        feed.close()


def by_numpy(file: pathlib.Path, kind: str, count: int, batch_size: int) -> float:
    """Read a file of the same records, batch by batch, into the same tensors; return records per second."""
    dtype, pace = dtype_of(kind), Pace(count)
    with file.open("rb", buffering=0) as opened:
        while len(rows := np.fromfile(opened, dtype, batch_size)):
            for name in dtype.names or ():
                torch.from_numpy(np.ascontiguousarray(rows[name]))
            pace.came(len(rows))
    return pace.rate
