"""Authenticates both sides of a connection: each proves that it knows the job's secret, without sending it.

In: a connected stream. Out: the master's term, or `Rejected`. The proof is an HMAC over two fresh nonces. Next:
numbered requests (`rpc.transport.connection`, `rpc.transport.listener`).
"""

import asyncio
import hmac
import secrets

import msgspec

from springtide import errors
from springtide.rpc.messages import messages
from springtide.rpc.transport import frames, handshake_limits

NONCE_BYTES = 32

_decoder = msgspec.msgpack.Decoder(messages.Handshake)


class Rejected(errors.SpringtideError):
    """The peer does not know the secret, or has a different protocol version."""


def proof(secret: bytes, side: str, challenge: bytes, own: bytes) -> bytes:
    """Compute the proof for two nonces, which requires the secret. `side` prevents echoing a proof back."""
    return hmac.digest(secret, b"springtide-control/" + side.encode() + b"/" + challenge + own, "sha256")


async def challenge(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, secret: bytes, term: int, *, plane: str = ""
) -> None:
    """Run the listener's side. Return once the caller has proved itself and knows the master's term.

    `rpc.transport.handshake_limits` limits the duration. A proof for one `plane` is invalid for another plane: peers of
    a job have their own (`worker.online.peers`).
    """
    nonce = secrets.token_bytes(NONCE_BYTES)
    writer.write(frames.pack(messages.HandshakeChallenge(messages.VERSION, nonce)))
    answer = await _next(reader)
    if not isinstance(answer, messages.HandshakeAnswer):
        raise Rejected(f"expected an answer to the challenge, got {type(answer).__name__}")
    problem = ""
    if answer.version != messages.VERSION:
        problem = f"this side speaks version {messages.VERSION} of the control protocol, you speak {answer.version}"
    elif not hmac.compare_digest(answer.proof, proof(secret, plane + "caller", nonce, answer.nonce)):
        problem = "wrong secret: this address belongs to another job, or the secret file is stale"
    if problem:
        writer.write(frames.pack(messages.RequestRefused("JobFailed", problem)))
        await writer.drain()
        raise Rejected(problem)
    writer.write(frames.pack(messages.HandshakeAccepted(proof(secret, plane + "listener", answer.nonce, nonce), term)))


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, secret: bytes, *, plane: str = "") -> int:
    """Run the caller's side, and return the master's term. Raise TimeoutError at the deadline."""
    async with asyncio.timeout(handshake_limits.DEADLINE_S):
        return await _answer(reader, writer, secret, plane)


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, secret: bytes, plane: str) -> int:
    asked = await _next(reader)
    if not isinstance(asked, messages.HandshakeChallenge):
        raise Rejected(f"expected a challenge, got {type(asked).__name__}")
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
