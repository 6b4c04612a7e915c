"""Pure. One partition of a stream in the ledger: what of it nobody holds, where its batches are cut, whose it is.

In: data/ledger/stream_ledger.py. All that was handed out and is in no lease and not here is trained. A batch ends at
the next multiple of the batch size, or before, at a cut; cuts are kept for as long as what lies before them could have
to be read again.
"""

import bisect
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from springtide.domain.data.streams import FAR


class Span(NamedTuple):
    """Offsets `first` to `end`."""

    first: int
    end: int


@dataclass(slots=True)
class Partition:
    """One partition."""

    start: int
    """Where the job began with it."""
    end: int = FAR
    """Where it ends, once that is known."""
    waiting: list[Span] = field(default_factory=list)
    """What nobody holds: ascending, no two side by side."""
    cuts: list[int] = field(default_factory=list)
    """Where batches end that are not full, ascending."""
    owner: int | None = None
    """The rank that it is meant for; None: whoever has room."""
    failed_at: int = -1
    """Offset that could not be read last, and how often."""
    tries: int = 0

    @property
    def final(self) -> bool:
        """Whether its end is known."""
        return self.end < FAR

    def put_back(self, span: Span) -> None:
        """These offsets are to be handed out again."""
        if span.first < span.end:
            self.waiting = joined([*self.waiting, span])

    def end_at(self, end: int) -> None:
        """Nothing comes after `end`: what lies beyond was never there."""
        self.end = end
        self.waiting = [Span(first, min(until, end)) for first, until in self.waiting if first < end]

    def cut(self, at: int) -> bool:
        """A batch ends before `at`. Whether that is news."""
        place = bisect.bisect_left(self.cuts, at)
        if place < len(self.cuts) and self.cuts[place] == at:
            return False
        self.cuts.insert(place, at)
        return True

    def cuts_in(self, first: int, end: int) -> list[int]:
        """Cuts after `first` and before `end`."""
        return self.cuts[bisect.bisect_right(self.cuts, first) : bisect.bisect_left(self.cuts, end)]

    def forget(self, below: int) -> bool:
        """Nobody will ever read what lies before this offset again. Whether a cut is forgotten."""
        gone = bisect.bisect_right(self.cuts, below)
        del self.cuts[:gone]
        return gone > 0

    def batch_end(self, first: int, batch_size: int) -> int:
        """Where the batch ends that begins with this offset."""
        full = (first // batch_size + 1) * batch_size
        cuts = self.cuts_in(first, full)
        return min(self.end, cuts[0] if cuts else full)

    def copy(self) -> "Partition":
        """One that goes its own way."""
        return Partition(
            self.start, self.end, list(self.waiting), list(self.cuts), self.owner, self.failed_at, self.tries
        )


def joined(spans: Iterable[Span]) -> list[Span]:
    """The same offsets in ascending spans, no two of them side by side."""
    found: list[Span] = []
    for first, end in sorted(spans):
        if found and first <= found[-1].end:
            found[-1] = Span(found[-1].first, max(end, found[-1].end))
        elif first < end:
            found.append(Span(first, end))
    return found
