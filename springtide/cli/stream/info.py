"""`springtide stream info|grow|seal|trim`: what a stream holds, and what can be done to a log on disk.

In: a URL. Out: a table of at most 80 columns, `--json` for scripts.
"""

import json
import time
from typing import Any

from springtide import errors
from springtide.data.stream.log.stream import LogStream
from springtide.data.stream.stream import Stream, open_stream
from springtide.domain.core.resources import show_memory

LOOK_S = 2.0  # how long an oldest record is waited for


def info(url: str, *, rows: int, as_json: bool) -> int:
    stream = open_stream(url)
    try:
        found = look(stream)
    finally:
        stream.close()
    print("\n".join(text(found, rows, time.time())))
    if as_json:
        print(json.dumps(found))
    return 0


def grow(url: str, partitions: int, *, as_json: bool) -> int:
    log = _log(url)
    before = log.partitions()
    log.grow(partitions)
    return _say(f"{log.url}: {before} partitions before, {partitions} now", as_json, partitions=partitions)


def seal(url: str, *, as_json: bool) -> int:
    log = _log(url)
    log.seal()
    records = sum(seen.end - seen.start for seen in log.bounds())
    return _say(f"{log.url}: sealed with {records:,} records", as_json, records=records)


def trim(url: str, *, as_json: bool) -> int:
    log = _log(url)
    writer = log.writer()
    try:
        gone = writer.trim()
    finally:
        writer.close()
    return _say(f"{log.url}: {gone} segments deleted", as_json, segments=gone)


def look(stream: Stream) -> dict[str, Any]:
    seen = stream.bounds()
    oldest = _oldest(stream, {one.partition: one.start for one in seen if one.end > one.start})
    kept = stream.kept_bytes() if isinstance(stream, LogStream) else [None] * len(seen)
    return {
        "stream": stream.url,
        "sealed": bool(seen) and all(one.final for one in seen),
        "partitions": [
            {
                "partition": one.partition,
                "start": one.start,
                "end": one.end,
                "bytes": kept[one.partition],
                "oldest_at": oldest.get(one.partition),
            }
            for one in seen
        ],
    }


def text(found: dict[str, Any], rows: int, now: float) -> list[str]:
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
        age = "" if part["oldest_at"] is None else show_age(now - part["oldest_at"])
        kept = "" if part["bytes"] is None else show_memory(part["bytes"])
        lines.append(
            f"{part['partition']:>9} {part['start']:>16,} {part['end']:>16,} {part['end'] - part['start']:>14,} "
            f"{kept:>8} {age:>9}"
        )
    if len(parts) > rows:
        lines.append(f"... and {len(parts) - rows} more; --rows shows them")
    return lines


def show_age(seconds: float) -> str:
    for unit, size in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{max(seconds, 0.0):.1f} s"


def _oldest(stream: Stream, starts: dict[int, int]) -> dict[int, float]:
    reader, found = stream.open(), dict[int, float]()
    try:
        reader.assign(starts)
        until = time.monotonic() + LOOK_S
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
        raise errors.BadInput(f"{stream.url}: only a log on disk can do that; ask the broker")
    return stream


def _say(line: str, as_json: bool, **facts: object) -> int:
    print(line)
    if as_json:
        print(json.dumps(facts))
    return 0
