"""No child outlives its parent: it would hold the parent's sockets open, and nobody would stop it.

In: the pid of the parent, from before the child was made. Called first in a child by
dataworker/processes/fork_server.py, platforms/local/fork_server.py and sim/engine/parallel.py, and
by every role that an agent of its own host has started (`Settings.parent`): the second line behind
`platforms.local.watchdog`, which may be killed together with the agent. The kernel means the thread that made the
child: agents start roles in the thread of their event loop.
"""

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent ends; exit at once if the parent is gone. 0 means no parent."""
    if not parent:
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != parent:
        os._exit(1)
