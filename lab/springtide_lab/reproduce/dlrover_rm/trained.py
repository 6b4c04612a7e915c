"""Rows that no simulation can give: models that were really trained. In: what `springtide bench auc` and `auc-xdeepfm`
published. Out: rows of Fig. 8 of DLRover-RM (000) and of section 6.2 of DLRover (001). Next: `reproduction`.
"""

import pathlib
from typing import Any

from springtide_lab.reproduce.report import BENCHES, NOT_IN_TEXT, Row, missing, published, row

MOST = 0.0006
PAPER = {"widedeep": ("auc", 0.0004), "xdeepfm": ("auc-xdeepfm", 0.0006)}
"""By model: the benchmark, and within how much the paper's runs lay."""


def rows(folder: pathlib.Path = BENCHES) -> list[Row]:
    return [row for model, (bench, within) in PAPER.items() for row in _rows(folder, model, bench, within)]


def _rows(folder: pathlib.Path, model: str, bench: str, within: float) -> list[Row]:
    found, command = published(folder / f"{bench}.json"), f"`springtide bench {bench} --json`"
    what = (f"{model}: AUC, disturbed less undisturbed", f"{model}: AUC between kinds of runs")
    if found is None or not found.get("details", {}).get("disturbed"):
        why = f"models must be trained for that: {command} does; nothing of it is published here"
        return [missing("000 Fig. 8", what[0], NOT_IN_TEXT, why), missing("001 §6.2", what[1], within, why)]
    calm, disturbed = found["details"]["undisturbed"], found["details"]["disturbed"]
    pairs = [after - before for before, after in zip(calm, disturbed, strict=True)]
    between = abs(sum(pairs) / len(pairs))
    why = f"really trained: {command} of {found['date']}, {len(pairs)} seeds; all runs lie within {_range(found):.4f}"
    return [
        row("000 Fig. 8", what[0], NOT_IN_TEXT, pairs, why=why),
        row("001 §6.2", what[1], within, [between], goal=MOST, better="lower", why=why),
    ]


def _range(found: dict[str, Any]) -> float:
    every = [*found["details"]["undisturbed"], *found["details"]["disturbed"]]
    return float(max(every) - min(every))
