"""Serves the page and its data over HTTP; only `GET`, only two paths, only under this machine's names.

The page asks for data every second. A request for another host is refused: by DNS rebinding, a page of a stranger would
read the job otherwise.
"""

import errno
import http.server
import ipaddress
import pathlib
import socket
import urllib.parse
from collections.abc import Callable

from springtide import errors

PAGE = pathlib.Path(__file__).with_name("page.html")
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:"
"""The page has all it needs in it: nothing is loaded from anywhere else."""

Data = Callable[[float], bytes]
"""JSON of what is new since a moment, as time of day."""


def names_of(host: str) -> frozenset[str]:
    """Names under which a page served at `host` may be requested."""
    own = (host, socket.gethostname(), socket.getfqdn())
    return frozenset({"localhost", "127.0.0.1", "::1", *(name.lower() for name in own)})


def is_ours(asked: str, host: str, names: frozenset[str]) -> bool:
    """True if a `Host` header names this machine. A literal address is safe when all addresses are served."""
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
                said = f"Host {shown}: this page is served for {host}, as `springtide dashboard --host {host}` asked\n"
                self._send(421, "text/plain; charset=utf-8", said.encode())
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
            except (ValueError, errors.SpringtideError) as error:  # a job that is between two masters, for one
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
                f"--host {host}: no address of this machine; give one of its own, such as 127.0.0.1, or 0.0.0.0 for all"
            ) from None
        raise errors.BadInput(
            f"--port {port}: cannot listen on {host}: {error.strerror or error}; give another, or 0"
        ) from None
    server.daemon_threads = True
    return server
