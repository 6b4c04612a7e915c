"""Rows that no simulation can give: models that were really trained. In: what `springtide bench auc` published. Out:
rows of Fig. 8 of DLRover-RM (000) and of section 6.2 of DLRover (001). Next: `reproduction` prints them.
"""

import pathlib
from typing import Any

import msgspec

from springtide.sim.rows import NOT_IN_TEXT, Row, missing, row

PUBLISHED = pathlib.Path(__file__).parents[2] / "docs" / "benchmarks" / "auc.json"
COMMAND = "`springtide bench auc --json`"
MOST = 0.0006


def rows(path: pathlib.Path = PUBLISHED) -> list[Row]:
    """As far as it was measured."""
    found = _read(path)
    if found is None:
        why = f"models must be trained for that: {COMMAND} does; nothing of it is published here"
        return [
            missing("000 Fig. 8", "widedeep: AUC, disturbed less undisturbed", NOT_IN_TEXT, why),
            missing("001 §6.2", "widedeep: AUC between kinds of runs", 0.0004, why),
            missing("001 §6.2", "xdeepfm: AUC between kinds of runs", 0.0006, why),
        ]
    calm, disturbed = found["details"]["undisturbed"], found["details"]["disturbed"]
    pairs = [after - before for before, after in zip(calm, disturbed, strict=True)]
    between = abs(sum(pairs) / len(pairs))
    why = f"really trained: {COMMAND} of {found['date']}, {len(pairs)} seeds; all runs lie within {_range(found):.4f}"
    return [
        row("000 Fig. 8", "widedeep: AUC, disturbed less undisturbed", NOT_IN_TEXT, pairs, why=why),
        row("001 §6.2", "widedeep: AUC between kinds of runs", 0.0004, [between], goal=MOST, better="lower", why=why),
        missing("001 §6.2", "xdeepfm: AUC between kinds of runs", 0.0006, "only WideDeep is trained for that here"),
    ]


def _read(path: pathlib.Path) -> dict[str, Any] | None:
    """The published result; None: there is none, or it only showed that it runs."""
    try:
        found: dict[str, Any] = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.DecodeError):
        return None
    return None if found.get("quick") or not found.get("details", {}).get("disturbed") else found


def _range(found: dict[str, Any]) -> float:
    every = [*found["details"]["undisturbed"], *found["details"]["disturbed"]]
    return float(max(every) - min(every))
