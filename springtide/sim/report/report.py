"""Prints the table of a simulation, at most 80 columns wide. In: `Summary`s by system. Out: text for the terminal."""

from collections.abc import Mapping

from rich import box as rich_box
from rich import console, table

from springtide.sim.report.measure import Summary

WIDTH = 80


def show(summaries: Mapping[str, Summary], *, title: str) -> None:
    screen = console.Console(width=WIDTH, highlight=False, emoji=False)
    screen.print(title, style="bold")
    shown = table.Table(box=rich_box.SIMPLE)
    shown.add_column("")
    for name in summaries:
        shown.add_column(name, justify="right")
    for label, cells in lines(summaries):
        shown.add_row(label, *cells)
    screen.print(shown)


def lines(summaries: Mapping[str, Summary]) -> list[tuple[str, list[str]]]:
    each = list(summaries.values())
    return [
        ("submitted (re-runs)", [f"{one.submitted} ({one.reruns})" for one in each]),
        ("finished", [f"{one.completion:.1%}" for one in each]),
        ("JCT, median", [duration(one.jct_p50_s) for one in each]),
        ("JCT, p90", [duration(one.jct_p90_s) for one in each]),
        ("JCT, p99", [duration(one.jct_p99_s) for one in each]),
        ("pending, median", [duration(one.pending_p50_s) for one in each]),
        ("CPU, workers", [share(one.worker_cpu) for one in each]),
        ("CPU, servers", [share(one.server_cpu) for one in each]),
        ("memory, workers", [share(one.worker_memory) for one in each]),
        ("memory, servers", [share(one.server_memory) for one in each]),
        ("out of memory", [f"{one.oom:.2%}" for one in each]),
        ("gave up waiting", [f"{one.scheduling:.2%}" for one in each]),
        ("slow: hot server", [f"{one.slow_hot:.2%}" for one in each]),
        ("slow: straggler", [f"{one.slow_straggler:.2%}" for one in each]),
        ("plans a job", [f"{one.changes:.1f}" for one in each]),
    ]


def share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def duration(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
