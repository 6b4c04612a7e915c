"""One parameter server in a process of its own, without a master: for benchmarks that need servers and nothing else.

Options: index, servers, slots, secret. A round: its address, and its rows as the figure. Runs in our own environment,
unlike the peers' scripts.
"""

from collections.abc import Callable
from typing import Any

import line

from springtide.embedding.serve import ServerRole

Round = Callable[[dict[str, Any]], dict[str, Any]]


def start(options: dict[str, Any]) -> tuple[Round, dict[str, str]]:
    """Serve the slots that are this server's by turns."""
    role = ServerRole(
        index=options["index"], slots=options["slots"], seed=0, workers=1, secret=bytes.fromhex(options["secret"])
    )
    address = role.start()
    role.set_owners(1, [slot % options["servers"] for slot in range(options["slots"])])
    return (lambda request: {"address": address, "figure": role.counters()["rows"]}), {}


if __name__ == "__main__":
    line.serve(start)
