"""The worker's end of the JSON-line protocol of bench/peers.py. Imported by the scripts beside it by its bare name."""

import json
import os
import sys
from collections.abc import Callable
from typing import Any

Round = Callable[[dict[str, Any]], dict[str, Any]]


def serve(start: Callable[[dict[str, Any]], tuple[Round, dict[str, str]]]) -> None:
    """Answer requests until told to stop. `start(options)` returns what does a round, and versions.

    Whatever libraries print goes to stderr, so that stdout holds answers only.
    """
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    measure: Round | None = None
    for line in sys.stdin:
        request: dict[str, Any] = json.loads(line)
        if request["do"] == "stop":
            return
        try:
            if request["do"] == "start":
                measure, versions = start(request)
                answer: dict[str, Any] = {"ready": True, "versions": versions}
            elif measure is None:
                answer = {"error": "asked for a round before the start"}
            else:
                answer = measure(request)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}".replace("\n", " ")[:400]}
        answers.write(json.dumps(answer) + "\n")
