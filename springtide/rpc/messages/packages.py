"""Messages that carry the package of data workers where no disk is common. In: `dataworker.processes.package_transfer`.
Next: `rpc.messages.messages`.

Only bytes travel: what is unpickled in the end is checked by its seal first (`dataworker.processes.job_package`),
wherever it came from.
"""

from springtide.rpc.messages.types import RpcMessage


class PackageWritten(RpcMessage, frozen=True):
    """A trainer has written the package; its files, by name and bytes. Answered with those the master `Lacks`."""

    sealed: str
    """Digest of its list of contents."""
    files: tuple[tuple[str, int], ...]


class PackagePart(RpcMessage, frozen=True):
    """A run of one of its files: from the trainer to the master, or from the master to a data worker."""

    name: str
    offset: int
    content: bytes
    last: bool = False
    checksum: int = 0
    """CRC-32 of all up to here."""


class PackageAsk(RpcMessage, frozen=True):
    """A data worker: this file of the package, from there on. Answered with a `PackagePart`."""

    sealed: str
    name: str
    offset: int = 0
