"""Kills a child process when its parent process ends. An orphaned child would keep the parent's sockets open.

The kernel ties the child to the thread that forked it, so an agent forks its child processes in the thread of its event
loop.
"""

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """Ask the kernel to kill this process when `parent` ends. If `parent` has already ended, exit immediately. A
    `parent` of 0 means that there is no parent."""
    if not parent:
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != parent:
        os._exit(1)
