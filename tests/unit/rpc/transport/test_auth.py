"""Both sides of a control connection prove that they know the secret."""

import asyncio
import secrets
import threading

import msgspec
import pytest

from springtide import errors
from springtide.rpc.messages import messages
from springtide.rpc.messages.coordination import ShareRequest, ValueFound
from springtide.rpc.transport import addresses, auth, connection, frames, listener
from tests.unit.rpc.strangers import PAUSE_S, is_dropped, is_dropped_while_it_drips, strangers

SECRET = b"a secret of thirty-two bytes...."
_handshake = msgspec.msgpack.Decoder(messages.Handshake)


def call(proof_of, *, secret=SECRET):
    """Connect as a member to a listener that accepts any member and proves itself with `proof_of(answer, nonce)`."""

    async def accept(reader, writer):
        nonce = secrets.token_bytes(auth.NONCE_BYTES)
        writer.write(frames.pack(messages.HandshakeChallenge(messages.VERSION, nonce)))
        answer = await frames.read(reader, _handshake, limit=frames.MAX_HANDSHAKE_BYTES)
        writer.write(frames.pack(messages.HandshakeAccepted(proof_of(answer, nonce), 1)))

    call_listener(accept, secret)


def call_listener(accept, secret=SECRET):
    """Connect as a member to a listener whose side of the handshake is `accept(reader, writer)`."""

    async def serve(reader, writer):
        await accept(reader, writer)
        await writer.drain()
        await reader.read()  # until the member hangs up
        await connection.hang_up(writer)

    async def work():
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
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
def test_member_disconnects_from_a_master_without_proof_of_the_secret(proof_of):
    with pytest.raises(errors.MasterUnreachable, match="the other side does not know the job's secret"):
        call(proof_of)


def test_member_accepts_a_master_that_proves_the_secret():
    call(lambda answer, nonce: auth.proof(SECRET, "listener", answer.nonce, nonce))


CHALLENGE = messages.HandshakeChallenge(messages.VERSION, bytes(auth.NONCE_BYTES))


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ([messages.HandshakeAccepted(b"", 1)], "expected a challenge, got HandshakeAccepted"),
        (
            [messages.HandshakeChallenge(messages.VERSION + 1, bytes(auth.NONCE_BYTES))],
            f"the caller speaks version {messages.VERSION} of the control protocol, "
            f"the listener version {messages.VERSION + 1}",
        ),
        ([CHALLENGE, CHALLENGE], "expected a verdict, got HandshakeChallenge"),
        ([CHALLENGE, messages.RequestRefused("JobFailed", "not today")], "rejected this process: not today"),
    ],
)
def test_member_hangs_up_on_a_listener_that_breaks_the_handshake(words, why):
    async def accept(reader, writer):
        for word in words:
            writer.write(frames.pack(word))

    with pytest.raises(errors.MasterUnreachable, match=why):
        call_listener(accept)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (lambda nonce: messages.HandshakeAccepted(bytes(32), 1), None),
        (lambda nonce: messages.HandshakeAnswer(messages.VERSION, b"n", bytes(32)), "wrong secret"),
        (
            lambda nonce: messages.HandshakeAnswer(
                messages.VERSION - 1, b"n", auth.proof(SECRET, "caller", nonce, b"n")
            ),
            f"the caller speaks version {messages.VERSION - 1}",
        ),
    ],
)
def test_listener_serves_no_request_of_a_caller_that_failed_the_handshake(answer, why, caplog):
    async def work(address):
        reader, writer = await asyncio.open_connection(*addresses.parse(address))
        challenge = await frames.read(reader, _handshake)
        writer.write(frames.pack(answer(challenge.nonce)))
        writer.write(frames.pack(messages.RequestFrame(1, ShareRequest("what", b"it"))))
        if why:
            verdict = await frames.read(reader, _handshake)
            assert verdict.kind == "JobFailed" and verdict.error.startswith(why)
        with pytest.raises((EOFError, ConnectionError)):
            await frames.read(reader, _handshake)
        await connection.hang_up(writer)

    with_listener(work)
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert (why or "expected an answer to the challenge, got HandshakeAccepted") in record.message


def test_oldest_pending_handshake_is_dropped_but_no_finished_one(monkeypatch):
    monkeypatch.setattr(auth, "MOST", 2)
    limits, dropped = auth.PendingHandshakes(), []
    with limits.limited(lambda: dropped.append("through")):
        pass
    with limits.limited(lambda: dropped.append("first")), limits.limited(lambda: dropped.append("second")):
        assert dropped == []
        with limits.limited(lambda: dropped.append("third")):
            assert dropped == ["first"]
    assert limits.drop_overdue() is None and dropped == ["first"]


def test_whole_handshake_has_one_deadline(monkeypatch):
    limits, dropped = auth.PendingHandshakes(), threading.Event()
    monkeypatch.setattr(auth, "DEADLINE_S", 1e-3)
    with limits.limited(dropped.set):
        while (left := limits.drop_overdue()) is not None:
            assert left <= 1e-3
        assert dropped.is_set()


def test_pending_handshakes_are_dropped_at_their_deadlines(monkeypatch):
    limits, dropped, now = auth.PendingHandshakes(), [], 100.0
    monkeypatch.setattr(auth.time, "monotonic", lambda: now)
    with limits.limited(lambda: dropped.append("first")):
        now += 4
        with limits.limited(lambda: dropped.append("second")):
            assert limits.drop_overdue() == auth.DEADLINE_S - 4
            now = 109.5
            assert limits.drop_overdue() == 0.5 and dropped == []
            now = 110.0
            assert limits.drop_overdue() == 4 and dropped == ["first"]
            now = 120.0
            assert limits.drop_overdue() is None and dropped == ["first", "second"]


async def answer(peer, request):
    return ValueFound(request.value)


def with_listener(work):
    async def run():
        listening = listener.RpcListener(SECRET, answer, lambda peer: None)
        address = await listening.start("127.0.0.1", 0)
        try:
            await work(address)
        finally:
            await listening.close()

    asyncio.run(run())


def test_master_serves_members_despite_many_strangers(monkeypatch):
    monkeypatch.setattr(auth, "MOST", 8)
    monkeypatch.setattr(auth, "DEADLINE_S", 600.0)

    async def work(address):
        member = await connection.connect(address, SECRET, within_s=60)
        with strangers(address, 50) as made:
            newcomer = await connection.connect(address, SECRET, within_s=60)
            for one in (member, newcomer):
                assert await one.ask(ShareRequest("what", b"it")) == ValueFound(b"it")
            assert await asyncio.to_thread(is_dropped, made[0])
            assert not is_dropped(made[-1], PAUSE_S)
            for one in (member, newcomer):
                await one.close()

    with_listener(work)


def test_slow_trickling_stranger_is_disconnected_by_the_master(monkeypatch):
    monkeypatch.setattr(auth, "DEADLINE_S", 0.3)

    async def work(address):
        assert await asyncio.to_thread(is_dropped_while_it_drips, address)

    with_listener(work)
