"""Pure. What became of a script that was run for a few batches to see what of it data workers could do.

In: worker/explain_split.py fills it in, in the script's process. Out: cli/lab/explain_split.py shows it.
"""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptReport:
    """What became of the script."""

    error: str = ""
    """Why nothing can be said; "" where something can."""
    blame: str = ""
    """"script": it raised, "usage": it is no training script."""
    trace: str = ""
    why: str = ""
    """Why forward() stays whole; "": a part of it moves."""
    called: str = ""
    """Where the script calls its model."""
    read_s: float = 0.0
    """Seconds to read and collate a batch: this part moves whatever becomes of forward()."""
    found_s: float = 0.0
    """Seconds that the loop stood still to find this out, once."""
    left: tuple[str, ...] = ()
    """Leaves of a batch that do not travel."""
    touched: tuple[str, ...] = ()
    """Leaves that travel because the loop itself reads them."""
    text: str = ""
    """The explanation of the split, for people."""
    split: dict[str, Any] | None = None
    """The same, for programs."""
