"""Commands for streams: `produce` appends records to one, `stream info|grow|seal|trim` look after one.

In: options. Out: each hands over to its own file, imported when it is called. Next: `cli.app` lists them beside others.
"""

from dataclasses import dataclass
from typing import Annotated

import typer

from springtide.cli.common.option_groups import taking
from springtide.cli.common.options import Debug, Json

app = typer.Typer(rich_markup_mode=None)
stream = typer.Typer(
    name="stream", rich_markup_mode=None, no_args_is_help=True,
    help="Look at a stream, and look after a log on disk.", short_help="Look at a stream; grow, seal or trim a log.",
    epilog="""\b
Examples:
  springtide stream info log:///tmp/clicks
  springtide stream grow log:///tmp/clicks 8
""",
)  # fmt: skip
app.add_typer(stream)

Url = Annotated[str, typer.Argument(help="log:///path/to/folder or kafka://host:9092/topic", metavar="URL")]
Size = Annotated[str | None, typer.Option(help="Bytes that a partition keeps, such as 2G.", metavar="SIZE")]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordOptions:
    """Which records are produced."""

    file: Annotated[str | None, typer.Option("--from", help="A record a line of it.", metavar="FILE")] = None
    record_bytes: Annotated[int | None, typer.Option(help="With --from: a record so many bytes of it.")] = None
    generator: Annotated[str | None, typer.Option(help="counter or clicks.", metavar="NAME")] = None
    keys: Annotated[int, typer.Option(min=0, help="counter: different keys; 0: each is a new one.")] = 1000
    records: Annotated[int | None, typer.Option(min=0, help="How many.  [default: all, or for ever]")] = None
    first: Annotated[int, typer.Option(min=0, max=2**62, help="Number of the first that is made.")] = 0
    seed: Annotated[int, typer.Option(min=0, help="Of generators, and of what is mixed in.")] = 0
    raw: Annotated[bool, typer.Option("--raw", help="Without event time and checksum.")] = False
    late: Annotated[float, typer.Option(min=0, max=1, help="Share of records that come a day late.")] = 0.0
    corrupt: Annotated[float, typer.Option(min=0, max=1, help="Share of records that are damaged.")] = 0.0
    oversized: Annotated[float, typer.Option(min=0, max=1, help="Share of records of a MiB.")] = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PaceOptions:
    """How fast they come."""

    rate: Annotated[float | None, typer.Option(help="Records a second.  [default: as fast as they go]")] = None
    seconds: Annotated[float | None, typer.Option(min=0, help="How long at most.")] = None
    trace: Annotated[str | None, typer.Option(help="Traffic: moments and counts.", metavar="FILE.csv")] = None
    speedup: Annotated[float, typer.Option(help="How much faster time runs than in the trace.")] = 1.0
    peak: Annotated[float | None, typer.Option(help="Records a second at its peak.  [default: its own]")] = None
    day: Annotated[int | None, typer.Option(min=0, help="Only that day of the trace, 0 the first.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetOptions:
    """What they are appended to."""

    partitions: Annotated[int | None, typer.Option(min=1, help="Of a log that is made, or grown.")] = None
    skew: Annotated[float, typer.Option(help="Partition 0 gets so many times what each other gets.")] = 1.0
    retain: Size = None
    retain_age: Annotated[str | None, typer.Option(help="How long it keeps records: 12h, 7d.", metavar="TIME")] = None
    segment: Annotated[str | None, typer.Option(help="Size of its files.  [default: 64M]", metavar="SIZE")] = None
    seal: Annotated[bool, typer.Option("--seal", help="No more will come: jobs end when all is trained.")] = False


@app.command(
    short_help="Append records to a stream: a file, a generator, at a rate.",
    epilog="""\b
Examples:
  springtide produce log:///tmp/clicks --generator clicks --rate 20000
  springtide produce log:///tmp/clicks --from clicks.jsonl --seal
  springtide produce log:///tmp/clicks --generator clicks --trace taxi.csv \\
    --day 7 --speedup 288 --peak 30000
  springtide produce kafka://localhost:9092/clicks --from clicks.jsonl
""",
)
@taking(which=RecordOptions, flow=PaceOptions, into=TargetOptions)
def produce(
    url: Url,
    which: RecordOptions = RecordOptions(),  # noqa: B008 - frozen
    flow: PaceOptions = PaceOptions(),  # noqa: B008 - frozen
    into: TargetOptions = TargetOptions(),  # noqa: B008 - frozen
    as_json: Json = False,
    debug: Debug = False,
) -> int:
    """Append records to a stream: lines of a file, or made ones; at a rate, or along a trace of traffic.

    A log that is not there is made. Ctrl-C ends it; what was appended is told exactly.
    """
    from springtide.cli.stream import produce

    return produce.produce(url, which, flow, into, as_json=as_json)


@stream.command(
    short_help="Partitions, offsets, bytes and ages.",
    epilog="""\b
Example:
  springtide stream info log:///tmp/clicks
""",
)
def info(
    url: Url,
    rows: Annotated[int, typer.Option(min=1, help="Partitions that are shown.")] = 40,
    as_json: Json = False,
    debug: Debug = False,
) -> int:
    """Partitions of a stream: where they begin and end, how much they keep, how old that is."""
    from springtide.cli.stream import info

    return info.info(url, rows=rows, as_json=as_json)


@stream.command(
    short_help="Have more partitions.",
    epilog="""\b
Example:
  springtide stream grow log:///tmp/clicks 8
""",
)
def grow(
    url: Url,
    partitions: Annotated[int, typer.Argument(min=1, help="So many from now on.")],
    as_json: Json = False,
    debug: Debug = False,
) -> int:
    """Add partitions to a log, while producers and jobs go on."""
    from springtide.cli.stream import info

    return info.grow(url, partitions, as_json=as_json)


@stream.command(
    short_help="Say that no more records will come.",
    epilog="""\b
Example:
  springtide stream seal log:///tmp/clicks
""",
)
def seal(url: Url, as_json: Json = False, debug: Debug = False) -> int:
    """Seal a log: producers are refused, and jobs that read it end when they have trained all of it."""
    from springtide.cli.stream import info

    return info.seal(url, as_json=as_json)


@stream.command(
    short_help="Delete what retention no longer keeps.",
    epilog="""\b
Example:
  springtide stream trim log:///tmp/clicks
""",
)
def trim(url: Url, as_json: Json = False, debug: Debug = False) -> int:
    """Delete segments that are older than the log keeps them. Producers do that too, whenever they begin a segment."""
    from springtide.cli.stream import info

    return info.trim(url, as_json=as_json)
