"""Kills a child process when its parent ends, because an orphan would keep the parent's sockets open.

The kernel ties the child to the thread that forked it, so agents start roles in the thread of their event loop.
"""

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """Ask the kernel to kill this process when `parent` ends. If `parent` has already ended, exit immediately. 0 means
    no parent."""
    if not parent:
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != parent:
        os._exit(1)
