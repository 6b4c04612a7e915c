"""Mutual TLS 1.3 between the processes of a job, with certificates of the job's own authority.

The name in a certificate is a URI, `springtide:JOB/ROLE`, and must contain this job. Host names are not checked,
because pods change addresses. For each new connection, the process checks whether the certificate files have changed.
If new files are unusable, the previous ones stay in use.
"""

import asyncio
import logging
import os
import pathlib
import ssl
import threading
import urllib.parse
from typing import Any, NamedTuple

from springtide import errors
from springtide.rpc.transport import auth

log = logging.getLogger(__name__)

AUTHORITY, CERTIFICATE, KEY = "ca.crt", "tls.crt", "tls.key"
SCHEME = "springtide:"


class Identity(NamedTuple):
    """Job and role that a certificate names."""

    job: str
    role: str

    @property
    def uri(self) -> str:
        return f"{SCHEME}{urllib.parse.quote(self.job, safe='')}/{self.role}"


class _Ready(NamedTuple):
    """TLS contexts made from the files of a folder, with the time stamps of these files."""

    files: tuple[tuple[int, int, int], ...]
    identity: Identity
    caller: ssl.SSLContext
    listener: ssl.SSLContext


_lock = threading.Lock()
_ready: dict[str, _Ready] = {}


def identity(folder: str) -> Identity:
    """Return the identity of this process. Raise BadInput if files are missing, expired or do not match."""
    return _load(folder).identity


def connecting(folder: str) -> dict[str, Any]:
    """Return the TLS arguments of `asyncio.open_connection`. Call `check_stream` afterwards."""
    if not folder:
        return {}
    return {"ssl": _load(folder).caller, "server_hostname": "", "ssl_handshake_timeout": auth.DEADLINE_S}


async def admit(writer: asyncio.StreamWriter, folder: str) -> str:
    """Run the listener's side of TLS on a new stream, and return the role of the caller's certificate; empty without
    TLS. `Rejected` describes the fault of the caller.

    After a failure the connection is aborted. Do not wait for an aborted stream to close, because it never reports that
    it is closed.
    """
    if not folder:
        return ""
    try:
        await writer.start_tls(_load(folder).listener, ssl_handshake_timeout=auth.DEADLINE_S)
        return check(writer.get_extra_info("peercert"), folder).role
    except BaseException as error:
        writer.transport.abort()
        raise as_refusal(error) from error


def check_stream(writer: asyncio.StreamWriter, folder: str, role: str = "") -> None:
    """Check that the peer belongs to this job, and has the given `role`, if any. Otherwise raise `Rejected`."""
    if folder:
        check(writer.get_extra_info("peercert"), folder, role)


def check(certificate: Any, folder: str, role: str = "") -> Identity:
    own, other = identity(folder), identity_in(certificate)
    if other is None:
        raise auth.Rejected("its certificate names no process of a job")
    if other.job != own.job:
        raise auth.Rejected(f"its certificate is for the job {other.job!r}, but this job is {own.job!r}")
    if role and other.role != role:
        raise auth.Rejected(f"its certificate is for a {other.role}, but the caller expected a {role}")
    return other


def identity_in(certificate: Any) -> Identity | None:
    for kind, value in (certificate or {}).get("subjectAltName", ()):
        if kind == "URI" and value.startswith(SCHEME):
            job, _, role = value[len(SCHEME) :].partition("/")
            if job and role:
                return Identity(urllib.parse.unquote(job), role)
    return None


def as_refusal(error: BaseException) -> BaseException:
    """If retrying cannot fix a TLS error, convert the error to `Rejected`. Return other errors unchanged."""
    # the listener closed the connection during the handshake
    gone = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)
    if isinstance(error, ssl.SSLError) and not isinstance(error, gone):
        return auth.Rejected(explain(error))
    return error


def explain(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is invalid: {error.verify_message}"
    reason = error.reason or str(error)
    if reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNSUPPORTED_PROTOCOL", "NO_PROTOCOLS_AVAILABLE"):
        return "the peer does not speak TLS 1.3: is SPRINGTIDE_TLS set on both sides?"
    if "CERTIFICATE_REQUIRED" in reason or reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return "the peer sent no certificate: is SPRINGTIDE_TLS set on both sides?"
    if "ALERT" in reason:
        alert = reason.split("ALERT_")[-1].replace("_", " ").lower()
        return f"the peer rejected this process's certificate, or closed the connection ({alert})"
    return f"TLS failed: {reason.replace('_', ' ').lower()}"


def _load(folder: str) -> _Ready:
    """Return TLS contexts for the present files. Files that change while they are read are read again."""
    root = pathlib.Path(folder)
    with _lock:
        for attempt in range(3):
            try:
                files = tuple(_stamp(root / name) for name in (AUTHORITY, CERTIFICATE, KEY))
                if (known := _ready.get(folder)) is not None and known.files == files:
                    return known
                caller, listener = _context(root, ssl.PROTOCOL_TLS_CLIENT), _context(root, ssl.PROTOCOL_TLS_SERVER)
                found = _meet_oneself(caller, listener)
            except (OSError, ssl.SSLError) as error:  # someone may be replacing the files right now
                if attempt < 2:
                    continue
                if (before := _ready.get(folder)) is None:
                    raise errors.BadInput(_unfit(root, error)) from error
                log.warning("%s; the previous certificates stay in use", _unfit(root, error))
                return before
            if found is None:
                raise errors.BadInput(f"{root / CERTIFICATE} has no name such as springtide:JOB/worker in it")
            _ready[folder] = _Ready(files, found, caller, listener)
        return _ready[folder]


def _stamp(path: pathlib.Path) -> tuple[int, int, int]:
    found = os.stat(path)
    return (found.st_ino, found.st_mtime_ns, found.st_size)


def _context(root: pathlib.Path, protocol: int) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.options |= ssl.OP_NO_TICKET
    if protocol == ssl.PROTOCOL_TLS_SERVER:
        context.num_tickets = 0  # connections live long, so session resumption has no benefit
    context.load_cert_chain(root / CERTIFICATE, root / KEY)
    context.load_verify_locations(root / AUTHORITY)
    return context


def _meet_oneself(caller: ssl.SSLContext, listener: ssl.SSLContext) -> Identity | None:
    """Test this process's certificate with a handshake in memory, so that a bad certificate fails here and not at a
    peer.
    """
    left, right = ssl.MemoryBIO(), ssl.MemoryBIO()
    calling = caller.wrap_bio(left, right)
    sides = [calling, listener.wrap_bio(right, left, server_side=True)]
    while sides:
        for side in list(sides):
            try:
                side.do_handshake()
                sides.remove(side)
            except ssl.SSLWantReadError:
                pass
    return identity_in(calling.getpeercert())


def _unfit(root: pathlib.Path, error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        why = f"{CERTIFICATE} is not valid under {AUTHORITY}: {error.verify_message}"
    elif isinstance(error, ssl.SSLError):
        why = (error.reason or str(error)).replace("_", " ").lower()
    else:
        why = str(error)
    return f"the certificates in {root} cannot be used: {why}; expected {AUTHORITY}, {CERTIFICATE}, {KEY} of this job"
