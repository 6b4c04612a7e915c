#!/usr/bin/env python3
"""Draw docs/explanation/*.svg, one picture for each page. A test fails when a picture differs from this file."""

import html
import pathlib
from collections.abc import Callable

FOLDER = pathlib.Path(__file__).resolve().parents[1] / "docs" / "explanation"
WIDTH = 760
INK, GREY, LINE = "#263238", "#607d8b", "#90a4ae"
TEAL, AMBER, BLUE, ROSE, PALE = "#80cbc4", "#ffcc80", "#90caf9", "#ef9a9a", "#eceff1"


def text(x: float, y: float, words: str, *, anchor: str = "middle", color: str = INK, size: int = 13) -> str:
    place = f'x="{x:g}" y="{y:g}" text-anchor="{anchor}"'
    return f'<text {place} fill="{color}" font-size="{size}">{html.escape(words)}</text>'


def box(x: float, y: float, w: float, h: float, words: str = "", *, fill: str = PALE) -> str:
    rect = f'<rect x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" rx="4" fill="{fill}" stroke="{LINE}"/>'
    lines = words.split("\n") if words else []
    first = y + h / 2 + 4.5 - 8 * (len(lines) - 1)
    return rect + "".join(text(x + w / 2, first + 16 * row, line) for row, line in enumerate(lines))


def arrow(x: float, y: float, to_x: float, to_y: float, *, dashed: bool = False) -> str:
    dash = ' stroke-dasharray="5 4"' if dashed else ""
    return f'<line x1="{x:g}" y1="{y:g}" x2="{to_x:g}" y2="{to_y:g}" stroke="{INK}"{dash} marker-end="url(#head)"/>'


def curve(points: list[tuple[float, float]], color: str, *, width: float = 2, fill: str = "none") -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{path}" fill="{fill}" stroke="{color}" stroke-width="{width:g}"/>'


def slots() -> tuple[int, list[str]]:
    owners = "AABABBABACACBCBB"
    fills = {"A": TEAL, "B": AMBER, "C": BLUE}
    parts = [box(20, 20, 190, 40, "table clicks, id 4711"), box(20, 70, 190, 40, "table users, id -3")]
    parts += [box(260, 45, 90, 40, "hash"), arrow(210, 40, 258, 60), arrow(210, 90, 258, 70), arrow(305, 85, 305, 128)]
    for number, owner in enumerate(owners):
        parts.append(box(24 + 44.5 * number, 130, 42, 34, f"{number}", fill=fills[owner]))
    parts.append(text(380, 184, "slots: their number is fixed for the job", color=GREY))
    for name, x, fill in (("server A", 60, TEAL), ("server B", 300, AMBER), ("server C, new", 540, BLUE)):
        parts.append(box(x, 215, 160, 40, name, fill=fill))
    parts += [arrow(140, 257, 140, 280), arrow(380, 257, 380, 280), arrow(140, 282, 618, 282, dashed=True)]
    parts += [
        arrow(620, 282, 620, 258, dashed=True),
        text(380, 302, "slots move to a new server, one by one, while they serve", color=GREY),
    ]
    return 312, parts


def exactly_once() -> tuple[int, list[str]]:
    parts = [box(20, 30, 150, 50, "worker 1")]
    parts += [box(20, 130, 150, 50, "worker 2")]
    parts += [text(95, 100, "killed after its push", color=GREY), text(95, 200, "trains the lease again", color=GREY)]
    parts += [box(330, 20, 410, 75, fill=TEAL), text(535, 42, "slot 12 has applied: shard 7, samples 0 to 63")]
    parts += [text(535, 64, "rows and name change in one critical section")]
    parts += [text(535, 84, "the second push of the same name is skipped")]
    parts += [box(330, 115, 410, 75, fill=AMBER), text(535, 137, "slot 13 was restored: shard 7 is not in its set")]
    parts += [text(535, 159, "so the push of worker 2 is applied")]
    parts += [arrow(170, 48, 328, 48), arrow(170, 150, 328, 75), arrow(170, 160, 328, 155)]
    parts += [text(250, 38, "push (7, 0, 64)"), text(228, 182, "push (7, 0, 64)")]
    return 215, parts


def checkpoints() -> tuple[int, list[str]]:
    parts = [text(20, 40, "master", anchor="start"), text(20, 100, "server A", anchor="start")]
    parts += [text(20, 150, "server B", anchor="start"), text(20, 200, "worker", anchor="start")]
    parts += [box(110, 22, 120, 28, "note the ledger", fill=ROSE), box(610, 22, 130, 28, "publish manifest", fill=ROSE)]
    for row, starts in ((82, (150, 230, 330, 430, 520)), (132, (170, 260, 300, 400, 480, 560))):
        parts.append(f'<line x1="110" y1="{row + 14}" x2="740" y2="{row + 14}" stroke="{LINE}"/>')
        parts += [box(x, row, 26, 28, fill=TEAL) for x in starts]
    parts += [box(110 + 42 * step, 182, 38, 28, fill=BLUE) for step in range(15)]
    parts += [text(425, 232, "steps go on; each slot is locked only while it is copied", color=GREY)]
    return 245, parts


def performance_model() -> tuple[int, list[str]]:
    """Times of a step by the model of planning/perf_model, with the coefficients that the page names."""
    parts = []
    shapes = [1, 2, 4, 8, 16]
    for column, workers in enumerate(shapes):
        terms = step_terms(workers, servers=2)
        x, y = 60 + 62 * column, 210.0
        for seconds, fill in zip(terms, (BLUE, TEAL, AMBER, ROSE, PALE), strict=True):
            y -= seconds * 1900
            parts.append(
                f'<rect x="{x}" y="{y:.1f}" width="44" height="{seconds * 1900:.1f}" fill="{fill}" stroke="{LINE}"/>'
            )
        parts.append(text(x + 22, 228, f"{workers}"))
    parts.append(text(200, 248, "workers; a step's time by term, 2 servers", color=GREY))
    for row, (name, fill) in enumerate(
        zip(("constant", "lookup", "synchronize", "update", "gradient"), (PALE, ROSE, AMBER, TEAL, BLUE), strict=True)
    ):
        parts += [box(62 + 0, 14 + 18 * row, 12, 12, fill=fill), text(80, 25 + 18 * row, name, anchor="start")]
    most = max(
        workers * 512 / sum(step_terms(workers, servers=servers)) for workers in range(1, 17) for servers in (1, 2, 4)
    )
    for servers, color in ((1, "#ef6c00"), (2, "#00796b"), (4, "#1565c0")):
        points = [
            (430 + 19 * workers, 210 - 180 * workers * 512 / sum(step_terms(workers, servers=servers)) / most)
            for workers in range(1, 17)
        ]
        parts += [
            curve(points, color),
            text(
                points[-1][0] - 4,
                points[-1][1] - 8,
                f"{servers} server{'s' * (servers > 1)}",
                anchor="end",
                color=color,
            ),
        ]
    parts += [
        f'<line x1="430" y1="210" x2="740" y2="210" stroke="{LINE}"/>',
        f'<line x1="430" y1="20" x2="430" y2="210" stroke="{LINE}"/>',
    ]
    parts += [text(449, 228, "1"), text(734, 228, "16"), text(590, 248, "workers; samples a second", color=GREY)]
    return 262, parts


def step_terms(workers: int, *, servers: int) -> list[float]:
    """Gradient, update, synchronization, lookup and constant, in seconds, of one step of a worker with one core."""
    return [0.030, 0.003 * workers / servers, 0.0012 * workers / servers, 0.012 / servers, 0.006]


def split() -> tuple[int, list[str]]:
    parts = [box(20, 20, 330, 150), text(185, 42, "data workers", color=GREY)]
    parts += [
        box(40, 55, 290, 30, "read and collate the batch", fill=BLUE),
        box(40, 92, 290, 30, "hash, bucketize, cross", fill=BLUE),
    ]
    parts += [
        box(40, 129, 290, 30, "unique ids", fill=BLUE),
        box(430, 20, 310, 150),
        text(585, 42, "worker: your own forward()", color=GREY),
    ]
    parts += [
        box(450, 55, 270, 30, "same calls: take their values", fill=BLUE),
        box(450, 92, 270, 30, "table lookup (parameters)", fill=AMBER),
    ]
    parts += [box(450, 129, 270, 30, "layers, loss, gradients", fill=AMBER), arrow(350, 95, 428, 70)]
    parts += [
        text(390, 62, "values"),
        text(380, 194, "the cut: what reads a parameter, and all that follows, stays with the worker", color=GREY),
    ]
    return 210, parts


def caching() -> tuple[int, list[str]]:
    parts = [
        box(20, 30, 170, 110),
        text(105, 50, "worker 1: cache", color=GREY),
        box(570, 30, 170, 110),
        text(655, 50, "worker 2: cache", color=GREY),
    ]
    parts += [box(36, 62, 138, 26, "row a, only mine", fill=TEAL), box(36, 96, 138, 26, "row b, only mine", fill=TEAL)]
    parts += [
        box(586, 62, 138, 26, "row c, only mine", fill=TEAL),
        box(290, 30, 180, 110),
        text(380, 50, "servers", color=GREY),
    ]
    parts += [box(311, 62, 138, 26, "row d, shared", fill=AMBER), box(311, 96, 138, 26, "all other rows")]
    parts += [arrow(288, 70, 176, 70), arrow(192, 82, 286, 82), arrow(472, 70, 584, 70), arrow(568, 82, 474, 82)]
    parts += [text(238, 62, "pull"), text(238, 100, "push"), text(522, 62, "pull"), text(522, 100, "push")]
    parts += [
        text(
            380,
            166,
            "A row that one worker trains at this step stays there. A row that several train goes by the servers.",
            color=GREY,
        )
    ]
    return 184, parts


def online_scaling() -> tuple[int, list[str]]:
    """A made-up day: traffic, the forecast with its band, and workers ahead of the rise."""
    traffic = [40, 34, 30, 28, 28, 32, 44, 62, 78, 86, 88, 86, 84, 82, 84, 90, 100, 112, 120, 116, 100, 80, 62, 48]
    place = lambda hour, value: (60 + 28 * hour, 200 - 1.15 * value)  # noqa: E731 - two axes, twelve uses
    band = [place(hour, 1.12 * value + 3) for hour, value in enumerate(traffic)]
    band += [place(hour, 0.9 * value - 3) for hour, value in reversed(list(enumerate(traffic)))]
    parts = [
        curve(band, "none", fill="#e0f2f1"),
        curve([place(hour, value) for hour, value in enumerate(traffic)], "#00796b"),
    ]
    steps: list[tuple[float, float]] = []
    for hour in range(24):
        workers = max(-(-int(1.12 * value + 3) // 22) for value in traffic[hour : hour + 2])
        steps += [place(hour, 22 * workers), place(hour + 1, 22 * workers)]
    parts += [curve(steps, "#ef6c00"), f'<line x1="60" y1="200" x2="740" y2="200" stroke="{LINE}"/>']
    parts += [text(x, 218, f"{hour}:00") for hour in (0, 6, 12, 18) for x, _ in [place(hour, 0)]]
    parts += [text(70, 24, "orange: what the workers can train", anchor="start", color="#ef6c00")]
    parts += [text(70, 42, "green: traffic; its band is the forecast", anchor="start", color="#00796b")]
    return 230, parts


PICTURES: dict[str, Callable[[], tuple[int, list[str]]]] = {
    "slots": slots,
    "exactly-once": exactly_once,
    "checkpoints": checkpoints,
    "performance-model": performance_model,
    "split": split,
    "caching": caching,
    "online-scaling": online_scaling,
}


def picture(name: str) -> str:
    height, parts = PICTURES[name]()
    tip = f'<path d="M0 0L8 4L0 8z" fill="{INK}"/>'
    head = f'<marker id="head" markerWidth="8" markerHeight="8" refX="7" refY="4" orient="auto">{tip}</marker>'
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="system-ui, sans-serif">\n'
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>\n<defs>{head}</defs>\n{body}\n</svg>\n'
    )


if __name__ == "__main__":
    for name in PICTURES:
        (FOLDER / f"{name}.svg").write_text(picture(name))
