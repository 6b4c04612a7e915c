"""Authenticates both sides of a connection, and limits connections that are not authenticated yet.

Each side proves that it knows the job's secret, with an HMAC over two fresh nonces. At most `MOST` handshakes are
pending at a time; a further handshake evicts the oldest. The data plane has its own limits in cpp/net/handshake.h.
"""

import asyncio
import contextlib
import hmac
import itertools
import secrets
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator

import msgspec

from springtide import errors
from springtide.rpc.messages import messages
from springtide.rpc.transport import frames

NONCE_BYTES = 32

_decoder = msgspec.msgpack.Decoder(messages.Handshake)


class Rejected(errors.SpringtideError):
    """The peer does not know the secret, or has a different protocol version."""


def proof(secret: bytes, side: str, challenge: bytes, own: bytes) -> bytes:
    """Compute the proof for two nonces, which requires the secret. `side` is part of the proof, so that a proof cannot
    be echoed back."""
    return hmac.digest(secret, b"springtide-control/" + side.encode() + b"/" + challenge + own, "sha256")


async def challenge(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, secret: bytes, term: int, *, plane: str = ""
) -> None:
    """Run the listener's side of the handshake. Return when the caller has proved that it knows the secret, and has
    received the master's term.

    `rpc.transport.auth` limits the duration. A proof for one `plane` is invalid on another plane; peers of a job
    have their own plane (`worker.online.peers`).
    """
    nonce = secrets.token_bytes(NONCE_BYTES)
    writer.write(frames.pack(messages.HandshakeChallenge(messages.VERSION, nonce)))
    answer = await _next(reader)
    if not isinstance(answer, messages.HandshakeAnswer):
        raise Rejected(f"expected an answer to the challenge, got {type(answer).__name__}")
    problem = version_problem(answer.version)
    if not problem and not hmac.compare_digest(answer.proof, proof(secret, plane + "caller", nonce, answer.nonce)):
        problem = "wrong secret: this address belongs to another job, or the secret file is stale"
    if problem:
        writer.write(frames.pack(messages.RequestRefused("JobFailed", problem)))
        await writer.drain()
        raise Rejected(problem)
    writer.write(frames.pack(messages.HandshakeAccepted(proof(secret, plane + "listener", answer.nonce, nonce), term)))


def version_problem(caller: int, listener: int = messages.VERSION) -> str:
    """Return why the two sides of a connection are incompatible; return an empty string if they are compatible."""
    if caller == listener:
        return ""
    return (
        f"the caller speaks version {caller} of the control protocol, the listener version {listener}: run versions of "
        "Springtide with the same protocol in all roles of a job"
    )


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, secret: bytes, *, plane: str = "") -> int:
    """Run the caller's side of the handshake, and return the master's term. Raise TimeoutError at the deadline."""
    async with asyncio.timeout(DEADLINE_S):
        return await _answer(reader, writer, secret, plane)


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, secret: bytes, plane: str) -> int:
    asked = await _next(reader)
    if not isinstance(asked, messages.HandshakeChallenge):
        raise Rejected(f"expected a challenge, got {type(asked).__name__}")
    if problem := version_problem(messages.VERSION, asked.version):
        raise Rejected(problem)
    nonce = secrets.token_bytes(NONCE_BYTES)
    shown = proof(secret, plane + "caller", asked.nonce, nonce)
    writer.write(frames.pack(messages.HandshakeAnswer(messages.VERSION, nonce, shown)))
    verdict = await _next(reader)
    if isinstance(verdict, messages.RequestRefused):
        raise Rejected(verdict.error)
    if not isinstance(verdict, messages.HandshakeAccepted):
        raise Rejected(f"expected a verdict, got {type(verdict).__name__}")
    if not hmac.compare_digest(verdict.proof, proof(secret, plane + "listener", nonce, asked.nonce)):
        raise Rejected("the other side does not know the job's secret")
    return verdict.term


async def _next(reader: asyncio.StreamReader) -> messages.Handshake:
    return await frames.read(reader, _decoder, limit=frames.MAX_HANDSHAKE_BYTES)


MOST = 64
"""Maximum number of pending handshakes. A handshake takes milliseconds, so members get their turn even if strangers
open many connections."""
DEADLINE_S = 10.0
"""Seconds for a whole handshake, including TLS."""


class PendingHandshakes:
    """Pending handshakes of one listener. All methods are thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tickets = itertools.count()
        self._pending: dict[int, tuple[float, Callable[[], object]]] = {}
        """Deadline and drop function of each pending handshake, by ticket, oldest first."""

    @contextlib.contextmanager
    def limited(self, drop: Callable[[], object]) -> Iterator[None]:
        """Count a handshake while the block runs. Another thread may call `drop` to end the handshake early, so `drop`
        must not block.

        The caller must ensure that `drop_overdue` is called in time.
        """
        with self._lock:
            while len(self._pending) >= MOST:
                self._drop_oldest()
            ticket = next(self._tickets)
            self._pending[ticket] = (time.monotonic() + DEADLINE_S, drop)
        try:
            yield
        finally:
            with self._lock:
                self._pending.pop(ticket, None)

    def drop_overdue(self) -> float | None:
        """Drop overdue handshakes. Return the seconds until the next deadline; None without a pending handshake."""
        with self._lock:
            while self._pending:
                left = next(iter(self._pending.values()))[0] - time.monotonic()
                if left > 0:
                    return left
                self._drop_oldest()
        return None

    @contextlib.asynccontextmanager
    async def handshake(self) -> AsyncIterator[None]:
        """Limit a handshake that runs in its own task. The task gets a TimeoutError at its deadline, and is cancelled
        if it is evicted."""
        task = asyncio.current_task()
        assert task is not None
        with self.limited(task.cancel):
            async with asyncio.timeout(DEADLINE_S):
                yield

    def _drop_oldest(self) -> None:
        ticket = next(iter(self._pending))
        _, drop = self._pending.pop(ticket)
        drop()
