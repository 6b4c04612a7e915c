"""The worker's end of the JSON-line protocol of lab/springtide_lab/bench/core/peers.py. Imported by the scripts beside
it by its bare name.
"""

import json
import os
import socket
import ssl
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


def fill(peer: socket.socket, view: memoryview) -> bool:
    """Receive as many bytes as the view has; False when the peer has closed."""
    have = 0
    while have < len(view):
        came = peer.recv_into(view[have:], 0, 0 if isinstance(peer, ssl.SSLSocket) else socket.MSG_WAITALL)
        if not came:
            return False
        have += came
    return True


def tls_context(folder: str, *, server: bool) -> ssl.SSLContext:
    """As anybody would make one of Python's own, with certificates on both sides."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(f"{folder}/tls.crt", f"{folder}/tls.key")
    context.load_verify_locations(f"{folder}/ca.crt")
    return context
