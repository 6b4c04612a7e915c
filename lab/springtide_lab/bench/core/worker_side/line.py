"""The worker's end of the JSON-line protocol of bench/core/peers.py: `python line.py SCRIPT`.

A script imports it by its bare name. `start(options)` of a script prepares and returns the function that does a round;
`PACKAGES` are those whose versions are reported.
"""

import importlib
import importlib.metadata
import json
import os
import pathlib
import resource
import socket
import ssl
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

Round = Callable[[dict[str, Any]], dict[str, Any]]


def serve(path: pathlib.Path) -> None:
    """Answer requests for a script until told to stop; what libraries print goes to stderr, away from the answers."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    sys.path.insert(0, str(path.parent))
    script = importlib.import_module(path.stem)
    measure: Round | None = None
    for line in sys.stdin:
        request: dict[str, Any] = json.loads(line)
        if request["do"] == "stop":
            return
        try:
            if request["do"] == "start":
                measure = script.start(request)
                answer: dict[str, Any] = {"ready": True, "versions": versions(getattr(script, "PACKAGES", ()))}
            elif measure is None:
                answer = {"error": "asked for a round before the start"}
            else:
                answer = measure(request)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}".replace("\n", " ")[:400]}
        answers.write(json.dumps(answer) + "\n")


def versions(packages: Sequence[str]) -> dict[str, str]:
    installed = {}
    for name in packages:
        try:
            installed[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return installed


def cpu_s() -> float:
    """CPU seconds of this process so far, all threads."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


class Repeated(NamedTuple):
    """How often something was done, in how many seconds and CPU seconds."""

    times: int
    seconds: float
    cpu_s: float


def repeat(work: Callable[[], object], seconds: float) -> Repeated:
    """Do it again and again for about `seconds`, once at least."""
    used, began, times = cpu_s(), time.perf_counter(), 0
    while (took := time.perf_counter() - began) < seconds or not times:
        work()
        times += 1
    return Repeated(times, took, cpu_s() - used)


def fill(peer: socket.socket, view: memoryview) -> bool:
    """Receive as many bytes as the view has; False when the peer has closed."""
    have = 0
    while have < len(view):
        came = peer.recv_into(view[have:], 0, 0 if isinstance(peer, ssl.SSLSocket) else socket.MSG_WAITALL)
        if not came:
            return False
        have += came
    return True


if __name__ == "__main__":
    serve(pathlib.Path(sys.argv[1]))
