#!/usr/bin/env python3
"""Draw docs/images/server-loss.svg from the folder of a run of `springtide demo`: its samples, roles and losses.

springtide demo && tools/server_loss_picture.py .springtide/runs/demo "x86-64, 2 cores, 2026-11-19"
"""

import json
import pathlib
import sys
from typing import Any

PICTURE = pathlib.Path(__file__).resolve().parents[1] / "docs" / "images" / "server-loss.svg"
LEFT, WIDTH, TOP, HEIGHT, ROW = 90, 690, 44, 120, 22
INK, GREY, TEAL, ROSE = "#263238", "#607d8b", "#00796b", "#c62828"
Line = dict[str, Any]


def lines_of(path: pathlib.Path) -> list[Line]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def text(x: float, y: float, words: str, *, anchor: str = "start", color: str = INK) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{color}">{words}</text>'


def picture(run: pathlib.Path, machine: str) -> str:
    story, points = lines_of(run / "events.jsonl"), lines_of(run / "progress.jsonl")
    begin = next(line["at"] for line in story if line.get("phase") == "running")
    end = max(line["at"] for line in story if line["event"] == "finished")
    points = [point for point in points if begin <= point["at"] <= end]
    most = max(point["samples"] for point in points)

    def across(at: float) -> float:
        return LEFT + WIDTH * (min(max(at, begin), end) - begin) / (end - begin)

    path = " ".join(
        f"{across(point['at']):.1f},{TOP + HEIGHT - HEIGHT * point['samples'] / most:.1f}" for point in points
    )
    parts = [f'<polyline points="{path}" fill="none" stroke="{TEAL}" stroke-width="2.5"/>']
    parts += [
        text(LEFT - 8, TOP + 8, f"{most:,}", anchor="end", color=GREY),
        text(LEFT - 8, TOP + HEIGHT, "0", anchor="end", color=GREY),
    ]
    parts += [text(LEFT, 18, "samples trained, each exactly once", color=TEAL)]
    below = TOP + HEIGHT + 18
    for row, (role, lives) in enumerate(sorted(lives_of(story, end).items())):
        y = below + ROW * row
        parts.append(text(LEFT - 8, y + 11, role, anchor="end"))
        for first, last, killed in lives:
            x, right = across(first), across(last)
            parts.append(
                f'<rect x="{x:.1f}" y="{y}" width="{max(right - x, 1):.1f}" height="14" rx="3" fill="#80cbc4"/>'
            )
            if killed:
                parts.append(text(right - 4, y + 12, "✕", color=ROSE))
                line = f'x1="{right:.1f}" y1="{TOP}" x2="{right:.1f}" y2="{y}"'
                parts.append(f'<line {line} stroke="{ROSE}" stroke-dasharray="3 4"/>')
        if lives[0][0] > begin + 1:
            parts.append(text(across(lives[0][0]) - 6, y + 11, "added", anchor="end", color=GREY))
    height = below + ROW * len(lives_of(story, end)) + 26
    masters = lives_of(story, end)["master"]
    if len(masters) > 1:
        middle = (across(masters[0][1]) + across(masters[1][0])) / 2
        parts.append(text(middle, TOP + 22, "no master:", anchor="middle", color=GREY))
        parts.append(text(middle, TOP + 60, "workers train on", anchor="middle", color=GREY))
    words = f"✕ killed by SIGKILL · {end - begin:.0f} s of springtide demo, {machine}"
    parts.append(text(LEFT, height - 8, words, color=GREY))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 20} {height}" '
        f'font-family="system-ui, sans-serif" font-size="13">\n<rect width="100%" height="100%" fill="#fff"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def lives_of(story: list[Line], end: float) -> dict[str, list[tuple[float, float, bool]]]:
    """Begin, end and violent death of every incarnation, by role."""
    lives: dict[str, list[tuple[float, float, bool]]] = {"master": [(story[0]["at"], end, False)]}
    for line in story:
        role, at = line.get("role", "master"), line["at"]
        if line["event"] == "joined":
            lives.setdefault(role, []).append((at, end, False))
        elif line["event"] == "master_replaced":
            first, _, _ = lives["master"].pop()
            lives["master"] += [(first, at - line["seconds"], True), (at, end, False)]
        elif line["event"] == "exited" and role in lives:
            first, _, _ = lives[role].pop()
            lives[role].append((first, min(at, end), "SIGKILL" in line["how"]))
    return lives


if __name__ == "__main__":
    PICTURE.write_text(picture(pathlib.Path(sys.argv[1]), sys.argv[2]))
