"""Keeps child processes from holding their parent's connections: children end with it, and forks drop its sockets.

The kernel ties the child to the thread that forked it. So an agent forks its child processes in the thread of its event
loop.
"""

import ctypes
import os
import signal
import weakref
from typing import Protocol

_PR_SET_PDEATHSIG = 1


class Connected(Protocol):
    """An object with sockets that only this process may use."""

    def abandon(self) -> None:
        """Release the sockets in a forked child. Take no locks, because other threads of the parent may have held them
        at the fork.
        """


_connected: "weakref.WeakSet[Connected]" = weakref.WeakSet()


def abandon_in_forks(connected: Connected) -> None:
    """Call `abandon` of the object in every forked child, so that its connections end with this process."""
    _connected.add(connected)


def _abandon_all() -> None:
    for connected in list(_connected):
        connected.abandon()


os.register_at_fork(after_in_child=_abandon_all)


def die_with(parent: int) -> None:
    """Ask the kernel to kill this process when `parent` ends. If `parent` has already ended, exit immediately. A
    `parent` of 0 means that there is no parent."""
    if not parent:
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != parent:
        os._exit(1)
