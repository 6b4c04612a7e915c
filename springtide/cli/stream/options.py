"""Options of `springtide produce`: which records, how fast, into which stream. Next: `cli.stream.produce`."""

from dataclasses import dataclass
from typing import Annotated

import typer


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordOptions:
    """Records to produce."""

    file: Annotated[
        str | None, typer.Option("--from", help="Append each line of this file as a record.", metavar="FILE")
    ] = None
    record_bytes: Annotated[
        int | None, typer.Option(help="With --from: cut the file into records of this many bytes.")
    ] = None
    generator: Annotated[str | None, typer.Option(help="Generate records: counter or clicks.", metavar="NAME")] = None
    keys: Annotated[int, typer.Option(min=0, help="counter: number of distinct keys; 0 makes each key new.")] = 1000
    records: Annotated[int | None, typer.Option(min=0, help="Number of records.  [default: all, or endless]")] = None
    first: Annotated[int, typer.Option(min=0, max=2**62, help="Index of the first generated record.")] = 0
    seed: Annotated[int, typer.Option(min=0, help="Seed of generators and of mixed-in faults.")] = 0
    raw: Annotated[bool, typer.Option("--raw", help="Omit event time and checksum.")] = False
    late: Annotated[float, typer.Option(min=0, max=1, help="Share of records to append a day late.")] = 0.0
    corrupt: Annotated[float, typer.Option(min=0, max=1, help="Share of records to damage.")] = 0.0
    oversized: Annotated[float, typer.Option(min=0, max=1, help="Share of records to inflate to a MiB.")] = 0.0


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
