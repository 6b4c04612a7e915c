"""Peers that connect and never authenticate: silent ones, and ones that trickle bytes."""

import contextlib
import socket

from springtide.rpc.transport import addresses, frames

PAUSE_S = 0.05
WHOLE = frames.LENGTH.pack(frames.MAX_HANDSHAKE_BYTES) + bytes(frames.MAX_HANDSHAKE_BYTES)
"""A first word as long as one may be: sent byte by byte it takes a minute. It means nothing, so whoever gets all of it
hangs up."""


@contextlib.contextmanager
def strangers(address, count):
    """Open this many connections that send half a message; the oldest comes first."""
    with contextlib.ExitStack() as stack:
        made = [stack.enter_context(socket.create_connection(addresses.parse(address))) for _ in range(count)]
        for one in made:
            with contextlib.suppress(OSError):
                one.sendall(WHOLE[:2])
        yield made


def is_dropped(stranger, within_s=60.0):
    """Whether the other side hangs up in that time."""
    stranger.settimeout(within_s)
    try:
        while stranger.recv(4096):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


def is_dropped_while_it_drips(address):
    """Whether the other side disconnects while a message trickles in byte by byte."""
    with socket.create_connection(addresses.parse(address)) as stranger:
        for byte in WHOLE[:-1]:
            try:
                stranger.sendall(bytes([byte]))
            except OSError:
                return True
            if is_dropped(stranger, PAUSE_S):
                return True
    return False
