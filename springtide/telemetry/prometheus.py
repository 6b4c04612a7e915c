"""Pure. Formats metrics for Prometheus (text exposition format 0.0.4).

In: families of metrics, each with its labels. Out: text, families in order, each with its help and type. This module
does not know which metrics exist: `master.metrics` makes families from a job's status.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from springtide import errors

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")

Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One metric, with a value for each set of labels."""

    name: str
    help: str
    kind: Literal["gauge", "counter"] = "gauge"
    values: tuple[tuple[Labels, float], ...]

    def __post_init__(self) -> None:
        labels = [label for own, _ in self.values for label in own]
        wrong = [each for each in labels if not _LABEL.fullmatch(each)]
        if not _NAME.fullmatch(self.name) or wrong:
            raise errors.BadInput(
                f"figure {self.name} with labels {', '.join(labels) or 'none'}: wanted letters, digits and _"
            )
        if (self.kind == "counter") != self.name.endswith("_total"):
            raise errors.BadInput(f"figure {self.name} is a {self.kind}: counters, and only they, end in _total")


def one(name: str, help: str, value: float | None, *, kind: Literal["gauge", "counter"] = "gauge") -> list[Family]:
    """Return a metric of the whole job; empty if the value is unknown."""
    return [] if value is None else [Family(name=name, help=help, kind=kind, values=(({}, float(value)),))]


def text(families: Iterable[Family], labels: Labels) -> str:
    """Format all families, and add these labels to each value."""
    lines = []
    for family in families:
        lines.append(f"# HELP {family.name} {_escaped(family.help)}")
        lines.append(f"# TYPE {family.name} {family.kind}")
        for own, value in family.values:
            marks = ",".join(f'{name}="{_quoted(word)}"' for name, word in {**labels, **own}.items())
            lines.append(f"{family.name}{{{marks}}} {_number(value)}" if marks else f"{family.name} {_number(value)}")
    return "\n".join(lines) + "\n"


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value.is_integer() and abs(value) < 2**53 else repr(value)


def _escaped(words: str) -> str:
    return words.replace("\\", r"\\").replace("\n", r"\n")


def _quoted(words: str) -> str:
    return _escaped(words).replace('"', r"\"")
