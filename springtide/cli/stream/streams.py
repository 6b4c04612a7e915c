"""`springtide produce` appends records to a stream; `springtide stream info|grow|seal|trim` shows or changes a
stream."""

import contextlib
import dataclasses
import itertools
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from springtide import errors, file_input
from springtide.cli.common.options import Json, JsonOnly, command, verb, verb_group
from springtide.cli.common.render import duration, print_json, print_result
from springtide.data.stream import producer
from springtide.data.stream.log import layout
from springtide.data.stream.log import stream as log_streams
from springtide.data.stream.log.stream import LogStream
from springtide.data.stream.producer import ProduceOrder, ProduceReport, RecordSource
from springtide.data.stream.stream import Stream, open_stream
from springtide.domain.core import validation
from springtide.domain.core.resources import parse_memory, show_memory

GENERATORS = ("clicks", "counter")
DEFAULT_PARTITIONS = 4
DAY_S = 86400.0

OLDEST_S = 2.0  # seconds to wait until the oldest record of a partition arrives


group = verb_group(
    "stream",
    "Inspect a stream; grow, seal or trim a log on disk.",
    "springtide stream info log:///tmp/clicks",
    "springtide stream grow log:///tmp/clicks 8",
)

Url = Annotated[str, typer.Argument(help="log:///path/to/folder or kafka://host:9092/topic", metavar="URL")]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordOptions:
    """Records to produce."""

    file: Annotated[
        str | None, typer.Option("--from", help="Append each line of this file as a record.", metavar="FILE")
    ] = None
    generator: Annotated[str | None, typer.Option(help="Generate records: counter or clicks.", metavar="NAME")] = None
    records: Annotated[int | None, typer.Option(min=0, help="Number of records.  [default: all, or endless]")] = None
    seed: Annotated[int, typer.Option(min=0, help="Seed of generators.")] = 0
    raw: Annotated[bool, typer.Option("--raw", help="Omit event time and checksum.")] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PaceOptions:
    """Pace of the records."""

    rate: Annotated[float | None, typer.Option(help="Records per second.  [default: as fast as possible]")] = None
    seconds: Annotated[float | None, typer.Option(min=0, help="Stop after this many seconds.")] = None
    trace: Annotated[
        str | None, typer.Option(help="Follow this trace: a CSV of times and counts.", metavar="FILE.csv")
    ] = None
    speedup: Annotated[float, typer.Option(help="Replay the trace this many times faster.")] = 1.0
    peak: Annotated[
        float | None,
        typer.Option(help="Scale the trace to this many records per second at its peak.  [default: the trace's own]"),
    ] = None
    day: Annotated[int | None, typer.Option(min=0, help="Replay only this day of the trace; 0 is the first.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetOptions:
    """Stream to append to."""

    partitions: Annotated[
        int | None, typer.Option(min=1, help="Number of partitions of a log that is created or grown.")
    ] = None
    skew: Annotated[float, typer.Option(help="Give partition 0 this many times the records of another.")] = 1.0
    retain: Annotated[
        str | None, typer.Option(help="Keep this many bytes per partition, such as 2G.", metavar="SIZE")
    ] = None
    retain_age: Annotated[str | None, typer.Option(help="Keep records this long: 12h, 7d.", metavar="TIME")] = None
    segment: Annotated[str | None, typer.Option(help="Size of segment files.  [default: 64M]", metavar="SIZE")] = None
    seal: Annotated[bool, typer.Option("--seal", help="Seal the log at the end: jobs end when all is trained.")] = False


@verb(
    "springtide produce log:///tmp/clicks --generator clicks --rate 20000",
    "springtide produce log:///tmp/clicks --from clicks.jsonl --seal",
    "springtide produce log:///tmp/clicks --generator clicks --trace taxi.csv \\\n"
    "    --day 7 --speedup 288 --peak 30000",
    "springtide produce kafka://localhost:9092/clicks --from clicks.jsonl",
)
def produce(url: Url, which: RecordOptions, flow: PaceOptions, into: TargetOptions, as_json: Json = False) -> int:
    """Append records of a file or a generator to a stream, at a rate or along a traffic trace.

    Create a missing log. Ctrl-C ends the command, which then reports exactly how many records it appended.
    """
    maker, pace = maker_of(which), pace_of(flow)
    order = ProduceOrder(
        records=which.records,
        seconds=flow.seconds,
        pace=pace,
        skew=into.skew,
        enveloped=not which.raw,
    )
    stream = open_or_make(url, into)  # open the stream last, so that invalid options do not leave a new log behind
    try:
        with _interrupts() as interrupted:
            done = producer.produce(stream, maker, order, tell=_Progress(), stop=interrupted)
        if into.seal and not done.interrupted:
            if not isinstance(stream, log_streams.LogStream):
                raise errors.BadInput(f"--seal: only a log on disk supports this, not {stream.url}")
            stream.seal()
    finally:
        stream.close()
    print(describe(stream.url, done, sealed=into.seal and not done.interrupted))
    print_json({"stream": stream.url, **dataclasses.asdict(done)}, as_json)
    return 130 if done.interrupted else 0


def maker_of(which: RecordOptions) -> RecordSource:
    if (which.file is None) == (which.generator is None):
        raise errors.BadInput("give either --from FILE or --generator NAME")
    if which.file is not None:
        return producer.LineRecords(Path(which.file))
    if which.generator == "counter":
        return producer.CounterRecords()
    if which.generator == "clicks":
        from springtide.zoo.clicklog.dataset import Clicks

        return Clicks(seed=which.seed)
    raise errors.UnknownName("generator", str(which.generator), GENERATORS)


def pace_of(flow: PaceOptions) -> producer.TrafficPace:
    if flow.trace is None:
        changed = {"--speedup": flow.speedup != 1.0, "--peak": flow.peak is not None, "--day": flow.day is not None}
        if useless := [name for name, is_given in changed.items() if is_given]:
            raise errors.BadInput(f"{', '.join(useless)} without --trace: give the trace, or --rate for a steady flow")
        if flow.rate is not None and not flow.rate > 0:
            raise errors.BadInput(
                f"--rate {flow.rate:g}: expected records a second, more than 0; without it, they are sent as fast as "
                "possible"
            )
        return producer.SteadyPace(float("inf") if flow.rate is None else flow.rate)
    if flow.rate is not None:
        raise errors.BadInput("--rate and --trace: the trace sets the rate; --peak scales it")
    path = Path(flow.trace)
    trace = producer.read_trace(file_input.read(path, what=f"a {producer.TRACE}").splitlines(), str(path))
    if flow.day is not None:
        if flow.day * DAY_S >= float(trace.at_s[-1]):
            raise errors.BadInput(f"--day {flow.day}: {path} has {float(trace.at_s[-1]) / DAY_S:.1f} days")
        trace = trace.between(flow.day * DAY_S, (flow.day + 1) * DAY_S)
    return producer.TracePace(trace, speedup=flow.speedup, peak=flow.peak)


def open_or_make(url: str, into: TargetOptions) -> Stream:
    """Open the stream. Create a missing log, and add partitions to a log that has too few."""
    given = {
        "retain_bytes": None if into.retain is None else parse_memory(into.retain),
        "retain_s": None if into.retain_age is None else validation.parse_duration("--retain-age", into.retain_age),
        "segment_bytes": None if into.segment is None else parse_memory(into.segment),
    }
    given = {name: value for name, value in given.items() if value is not None}
    if not url.startswith("log://"):
        stream = open_stream(url)
        if given or into.seal or (into.partitions or stream.partitions()) != stream.partitions():
            raise errors.BadInput(
                f"{stream.url} has {stream.partitions()} partitions; its broker sets partitions, retention and sealing"
            )
        return stream
    folder = log_streams.folder_of(url)
    if not (folder / "log.json").exists():
        settings: dict[str, Any] = {"partitions": into.partitions or DEFAULT_PARTITIONS, **given}
        return log_streams.create(folder, layout.LogSettings(**settings))
    if given:
        raise errors.BadInput(f"the log {folder} exists; --retain, --retain-age and --segment are for a new log")
    log = log_streams.LogStream(folder)
    if into.partitions is not None and into.partitions != log.partitions():
        log.grow(into.partitions)
    return log


def describe(url: str, done: ProduceReport, *, sealed: bool) -> str:
    rate = done.records / done.seconds if done.seconds else 0.0
    counts = done.partitions
    spread = f"{min(counts):,} to {max(counts):,} a partition" if counts else "none"
    lines = [
        f"{url}: {done.records:,} records, {show_memory(done.bytes)}, in {done.seconds:.1f} s ({rate:,.0f} a second)",
        f"  {len(counts)} partitions, {spread}" + ("; sealed" if sealed else ""),
    ]
    if done.behind_s > 1:
        lines.append(f"  {done.behind_s:.1f} s behind at the end: this machine could not keep up")
    if done.interrupted:
        lines.append("  interrupted: all these records were appended, and no others")
    return "\n".join(lines)


class _Progress:
    """Prints progress: a line a second on a terminal, and a line every ten seconds in a pipe."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._every_s = 1.0 if self._live else 10.0
        self._next = time.monotonic() + self._every_s
        self._told = (0, 0.0)
        self._spin = itertools.cycle("|/-\\")

    def __call__(self, done: ProduceReport) -> None:
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + self._every_s
        rate = (done.records - self._told[0]) / max(done.seconds - self._told[1], 1e-9)
        self._told = (done.records, done.seconds)
        behind = f", {done.behind_s:.1f} s behind" if done.behind_s > 1 else ""
        line = f"{done.records:,} records, {show_memory(done.bytes)}, {rate:,.0f} a second{behind}"
        print(
            f"\r{next(self._spin)} {line:<76}" if self._live else line, end="" if self._live else "\n", file=sys.stderr
        )


@contextlib.contextmanager
def _interrupts() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns True after Ctrl-C or SIGTERM. Restore the signal handlers afterwards."""
    came: list[int] = []
    before = {
        number: signal.signal(number, lambda number, _: came.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield lambda: bool(came)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if sys.stderr.isatty():
            print(file=sys.stderr)


@command(group, "springtide stream info log:///tmp/clicks")
def info(
    url: Url,
    rows: Annotated[int, typer.Option(min=1, help="Show at most this many partitions.")] = 40,
    as_json: JsonOnly = False,
) -> int:
    """Show partitions, offsets, bytes and ages of a stream."""
    stream = open_stream(url)
    try:
        found = inspect(stream)
    finally:
        stream.close()
    print_result(table_lines(found, rows, time.time()), found, as_json)
    return 0


@command(group, "springtide stream grow log:///tmp/clicks 8")
def grow(
    url: Url,
    partitions: Annotated[int, typer.Argument(min=1, help="New number of partitions.")],
    as_json: JsonOnly = False,
) -> int:
    """Add partitions to a log. Producers and jobs may continue meanwhile."""
    log = _log(url)
    before = log.partitions()
    log.grow(partitions)
    print_result([f"{log.url}: {before} partitions before, {partitions} now"], {"partitions": partitions}, as_json)
    return 0


@command(group, "springtide stream seal log:///tmp/clicks")
def seal(url: Url, as_json: JsonOnly = False) -> int:
    """Mark a log as complete. A sealed log refuses producers, and jobs end when they have trained all records."""
    log = _log(url)
    log.seal()
    records = sum(seen.end - seen.start for seen in log.bounds())
    print_result([f"{log.url}: sealed with {records:,} records"], {"records": records}, as_json)
    return 0


@command(group, "springtide stream trim log:///tmp/clicks")
def trim(url: Url, as_json: JsonOnly = False) -> int:
    """Delete segments that are past their retention. Producers also delete such segments whenever they begin a new
    segment.
    """
    log = _log(url)
    writer = log.writer()
    try:
        gone = writer.trim()
    finally:
        writer.close()
    print_result([f"{log.url}: {gone} segments deleted"], {"segments": gone}, as_json)
    return 0


def inspect(stream: Stream) -> dict[str, Any]:
    seen = stream.bounds()
    oldest = _oldest(stream, {part.partition: part.start for part in seen if part.end > part.start})
    kept = stream.kept_bytes() if isinstance(stream, LogStream) else [None] * len(seen)
    return {
        "stream": stream.url,
        "sealed": bool(seen) and all(part.final for part in seen),
        "partitions": [
            {
                "partition": part.partition,
                "start": part.start,
                "end": part.end,
                "bytes": kept[part.partition],
                "oldest_at": oldest.get(part.partition),
            }
            for part in seen
        ],
    }


def table_lines(found: dict[str, Any], rows: int, now: float) -> list[str]:
    parts = found["partitions"]
    records = sum(part["end"] - part["start"] for part in parts)
    known = [part["bytes"] for part in parts if part["bytes"] is not None]
    size = f", {show_memory(sum(known))}" if known else ""
    state = "; sealed" if found["sealed"] else ""
    lines = [f"{found['stream']}: {len(parts)} partitions, {records:,} records{size}{state}", ""]
    lines.append(
        f"{'partition':>9} {'first offset':>16} {'next offset':>16} {'records':>14} {'bytes':>8} {'oldest':>9}"
    )
    for part in parts[:rows]:
        age = "" if part["oldest_at"] is None else duration(max(0.0, now - part["oldest_at"]))
        kept = "" if part["bytes"] is None else show_memory(part["bytes"])
        lines.append(
            f"{part['partition']:>9} {part['start']:>16,} {part['end']:>16,} {part['end'] - part['start']:>14,} "
            f"{kept:>8} {age:>9}"
        )
    if len(parts) > rows:
        lines.append(f"... and {len(parts) - rows} more; --rows shows them")
    return lines


def _oldest(stream: Stream, starts: dict[int, int]) -> dict[int, float]:
    reader, found = stream.open(), dict[int, float]()
    try:
        reader.assign(starts)
        until = time.monotonic() + OLDEST_S
        while len(found) < len(starts) and time.monotonic() < until:
            for chunk in reader.poll(0.1, most=len(starts)):
                if len(chunk.records):
                    found.setdefault(chunk.partition, float(chunk.records.appended_at[0]))
            reader.assign({partition: at for partition, at in starts.items() if partition not in found})
    finally:
        reader.close()
    return found


def _log(url: str) -> LogStream:
    stream = open_stream(url)
    if not isinstance(stream, LogStream):
        stream.close()
        raise errors.BadInput(f"{stream.url}: only a log on disk supports this; use the broker's tools")
    return stream
