"""Parses and formats addresses (`host:port`, IPv6 in brackets), and finds the address at which others reach this host.

In: settings and messages. Out: host and port for a socket. A process that listens on all interfaces advertises one
address.
"""

import socket

from springtide import errors

EVERYWHERE = ("0.0.0.0", "::", "")
"""Bind addresses that other hosts cannot connect to."""

OUTSIDE = ("192.0.2.1", 9)  # a documentation address: nothing is sent there, the call only consults the routing table


def parse(address: str) -> tuple[str, int]:
    """Split "host:port" or "[host]:port"."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise errors.BadInput(f"address {address!r}: wanted host:port, such as 10.0.0.5:7700")
    return host.removeprefix("[").removesuffix("]"), int(port)


def join(host: str, port: int) -> str:
    """Return `host:port`, with an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def facing(host: str, port: int) -> str:
    """Return this host's address on the network that leads to another host."""
    family, _, _, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(where)  # sends nothing
        return str(probe.getsockname()[0])


def of_this_host() -> str:
    """Return the address with which this host reaches others; loopback if it reaches none."""
    try:
        return facing(*OUTSIDE)
    except OSError:
        return "127.0.0.1"


def advertised(listens: str, given: str) -> str:
    """Return the host to advertise: `given`, else the bind address, else this host's own address."""
    return given or (listens if listens not in EVERYWHERE else of_this_host())
