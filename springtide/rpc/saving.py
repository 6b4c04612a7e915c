"""Messages about checkpoints: what the master orders, what servers have written, and copies that buddies keep.

In: `embedding.saving` and `embedding.mirroring`. Next: `master.rounds` orders and hears; a buddy's own
`embedding.mirroring` takes copies. All of them are part of `rpc.messages`.
"""

from springtide.domain.checkpoints import Buddy, ShardRange, Written
from springtide.domain.tables import TableSpec
from springtide.rpc.nouns import Message


class SaveRequest(Message, frozen=True):
    """A server: which checkpoint is to be written? Held until there is another than the one it names; then `Save`."""

    term: int = 0
    number: int = 0
    """What it has dealt with last."""
    part: int = 0
    takes_copies_at: str = ""
    """Where it listens for the files of others, for which it is the buddy; empty: it takes none."""


class Save(Message, frozen=True):
    """Write the slots that you own for this checkpoint, at any moment from now on."""

    term: int
    number: int
    base: int = 0
    """The last complete one: what was written for it need not be written again. 0: there is none."""
    hurry: bool = False
    """Somebody waits for it."""
    forget: tuple[ShardRange, ...] = ()
    """All shards that were finished before the last complete one began: details of their identities can go."""
    part: int = 0
    """Not 0: all have written what they owned, and some slots were under way: whoever owns these now writes them."""
    slots: tuple[int, ...] = ()
    buddy: Buddy | None = None
    """Who is to have a copy of what is written, where a mirror is kept and there is another server."""


class Saved(Message, frozen=True):
    """A server's part of a checkpoint is written, or why it is not."""

    term: int
    number: int
    written: Written | None = None
    tables: tuple[TableSpec, ...] = ()
    error: str = ""
    seconds: float = 0.0
    cpu_s: float = 0.0
    """Processor seconds of the thread that wrote it."""
    part: int = 0
    unmirrored: str = ""
    """Why its buddy has no copy, where a mirror is kept."""


class MirrorFiles(Message, frozen=True):
    """To a buddy: you should have copies of these segment files, by name and bytes. Answered with `Lacks`."""

    files: tuple[tuple[str, int], ...]


class Lacks(Message, frozen=True):
    """The files that it has no whole copy of."""

    names: tuple[str, ...]


class MirrorPart(Message, frozen=True):
    """A run of a segment file, for the copy at a buddy. The first one begins the copy anew, the last one ends it."""

    name: str
    offset: int
    content: bytes
    last: bool = False
    checksum: int = 0
    """With the last one: CRC-32 of the whole file."""
