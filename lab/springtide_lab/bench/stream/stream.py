"""Records a second from a stream into training batches, and how long a record takes from append to trained.

In: a real Kafka broker and a log on disk with the same records, against a bare consumer loop and NumPy on a file; then
a worker trains from each at a steady rate. Out: `kafka_vs_bare`. Ways: stream_readers.py; worker: stream_trainer.py.
"""

import contextlib
import functools
import pathlib
import tempfile
import threading
import time
from collections.abc import Mapping

import numpy as np

from springtide.data.stream.log.layout import LogSettings
from springtide.data.stream.log.stream import create
from springtide.data.stream.stream import Stream, open_stream
from springtide_lab.bench import Options
from springtide_lab.bench.core import harness, peers, report
from springtide_lab.bench.stream import stream_readers
from springtide_lab.testing import kafka_broker

PARTITIONS, BATCH = 4, 2048
BARE = {"consume(500)": 500, "consume(10000)": 10_000}
OURS, LOG, NUMPY = "Kafka, ours", "log, ours", "NumPy, a file"
RATE, LAG_BATCH, LINGER_S = 4000, 256, 0.05
TICK = RATE // 100  # records appended at once, a hundred times a second
Lags = Mapping[str, tuple[float, float, int]]


def bench(options: Options) -> report.Result:
    counts = {"click": 20_000, "small": 20_000} if options.quick else {"click": 150_000, "small": 250_000}
    rounds = 2 if options.quick else 4
    lack = kafka_broker.missing()
    measured: dict[str, harness.Rounds] = {}
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="springtide-stream-")))
        broker = None
        if not lack:
            harness.say("starting a Kafka broker")
            broker = stack.enter_context(kafka_broker.KafkaBroker(folder / "kafka", partitions=PARTITIONS, fast=True))
        for kind, count in counts.items():
            measured[kind] = compare(kind, count, folder, broker, rounds)
        lags = latencies(folder, broker, 1.0 if options.quick else 5.0)
    return judge(measured, counts, lags, lack)


def compare(
    kind: str, count: int, folder: pathlib.Path, broker: kafka_broker.KafkaBroker | None, rounds: int
) -> harness.Rounds:
    rows = stream_readers.draw(kind, count, seed=8)
    file = folder / f"{kind}.bin"
    rows.tofile(file)
    log = create(folder / kind, LogSettings(partitions=PARTITIONS))
    stream_readers.fill(log, rows, PARTITIONS)
    log.close()
    ways = {
        LOG: functools.partial(stream_readers.ours, f"log://{folder / kind}", kind, count, BATCH),
        NUMPY: functools.partial(stream_readers.by_numpy, file, kind, count, BATCH),
    }
    if broker is not None:
        url = broker.url(kind)
        topic = open_stream(url)
        topic.partitions()  # makes it
        harness.say(f"appending {count} {kind} records")
        stream_readers.fill(topic, rows, PARTITIONS)
        topic.close()
        ways = {
            OURS: functools.partial(stream_readers.ours, url, kind, count, BATCH),
            **{
                f"bare {name}": functools.partial(stream_readers.bare, url, count, PARTITIONS, at_once)
                for name, at_once in BARE.items()
            },
            **ways,
        }
    return harness.alternate(ways, rounds=rounds, label=f"{kind} records")


def latencies(folder: pathlib.Path, broker: kafka_broker.KafkaBroker | None, seconds: float) -> Lags:
    """Lags in milliseconds, p50 and p99, and how many records: from append to trained, at a steady rate."""
    log = create(folder / "steady", LogSettings(partitions=PARTITIONS))
    streams: dict[str, Stream] = {LOG: log}
    urls = {LOG: f"log://{folder / 'steady'}"}
    if broker is not None:
        urls[OURS] = broker.url("steady")
        streams[OURS] = open_stream(urls[OURS])
        streams[OURS].partitions()
    found = {}
    for name, stream in streams.items():
        harness.say(f"measuring lag: {name}")
        with (
            contextlib.closing(stream),
            peers.Worker(
                "stream/stream_trainer", options={"url": urls[name], "batch": LAG_BATCH, "linger_s": LINGER_S}
            ) as worker,
        ):
            append(stream, PARTITIONS * LAG_BATCH)  # so that all is warm before it counts
            worker.ask("round", records=PARTITIONS * LAG_BATCH)
            producer = threading.Thread(target=append_steadily, args=(stream, seconds), name="producer")
            producer.start()
            told = worker.ask("round", records=round(100 * seconds) * TICK)
            producer.join()
        found[name] = (1e3 * told["p50_s"], 1e3 * told["p99_s"], int(told["records"]))
    return found


def append(stream: Stream, count: int) -> None:
    stream_readers.fill(stream, stream_readers.draw("click", count, seed=10), PARTITIONS, count // PARTITIONS)


def append_steadily(stream: Stream, seconds: float) -> None:
    """Records that tell when they were appended, a hundred times a second, to all partitions."""
    rows = stream_readers.draw("click", TICK, seed=9)
    writer = stream.writer()
    began, ticks = time.perf_counter(), round(100 * seconds)
    for tick in range(ticks):
        time.sleep(max(0.0, began + tick / 100 - time.perf_counter()))
        rows["at"] = time.time()
        for number in range(PARTITIONS):
            mine = rows[number::PARTITIONS]
            writer.append(number, mine.tobytes(), np.arange(1, len(mine) + 1, dtype=np.int64) * rows.dtype.itemsize)
        writer.flush()
    writer.close()


def judge(measured: Mapping[str, harness.Rounds], counts: Mapping[str, int], lags: Lags, lack: str) -> report.Result:
    ratios = {}
    for kind, rounds in measured.items():
        if OURS in rounds.figures:
            best = max((f"bare {name}" for name in BARE), key=rounds.median)
            ratios[kind] = rounds.ratio(OURS, best)
    rows: list[report.Cells] = []
    for kind, rounds in measured.items():
        size = stream_readers.dtype_of(kind).itemsize
        rows += [
            (f"{name}, {kind} ({size} B)", rounds.median(name), rounds.median(name) * size / 1e6)
            for name in rounds.figures
        ]
    by_log = {kind: rounds.ratio(LOG, NUMPY) for kind, rounds in measured.items()}
    notes = [
        f"{', '.join(f'{count} {kind}' for kind, count in counts.items())} records in {PARTITIONS} partitions, batches "
        f"of {BATCH}; ours includes reading, cutting, claiming and decoding into tensors",
        "log over NumPy: " + "; ".join(f"{kind} {ratio}" for kind, ratio in by_log.items()),
        *(
            f"append to trained, {name}: p50 {p50:.1f} ms, p99 {p99:.1f} ms over {records} records at {RATE} a second "
            f"(batches of {LAG_BATCH}, linger {1e3 * LINGER_S:g} ms)"
            for name, (p50, p99, records) in lags.items()
        ),
        *([f"Kafka was not measured: {lack}"] if lack else ["broker: Apache Kafka 0.9.0.1, which keeps no times"]),
    ]
    return report.Result(
        goals=(report.goal("kafka_vs_bare", report.worst(list(ratios.values())), target=0.7, why=lack),),
        rounds=min(rounds.count for rounds in measured.values()),
        columns=("way", "records/s", "MB/s"),
        rows=tuple(rows),
        notes=tuple(notes),
        details={
            "kafka_vs_bare": {kind: ratio.value for kind, ratio in ratios.items()},
            "log_vs_numpy": {kind: ratio.value for kind, ratio in by_log.items()},
            "lag_ms": {name: dict(zip(("p50", "p99", "records"), lag, strict=True)) for name, lag in lags.items()},
        },
    )
