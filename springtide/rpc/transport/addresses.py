"""Parses and formats addresses (`host:port`, IPv6 in brackets), and finds the address at which others reach this host.

In: settings and messages. Out: host and port for a socket. A process that listens on all interfaces advertises one
address.
"""

import socket

from springtide import errors

EVERYWHERE = ("0.0.0.0", "::", "")
"""Bind addresses that other hosts cannot connect to."""

OUTSIDE = ("192.0.2.1", 9)  # reserved for examples: nothing is sent there, it only asks the routing table


def parse(address: str) -> tuple[str, int]:
    """Host and port of "host:port" or "[host]:port"."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise errors.BadInput(f"address {address!r}: wanted host:port, such as 10.0.0.5:7700")
    return host.removeprefix("[").removesuffix("]"), int(port)


def join(host: str, port: int) -> str:
    """`host:port`; an IPv6 address has colons of its own."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def facing(host: str, port: int) -> str:
    """The address of this host on the network that another one is on."""
    family, _, _, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(where)  # sends nothing
        return str(probe.getsockname()[0])


def of_this_host() -> str:
    """The address by which this host reaches others; the loopback's where it reaches none."""
    try:
        return facing(*OUTSIDE)
    except OSError:
        return "127.0.0.1"


def advertised(listens: str, given: str) -> str:
    """The host that others are told: as given, else where it listens, else this host's own address."""
    return given or (listens if listens not in EVERYWHERE else of_this_host())
