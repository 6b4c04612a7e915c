"""Serves metrics to Prometheus: `GET /metrics` over plain HTTP, on the process's own event loop.

In: a function that makes the text. Out: an address. The server reads requests of a few kilobytes and answers each at
once. A client that is too slow, or asks for anything else, gets an error and is disconnected. The endpoint cannot
change a job.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable

from springtide import errors
from springtide.telemetry.prometheus import CONTENT_TYPE

log = logging.getLogger(__name__)

PATIENCE_S = 5.0
MOST_BYTES = 16_384


class MetricsServer:
    """One metrics endpoint."""

    def __init__(self, text: Callable[[], str]) -> None:
        self._text = text
        self._server: asyncio.Server | None = None
        self.address = ""

    async def start(self, port: int, host: str = "127.0.0.1", *, option: str = "--metrics-port") -> str:
        """Listen, and return the address. `option` is the option to change if the port is in use."""
        try:
            self._server = await asyncio.start_server(self._answer, host, port, limit=MOST_BYTES)
        except OSError as error:
            raise errors.BadInput(
                f"{option} {port}: cannot listen on {host}: {error.strerror or error}; give another, or 0"
            ) from None
        self.address = f"{host}:{self._server.sockets[0].getsockname()[1]}"
        log.info("answers HTTP at %s", self.address)
        return self.address

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            async with asyncio.timeout(PATIENCE_S):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(self._reply(head.split(b"\r\n", 1)[0].decode("latin-1")))
                await writer.drain()
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    def _reply(self, line: str) -> bytes:
        method, _, rest = line.partition(" ")
        path = rest.partition(" ")[0].partition("?")[0]
        if method not in ("GET", "HEAD"):
            return response("405 Method Not Allowed", "only GET\n")
        if path not in ("/metrics", "/"):
            return response("404 Not Found", "figures are at /metrics\n")
        try:
            body = self._text()
        except Exception as error:  # a monitoring request must not harm a job
            log.exception("figures cannot be made")
            return response("500 Internal Server Error", f"{type(error).__name__}: {error}\n")
        return response("200 OK", body, kind=CONTENT_TYPE, head_only=method == "HEAD")


def response(status: str, body: str, *, kind: str = "text/plain; charset=utf-8", head_only: bool = False) -> bytes:
    """Return a complete HTTP response."""
    whole = body.encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(whole)}\r\nConnection: close\r\n\r\n"
    return head.encode("latin-1") + (b"" if head_only else whole)
