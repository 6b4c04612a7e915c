"""First messages of a connection, in which each side proves that it knows the secret. In: `rpc.transport.auth`. Next:
`rpc.messages.messages`.
"""

from springtide.rpc.messages.types import RpcMessage


class HandshakeChallenge(RpcMessage, frozen=True):
    """The listener's challenge: the first message on a connection."""

    version: int
    nonce: bytes


class HandshakeAnswer(RpcMessage, frozen=True):
    """The caller's proof that it knows the secret."""

    version: int
    nonce: bytes
    proof: bytes


class HandshakeAccepted(RpcMessage, frozen=True):
    """The listener's proof that it knows the secret."""

    proof: bytes
    term: int = 0
    """Term of this master. A member that has seen a higher term disconnects."""
