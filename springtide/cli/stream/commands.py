"""Declarations of the commands for streams: `produce`, and `stream info|grow|seal|trim`."""

from typing import Annotated

import typer

from springtide.cli.common.options import (
    Debug,
    Json,
    PaceOptions,
    RecordOptions,
    TargetOptions,
    command,
    taking,
)

app = typer.Typer(rich_markup_mode=None)
stream = typer.Typer(
    name="stream",
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Inspect a stream; grow, seal or trim a log on disk.",
    short_help="Inspect a stream; grow, seal or trim a log.",
    epilog="""\b
Examples:
  springtide stream info log:///tmp/clicks
  springtide stream grow log:///tmp/clicks 8
""",
)
app.add_typer(stream)

Url = Annotated[str, typer.Argument(help="log:///path/to/folder or kafka://host:9092/topic", metavar="URL")]


@command(
    app,
    "Append records to a stream.",
    "springtide produce log:///tmp/clicks --generator clicks --rate 20000",
    "springtide produce log:///tmp/clicks --from clicks.jsonl --seal",
    "springtide produce log:///tmp/clicks --generator clicks --trace taxi.csv \\\n"
    "    --day 7 --speedup 288 --peak 30000",
    "springtide produce kafka://localhost:9092/clicks --from clicks.jsonl",
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
    """Append records of a file or a generator to a stream, at a rate or along a traffic trace.

    Creates a missing log. Ctrl-C ends the command, which then reports exactly what it appended.
    """
    from springtide.cli.stream import streams

    return streams.produce(url, which, flow, into, as_json=as_json)


@command(stream, "Show partitions, offsets, bytes and ages.", "springtide stream info log:///tmp/clicks")
def info(
    url: Url,
    rows: Annotated[int, typer.Option(min=1, help="Show at most this many partitions.")] = 40,
    as_json: Json = False,
    debug: Debug = False,
) -> int:
    """Show each partition of a stream: first and next offset, size and age."""
    from springtide.cli.stream import streams

    return streams.info(url, rows=rows, as_json=as_json)


@command(stream, "Add partitions to a log.", "springtide stream grow log:///tmp/clicks 8")
def grow(
    url: Url,
    partitions: Annotated[int, typer.Argument(min=1, help="New number of partitions.")],
    as_json: Json = False,
    debug: Debug = False,
) -> int:
    """Add partitions to a log while producers and jobs run."""
    from springtide.cli.stream import streams

    return streams.grow(url, partitions, as_json=as_json)


@command(stream, "Mark a log as complete.", "springtide stream seal log:///tmp/clicks")
def seal(url: Url, as_json: Json = False, debug: Debug = False) -> int:
    """Seal a log: it refuses producers, and jobs end when they have trained all of it."""
    from springtide.cli.stream import streams

    return streams.seal(url, as_json=as_json)


@command(stream, "Delete segments past their retention.", "springtide stream trim log:///tmp/clicks")
def trim(url: Url, as_json: Json = False, debug: Debug = False) -> int:
    """Delete segments past their retention. Producers do so too, with each new segment."""
    from springtide.cli.stream import streams

    return streams.trim(url, as_json=as_json)
