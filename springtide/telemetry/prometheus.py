"""Formats metrics for Prometheus (text exposition format 0.0.4), and serves them: `GET /metrics` over plain HTTP.

In: families of metrics, which `master.metrics` makes from a job's status. Out: the text of all metrics, and the address
of the server. The server answers small requests on the process's own event loop; a slow or invalid request gets an
error. Requests cannot change a job.
"""

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Literal

import msgspec

from springtide import errors

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Labels = Mapping[str, str]

log = logging.getLogger(__name__)
PATIENCE_S = 5.0
MOST_BYTES = 16_384


class Family(msgspec.Struct, frozen=True, kw_only=True):
    """A metric, with one value for each set of labels."""

    name: str
    help: str
    kind: Literal["gauge", "counter"] = "gauge"
    values: tuple[tuple[Labels, float], ...]


def text(families: Iterable[Family], labels: Labels) -> str:
    lines = []
    for family in families:
        lines.append(f"# HELP {family.name} {_escaped(family.help)}")
        lines.append(f"# TYPE {family.name} {family.kind}")
        for own, value in family.values:
            marks = ",".join(f'{name}="{_quoted(word)}"' for name, word in {**labels, **own}.items())
            lines.append(f"{family.name}{{{marks}}} {_number(value)}" if marks else f"{family.name} {_number(value)}")
    return "\n".join(lines) + "\n"


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value.is_integer() and abs(value) < 2**53 else repr(value)


def _escaped(words: str) -> str:
    return words.replace("\\", r"\\").replace("\n", r"\n")


def _quoted(words: str) -> str:
    return _escaped(words).replace('"', r"\"")


class MetricsServer:
    """One metrics endpoint."""

    def __init__(self, text: Callable[[], str], path: str = "/metrics") -> None:
        self._text, self._path = text, path
        self._server: asyncio.Server | None = None
        self.address = ""

    async def start(self, port: int, host: str = "127.0.0.1", *, option: str = "--metrics-port") -> str:
        """Listen, and return the address. `option` is the option that the user should change if the port is in use."""
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
        if path not in (self._path, "/"):
            return response("404 Not Found", f"metrics are at {self._path}\n")
        try:
            body = self._text()
        except Exception as error:  # a request for metrics must not harm the job
            log.exception("cannot collect metrics")
            return response("500 Internal Server Error", f"{type(error).__name__}: {error}\n")
        return response("200 OK", body, kind=CONTENT_TYPE, head_only=method == "HEAD")


def response(status: str, body: str, *, kind: str = "text/plain; charset=utf-8", head_only: bool = False) -> bytes:
    whole = body.encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(whole)}\r\nConnection: close\r\n\r\n"
    return head.encode("latin-1") + (b"" if head_only else whole)
