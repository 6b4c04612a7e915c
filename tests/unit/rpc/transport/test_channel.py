"""A channel and a listener over a real socket: secrets, waiting requests, forks, garbage."""

import asyncio
import contextlib
import multiprocessing
import os
import socket
import threading

import pytest

from springtide import errors
from springtide.domain.core.roles import Role, RoleKind
from springtide.domain.data.leases import Progress
from springtide.rpc.messages import messages
from springtide.rpc.messages.coordination import ShareRequest, ValueFound, ValueRequest
from springtide.rpc.transport import channel, listener
from springtide.rpc.transport.addresses import MasterLocation
from springtide.rpc.transport.channel import ReconnectingConnection
from tests.waiting import soon

SECRET = b"a secret of thirty-two bytes...."
WORD = Progress(shard=7, first=0, offset=1, end=2)


class FakeMaster:
    """Answers a few requests; `gate` holds back Lookup."""

    def __init__(self):
        self.gate = asyncio.Event()
        self.beats = []
        self.lost = threading.Event()

    async def handle(self, peer, request):
        match request:
            case messages.JoinWorker():
                peer.role = Role(RoleKind.WORKER, request.rank)
                return messages.Ok()
            case ValueRequest():
                await self.gate.wait()
                return ValueFound(b"value")
            case ShareRequest():
                self.gate.set()
                return messages.Ok()
            case messages.Heartbeat():
                self.beats.append(request)
                return messages.HeartbeatReply(drain=len(self.beats) > 1)
            case messages.ScaleRequest():
                return ValueFound(b"value" * 2**22)  # more than a frame may have
            case messages.StopRequest():
                raise errors.BadInput("no stopping here")
            case _:
                raise ZeroDivisionError("a bug")


@contextlib.contextmanager
def serving():
    """A desk behind a listener in a thread of its own; yields both, with the address."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def start():
        desk = FakeMaster()
        server = listener.RpcListener(SECRET, desk.handle, lambda peer: desk.lost.set())
        return desk, server, await server.start("127.0.0.1", 0)

    desk, server, address = asyncio.run_coroutine_threadsafe(start(), loop).result()
    try:
        yield desk, address
    finally:
        asyncio.run_coroutine_threadsafe(server.close(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@contextlib.contextmanager
def connected(address, secret=SECRET):
    link = channel.MasterChannel(channel.ReconnectingConnection(address, secret), connect_timeout_s=20)
    try:
        yield link
    finally:
        link.close()


def test_waiting_request_delays_no_other():
    with serving() as (_, address), connected(address) as link:
        found = []
        waiter = threading.Thread(target=lambda: found.append(link.ask(ValueRequest("key"))))
        waiter.start()
        assert link.ask(ShareRequest("key", b"value")) == messages.Ok()
        waiter.join()
        assert found == [ValueFound(b"value")]


def test_wrong_secret_is_refused():
    with serving() as (_, address), pytest.raises(errors.MasterUnreachable, match="wrong secret"):
        channel.MasterChannel(channel.ReconnectingConnection(address, b"another"), connect_timeout_s=20)


def test_missing_master_is_reported_with_address_and_time():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(errors.MasterUnreachable, match=f"no master at {address} after 0.1 s"):
            channel.MasterChannel(channel.ReconnectingConnection(address, SECRET), connect_timeout_s=0.1)


def test_refusal_is_raised_as_its_named_error_and_a_bug_as_job_failed():
    with serving() as (_, address), connected(address) as link:
        with pytest.raises(errors.BadInput, match="no stopping here"):
            link.ask(messages.StopRequest("why"))
        with pytest.raises(errors.JobFailed, match="failed on StatusRequest: ZeroDivisionError"):
            link.ask(messages.StatusRequest())


def test_reply_too_large_for_a_frame_is_refused():
    with serving() as (_, address), connected(address) as link:
        with pytest.raises(errors.JobFailed, match="over the control plane's limit"):
            link.ask(messages.ScaleRequest(2))
        assert link.ask(ShareRequest("key", b"value")) == messages.Ok()


def test_heartbeats_carry_progress_and_return_the_reply():
    with serving() as (desk, address), connected(address) as link:
        drained = threading.Event()
        link.start_heartbeat(
            0.01, lambda: messages.Heartbeat(None, (WORD,)), lambda pulse: drained.set() if pulse.drain else None
        )
        assert drained.wait(20)
        assert desk.beats[0].progress == (WORD,)


def test_garbage_on_the_port_is_harmless():
    with serving() as (_, address), connected(address) as link:
        host, port = address.split(":")
        for garbage in (b"GET / HTTP/1.0\r\n\r\n", b"\xff" * 100, b"\0\0\0\x05hello", b""):
            with socket.create_connection((host, int(port))) as stranger, contextlib.suppress(ConnectionResetError):
                stranger.sendall(garbage)
                stranger.shutdown(socket.SHUT_WR)
                while stranger.recv(4096):
                    pass  # the challenge, then the listener hangs up
        assert link.ask(ShareRequest("key", b"")) == messages.Ok()


def child(link, answers):
    try:
        link.ask(ShareRequest("key", b""))
    except errors.JobFailed as error:
        answers.put(str(error))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_forked_child_may_not_call_and_holds_no_connection():
    with serving() as (desk, address), connected(address) as link:
        link.ask(messages.JoinWorker(0, os.getpid()))
        context = multiprocessing.get_context("fork")
        answers = context.SimpleQueue()
        hold = context.Event()
        calling = context.Process(target=child, args=(link, answers))
        sleeping = context.Process(target=hold.wait)
        calling.start()
        sleeping.start()
        assert "forked from a worker" in answers.get()
        calling.join()
        link.close()
        assert desk.lost.wait(20), "the sleeping child keeps the connection alive"
        hold.set()
        sleeping.join()
        answers.close()
        for process in (calling, sleeping):
            process.close()


def test_lost_master_is_named():
    with contextlib.ExitStack() as stack:
        with serving() as (_, address):
            link = stack.enter_context(connected(address))
            link.ask(ShareRequest("key", b""))
        with pytest.raises(errors.MasterUnreachable, match=f"lost the connection to the master at {address}"):
            link.ask(ShareRequest("key", b""))


def test_heartbeat_reply_with_news_triggers_the_next_heartbeat_at_once(monkeypatch):
    slept, answers = (
        [],
        iter([messages.HeartbeatReply(), messages.HeartbeatReply(drain=True), messages.HeartbeatReply()]),
    )

    async def sleep(seconds):
        slept.append(round(seconds, 1))

    class Master:
        async def ask(self, request):
            if (answer := next(answers, None)) is None:
                raise errors.MasterUnreachable("gone")
            return answer

    member = object.__new__(channel.MasterChannel)
    member._link = Master()
    monkeypatch.setattr(channel.asyncio, "sleep", sleep)
    gone = threading.Event()
    asyncio.run(member._beat(7.0, messages.Heartbeat, lambda pulse: pulse.drain, gone.set))
    assert slept == [7.0, 7.0, 0, 7.0] and gone.is_set()


HELLO = messages.JoinWorker(0, 7, 1)


class Master:
    """Answers heartbeats and records requests; `mute` stops the answers."""

    def __init__(self, term):
        self.term, self.asked, self.mute, self.fences = term, [], False, False

    async def start(self):
        self.listener = listener.RpcListener(SECRET, self.handle, lambda peer: None, term=self.term)
        self.address = await self.listener.start("127.0.0.1", 0)
        return self

    async def handle(self, peer, request):
        self.asked.append(request)
        if self.mute:
            await asyncio.Event().wait()
        if self.fences and isinstance(request, messages.JoinWorker):
            raise errors.Fenced("worker-0 was given up")
        return messages.HeartbeatReply(drain=self.term == 2)

    @property
    def where(self):
        return MasterLocation(term=self.term, address=self.address)


async def until_asked(master, count):
    """Wait until the master got this many requests."""
    await soon(lambda: len(master.asked) >= count)


def test_request_to_a_dying_master_is_answered_by_the_next():
    async def run():
        first, second = await Master(1).start(), await Master(2).start()
        where = first.where
        link = ReconnectingConnection(first.address, SECRET, patience_s=20, look=lambda: where)
        await link.open(20)
        link.introduce(HELLO)
        first.mute = True
        asking = asyncio.create_task(link.ask(messages.Heartbeat()))
        await until_asked(first, 1)
        where = second.where
        await first.listener.close()
        assert (await asking).drain
        assert second.asked == [HELLO, messages.Heartbeat()]
        await link.close()
        await second.listener.close()

    asyncio.run(run())


def test_master_of_an_earlier_term_is_refused():
    async def run():
        new, old = await Master(3).start(), await Master(2).start()
        where = new.where
        link = ReconnectingConnection(new.address, SECRET, patience_s=0.3, look=lambda: where)
        await link.open(20)
        await new.listener.close()
        for lie in (old.where, MasterLocation(term=9, address=old.address)):
            where = lie
            with pytest.raises(errors.MasterUnreachable, match="number 3 is already known"):
                await link.ask(messages.Heartbeat())
        assert old.asked == []
        await link.close()
        await old.listener.close()

    asyncio.run(run())


def test_fenced_member_is_told_by_the_next_master():
    async def run():
        first, second = await Master(1).start(), await Master(2).start()
        second.fences = True
        where = first.where
        link = ReconnectingConnection(first.address, SECRET, patience_s=20, look=lambda: where)
        await link.open(20)
        link.introduce(HELLO)
        where = second.where
        await first.listener.close()
        with pytest.raises(errors.Fenced, match="worker-0 was given up"):
            await link.ask(messages.Heartbeat())
        await link.close()
        await second.listener.close()

    asyncio.run(run())


def test_process_starting_during_a_master_replacement_finds_the_new_one():
    async def run():
        first, second = await Master(1).start(), await Master(2).start()
        await first.listener.close()
        link = ReconnectingConnection(first.address, SECRET, patience_s=0.1, look=lambda: second.where)
        await link.open(20)
        assert (await link.ask(messages.Heartbeat())).drain
        await link.close()
        await second.listener.close()

    asyncio.run(run())
