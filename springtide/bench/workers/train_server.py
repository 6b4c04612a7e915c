"""A parameter server for `bench train`. Options: index, servers. Rounds: {"what": "address"} -> address."""

from collections.abc import Callable
from typing import Any

import line

Round = Callable[[dict[str, Any]], dict[str, Any]]


def start(options: dict[str, Any]) -> tuple[Round, dict[str, str]]:
    """Serve in the background."""
    from springtide.bench import served_link
    from springtide.embedding import serve

    role = serve.ServerRole(
        index=options["index"], slots=served_link.SLOTS, seed=0, workers=1, secret=served_link.SECRET
    )
    role.place(served_link.placement(options["servers"]))
    address = role.start()
    return lambda _: {"address": address, "figure": role.store.rows()}, {}


if __name__ == "__main__":
    line.serve(start)
