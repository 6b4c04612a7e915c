"""A parameter server without a master, for benchmarks that need servers and nothing else. Options: index, servers;
host, and workers of a bsp group, if it is not this host's one.

Rounds: {"what": "address"} -> address, CPU seconds so far, and what its slots remember.
"""

import resource
from collections.abc import Callable
from typing import Any

import line

Round = Callable[[dict[str, Any]], dict[str, Any]]


def start(options: dict[str, Any]) -> tuple[Round, dict[str, str]]:
    from springtide.server import server
    from springtide_lab.bench.core import served_worker

    role = server.ServerRole(
        index=options["index"],
        slots=served_worker.SLOTS,
        seed=0,
        secret=served_worker.SECRET,
        workers=options.get("workers", 1),
        host=options.get("host", "127.0.0.1"),
    )
    role.place(served_worker.placement(options["servers"]))
    address = role.start()

    def answer(_: dict[str, Any]) -> dict[str, Any]:
        used, remembered = resource.getrusage(resource.RUSAGE_SELF), role.store.identity_stats()
        return {
            "address": address,
            "figure": role.store.rows(),
            "cpu_s": used.ru_utime + used.ru_stime,
            "sets": remembered.sets,
            "ranges": remembered.runs,
            "bytes": remembered.bytes,
        }

    return answer, {}


if __name__ == "__main__":
    line.serve(start)
