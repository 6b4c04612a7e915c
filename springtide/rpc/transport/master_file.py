"""Publishes the address of the job's master in a small file of the run.

In: each master writes the file atomically once it listens (`master.main`). Out: its agent, members that lost their
master, and commands such as `springtide status` read the file. A master that takes over has a higher term and replaces
the file.
"""

import pathlib

import msgspec

from springtide import private_files


class MasterLocation(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Address, term and process of a master, or its startup error."""

    term: int = 0
    """Term of the master: 1 for the first, one more after each takeover."""
    pid: int = 0
    address: str = ""
    """host:port at which all roles reach the master; empty if it could not listen."""
    local: str = ""
    """host:port for processes on the master's host, if different. The agent then need not wait for DNS."""
    tls: str = ""
    """For a brain: the folder with certificates for its clients; empty if it serves without TLS."""
    error: str = ""
    """Why the master could not listen."""
    kind: str = ""
    """Class of `springtide.errors` to which this error belongs."""


def write(path: pathlib.Path, where: MasterLocation) -> None:
    """Replace the file atomically: a reader sees the old or the new file."""
    private_files.replace(path, msgspec.json.encode(where))


def read(path: pathlib.Path) -> MasterLocation | None:
    """Return the newest master's location; None if no master has written it yet."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=MasterLocation)
    except FileNotFoundError:
        return None
