"""Messages that transfer the data workers' package between hosts without a shared disk.

In: `dataworker.processes.package_transfer`. Next: `rpc.messages.messages`. The messages carry only bytes. Receivers
check the seal before they unpickle anything (`dataworker.processes.job_package`).
"""

from springtide.rpc.messages.types import RpcMessage


class PackageWritten(RpcMessage, frozen=True):
    """A trainer has written the package; lists its files by name and bytes. Answered with the files that the master
    lacks.
    """

    sealed: str
    """Digest of the package's list of contents."""
    files: tuple[tuple[str, int], ...]


class PackagePart(RpcMessage, frozen=True):
    """A range of a package file, from the trainer to the master or from the master to a data worker."""

    name: str
    offset: int
    content: bytes
    last: bool = False
    checksum: int = 0
    """CRC-32 of the file up to the end of this range."""


class PackageAsk(RpcMessage, frozen=True):
    """A data worker asks for a file of the package, from an offset. Answered with a `PackagePart`."""

    sealed: str
    name: str
    offset: int = 0
