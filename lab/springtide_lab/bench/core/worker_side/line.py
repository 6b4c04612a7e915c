"""Serve a benchmark script over the JSON-line protocol of bench/core/peers.py: `python line.py SCRIPT`.

Scripts import this module as `line`. A script's `start(options)` prepares and returns the function that measures a
round. The script's `PACKAGES` names the packages whose versions are reported.
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
    """Answer requests for a script until a stop request. Output of libraries goes to stderr, not between the
    answers.
    """
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
    """Return the CPU seconds that all threads of this process have used so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


class Repeated(NamedTuple):
    """Number of repetitions, and the seconds and CPU seconds that they took."""

    times: int
    seconds: float
    cpu_s: float


def repeat(work: Callable[[], object], seconds: float) -> Repeated:
    """Repeat `work` for about `seconds`, but at least once."""
    used, began, times = cpu_s(), time.perf_counter(), 0
    while (took := time.perf_counter() - began) < seconds or not times:
        work()
        times += 1
    return Repeated(times, took, cpu_s() - used)


def fill(peer: socket.socket, view: memoryview) -> bool:
    """Receive bytes until the view is full; return False if the peer closes the connection first."""
    have = 0
    while have < len(view):
        came = peer.recv_into(view[have:], 0, 0 if isinstance(peer, ssl.SSLSocket) else socket.MSG_WAITALL)
        if not came:
            return False
        have += came
    return True


if __name__ == "__main__":
    serve(pathlib.Path(sys.argv[1]))
