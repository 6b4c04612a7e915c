"""Pure. Flags that ranks of a bsp group add to every all-reduce, and the verdict that follows from them.

In: a rank's own words, numbers whose sum over the ranks everyone gets. Out: a `Verdict`, the same on every rank: what
follows from it needs no further message. Next: worker/cache/sample_allocation.py, worker/cache/row_cache.py. Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

DIGITS = 4  # of a digest, eight bits each: sums of their squares over 128 ranks are exact in float32
FIXED = 8 + 2 * DIGITS


@dataclass(slots=True, kw_only=True)
class RankWords:
    """What one rank says."""

    flush: bool = False
    """All rows are to be on the servers after this step."""
    empty: bool = False
    """This is no step of a batch, only a flush."""
    last: bool = False
    """No batch follows, as far as this rank knows: a job that is stopped is heard of by one sooner than by another."""
    ready: bool = False
    """Where modules find their ids is known here."""
    go: bool = False
    """Said by the lowest rank alone: let batches be scheduled."""
    stop: bool = False
    """Said by it alone: let them be so no more."""
    paper: bool = False
    """Said by it alone: let everyone schedule the next batches on paper, so that the price of that is seen."""
    effort: int = 0
    """Said by the lowest rank alone: how much the schedule may look at."""
    digest: int = 0
    """Of the next batch and its schedule, 32 bits; 0: it is not scheduled."""
    refused: frozenset[int] = field(default_factory=frozenset)
    """Tables whose ids are not all known ahead."""


class GroupVerdict(NamedTuple):
    """What all have said together."""

    flush: bool
    empty: bool
    torn: bool
    """Some ranks take a step of a batch, others do not."""
    last: bool
    """For some rank no batch follows."""
    ready: bool
    alike: bool
    """Everyone has the same digest."""
    go: bool
    stop: bool
    paper: bool
    effort: int
    refused: frozenset[int]


def length(tables: Sequence[int]) -> int:
    """Numbers that `said` makes."""
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
    """What the sums mean. Digests are alike when their digits do not vary: n times the squares is the sum squared."""
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
