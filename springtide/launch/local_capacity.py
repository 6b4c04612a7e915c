"""What this machine has for a job. Out: a `PlatformCapacity` for `launch.spec.resolve`, and why cores cannot be held,
if so."""

import os

from springtide.domain.plan.capacity import PlatformCapacity
from springtide.platforms.local import cgroups
from springtide.telemetry.host import usage


def memory() -> int:
    """Bytes of memory that it has."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def capacity() -> PlatformCapacity:
    """All of it, for one job."""
    here, room = float(usage.cores()), float(memory())
    trouble = cgroups.why_not()
    return PlatformCapacity(
        cpu=here, memory=room, node_cpu=here, node_memory=room, own=True, holds=not trouble, trouble=trouble
    )  # fmt: skip
