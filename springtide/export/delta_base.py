"""Pure. Finds the export that a delta builds on, from a step or a number of samples.

In: the value of `--since`, and the cards of existing exports. Out: the number of an export. The newest export up to
that moment is the base, so the delta misses no change. Next: `export.exporter`.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from springtide import errors
from springtide.export.export_folder import ExportCard


@dataclass(frozen=True, slots=True)
class DeltaBase:
    """A moment of a job: an export, a step or a number of samples."""

    unit: Literal["export", "step", "samples"]
    count: int


def parse(text: str) -> DeltaBase:
    """Parse `7` (an export), `step:12000` or `samples:1_000_000`."""
    found = re.fullmatch(r"(?:(step|samples):)?(\d[\d_]*)", text.strip())
    if found is None:
        raise errors.BadInput(
            f"--since {text}: wanted the number of an export, such as 7, or a moment: samples:1000000, step:500"
        )
    count = int(found[2].replace("_", ""))
    match found[1]:
        case "step":
            return DeltaBase("step", count)
        case "samples":
            return DeltaBase("samples", count)
        case _:
            return DeltaBase("export", count)


def base(since: DeltaBase, cards: Sequence[ExportCard], *, before: int) -> int:
    """Return the newest export up to that moment, older than checkpoint `before`; MissingFile if none."""
    known = [card for card in cards if card.number < before]
    if since.unit == "step" and known and not any(card.step for card in known):
        raise errors.BadInput(
            f"--since step:{since.count}: exports there are of no step: the workers of an async job have none "
            "in common. Say samples:N"
        )
    reached = [card for card in known if _reached(card, since.unit) <= since.count]
    if reached:
        return max(reached, key=lambda card: card.number).number
    there = ", ".join(f"{card.number} ({since.unit} {_reached(card, since.unit)})" for card in known) or "none"
    raise errors.MissingFile(
        f"--since {since.unit}:{since.count}: no export was made by then; there: {there}. Export without --since"
    )


def _reached(card: ExportCard, unit: str) -> int:
    return card.step if unit == "step" else card.samples
