"""Decides which requests the dashboard answers: under this machine's names, with the token, orders only from its page.

Without the check of `Host`, a foreign web page could read a job's data by DNS rebinding. Without the token, other users
of this machine could read a job's data. The page gets the token in the fragment of its URL, which a browser sends to
nobody.
"""

import hmac
import ipaddress
import socket
import urllib.parse
from dataclasses import dataclass, field

from starlette.datastructures import Headers
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
"""Headers of all replies. The page contains everything it needs, and loads nothing from other hosts."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessRules:
    """Who may use a dashboard."""

    host: str
    token: str = field(repr=False)
    control: bool = False
    """True if requests may change jobs."""

    def refusal(self, method: str, path: str, headers: Headers, names: frozenset[str]) -> tuple[int, str] | None:
        """Return the HTTP status and the reason to refuse a request; None to answer the request."""
        asked = headers.getlist("host")
        if len(asked) != 1 or not is_ours(asked[0], self.host, names):
            shown = ascii(asked[0] if asked else "")[:200]
            because = f"because of `springtide dashboard --host {self.host}`"
            return 421, f"Host {shown}: this page is served for {self.host}, {because}"
        if not path.startswith("/api/"):
            return None if method in ("GET", "HEAD") else (405, "only GET")
        given = headers.get("authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(given.encode(), self.token.encode()):
            return 401, "no valid token: open the URL that `springtide dashboard` or `springtide run` has printed"
        if method == "GET":
            return None
        if not self.control:
            return 403, "this dashboard is read-only; `springtide dashboard --allow-control` may change jobs"
        origin = headers.get("origin")
        if origin is not None and urllib.parse.urlsplit(origin).netloc != asked[0]:
            return 403, f"the request comes from another page: {ascii(origin)[:200]}"
        return None


class AccessCheck:
    """Application that passes allowed requests to another application, and adds `HEADERS` to all replies."""

    def __init__(self, app: ASGIApp, rules: AccessRules) -> None:
        self._app, self._rules, self._names = app, rules, names_of(rules.host)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                known = {name.lower() for name, _ in message.get("headers", ())}
                more = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
                message["headers"] = [*message.get("headers", ()), *(pair for pair in more if pair[0] not in known)]
            await send(message)

        answer: ASGIApp = self._app
        if refused := self._rules.refusal(scope["method"], scope["path"], Headers(scope=scope), self._names):
            answer = _refused(*refused)
        await answer(scope, receive, send_with_headers)


def _refused(status: int, why: str) -> Response:
    return JSONResponse({"error": why}, status_code=status)
