"""Opens the dashboard's socket, and makes its URL and token. Imports nothing of the web server."""

import errno
import secrets
import socket

import msgspec

from springtide import errors

LOOPBACK = "127.0.0.1"


class ServerOrder(msgspec.Struct, frozen=True):
    """Arguments of a server's process."""

    descriptor: int
    """Listening socket, which the process inherits."""
    folder: str
    """Folder of runs."""
    job: str
    token: str
    parent: int


def new_token() -> str:
    return secrets.token_urlsafe(16)


def listen(host: str, port: int, *, option: str = "--port") -> socket.socket:
    """Open a listening socket. The error names the option at fault."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(64)
        except OSError:
            listener.close()
            raise
        return listener
    except OSError as error:
        if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
            raise errors.BadInput(
                f"--host {host}: not an address of this machine; give an address of this machine such as 127.0.0.1, "
                f"or 0.0.0.0 for all"
            ) from None
        raise errors.BadInput(
            f"{option} {port}: cannot listen on {host}: {error.strerror or error}; give another, or 0"
        ) from None


def url_of(listener: socket.socket, token: str) -> str:
    """Return the URL that a person opens. Browsers do not send its fragment, the token, to any server."""
    host, port = listener.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = socket.gethostname()
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/#{token}"
