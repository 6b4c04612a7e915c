"""The views of `springtide top`: each draws one subject of a job as lines, in 80 columns and up.

In: a `TopData`, which `cli.show.top` refreshes. Out: lines of text, of which `cli.show.top` shows a screenful.
"""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rich.text import Text

from springtide.cli.common import render
from springtide.cli.common.render import duration, short, wrap
from springtide.cli.show import job_drawings
from springtide.cli.show.job_drawings import SeenProgress, bar, sparkline
from springtide.domain.core.resources import show_memory
from springtide.domain.core.roles import Role, RoleKind
from springtide.rpc.messages.types import JobStatus, MemberView
from springtide.telemetry import event_sentences
from springtide.telemetry.progress import ProgressPoint

Lines = list[Text]
SHOWN_EVENTS = 200  # newest sentences of the decisions view
WINDOW_S = 5.0  # seconds over which rates of roles are measured


class MemberTotals(NamedTuple):
    """Totals of a role at one moment, from which rates follow."""

    at: float
    incarnation: int
    cpu_s: float
    steps: int
    seconds: Mapping[str, float]
    counters: Mapping[str, float]


@dataclass(slots=True)
class TopData:
    """The data from which the views of a job are drawn."""

    status: JobStatus
    seen: SeenProgress
    story: Sequence[dict[str, Any]] = ()
    began_at: float = 0.0
    last_s: float | None = None
    """Length of sparklines in seconds; None: the whole life of the job."""
    history: dict[Role, list[MemberTotals]] = field(default_factory=dict)
    """Totals of each role over the last seconds."""

    def take(self, status: JobStatus) -> None:
        self.status, now = status, time.monotonic()
        self.seen.add(status)
        for member in status.members:
            usage, report = member.usage, member.report
            cpu_s = usage.cpu_s if usage else 0.0
            totals = MemberTotals(now, member.incarnation, cpu_s, report.step, report.seconds, report.counters)
            kept = [old for old in self.history.get(member.role, []) if old.incarnation == member.incarnation]
            while len(kept) > 1 and kept[1].at < now - WINDOW_S:
                kept.pop(0)
            self.history[member.role] = [*kept, totals]

    def growth(self, member: MemberView) -> tuple[MemberTotals, MemberTotals] | None:
        kept = self.history.get(member.role, [])
        return (kept[0], kept[-1]) if len(kept) > 1 else None


def overview(data: TopData, width: int, ascii_only: bool) -> Lines:
    status, lines = data.status, list[Text]()
    epoch = job_drawings.epoch_line(status, width, ascii_only=ascii_only)
    lines += [epoch, Text()] if epoch is not None else []
    roles = status.roles
    curves: list[tuple[str, str, Callable[[ProgressPoint], float | None], float | None]] = [
        ("rate", f"{short(status.training.samples_per_s)}/s", lambda point: point.samples_per_s, 0.0)
    ]
    if status.training.loss is not None:
        curves.append(("loss", f"{status.training.loss:.4f}", lambda point: point.loss, None))
    for name, text in render.metric_cells(status):
        curves.append((name[:10], text, lambda point, name=name: point.metrics.get(name), None))  # type: ignore[misc]
    if status.online is not None:
        curves.append(("lag", duration(status.online.lag_s), lambda point: point.lag_s, 0.0))
    for name, kind in (("workers", RoleKind.WORKER), ("servers", RoleKind.SERVER)):
        curves.append((name, render.alive_text(status, kind), lambda point, name=name: getattr(point, name), 0.0))  # type: ignore[misc]
    if roles.data_workers.wanted or roles.data_workers.alive:
        now = f"{roles.data_workers.alive}/{roles.data_workers.wanted}"
        curves.append(("data", now, lambda point: point.data_workers, 0.0))
    room = width - 22
    for name, text, of, low in curves:
        drawn = sparkline(data.seen.values(of, room, data.last_s), low=low, ascii_only=ascii_only)
        lines.append(Text.assemble(f"{name:<10} ", (f"{text:>9}  ", "bold"), (drawn, "cyan")))
    begin, end = data.seen.span(data.last_s)
    lines += [Text(f"{'':<22}the last {duration(end - begin)}", style="dim"), Text()]
    return lines + [Text(fact) for fact in render.facts(status, width)]


PARTS = (
    ("data", "data", "d", "blue"),
    ("pull_wait", "rows", "r", "cyan"),
    ("forward", "forward", "f", "green"),
    ("backward", "backward", "b", "yellow"),
    ("push_wait", "push", "p", "magenta"),
    ("rest", "other", "o", "white"),
)
"""Parts of a step: field of a report, name, letter and style. The rest is `optimizer.step()` and the script's own
work."""
SLOW = 1.3  # a worker is marked if its step takes this many times as long as the median step


def step_parts(data: TopData, member: MemberView) -> dict[str, float] | None:
    """Return the seconds of a step's parts, as means over the last seconds; over the whole life if no step ended."""
    grown = data.growth(member)
    steps, seconds = member.report.step, dict(member.report.seconds)
    if grown is not None and grown[1].steps > grown[0].steps:
        before, now = grown
        steps = now.steps - before.steps
        seconds = {name: value - before.seconds.get(name, 0.0) for name, value in now.seconds.items()}
    if steps <= 0 or not seconds.get("total"):
        return None
    parts = {name: max(0.0, seconds.get(name, 0.0)) / steps for name, *_ in PARTS[:-1]}
    total = seconds["total"] / steps
    return {**parts, "rest": max(0.0, total - sum(parts.values())), "total": total}


def steps(data: TopData, width: int, ascii_only: bool) -> Lines:
    found = [
        (member, parts)
        for member in data.status.members
        if member.role.kind is RoleKind.WORKER and member.alive and (parts := step_parts(data, member))
    ]
    lines = [
        Text.assemble("a step: ", *(part for _, name, letter, style in PARTS for part in legend(name, letter, style)))
    ]
    if not found:
        return [*lines, Text(), Text("no worker has trained a step yet")]
    median = statistics.median(parts["total"] for _, parts in found)
    longest = max(parts["total"] for _, parts in found)
    room = max(10, width - 34)
    lines.append(Text(f"{'WORKER':<12} {'A STEP':>9}", style="bold"))
    for member, parts in found:
        line = Text.assemble(f"{member.role!s:<12} {milliseconds(parts['total']):>9}  ")
        for name, _, letter, style in PARTS:
            line.append(letter * round(room * parts[name] / longest), f"{style} reverse" if not ascii_only else style)
        if parts["total"] > SLOW * median:
            line.append(f" {parts['total'] / median:.1f} x median", "bold red")
        lines.append(line)
    return lines + server_load(data)


def legend(name: str, letter: str, style: str) -> list[Any]:
    return [(f" {letter} ", f"{style} reverse"), f" {name}  "]


def milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"


def server_load(data: TopData) -> Lines:
    lines = []
    for member in data.status.members:
        grown = data.growth(member)
        if member.role.kind is not RoleKind.SERVER or grown is None or grown[1].at <= grown[0].at:
            continue
        rates = {
            name: (value - grown[0].counters.get(name, 0.0)) / (grown[1].at - grown[0].at)
            for name, value in grown[1].counters.items()
        }
        read, wrote = rates.get("pulled_keys", 0.0), rates.get("pushed_keys", 0.0)
        busy, update = rates.get("lookup_ns", 0.0) / 1e9, rates.get("update_ns", 0.0) / 1e9
        lines.append(Text(f"{member.role!s:<12} {short(read):>8}/s {short(wrote):>8}/s {busy:>9.0%} {update:>9.0%}"))
    if not lines:
        return []
    return [
        Text(),
        Text(f"{'SERVER':<12} {'READ':>10} {'UPDATED':>10} {'READING':>9} {'UPDATING':>9}", style="bold"),
        *lines,
    ]


def nodes(data: TopData, width: int, ascii_only: bool) -> Lines:
    room = max(6, (width - 60) // 2)
    lines = [Text(f"{'ROLE':<14} {'STATE':<9} {'LIFE':>4}  {'CORES':<{room + 8}} {'MEMORY':<{room + 9}}", style="bold")]
    for member in data.status.members:
        usage, grown = member.usage, data.growth(member)
        state = member.state or ("joined" if member.joined else "expected" if member.alive else "gone")
        line = Text(f"{member.role!s:<14} {state:<9} {member.incarnation:>4}  ", no_wrap=True)
        if usage is None:
            lines.append(line)
            continue
        taken = grown is not None and grown[1].at > grown[0].at
        cores = (grown[1].cpu_s - grown[0].cpu_s) / (grown[1].at - grown[0].at) if grown and taken else 0.0
        line.append_text(limited(cores, usage.cpu_limit, f"{cores:.2f}", "", room, ascii_only))
        line.append("  ")
        limit = "" if usage.memory_limit is None else f" of {show_memory(usage.memory_limit)}"
        line.append_text(limited(usage.memory, usage.memory_limit, show_memory(usage.memory), limit, room, ascii_only))
        lines.append(line)
        if usage.gpu is not None:
            lines.append(Text(f"{'':<31}gpu {usage.gpu}"))
    why = data.status.roles.lacks
    return lines + [Text(part) for part in wrap(f"lacks   {why}", width=width) if why]


def limited(value: float, limit: float | None, text: str, after: str, room: int, ascii_only: bool) -> Text:
    """Return a number with a bar of its share of the limit; without a limit, the number alone."""
    if not limit:
        return Text(f"{text:<6} {'':<{room}}")
    share = value / limit
    style = "red" if share > 0.9 else "yellow" if share > 0.75 else "green"
    return Text.assemble(f"{text:<6} ", bar(share, room, style=style, ascii_only=ascii_only), after)


def samples(data: TopData, width: int, ascii_only: bool) -> Lines:
    status, found = data.status, data.status.data
    lines = list[Text]()
    epoch = job_drawings.epoch_line(status, width, ascii_only=ascii_only)
    lines += [epoch] if epoch is not None else []
    if found.shards_total and status.online is None:
        lines += [shard_strip(status, width, ascii_only), Text()]
    feed = render.data_workers_text(status)
    facts = [f"fed     {feed}"] if feed else []
    facts += render.stream_lines(status.online) if status.online is not None else []
    facts += [f"lost    {shard}" for shard in found.poisoned]
    facts += [f"without {batch}" for batch in found.left_out]
    if found.samples_left_out:
        facts.append(f"without {found.samples_left_out:,} samples that could not be made")
    lines += [Text(part) for fact in facts for part in wrap(fact, width=width)]
    feeds = [(member.role, member.report.feed) for member in status.members if member.report.feed is not None]
    lines += [Text(f"{role!s:<12} {render.queue_text(feed)}") for role, feed in feeds if feed.room]
    return lines or [Text("no data yet")]


def shard_strip(status: JobStatus, width: int, ascii_only: bool) -> Text:
    """Draw shards by state: done, leased, pending and given up."""
    found = status.data
    lost = len(found.poisoned)
    counts = (
        ("done", found.shards_done, "#", "green"),
        ("leased", found.shards_leased, "+", "yellow"),
        ("given up", lost, "x", "red"),
        ("pending", max(0, found.shards_total - found.shards_done - found.shards_leased - lost), ".", "dim"),
    )
    line, left, shards = Text("shards  "), width - 8, found.shards_total
    for _, count, mark, style in counts:
        part = min(left, max(1, round((width - 8) * count / shards)) if count else 0)
        line.append((mark if ascii_only or mark != "#" else "█") * part, style)
        left -= part
    names = "  ".join(f"{count:,} {name}" for name, count, _, _ in counts if count)
    return Text.assemble(line, "\n        ", names)


def tables(data: TopData, width: int, ascii_only: bool) -> Lines:
    servers = [
        member for member in data.status.members if member.role.kind is RoleKind.SERVER and member.report.counters
    ]
    if not servers:
        return [Text("no server has reported its tables yet")]
    most = max(member.report.counters.get("table_bytes", 0.0) for member in servers)
    room = max(10, width - 60)
    lines = [Text(f"{'SERVER':<12} {'ROWS':>9} {'CREATED':>11} {'EVICTED':>9} {'BYTES':>8}", style="bold")]
    for member in servers:
        counters, grown = member.report.counters, data.growth(member)
        created = 0.0
        if grown is not None and grown[1].at > grown[0].at:
            created = (counters.get("created", 0.0) - grown[0].counters.get("created", 0.0)) / (
                grown[1].at - grown[0].at
            )
        held = counters.get("table_bytes", 0.0)
        lines.append(
            Text.assemble(
                f"{member.role!s:<12} {short(counters.get('rows', 0.0)):>9} {short(created):>9}/s "
                f"{short(counters.get('evicted', 0.0)):>9} {show_memory(int(held)):>8}  ",
                bar(held / most if most else 0.0, room, ascii_only=ascii_only),
            )
        )
    total = sum(member.report.counters.get("rows", 0.0) for member in servers)
    lines += [Text(), Text(f"{total:,.0f} rows in all tables; {data.status.roles.slots_moving} slots are moving")]
    cache = data.status.training.cache
    return lines + [Text(part) for part in wrap(f"cache   {cache}", width=width) if cache is not None]


def checkpoints(data: TopData, width: int, ascii_only: bool) -> Lines:
    made = [event for event in data.story if event["event"] == "checkpoint"]
    copied = {
        event["number"] for event in data.story if event["event"] == "uploaded" and event["outcome"] == "complete"
    }
    last = render.saved_text(data.status)
    lines = [Text(part) for part in wrap(f"saved   {last or 'no checkpoint yet'}", width=width)]
    if made:
        lines += [
            Text(),
            Text(f"{'NUMBER':>6} {'BEGUN':>10} {'TOOK':>8} {'SIZE':>8} {'SAMPLES':>9}  OUTCOME", style="bold"),
        ]
    for event in reversed(made):
        size = show_memory(int(event["bytes"])) if "bytes" in event else "-"
        kind = "" if event.get("full", True) else ", changes only"
        outcome = f"{event['outcome']}{kind}{', copied' if event['number'] in copied else ''}"
        why = f": {event['why']}" if event.get("why") and event["outcome"] != "complete" else ""
        took = duration(event["seconds"]) if "seconds" in event else "-"
        begun = job_drawings.clock(event.get("begun_at", event["at"]) - data.began_at)
        trained = short(event.get("samples", 0))
        lines.append(Text(f"{event['number']:>6} {begun:>10} {took:>8} {size:>8} {trained:>9}  {outcome}{why}"))
    return lines


def decisions(data: TopData, width: int, ascii_only: bool) -> Lines:
    lines = []
    for told in reversed(event_sentences.sentences(data.began_at, data.story)[-SHOWN_EVENTS:]):
        again = f" ({told['times']} times until {job_drawings.clock(told['until'])})" if told["times"] > 1 else ""
        when = f"{job_drawings.clock(told['seconds']):>8} "
        first, *rest = wrap(f"{when}{told['what']}{again}", " " * len(when), width)
        lines += [Text.assemble((first[: len(when)], "cyan"), first[len(when) :]), *map(Text, rest)]
    return lines or [Text("no decisions yet")]


VIEWS: dict[str, Callable[[TopData, int, bool], Lines]] = {
    "overview": overview,
    "steps": steps,
    "nodes": nodes,
    "data": samples,
    "tables": tables,
    "saved": checkpoints,
    "why": decisions,
}
"""Views by name; the keys 1, 2 and so on open them."""
