"""Messages about checkpoints: what the master orders, what servers have written, copies that buddies keep, and files
of servers with disks of their own, for whoever needs them.

In: `server.checkpoints`, `server.mirror` and `server.upload`. Next: `master.checkpoint.schedule` orders and hears; a
buddy's own `server.mirror` takes copies and gives files away. All of them are part of `rpc.messages.messages`.
"""

from springtide.domain.model.checkpoints import Buddy, Written
from springtide.domain.model.tables import TableSpec
from springtide.rpc.messages.types import RpcMessage


class SaveRequest(RpcMessage, frozen=True):
    """A server: which checkpoint is to be written? Held until there is another than the one it names; then `Save`."""

    term: int = 0
    number: int = 0
    """What it has dealt with last."""
    part: int = 0
    takes_copies_at: str = ""
    """Where it listens for the files of others, for which it is the buddy, and gives files away; empty: nowhere."""
    node: str = ""
    """The machine on whose own disk its files lie; empty: it sees the job's folder."""


class SaveOrder(RpcMessage, frozen=True):
    """Write the slots that you own for this checkpoint, at any moment from now on."""

    term: int
    number: int
    base: int = 0
    """The last complete one: what was written for it need not be written again. 0: there is none."""
    hurry: bool = False
    """Somebody waits for it."""
    part: int = 0
    """Not 0: all have written what they owned, and some slots were under way: whoever owns these now writes them."""
    slots: tuple[int, ...] = ()
    buddy: Buddy | None = None
    """Who is to have a copy of what is written, where a mirror is kept and there is another server."""
    needed: tuple[str, ...] = ()
    """To a server with a disk of its own: files on it that must stay. What is as old as `base` and not here can go."""


class SaveReport(RpcMessage, frozen=True):
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
    lost: tuple[str, ...] = ()
    """Earlier files that were missing or torn: what was in them was written in full."""


class MirrorFiles(RpcMessage, frozen=True):
    """To a buddy: you should have copies of these segment files, by name and bytes. Answered with `Lacks`."""

    files: tuple[tuple[str, int], ...]


class MissingFiles(RpcMessage, frozen=True):
    """The files that it has no whole copy of."""

    names: tuple[str, ...]


class MirrorPart(RpcMessage, frozen=True):
    """A run of a segment file, for the copy at a buddy. The first one begins the copy anew, the last one ends it."""

    name: str
    offset: int
    content: bytes
    last: bool = False
    checksum: int = 0
    """With the last one: CRC-32 of the whole file."""


class ReadFile(RpcMessage, frozen=True):
    """To whoever has it: a run of a file. The master has manifests, a server segment files. Answered with `FileRun`."""

    name: str
    offset: int = 0
    length: int = 0
    """0: only its size is wanted."""


class FileRun(RpcMessage, frozen=True):
    """A run of a file, shorter if the file is."""

    size: int
    """Of the whole file; -1: there is none."""
    content: bytes = b""


class FileHoldersRequest(RpcMessage, frozen=True):
    """A server that must bring slots back: which checkpoints are there, and who has their files?"""


class FileHolders(RpcMessage, frozen=True):
    """Servers with disks of their own."""

    numbers: tuple[int, ...]
    """Checkpoints whose manifests the master has."""
    addresses: dict[str, str]
    """By the name of a server: where it gives files away."""
    awaited: tuple[str, ...] = ()
    """Servers that have not said it yet, but will."""


class CopyRequest(RpcMessage, frozen=True):
    """A server with a disk of its own: which of its files are to be copied to storage? Held until there is an order
    after that one.
    """

    after: int = 0


class CopyOrder(RpcMessage, frozen=True):
    """Copy these files of yours to a URL."""

    id: int
    url: str
    files: tuple[tuple[str, int], ...]
    """Paths in the server's folder, and bytes."""


class CopyReport(RpcMessage, frozen=True):
    """What became of it."""

    id: int
    files: int = 0
    bytes: int = 0
    lacks: tuple[str, ...] = ()
    """Files that it has no more."""
    error: str = ""


Requests = (
    SaveRequest | SaveReport | MirrorFiles | MirrorPart | ReadFile | FileHoldersRequest | CopyRequest | CopyReport
)
Replies = SaveOrder | MissingFiles | FileRun | FileHolders | CopyOrder
