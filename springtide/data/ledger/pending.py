"""Pure. The work of one pass that nobody holds: never handed out, come back, or failed and to be tried again.

In: data/ledger/async_ledger.py puts pieces back. Out: pieces, cut to the size that is asked for, always on the grid of
batches. What was never handed out is one cursor, so a pass over any number of samples costs the same few bytes.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from springtide.domain.data.samples import DatasetCard


class Piece(NamedTuple):
    """Samples `first` to `end` of the running-th shard of a pass."""

    running: int
    first: int
    end: int


@dataclass(slots=True)
class Todo:
    """A queue of pieces. Order: what came back (oldest first), then fresh ones, then what failed before."""

    card: DatasetCard
    running: int = 0
    """First shard with samples that were never handed out."""
    cut: int = 0
    """First such sample of it."""
    returned: deque[Piece] = field(default_factory=deque)
    failed: deque[Piece] = field(default_factory=deque)
    length: int | None = None
    """Samples of an epoch, where that is not what the card says."""
    samples: int = field(init=False)
    """Samples in the queue."""
    shards: int = field(init=False)
    """Shards of the pass; with the next three, what the card says, looked up once."""
    an_epoch: int = field(init=False)
    whole: int = field(init=False)
    last: int = field(init=False)

    def __post_init__(self) -> None:
        used = self.card.samples_used if self.length is None else self.length
        self.whole = self.card.shard_size
        self.an_epoch = -(-used // self.whole)
        self.shards = self.card.epochs * self.an_epoch
        self.last = used - (self.an_epoch - 1) * self.whole
        if self.running < self.shards:
            epoch, index = divmod(self.running, self.an_epoch)
            handed_out = epoch * used + index * self.whole + self.cut
            self.samples = self.card.epochs * used - handed_out
        else:
            self.samples = 0
        self.samples += sum(piece.end - piece.first for piece in (*self.returned, *self.failed))

    def size_of(self, running: int) -> int:
        """Samples of a shard."""
        return self.whole if (running + 1) % self.an_epoch else self.last

    def take(self, most: int, may_try: Callable[[Piece], bool] = lambda _: True) -> Piece | None:
        """The next piece, of `most` samples at most; of what failed before, one that whoever asks may try."""
        if self.returned:
            return self._cut_from(self.returned, most)
        if self.running < self.shards:
            size = self.size_of(self.running)
            piece = Piece(self.running, self.cut, min(size, self.cut + most))
            self.cut = piece.end
            if self.cut == size:
                self.running, self.cut = self.running + 1, 0
            self.samples -= piece.end - piece.first
            return piece
        at = next((at for at, piece in enumerate(self.failed) if may_try(piece)), None)
        return None if at is None else self._cut_from(self.failed, most, at)

    def put_back(self, piece: Piece, *, failed: bool = False) -> None:
        """The piece is to be handed out again; one that could not be read comes last."""
        if piece.end > piece.first:
            (self.failed if failed else self.returned).append(piece)
            self.samples += piece.end - piece.first

    def _cut_from(self, queue: deque[Piece], most: int, at: int = 0) -> Piece:
        piece = queue[at]
        if piece.end - piece.first <= most:
            del queue[at]
        else:
            queue[at] = Piece(piece.running, piece.first + most, piece.end)
            piece = Piece(piece.running, piece.first, piece.first + most)
        self.samples -= piece.end - piece.first
        return piece
