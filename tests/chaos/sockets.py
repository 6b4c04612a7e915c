"""Disturbs the TCP connections of a process from outside: drops its packets, at random or all, or resets connections.

In: a process id. The kernel lends this process a duplicate of each socket (`pidfd_getfd`). A packet filter on a socket
drops arriving packets, and the peer's kernel sends them again, as after a loss on the network. So no proxy and no
firewall rules are needed. The other process must be a descendant, or this process must be root.
"""

import contextlib
import ctypes
import os
import pathlib
import socket
import struct

SO_ATTACH_FILTER, SO_DETACH_FILTER = 26, 27
PIDFD_GETFD = 438
RANDOM = 0xFFFFF000 + 56  # SKF_AD_OFF + SKF_AD_RANDOM: a random number of 32 bits in a packet filter
LOAD, JUMP_IF_AT_LEAST, RETURN = 0x20, 0x35, 0x06
KEEP = 0xFFFFFFFF

_libc = ctypes.CDLL(None, use_errno=True)


@contextlib.contextmanager
def sockets_of(pid):
    """The TCP sockets of another process, as duplicates of this process."""
    with contextlib.ExitStack() as stack:
        found = []
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            yield found
            return
        stack.callback(os.close, pidfd)
        for path in pathlib.Path(f"/proc/{pid}/fd").glob("*"):
            with contextlib.suppress(OSError):
                if not os.readlink(path).startswith("socket:"):
                    continue
                number = _libc.syscall(PIDFD_GETFD, pidfd, int(path.name), 0)
                if number < 0:
                    continue
                duplicate = stack.enter_context(socket.socket(fileno=number))
                if duplicate.type == socket.SOCK_STREAM and duplicate.family in (socket.AF_INET, socket.AF_INET6):
                    found.append(duplicate)
        yield found


def lose(pid, share):
    """Drop this share of the packets that arrive at the process, also on later connections; return the sockets."""
    if share >= 1:
        program = [(RETURN, 0, 0, 0)]
    else:
        least = int(share * (1 << 32))
        program = [(LOAD, 0, 0, RANDOM), (JUMP_IF_AT_LEAST, 1, 0, least), (RETURN, 0, 0, 0), (RETURN, 0, 0, KEEP)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in program))
    given = struct.pack("HL", len(program), ctypes.addressof(code))
    return _each(pid, lambda each: each.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, given))


def mend(pid):
    """Let all packets arrive again."""
    return _each(pid, lambda each: each.setsockopt(socket.SOL_SOCKET, SO_DETACH_FILTER, 0))


def reset(pid):
    """End all connections of a process at once, for both sides with an error; return their number."""
    nowhere = struct.pack("H", socket.AF_UNSPEC) + bytes(14)

    def disconnect(each):
        each.getpeername()  # a listener has none, and stays
        _libc.connect(each.fileno(), nowhere, len(nowhere))

    return _each(pid, disconnect)


def _each(pid, action):
    done = 0
    with sockets_of(pid) as found:
        for each in found:
            with contextlib.suppress(OSError):
                action(each)
                done += 1
    return done
