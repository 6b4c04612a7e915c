"""What this machine has for a job. Out: a `Capacity` for `launch.resolving`, and why cores cannot be held, if so."""

import os
import sys

from springtide.domain.capacity import Capacity
from springtide.platforms import cgroups


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def memory() -> int:
    """Bytes of memory that it has."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def capacity() -> Capacity:
    """All of it, for one job."""
    here, room = float(cores()), float(memory())
    trouble = cgroups.why_not()
    return Capacity(
        cpu=here, memory=room, node_cpu=here, node_memory=room, own=True, holds=not trouble, trouble=trouble
    )  # fmt: skip
