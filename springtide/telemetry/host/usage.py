"""Reads CPU and memory of one process from `/proc`, without its children, where no control group counts them.

In: a process id. Out: `Usage`; empty for a process that has exited.
"""

import os
import pathlib
import sys

from springtide.domain.core.resources import Usage

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def cores() -> int:
    """Return the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def of_process(pid: int, proc: pathlib.Path = pathlib.Path("/proc")) -> Usage:
    """Return user plus system CPU seconds, and resident memory without mapped files."""
    try:
        stat = (proc / str(pid) / "stat").read_text().rpartition(")")[2].split()
        status = (proc / str(pid) / "status").read_text()
    except OSError:
        return Usage()
    kilobytes = {name: int(rest.split()[0]) for name, _, rest in lines(status) if rest.strip().endswith("kB")}
    return Usage(
        cpu_s=(int(stat[11]) + int(stat[12])) / TICKS_PER_S,
        memory=(kilobytes.get("RssAnon", 0) + kilobytes.get("RssShmem", 0)) << 10,
        peak=kilobytes.get("VmHWM", 0) << 10,
    )


def lines(status: str) -> list[tuple[str, str, str]]:
    """Split lines such as `VmRSS:   123 kB`."""
    return [line.partition(":") for line in status.splitlines()]
