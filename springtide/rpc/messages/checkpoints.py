"""Messages about checkpoints: save orders, reports, mirror copies, and files on servers' own disks.

Next: `master.checkpoint.schedule` gives the orders, and `server.checkpoints` and `server.mirror` carry them out.
"""

from springtide.domain.model.checkpoints import Buddy, Written
from springtide.domain.model.tables import TableSpec
from springtide.rpc.messages.types import Reply, Request


class SaveRequest(Request, frozen=True):
    """A server asks which checkpoint to write. The master answers with `SaveOrder` as soon as there is a newer
    order."""

    term: int = 0
    number: int = 0
    part: int = 0
    takes_copies_at: str = ""
    """Address at which the server serves files and, as a buddy, receives them; empty if it does neither."""
    node: str = ""
    """Machine with the local disk that holds the server's files; empty if the server sees the job's folder."""


class SaveOrder(Reply, frozen=True):
    """The server must write the slots that it owns for this checkpoint. A slot's image may be newer than the order."""

    term: int
    number: int
    base: int = 0
    """Number of the last complete checkpoint; servers need not write its unchanged data again. 0 if there is none."""
    hurry: bool = False
    part: int = 0
    """Number of a follow-up order, which asks the present owners for slots that moved during the first order; 0 for the
    first order itself.
    """
    slots: tuple[int, ...] = ()
    buddy: Buddy | None = None
    """Server that must get a copy of the written files. None if the job keeps no mirrors or has no other server."""
    needed: tuple[str, ...] = ()
    """Files that a server with its own disk must keep. The server may delete other files of checkpoints up to
    `base`."""


class SaveReport(Request, frozen=True):
    """A server has written its part of a checkpoint, or reports why not."""

    term: int
    number: int
    written: Written | None = None
    tables: tuple[TableSpec, ...] = ()
    error: str = ""
    seconds: float = 0.0
    cpu_s: float = 0.0
    """CPU seconds of the thread that wrote the part."""
    part: int = 0
    unmirrored: str = ""
    """Reason why the buddy has no copy, in a job with mirrors."""
    lost: tuple[str, ...] = ()
    """Earlier files that were missing or torn. The server has written the content of these files again, completely."""


class MirrorFiles(Request, frozen=True):
    """Tells a buddy, by name and size, which segment files it should have copies of. The answer is `MissingFiles`."""

    files: tuple[tuple[str, int], ...]


class MissingFiles(Reply, frozen=True):
    """Files of which the buddy lacks a complete copy."""

    names: tuple[str, ...]


class ReadFile(Request, frozen=True):
    """Asks for a range of a file. The master has manifests, and a server has segment files. The answer is `FileRun`."""

    name: str
    offset: int = 0
    length: int = 0
    """Bytes to read; 0 to get only the file's size."""


class FileRun(Reply, frozen=True):
    """A range of a file, shorter than requested if the file ends."""

    size: int
    """Size of the whole file; -1 if the file does not exist."""
    content: bytes = b""


class FileHoldersRequest(Request, frozen=True):
    """A server that must restore slots asks which checkpoints exist, and which servers have their files."""


class FileHolders(Reply, frozen=True):
    """The checkpoints that exist, and the servers with their own disks that have files."""

    numbers: tuple[int, ...]
    """Numbers of the checkpoints whose manifests the master has."""
    addresses: dict[str, str]
    """Address at which each server serves its files, by server name."""
    awaited: tuple[str, ...] = ()
    """Servers that will report their address later."""


class CopyRequest(Request, frozen=True):
    """A server with its own disk asks which of its files to copy to storage. The master answers as soon as there is a
    newer order.
    """

    after: int = 0


class CopyOrder(Reply, frozen=True):
    """The server must copy these files from its own disk to a URL."""

    id: int
    url: str
    files: tuple[tuple[str, int], ...]
    """Paths of the files in the server's folder, with their sizes in bytes."""


class CopyReport(Request, frozen=True):
    """Outcome of a copy order."""

    id: int
    files: int = 0
    bytes: int = 0
    lacks: tuple[str, ...] = ()
    error: str = ""
