"""A job's status in 80 columns: on one line, or as a small table with a bar.

In: a `JobStatus`. Out: text for `cli.show.live_view`. What does not fit on the line is left out, the least important
first.
"""

import textwrap

from rich.console import Group
from rich.progress_bar import ProgressBar
from rich.table import Table

from springtide.cli.common import data_worker_status, stream_options
from springtide.domain.core.roles import RoleKind
from springtide.domain.spec.job_spec import JobPhase
from springtide.rpc.messages.messages import JobStatus

WIDTH = 80
MEASURED = frozenset(
    ("auc", "loss", "accuracy", "acc", "rate", "error", "ratio", "share", "precision", "recall", "f1", "lr")
)
"""Words in the names of metrics that are no counts, though they may be 0 or 1."""


def line_of(status: JobStatus) -> str:
    """A status on one line of at most 80 columns."""
    metrics = {f"metric {name}": f"{name} {show(name, value)}" for name, value in sorted(status.metrics.items())}
    shown = {
        "shards": progress(status),
        "samples": f"{short(status.samples)} samples",
        "rate": f"{short(status.samples_per_s)}/s",
        "lag": "" if status.online is None else stream_options.brief(status.online),
        "loss": "" if status.loss is None else f"loss {status.loss:.4f}",
        **metrics,
        "ending": ending(status),
        "workers": missing(status, RoleKind.WORKER),
        "servers": missing(status, RoleKind.SERVER),
    }
    important = [
        "ending",
        "shards",
        "rate",
        "lag",
        "loss",
        "workers",
        "servers",
        *(["metric auc"] if "auc" in status.metrics else []),
        "samples",
        *metrics,
    ]
    head = f"{status.elapsed_s:6.1f} s  {status.phase}"
    room, chosen = WIDTH - len(head), set[str]()
    for name in dict.fromkeys(important):
        if shown[name] and len(shown[name]) + 2 <= room:
            room -= len(shown[name]) + 2
            chosen.add(name)
    return "  ".join([head, *(text for name, text in shown.items() if name in chosen)])


def progress(status: JobStatus) -> str:
    """How far it is; on a stream there is no end to reckon by."""
    if not status.shards_total:
        return ""
    if status.online is not None:
        return f"{status.shards_total} partition{'' if status.shards_total == 1 else 's'}"
    return f"shards {status.shards_done}/{status.shards_total}"


def picture(status: JobStatus) -> Group:
    """A status as a small table with a bar; below it the last decision and its reason."""
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim", min_width=8)
    facts.add_column(min_width=20)
    facts.add_column(style="dim", min_width=8)
    facts.add_column()
    loss = "" if status.loss is None else f"{status.loss:.4f}"
    term = f", term {status.term}" if status.term > 1 else ""
    facts.add_row("job", f"{status.name} ({status.phase}{term})", "elapsed", f"{status.elapsed_s:.0f} s")
    facts.add_row("samples", f"{status.samples:,}", "rate", f"{status.samples_per_s:,.0f} samples/s")
    again = f", {status.relaunches} relaunched" if status.relaunches else ""
    workers = alive_text(status, RoleKind.WORKER) + again
    facts.add_row("workers", workers, "servers", alive_text(status, RoleKind.SERVER))
    facts.add_row("loss", loss, *next(iter(metric_cells(status)), ("", "")))
    for cells in metric_cells(status)[1:]:
        facts.add_row("", "", *cells)
    bar = Table.grid(padding=(0, 2))
    bar.add_column(style="dim", min_width=8)
    if status.online is None:
        bar.add_row(
            "shards",
            ProgressBar(total=max(1, status.shards_total), completed=status.shards_done, width=40),
            f"{status.shards_done}/{status.shards_total}",
        )
    else:
        bar.add_row("stream", progress(status))
    notes = Table.grid(padding=(0, 2))
    notes.add_column(style="dim", min_width=8)
    notes.add_column(max_width=WIDTH - 12)
    if ending(status):
        notes.add_row("draining", ending(status))
    if (status.data_workers_wanted or status.data_workers_alive) and not status.phase.over:
        notes.add_row("fed", data_worker_status.shown(status))
    if status.online is not None and not status.phase.over:
        for line in stream_options.shown(status.online)[:3]:
            notes.add_row(line[:8].strip(), line[8:])
    if status.stage and status.online is None and not status.phase.over:
        notes.add_row("plan", f"{status.stage}: {status.target or status.shape or 'not all of it is there'}")
    if status.decision:
        notes.add_row("decided", decision_of(status))
    if status.disk_trouble and not status.phase.over:
        notes.add_row("disk", status.disk_trouble)
    if status.checkpoint_trouble:
        notes.add_row("saved", saving_of(status))
    if status.left_out:
        notes.add_row("without", f"{status.samples_left_out:,} samples; the first: {status.left_out[0]}")
    if status.poisoned:
        notes.add_row("given up", f"{len(status.poisoned)} shards; the first: {status.poisoned[0]}")
    return Group(facts, bar, notes) if notes.row_count else Group(facts, bar)


def ending(status: JobStatus) -> str:
    """What a job that drains waits for once no data is in work: scripts that still measure or save something."""
    still = [str(each.role) for each in status.members if each.role.kind is RoleKind.WORKER and each.state == "joined"]
    if status.phase is not JobPhase.DRAINING or status.shards_leased or not still:
        return ""
    return f"{still[0]}'s script still runs" if len(still) == 1 else f"{len(still)} scripts still run"


def alive(status: JobStatus, kind: RoleKind) -> tuple[int, int]:
    """How many of a kind are there, and how many should be."""
    if kind is RoleKind.WORKER and status.workers_wanted:
        return status.workers_alive, status.workers_wanted
    if kind is RoleKind.SERVER and status.servers_wanted:
        return status.servers_alive, status.servers_wanted
    members = [each for each in status.members if each.role.kind is kind]
    return sum(each.alive and each.joined for each in members), len(members)


def alive_text(status: JobStatus, kind: RoleKind) -> str:
    """`2/2`."""
    return "/".join(map(str, alive(status, kind)))


def missing(status: JobStatus, kind: RoleKind) -> str:
    """`workers 1/2`, where not all are there; else nothing."""
    there, wanted = alive(status, kind)
    return f"{kind}s {there}/{wanted}" if there != wanted and not status.phase.over else ""


def decision_of(status: JobStatus) -> str:
    """The last decision and why; empty when there was none."""
    return f"{status.decision}: {status.decision_why}" if status.decision_why else status.decision


def saving_of(status: JobStatus) -> str:
    """What is wrong with checkpoints, and what there is all the same."""
    last = f"checkpoint {status.checkpoint}" if status.checkpoint else "no checkpoint"
    return f"{last}; {status.checkpoint_trouble}" if status.checkpoint_trouble else last


def metric_cells(status: JobStatus) -> list[tuple[str, str]]:
    """The user's metrics, as pairs of cells."""
    return [(name, show(name, value)) for name, value in sorted(status.metrics.items())]


def show(name: str, value: float) -> str:
    """A metric: a count as a whole number, anything else with four places. A name tells whether 0 and 1 are counts."""
    measured = abs(value) <= 1 and not MEASURED.isdisjoint(name.lower().split("_"))
    return f"{value:,.0f}" if value.is_integer() and not measured else f"{value:.4f}"


def short(number: float) -> str:
    """12345 as 12.3k."""
    for bound, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= bound:
            return f"{number / bound:.1f}{unit}"
    return f"{number:.0f}"


def wrap(text: str, indent: str = " " * 8) -> list[str]:
    """Lines of at most 80 columns; a word that is longer, such as a path, stays whole."""
    return [
        part
        for line in text.splitlines() or [""]
        for part in textwrap.wrap(line, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
        or [""]
    ]
