"""`springtide dashboard`: serves a page about a job, and its data, until Ctrl-C.

The server answers only `GET` requests for two paths, and only under this machine's names. Without this rule, another
web page could read the job's data by DNS rebinding.
"""

import errno
import http.server
import ipaddress
import pathlib
import socket
import time
import urllib.parse
from collections.abc import Callable
from typing import Annotated, Any

import msgspec
import typer

from springtide import errors
from springtide.cli.common import render
from springtide.cli.common.options import RUNS, Job, Runs, verb
from springtide.cli.show import events as event_log
from springtide.domain.core.validation import UNDECODABLE
from springtide.domain.spec.online_job import OnlinePoint
from springtide.launch import job_lookup
from springtide.platforms.local.job_handle import LocalJobHandle, places_of
from springtide.telemetry import events
from springtide.telemetry.logs import JobRun

SENTENCES = 40
STATUS_S = 0.5  # seconds that a status is cached, so that several browsers cause only one request to the master


@verb("springtide dashboard train --port 8080")
def dashboard(
    job: Job = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to serve on; 0 means any free port.")] = 8470,
    host: Annotated[
        str, typer.Option(help="Address to listen on; 0.0.0.0 lets everyone look.", metavar="ADDRESS")
    ] = "127.0.0.1",
    folder: Runs = RUNS,
) -> int:
    """Serve a page about a job, live or past: traffic, forecast, workers, lag, and decisions with reasons.

    The page is read-only. Ctrl-C ends the page, not the job.
    """
    run = job_lookup.pick_local(job, folder)
    server = serve(DashboardData(run), host=host, port=port)
    shown = f"http://{server.server_address[0]!s}:{server.server_address[1]}"
    print(f"job {run.job}: {shown} (Ctrl-C ends the page, not the job)", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        return 0
    finally:
        server.server_close()
    return 0


class DashboardData:
    """Data that the page gets about one run."""

    def __init__(self, run: JobRun) -> None:
        self._run = run
        self._status: dict[str, Any] = {}
        self._asked_at = 0.0

    def __call__(self, since: float) -> bytes:
        files = self._run.files
        points = [read_point for read_point in events.read_points(files.online, OnlinePoint) if read_point.at > since]
        sentences = event_log.sentences(self._run.card.began_at, events.read(files.events))[-SENTENCES:]
        return msgspec.json.encode(
            {
                "job": self._run.job,
                "running": self._run.running,
                "now": time.time(),
                "status": self._read_status(),
                "points": points,
                "forecast": read_plain(files.forecast),
                "story": sentences,
            }
        )

    def _read_status(self) -> dict[str, Any]:
        if time.monotonic() > self._asked_at + STATUS_S:
            status = LocalJobHandle(self._run).status()
            plain = render.status_object(status, places_of(self._run.files))
            self._status = {name: value for name, value in plain.items() if name != "members"}
            self._asked_at = time.monotonic()
        return self._status


def read_plain(path: pathlib.Path) -> Any:
    try:
        return msgspec.json.decode(path.read_bytes())
    except (OSError, *UNDECODABLE):
        return None


PAGE = pathlib.Path(__file__).with_name("dashboard.html")
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:"
"""Content security policy: the page contains everything it needs, and loads nothing from other places."""

Data = Callable[[float], bytes]
"""Function that returns the data since a given time of day as JSON."""


def names_of(host: str) -> frozenset[str]:
    """Return the host names under which a browser may request a page that is served at `host`."""
    own = (host, socket.gethostname(), socket.getfqdn())
    return frozenset({"localhost", "127.0.0.1", "::1", *(name.lower() for name in own)})


def is_ours(asked: str, host: str, names: frozenset[str]) -> bool:
    """Return True if a `Host` header names this machine. If the page is served on all addresses, a literal address is
    accepted too."""
    try:
        name = urllib.parse.urlsplit(f"//{asked}").hostname or ""
    except ValueError:
        return False
    if name in names:
        return True
    try:
        return bool(ipaddress.ip_address(name)) and ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def serve(data: Data, *, host: str, port: int) -> http.server.ThreadingHTTPServer:
    names = names_of(host)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = self.headers.get_all("Host") or []
            if len(asked) != 1 or not is_ours(asked[0], host, names):
                shown = ascii(asked[0] if asked else "")[:200]
                refusal = (
                    f"Host {shown}: this page is served for {host}, because of `springtide dashboard --host {host}`\n"
                )
                self._send(421, "text/plain; charset=utf-8", refusal.encode())
                return
            url = urllib.parse.urlsplit(self.path)
            if url.path == "/":
                self._send(200, "text/html; charset=utf-8", PAGE.read_bytes())
            elif url.path == "/data.json":
                self._send_data(urllib.parse.parse_qs(url.query).get("since", ["0"])[0])
            else:
                self._send(404, "text/plain; charset=utf-8", b"there is one page: /\n")

        def _send_data(self, since: str) -> None:
            try:
                found = data(float(since))
            except (ValueError, errors.SpringtideError) as error:  # for example, the job's master is gone
                self._send(503, "text/plain; charset=utf-8", f"{error}\n".encode())
                return
            self._send(200, "application/json", found)

        def _send(self, code: int, kind: str, body: bytes) -> None:
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("Content-Security-Policy", POLICY)
            self.send_header("X-Content-Type-Options", "nosniff")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Print nothing: the page polls every second."""

    try:
        server = http.server.ThreadingHTTPServer((host, port), Handler)
    except OSError as error:
        if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
            raise errors.BadInput(
                f"--host {host}: not an address of this machine; give an address of this machine such as 127.0.0.1, "
                f"or 0.0.0.0 for all"
            ) from None
        raise errors.BadInput(
            f"--port {port}: cannot listen on {host}: {error.strerror or error}; give another, or 0"
        ) from None
    server.daemon_threads = True
    return server
