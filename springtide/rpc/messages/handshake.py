"""First messages of a connection: each side proves that it knows the secret. In: `rpc.transport.auth`. Next:
`rpc.messages.messages`.
"""

from springtide.rpc.messages.types import RpcMessage


class HandshakeChallenge(RpcMessage, frozen=True):
    """Listener to caller, first thing on a connection."""

    version: int
    nonce: bytes


class HandshakeAnswer(RpcMessage, frozen=True):
    """Caller's proof that it knows the secret."""

    version: int
    nonce: bytes
    proof: bytes


class HandshakeAccepted(RpcMessage, frozen=True):
    """Listener's own proof."""

    proof: bytes
    term: int = 0
    """Which master of the job this is. A member that has known a higher one hangs up."""
