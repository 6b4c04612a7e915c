"""A listener: ports, requests at the same time, peers that leave, and what it logs."""

import asyncio
import contextlib
import logging
import socket

import pytest

from springtide import errors
from springtide.domain.core.roles import Role, RoleKind
from springtide.rpc.messages import messages
from springtide.rpc.messages.coordination import ShareRequest, ValueFound, ValueRequest
from springtide.rpc.transport import addresses, connection, listener
from tests.waiting import soon

SECRET = b"a secret of thirty-two bytes...."
JOIN, WAIT, SHARE = messages.JoinWorker(3, 7, 1), ValueRequest("key"), ShareRequest("key", b"it")


class Service:
    """Answers members. A ValueRequest waits for the gate."""

    def __init__(self):
        self.gate, self.running, self.cancelled, self.lost = asyncio.Event(), 0, 0, []

    async def handle(self, peer, request):
        if isinstance(request, messages.JoinWorker):
            peer.role = Role(RoleKind.WORKER, request.rank)
        elif isinstance(request, ValueRequest):
            self.running += 1
            try:
                await self.gate.wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
            finally:
                self.running -= 1
        elif isinstance(request, messages.StatusRequest):
            raise ZeroDivisionError("a bug")
        return ValueFound(b"reply")


def serving(work):
    """Run `work(service, listener, address)`."""

    async def run():
        service = Service()
        server = listener.RpcListener(SECRET, service.handle, service.lost.append)
        address = await server.start("127.0.0.1", 0)
        try:
            await work(service, server, address)
        finally:
            await server.close()

    asyncio.run(run())


@contextlib.asynccontextmanager
async def linked(address):
    link = await connection.connect(address, SECRET, within_s=60)
    try:
        yield link
    finally:
        await link.close()


def test_taken_port_and_unusable_host_are_named():
    async def run():
        def listening():
            return listener.RpcListener(SECRET, Service().handle, lambda peer: None)

        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            with pytest.raises(errors.PortTaken, match=f"port {port} on 127.0.0.1 is taken"):
                await listening().start("127.0.0.1", port)
        with pytest.raises(errors.BadInput, match=r"cannot listen on 192\.0\.2\.1:0"):
            await listening().start("192.0.2.1", 0)
        await listening().close()  # one that never listened

    asyncio.run(run())


def test_address_has_the_actual_port_and_the_advertised_host():
    async def run():
        server = listener.RpcListener(SECRET, Service().handle, lambda peer: None)
        host, port = addresses.parse(await server.start("127.0.0.1", 0, "master.example"))
        assert host == "master.example"
        async with linked(f"127.0.0.1:{port}") as link:
            assert await link.ask(SHARE) == ValueFound(b"reply")
        await server.close()

    asyncio.run(run())


def test_loss_of_a_member_is_reported_once_and_of_a_stranger_never():
    async def work(service, server, address):
        async with linked(address) as stranger:
            await stranger.ask(SHARE)
        async with linked(address) as member:
            await member.ask(JOIN)
            assert service.lost == []
        await soon(lambda: not server._connections)
        assert [str(peer.role) for peer in service.lost] == ["worker-3"]

    serving(work)


def test_requests_of_a_lost_peer_are_cancelled():
    async def work(service, server, address):
        async with linked(address) as link:
            asking = asyncio.create_task(link.ask(WAIT))
            await soon(lambda: service.running)
        with pytest.raises(errors.MasterUnreachable):
            await asking
        await soon(lambda: service.cancelled == 1)

    serving(work)


def test_requests_beyond_the_limit_wait_until_one_is_answered(monkeypatch):
    monkeypatch.setattr(listener, "MAX_IN_FLIGHT", 2)

    async def work(service, server, address):
        async with linked(address) as link, linked(address) as other:
            asking = [asyncio.create_task(link.ask(WAIT)) for _ in range(3)]
            await soon(lambda: service.running == 2)
            await other.ask(SHARE)  # other peers are served
            for _ in range(20):
                await asyncio.sleep(0)
            assert service.running == 2
            service.gate.set()
            assert await asyncio.gather(*asking) == [ValueFound(b"reply")] * 3

    serving(work)


def test_closing_disconnects_members_and_frees_the_port():
    async def work(service, server, address):
        async with linked(address) as link:
            await link.ask(JOIN)
            await server.close()
            assert len(service.lost) == 1 and not server._connections
            await soon(lambda: link.lost)
        socket.create_server(addresses.parse(address)).close()

    serving(work)


def test_log_has_garbage_as_a_warning_and_a_leave_as_information(caplog):
    caplog.set_level(logging.INFO, listener.__name__)

    async def work(service, server, address):
        _, writer = await asyncio.open_connection(*addresses.parse(address))
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        await soon(lambda: caplog.records)
        await connection.hang_up(writer)
        async with linked(address) as link:
            await link.ask(JOIN)
        await soon(lambda: len(caplog.records) == 2)
        async with linked(address) as link:
            await link.ask(JOIN)
            await server.close()
        garbage, left, closed = caplog.records
        assert garbage.levelname == "WARNING" and "stranger ('127.0.0.1'" in garbage.message
        assert left.levelname == "INFO" and left.message.endswith("the other side closed the connection")
        assert closed.levelname == "INFO" and closed.message == "closed the connection to worker-3"

    serving(work)


def test_bug_of_the_handler_is_logged_with_its_traceback(caplog):
    async def work(service, server, address):
        async with linked(address) as link:
            with pytest.raises(errors.JobFailed, match="the master failed on StatusRequest: ZeroDivisionError"):
                await link.ask(messages.StatusRequest())
            assert await link.ask(SHARE) == ValueFound(b"reply")
        (record,) = caplog.records
        assert record.message.startswith("StatusRequest failed for ('127.0.0.1'") and record.exc_info

    serving(work)


@pytest.mark.parametrize(("role", "who"), [(None, "10.0.0.9:5"), (Role(RoleKind.WORKER, 3), "worker-3")])
def test_reply_to_a_peer_that_has_just_left_is_dropped(caplog, role, who):
    caplog.set_level(logging.INFO, listener.__name__)

    class Gone:
        written, closing = 0, False

        def is_closing(self):
            return self.closing

        def write(self, frame):
            self.written += 1

        async def drain(self):
            raise ConnectionResetError("reset by peer")

    async def run():
        server, writer = listener.RpcListener(SECRET, Service().handle, lambda peer: None), Gone()
        peer = listener.Peer("10.0.0.9:5", role)
        await server._answer(peer, messages.RequestFrame(1, SHARE), writer)
        assert [record.message for record in caplog.records] == [f"{who} disconnected before its answer: reset by peer"]
        writer.closing = True
        await server._answer(peer, messages.RequestFrame(2, SHARE), writer)
        assert writer.written == 1

    asyncio.run(run())
