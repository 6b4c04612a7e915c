"""Measure records per second from a stream into training batches.

In: a real Kafka broker and a log on disk with the same records, against a bare consumer loop and NumPy on a file. Out:
`kafka_vs_bare`. Readers: stream_readers.py.
"""

import contextlib
import functools
import pathlib
from collections.abc import Mapping

from springtide.data.stream.log.layout import LogSettings
from springtide.data.stream.log.stream import create
from springtide.data.stream.stream import open_stream
from springtide_lab.bench import Options
from springtide_lab.bench.core import harness, report
from springtide_lab.bench.stream import stream_readers
from springtide_lab.testing import kafka_broker

PARTITIONS, BATCH = 4, 2048
BARE = {"consume(500)": 500, "consume(10000)": 10_000}
OURS, LOG, NUMPY = "Kafka, ours", "log, ours", "NumPy, a file"


def bench(options: Options) -> report.Result:
    counts = {"click": 20_000, "small": 20_000} if options.quick else {"click": 150_000, "small": 250_000}
    rounds = 2 if options.quick else 4
    lack = kafka_broker.missing()
    measured: dict[str, harness.Rounds] = {}
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(harness.scratch())
        broker = None
        if not lack:
            harness.say("starting a Kafka broker")
            broker = stack.enter_context(kafka_broker.KafkaBroker(folder / "kafka", partitions=PARTITIONS, fast=True))
        for kind, count in counts.items():
            measured[kind] = compare(kind, count, folder, broker, rounds)
    return judge(measured, counts, lack)


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
        topic.partitions()  # creates the topic
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


def judge(measured: Mapping[str, harness.Rounds], counts: Mapping[str, int], lack: str) -> report.Result:
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
        },
    )
