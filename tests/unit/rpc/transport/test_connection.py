"""One connection: numbered replies, retries, endings, and errors that a refusal names."""

import asyncio
import contextlib
import socket

import msgspec
import pytest

from springtide import errors
from springtide.rpc.messages import messages
from springtide.rpc.messages.coordination import ShareRequest, ValueFound
from springtide.rpc.transport import auth, connection, frames, listener

SECRET = b"a secret of thirty-two bytes...."
REQUESTS = msgspec.msgpack.Decoder(messages.RequestFrame)


def share(value):
    return ShareRequest("key", value)


@contextlib.asynccontextmanager
async def scripted(serve):
    """A listener that authenticates callers, and then runs `serve(reader, writer)`. Yields its address."""

    async def accept(reader, writer):
        await auth.challenge(reader, writer, SECRET, 7)
        await serve(reader, writer)
        await connection.hang_up(writer)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


def with_link(serve, work):
    async def run():
        async with scripted(serve) as address:
            link = await connection.connect(address, SECRET, within_s=60)
            try:
                await work(link)
            finally:
                await link.close()

    asyncio.run(run())


def test_replies_in_another_order_reach_their_requests():
    async def serve(reader, writer):
        calls = [await frames.read(reader, REQUESTS) for _ in range(2)]
        assert [call.id for call in calls] == [1, 2]
        for call in reversed(calls):
            writer.write(frames.pack(messages.ReplyFrame(call.id, ValueFound(call.body.value))))

    async def work(link):
        assert link.term == 7 and link.own_host == "127.0.0.1"
        replies = await asyncio.gather(link.ask(share(b"first")), link.ask(share(b"second")))
        assert replies == [ValueFound(b"first"), ValueFound(b"second")]

    with_link(serve, work)


def test_reply_to_an_abandoned_request_is_ignored():
    abandoned = asyncio.Event()

    async def serve(reader, writer):
        first = await frames.read(reader, REQUESTS)
        await abandoned.wait()
        second = await frames.read(reader, REQUESTS)
        for number in (first.id, 99, second.id, second.id):
            writer.write(frames.pack(messages.ReplyFrame(number, ValueFound(b"%d" % number))))
        await reader.read()

    async def work(link):
        waiting = asyncio.create_task(link.ask(share(b"")))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        abandoned.set()
        assert await link.ask(share(b"")) == ValueFound(b"2")
        assert not link.lost and not link._waiting

    with_link(serve, work)


def test_closing_fails_pending_and_later_requests():
    async def serve(reader, writer):
        await reader.read()

    async def work(link):
        waiting = asyncio.create_task(link.ask(share(b"")))
        await asyncio.sleep(0)
        assert not link.lost
        await link.close()
        assert link.lost
        for asking in (waiting, link.ask(share(b""))):
            with pytest.raises(errors.MasterUnreachable, match=r"lost the connection .*: this side closed"):
                await asking

    with_link(serve, work)


def test_first_reason_for_a_loss_stays():
    async def serve(reader, writer):
        await frames.read(reader, REQUESTS)
        writer.write(b"\0\0\0\1\xc1")

    async def work(link):
        with pytest.raises(errors.MasterUnreachable, match="not a message"):
            await link.ask(share(b""))
        await link.close()
        with pytest.raises(errors.MasterUnreachable, match="not a message"):
            await link.ask(share(b""))

    with_link(serve, work)


def test_connecting_is_retried_until_a_master_listens(monkeypatch):
    async def handle(peer, request):
        return ValueFound(request.value)

    async def run():
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            port = taken.getsockname()[1]
        server, pauses = listener.RpcListener(SECRET, handle, lambda peer: None), []

        async def sleep(seconds):
            pauses.append(seconds)
            if len(pauses) == 2:
                await server.start("127.0.0.1", port)

        monkeypatch.setattr(connection.asyncio, "sleep", sleep)
        link = await connection.connect(f"127.0.0.1:{port}", SECRET, within_s=60)
        assert await link.ask(share(b"it")) == ValueFound(b"it")
        assert pauses == [connection.RETRY_S] * 2
        await link.close()
        await server.close()

    asyncio.run(run())


def test_caller_without_tls_learns_that_the_peer_may_need_it():
    async def run():
        async def hang_up(reader, writer):
            await connection.hang_up(writer)

        async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as server:
            address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
            with pytest.raises(errors.MasterUnreachable, match=r"closed .*; a master with TLS needs SPRINGTIDE_TLS on"):
                await connection.connect(address, SECRET, within_s=0.1)
        with socket.create_server(("127.0.0.1", 0)) as silent:
            address = f"127.0.0.1:{silent.getsockname()[1]}"
            with pytest.raises(errors.MasterUnreachable, match=r"no answer; a peer with TLS needs SPRINGTIDE_TLS on"):
                await connection.connect(address, SECRET, within_s=0.1)

    asyncio.run(run())


def test_next_address_of_a_host_is_tried_when_one_refuses(monkeypatch):
    async def run():
        loop = asyncio.get_running_loop()
        with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", each.getsockname()) for each in (unused, server)]

            async def getaddrinfo(host, port, **options):
                assert (host, port, options) == ("host", 7, {"type": socket.SOCK_STREAM})
                return list(found)

            monkeypatch.setattr(loop, "getaddrinfo", getaddrinfo)
            with await connection._called("host", 7) as sock:
                assert sock.getpeername() == server.getsockname() and not sock.getblocking()
            del found[1]
            with pytest.raises(ConnectionRefusedError):
                await connection._called("host", 7)
            del found[0]
            with pytest.raises(OSError, match="no address"):
                await connection._called("host", 7)

    asyncio.run(run())


def test_socket_of_a_cancelled_attempt_is_closed(monkeypatch):
    async def run():
        tried = []

        async def cancelled(sock, where):
            tried.append(sock)
            raise asyncio.CancelledError

        monkeypatch.setattr(asyncio.get_running_loop(), "sock_connect", cancelled)
        with pytest.raises(asyncio.CancelledError):
            await connection._called("127.0.0.1", 9)
        assert [sock.fileno() for sock in tried] == [-1]

    asyncio.run(run())


def test_both_sides_tune_their_sockets(monkeypatch):
    tuned = []

    async def handle(peer, request):
        return ValueFound(b"")

    async def run():
        monkeypatch.setattr(connection, "tune", lambda sock: tuned.append(sock.getsockname()))
        server = listener.RpcListener(SECRET, handle, lambda peer: None)
        link = await connection.connect(await server.start("127.0.0.1", 0), SECRET, within_s=60)
        assert sorted(tuned) == sorted([link.sock.getsockname(), link.sock.getpeername()])
        await link.close()
        await server.close()

    asyncio.run(run())


def test_connections_send_at_once_and_notice_a_vanished_host():
    with socket.socket() as sock:
        connection.tune(sock)
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        for name, value in connection.KEEP_ALIVE.items():
            assert sock.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) == value


class Stream:
    """A stream that is closed when `gone` is set."""

    def __init__(self, *, secure=False, closing=False):
        self.secure, self.closing, self.calls, self.gone = secure, closing, [], asyncio.Event()
        self.transport = self

    def is_closing(self):
        return self.closing

    def get_extra_info(self, name):
        return self if self.secure and name == "ssl_object" else None

    def close(self):
        self.calls.append("close")

    def abort(self):
        self.calls.append("abort")

    async def wait_closed(self):
        await self.gone.wait()
        self.calls.append("closed")


@pytest.mark.parametrize(
    ("options", "calls"),
    [
        ({"secure": True}, ["close", "abort"]),  # the peer may be stopped
        ({"closing": True}, []),
        ({"closing": True, "secure": True}, []),  # a TLS stream that is closed twice loses its state
    ],
)
def test_hanging_up_waits_only_briefly_for_a_peer_with_tls(monkeypatch, options, calls):
    monkeypatch.setattr(connection, "GOODBYE_S", 0.001)

    async def run():
        stream = Stream(**options)
        await connection.hang_up(stream)
        assert stream.calls == calls

    asyncio.run(run())


def test_hanging_up_without_tls_waits_until_the_stream_is_closed(monkeypatch):
    monkeypatch.setattr(connection, "GOODBYE_S", -1.0)

    async def run():
        stream = Stream()
        leaving = asyncio.create_task(connection.hang_up(stream))
        for _ in range(5):
            await asyncio.sleep(0)
        stream.gone.set()
        await leaving
        assert stream.calls == ["close", "closed"]

    asyncio.run(run())


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("Fenced", errors.Fenced),
        ("BadInput", errors.BadInput),
        ("StoreFailed", errors.StoreFailed),
        ("OtherVersion", errors.BadInput),
        ("UnreadableSample", errors.UserCodeFailed),
        ("MissingExtra", errors.UserError),
        ("ZeroDivisionError", errors.JobFailed),
        ("difflib", errors.JobFailed),
        ("Iterable", errors.JobFailed),
    ],
)
def test_refusal_becomes_the_error_that_it_names_with_its_text(name, kind):
    error = connection.as_error(messages.RequestRefused(name, "the reason"))
    assert type(error) is kind and str(error) == "the reason"
