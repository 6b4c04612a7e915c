"""Pure. How the cores of a machine are shared by the roles that run on it.

In: `cli.run` knows the cores. Out: a thread count a worker, so that the roles do not fight over cores.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleSizes:
    """How many roles a local job has, and how wide each worker computes."""

    servers: int
    workers: int
    threads_per_worker: int


def size_locally(cores: int, *, servers: int | None = None, workers: int | None = None) -> RoleSizes:
    """Fill in what the user left open. A second worker pays only when each has two cores: the servers need some too."""
    servers = 1 if servers is None else servers
    workers = (2 if cores >= 4 else 1) if workers is None else workers
    return RoleSizes(servers=servers, workers=workers, threads_per_worker=max(1, cores // max(1, workers)))
