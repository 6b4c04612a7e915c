"""Authenticate trainer and data worker to each other: each proves that it knows the job's secret.

In: a connected socket. Out: a trusted peer, and the address of its Unix socket on the same host. The proof is the same
as in the control plane (rpc/transport/auth.py), with other names for the sides. Next: dataworker/transport/channel.py.

    listener: FeedChallenge ─► caller: FeedAnswer ─► listener: FeedWelcome ─► caller: FeedAccepted, or it reconnects
    over the Unix socket
"""

import hmac
import secrets
import socket
from collections.abc import Callable

import msgspec

from springtide.dataworker.transport.tls_socket import SecureSocket
from springtide.rpc.transport import auth, frames

VERSION = 1
LISTENER, CALLER = "batches-listener", "batches-caller"


class _Said(msgspec.Struct, array_like=True, frozen=True):
    """Base of the handshake messages."""


class FeedChallenge(_Said, frozen=True, tag=0):
    """The listener's nonce."""

    version: int
    nonce: bytes


class FeedAnswer(_Said, frozen=True, tag=1):
    """The caller's nonce, and its proof over both nonces."""

    version: int
    nonce: bytes
    proof: bytes


class FeedWelcome(_Said, frozen=True, tag=2):
    """The listener's proof, and the name of its Unix socket, which only callers on the same host can reach."""

    proof: bytes
    local: str


class FeedAccepted(_Said, frozen=True, tag=3):
    """The caller has chosen this connection."""


class FeedRefused(_Said, frozen=True, tag=4):
    """The listener refuses this caller."""

    why: str


Word = FeedChallenge | FeedAnswer | FeedWelcome | FeedAccepted | FeedRefused
_decoder: "msgspec.msgpack.Decoder[Word]" = msgspec.msgpack.Decoder(Word)


def receive(
    sock: socket.socket | SecureSocket, secret: bytes, local: str, *, proved: Callable[[], object] = lambda: None
) -> bool:
    """Run the listener's side. Return True if the caller is authenticated and uses this connection, False if it
    disconnected.

    The listener calls `proved` as soon as the caller is authenticated.
    """
    nonce = secrets.token_bytes(auth.NONCE_BYTES)
    _say(sock, FeedChallenge(VERSION, nonce))
    answer = _hear(sock)
    if not isinstance(answer, FeedAnswer):
        raise auth.Rejected(f"expected an answer to the challenge, got {type(answer).__name__}")
    why = ""
    if answer.version != VERSION:
        why = f"this side speaks version {VERSION} of the batch protocol, you speak {answer.version}"
    elif not hmac.compare_digest(answer.proof, auth.proof(secret, CALLER, nonce, answer.nonce)):
        why = "wrong secret: this address belongs to another job, or the secret file is stale"
    if why:
        _say(sock, FeedRefused(why))
        raise auth.Rejected(why)
    proved()
    _say(sock, FeedWelcome(auth.proof(secret, LISTENER, answer.nonce, nonce), local))
    try:
        return isinstance(_hear(sock), FeedAccepted)
    except EOFError:
        return False


def call(sock: socket.socket | SecureSocket, secret: bytes) -> str:
    """Run the caller's side; return the name of the listener's Unix socket. The caller then calls `stay` or
    reconnects.
    """
    asked = _hear(sock)
    if not isinstance(asked, FeedChallenge):
        raise auth.Rejected(f"expected a challenge, got {type(asked).__name__}")
    nonce = secrets.token_bytes(auth.NONCE_BYTES)
    _say(sock, FeedAnswer(VERSION, nonce, auth.proof(secret, CALLER, asked.nonce, nonce)))
    verdict = _hear(sock)
    if isinstance(verdict, FeedRefused):
        raise auth.Rejected(verdict.why)
    if not isinstance(verdict, FeedWelcome):
        raise auth.Rejected(f"expected a verdict, got {type(verdict).__name__}")
    if not hmac.compare_digest(verdict.proof, auth.proof(secret, LISTENER, nonce, asked.nonce)):
        raise auth.Rejected("the other side does not know the job's secret")
    return verdict.local


def stay(sock: socket.socket | SecureSocket) -> None:
    """Tell the listener that the caller uses this connection."""
    _say(sock, FeedAccepted())


def _say(sock: socket.socket | SecureSocket, said: _Said) -> None:
    sock.sendall(frames.pack(said, limit=frames.MAX_HANDSHAKE_BYTES))


def _hear(sock: socket.socket | SecureSocket) -> Word:
    head = _exactly(sock, frames.LENGTH.size)
    (size,) = frames.LENGTH.unpack(head)
    if size > frames.MAX_HANDSHAKE_BYTES:
        raise frames.BadFrame(f"a first word of {size} bytes, at most {frames.MAX_HANDSHAKE_BYTES} are taken")
    return frames.unpack(_exactly(sock, size), _decoder)


def _exactly(sock: socket.socket | SecureSocket, size: int) -> bytes:
    read = b""
    while len(read) < size:
        more = sock.recv(size - len(read))
        if not more:
            raise EOFError("closed by the other side")
        read += more
    return read
