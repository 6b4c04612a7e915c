"""Both sides of a control connection prove that they know the secret: a member trusts no master that does not."""

import asyncio
import secrets

import msgspec
import pytest

from springtide import errors
from springtide.rpc.messages import messages
from springtide.rpc.transport import auth, connection, frames

SECRET = b"a secret of thirty-two bytes...."
_handshake = msgspec.msgpack.Decoder(messages.Handshake)


def call(proof_of, *, secret=SECRET):
    """Connect as a member to a listener that accepts everybody, with `proof_of(answer, nonce)` for its own proof."""

    async def accept(reader, writer):
        nonce = secrets.token_bytes(auth.NONCE_BYTES)
        writer.write(frames.pack(messages.HandshakeChallenge(messages.VERSION, nonce)))
        answer = await frames.read(reader, _handshake, limit=frames.MAX_HANDSHAKE_BYTES)
        writer.write(frames.pack(messages.HandshakeAccepted(proof_of(answer, nonce), 1)))
        await writer.drain()
        await reader.read()  # until the member hangs up
        await connection.hang_up(writer)

    async def work():
        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()[:2]
        async with server:
            link = await connection.connect(f"{host}:{port}", secret, within_s=60)
            await link.close()

    asyncio.run(work())


@pytest.mark.parametrize(
    "proof_of",
    [
        pytest.param(lambda answer, nonce: b"", id="none"),
        pytest.param(lambda answer, nonce: bytes(32), id="zeros"),
        pytest.param(lambda answer, nonce: answer.proof, id="the member's own"),
        pytest.param(
            lambda answer, nonce: auth.proof(b"another secret", "listener", answer.nonce, nonce), id="another secret's"
        ),
        pytest.param(lambda answer, nonce: auth.proof(SECRET, "listener", nonce, answer.nonce), id="of other nonces"),
        pytest.param(lambda answer, nonce: auth.proof(SECRET, "peer/listener", answer.nonce, nonce), id="of a peer"),
    ],
)
def test_a_member_hangs_up_on_a_master_that_does_not_prove_that_it_knows_the_secret(proof_of):
    with pytest.raises(errors.MasterUnreachable, match="the other side does not know the job's secret"):
        call(proof_of)


def test_a_member_stays_with_a_master_that_proves_it():
    call(lambda answer, nonce: auth.proof(SECRET, "listener", answer.nonce, nonce))
