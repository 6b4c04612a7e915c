"""Parses and finds addresses (`host:port`, IPv6 in brackets), and publishes the master's address in a file of the run.

A process that listens on all interfaces advertises one address. A master that takes over has a higher term and replaces
the file.
"""

import pathlib
import socket

import msgspec

from springtide import errors, private_files
from springtide.domain.core.validation import UNDECODABLE

EVERYWHERE = ("0.0.0.0", "::", "")
"""Bind addresses to which other hosts cannot connect."""

# an address that is reserved for documentation; the call sends nothing, and only consults the routing table
OUTSIDE = ("192.0.2.1", 9)


def parse(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise errors.BadInput(f"address {address!r}: expected host:port, such as 10.0.0.5:7700")
    return host.removeprefix("[").removesuffix("]"), int(port)


def join(host: str, port: int) -> str:
    """Return `host:port`, with an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def facing(host: str, port: int) -> str:
    family, _, _, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(where)  # this sends nothing
        return str(probe.getsockname()[0])


def advertised(listens: str, given: str) -> str:
    """Return the host to advertise: `given`, or else the bind address, or the address that faces other hosts."""
    if given or listens not in EVERYWHERE:
        return given or listens
    try:
        return facing(*OUTSIDE)
    except OSError:
        return "127.0.0.1"


class MasterLocation(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Address, term and process of a master. If the master failed to start, its error."""

    term: int = 0
    """Term of the master: 1 for the first master, and one more after each takeover."""
    pid: int = 0
    address: str = ""
    """host:port at which all roles can reach the master; empty if the master could not listen."""
    local: str = ""
    """host:port for processes on the master's own host, if that address differs. With this address, the agent need not
    wait for DNS to resolve the master's name.
    """
    tls: str = ""
    """For a brain: the folder with the certificates for the brain's clients; empty if the brain serves without TLS."""
    error: str = ""
    kind: str = ""
    """Class of `springtide.errors` to which this error belongs."""


def write_master(path: pathlib.Path, where: MasterLocation) -> None:
    private_files.replace(path, msgspec.json.encode(where))


def read_master(path: pathlib.Path) -> MasterLocation | None:
    """Return the location of the newest master; None if no master has written the file yet."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=MasterLocation)
    except FileNotFoundError:
        return None
    except UNDECODABLE as error:
        raise errors.BadInput(f"{path} does not say where a master is: {error}; the file is damaged") from None
