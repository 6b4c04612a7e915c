"""No child of a fork outlives its parent: it would hold the parent's sockets open, and nobody would stop it.

In: the pid of the parent, from before the fork. Called first in a child by:
prep/nursery.py, prep/searching.py, platforms/warm_process.py, sim/side_by_side.py.
"""

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """From now on; at once where the parent is gone already."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != parent:
        os._exit(1)
