"""Where the job's master is now: a small file of the run that each master writes when it listens.

In: `master.main` writes it, whole or not at all. Out: its agent, members that have lost their master and commands such
as `springtide status` read it. A master that takes over has a higher term, and its file replaces the one before.
"""

import pathlib

import msgspec

from springtide import private_files


class MasterLocation(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a master says of itself."""

    term: int = 0
    """Which master of the job this is: 1 for the first, one more for each that took over."""
    pid: int = 0
    address: str = ""
    """host:port by which all roles reach it; empty when it could not listen."""
    local: str = ""
    """host:port for its own host, where that is another: its agent need not wait for a name to be known."""
    tls: str = ""
    """Of a brain: the folder with certificates for those who ask it; empty: it speaks in the clear."""
    error: str = ""
    """Why it could not."""
    kind: str = ""
    """The class of `springtide.errors` that this error is."""


def write(path: pathlib.Path, where: MasterLocation) -> None:
    """Replace the file all at once: a reader sees the old one or the new one."""
    private_files.replace(path, msgspec.json.encode(where))


def read(path: pathlib.Path) -> MasterLocation | None:
    """What the newest master has said; None when none has yet."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=MasterLocation)
    except FileNotFoundError:
        return None
