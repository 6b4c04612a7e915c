"""Print results of ports as a table in Markdown, with a row for each program."""

from collections.abc import Sequence

from springtide_lab.ports.runner import PortResult, Runs

HEAD = ("program", "changed lines", "original", "alone", "2 x 2", "killed", "resumed", "each sample once")


def markdown(results: Sequence[PortResult]) -> list[str]:
    lines = [row(HEAD), row(["---"] * len(HEAD))]
    return lines + [row(cells(result)) for result in results]


def row(texts: Sequence[str]) -> str:
    return f"| {' | '.join(texts)} |"


def cells(result: PortResult) -> list[str]:
    ways = [auc(result.runs[way]) for way in HEAD[2:7]]
    once = "yes" if all(runs.once for runs in result.runs.values()) else "no"
    return [f"{result.name} (`{result.package}`)", str(result.changed_lines), *ways, once]


def auc(runs: Runs) -> str:
    return f"{runs.mean:.4f} ± {runs.deviation:.4f}"


def facts(result: PortResult) -> str:
    """Return what a reader needs to judge a row."""
    seeds = len(result.runs["original"].aucs)
    return (
        f"{result.name}: AUC on test samples, mean and standard deviation of {seeds} seed{'s' * (seeds > 1)}; "
        f"{result.samples:,} training samples; the best possible AUC is {result.best_auc:.4f}"
    )
