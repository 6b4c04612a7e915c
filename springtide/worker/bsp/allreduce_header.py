"""Pure. Flags that ranks of a bsp group add to every all-reduce, and the verdict that follows from them.

In: one rank's flags as numbers, which the all-reduce sums over the ranks. Out: a `GroupVerdict` that is equal on every
rank, so that ranks act on it without another message. Next: worker/cache/sample_allocation.py,
worker/cache/row_cache.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

DIGITS = 4  # bytes of a digest; sums of their squares over 128 ranks are exact in float32
FIXED = 8 + 2 * DIGITS


@dataclass(slots=True, kw_only=True)
class RankWords:
    """Flags that one rank sends."""

    flush: bool = False
    """Whether all rows must be on the servers after this step."""
    empty: bool = False
    """Whether this step only flushes and trains no batch."""
    last: bool = False
    """Whether this rank knows of no further batch. Ranks learn at different times that a job stops."""
    ready: bool = False
    """Whether this rank knows where the modules find their ids."""
    go: bool = False
    """Request of the lowest rank to start scheduling batches."""
    stop: bool = False
    """Request of the lowest rank to stop scheduling batches."""
    paper: bool = False
    """Request of the lowest rank to simulate schedules for the next batches, which shows their cost."""
    effort: int = 0
    """Search effort of the schedule, set by the lowest rank."""
    digest: int = 0
    """32-bit digest of the next batch and its schedule; 0 if the batch is not scheduled."""
    refused: frozenset[int] = field(default_factory=frozenset)
    """Tables whose ids are not all known ahead of forward()."""


class GroupVerdict(NamedTuple):
    """Combined flags of all ranks."""

    flush: bool
    empty: bool
    torn: bool
    """Whether only some of the ranks train a batch in this step."""
    last: bool
    """Whether at least one rank knows of no further batch."""
    ready: bool
    alike: bool
    """Whether all ranks have the same digest."""
    go: bool
    stop: bool
    paper: bool
    effort: int
    refused: frozenset[int]


def length(tables: Sequence[int]) -> int:
    """Return the number of values that `said` returns."""
    return FIXED + len(tables)


def said(words: RankWords, tables: Sequence[int]) -> list[float]:
    digits = [words.digest >> 8 * place & 0xFF for place in range(DIGITS)]
    return [
        float(words.flush),
        float(words.empty),
        float(words.last),
        float(not words.ready),
        float(words.go),
        float(words.stop),
        float(words.paper),
        float(words.effort),
        *map(float, digits),
        *(float(digit * digit) for digit in digits),
        *(float(table in words.refused) for table in tables),
    ]


def heard(sums: Sequence[float], tables: Sequence[int], ranks: int) -> GroupVerdict:
    """Decode the sums. Digests are equal if n times the sum of squares equals the squared sum, for every byte."""
    flush, empty, last, unready, go, stop, paper, effort = sums[: FIXED - 2 * DIGITS]
    digits, squares = sums[FIXED - 2 * DIGITS : FIXED - DIGITS], sums[FIXED - DIGITS : FIXED]
    return GroupVerdict(
        flush=flush > 0,
        empty=empty > 0,
        torn=0 < empty < ranks,
        last=last > 0,
        ready=unready == 0,
        alike=all(ranks * square == digit * digit for digit, square in zip(digits, squares, strict=True)),
        go=go > 0,
        stop=stop > 0,
        paper=paper > 0,
        effort=int(effort),
        refused=frozenset(table for table, many in zip(tables, sums[FIXED:], strict=True) if many),
    )
