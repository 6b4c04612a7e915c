"""The search for the next master, over fake connections and a fake clock; and the ends of a channel's thread."""

import asyncio
import os
import threading

import pytest

from springtide import child_guard, config, errors
from springtide.rpc.messages import messages
from springtide.rpc.transport import addresses, channel
from springtide.rpc.transport.addresses import MasterLocation
from springtide.rpc.transport.channel import ReconnectingConnection

HELLO = messages.JoinWorker(0, 7, 1)
BEAT = messages.Heartbeat()


class Link:
    """A connection to a fake master. It answers with its term, unless an error was set."""

    def __init__(self, address, term):
        self.address, self.term, self.lost, self.closed, self.asked = address, term, False, False, []
        self.error, self.loses = None, False
        self.own_host = "10.0.0.2"

    async def ask(self, request):
        self.asked.append(request)
        if self.error:
            self.lost = self.loses
            raise self.error
        return self.term

    async def close(self):
        self.closed = True


class Network:
    """Masters by address, in place of `connection.connect`; and the clock. A sleep takes its time at once."""

    def __init__(self, monkeypatch):
        self.now, self.pauses, self.terms, self.links, self.calls = 100.0, [], {}, [], []
        self.prepare = lambda link: None
        monkeypatch.setattr(channel.connection, "connect", self.connect)
        monkeypatch.setattr(channel.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(channel.asyncio, "sleep", self.sleep)

    async def connect(self, address, secret, *, within_s, certificates, role):
        self.calls.append((address, secret, within_s, certificates, role))
        if address not in self.terms:
            raise errors.MasterUnreachable(f"no master at {address}")
        self.links.append(Link(address, self.terms[address]))
        self.prepare(self.links[-1])
        return self.links[-1]

    async def sleep(self, seconds):
        self.pauses.append(seconds)
        self.now += seconds


@pytest.fixture
def network(monkeypatch):
    return Network(monkeypatch)


def test_connection_to_a_fixed_address_is_made_once_and_never_replaced(network):
    async def run():
        network.terms["a:1"] = 1
        link = ReconnectingConnection("a:1", b"secret", certificates="tls", role="brain")
        await link.open(20)
        assert network.calls == [("a:1", b"secret", 20, "tls", "brain")]
        assert await link.ask(BEAT) == 1
        network.links[0].error, network.links[0].loses = errors.MasterUnreachable("lost"), True
        for _ in range(2):
            with pytest.raises(errors.MasterUnreachable, match="lost"):
                await link.ask(BEAT)
        await link.close()
        assert len(network.links) == 1 and network.links[0].closed

    asyncio.run(run())


def test_connection_that_was_never_opened_closes_and_opens_at_its_first_request(network):
    async def run():
        network.terms["a:1"] = 1
        link = ReconnectingConnection("a:1", b"", look=lambda: None)
        await link.close()
        assert [await link.ask(BEAT), await link.ask(BEAT)] == [1, 1]
        assert len(network.links) == 1

    asyncio.run(run())


def test_successor_is_joined_before_the_request_is_repeated(network):
    async def run():
        network.terms |= {"a:1": 1, "b:1": 2}
        where, built = MasterLocation(term=1, address="a:1"), []
        link = ReconnectingConnection("a:1", b"", patience_s=5, look=lambda: where)
        await link.open(20)
        link.introduce(HELLO)
        (first,) = network.links
        first.error, first.loses = errors.MasterUnreachable("lost"), True
        where = MasterLocation(term=2, address="b:1")
        assert await link.ask(lambda: built.append(BEAT) or BEAT) == 2
        assert first.closed and network.links[1].asked == [HELLO, BEAT] and built == [BEAT, BEAT]

    asyncio.run(run())


def test_master_that_is_unreachable_but_not_lost_fails_only_the_request(network):
    async def run():
        network.terms["a:1"] = 1
        link = ReconnectingConnection("a:1", b"", look=lambda: None)
        await link.open(20)
        network.links[0].error = errors.MasterUnreachable("for this request")
        with pytest.raises(errors.MasterUnreachable, match="for this request"):
            await link.ask(BEAT)
        network.links[0].error = None
        assert await link.ask(BEAT) == 1
        assert len(network.links) == 1

    asyncio.run(run())


def test_search_pauses_longer_each_time_and_ends_after_its_patience(network):
    async def run():
        link = ReconnectingConnection("a:1", b"", look=lambda: None)
        with pytest.raises(
            errors.MasterUnreachable, match=r"no master .* within 1\.75 s \(no master at a:1\)\. See the master's log"
        ):
            await link.open(1.75)
        assert network.pauses == [0.02, 0.05, 0.1, 0.2, 0.5, 0.5, 0.5]
        assert all(call[2] == channel.ATTEMPT_S for call in network.calls)

    asyncio.run(run())


def test_file_without_an_address_leaves_the_known_address(network):
    async def run():
        network.terms |= {"a:1": 1, "b:1": 2}
        where = MasterLocation(term=1, error="cannot start")
        link = ReconnectingConnection("a:1", b"", look=lambda: where)
        await link.open(0)
        where = MasterLocation(term=2, address="b:1")
        network.links[-1].lost = True
        assert await link.ask(BEAT) == 2
        where = None
        network.links[-1].lost = True
        assert await link.ask(BEAT) == 2  # the last address at which a master answered
        assert [call[0] for call in network.calls] == ["a:1", "b:1", "b:1"]

    asyncio.run(run())


def test_outdated_file_and_outdated_master_are_not_used(network):
    async def run():
        network.terms |= {"a:1": 3, "b:1": 2}
        where = MasterLocation(term=3, address="a:1")
        link = ReconnectingConnection("a:1", b"", look=lambda: where)
        await link.open(0)
        network.links[0].lost, where = True, MasterLocation(term=2, address="a:1")
        with pytest.raises(errors.MasterUnreachable, match="file names master number 2, but number 3 is already known"):
            await link.ask(BEAT)
        assert len(network.calls) == 1
        where = MasterLocation(term=3, address="b:1")
        with pytest.raises(errors.MasterUnreachable, match="master number 2 is outdated, because number 3"):
            await link.ask(BEAT)
        assert network.links[1].closed and network.links[1].asked == []
        where = MasterLocation(term=3, address="a:1")
        assert await link.ask(BEAT) == 3  # the master of the known term, which was only disconnected

    asyncio.run(run())


def test_master_that_refuses_the_join_is_disconnected(network):
    async def run():
        network.terms["a:1"] = 1
        link = ReconnectingConnection("a:1", b"", look=lambda: None)
        link.introduce(HELLO)
        network.prepare = lambda made: setattr(made, "error", errors.Fenced("worker-0 was given up"))
        with pytest.raises(errors.Fenced, match="given up"):
            await link.open(20)
        assert network.links[0].closed and network.links[0].asked == [HELLO]

    asyncio.run(run())


def test_log_names_each_new_master_once(network, caplog):
    caplog.set_level("INFO", channel.__name__)

    async def run():
        network.terms["a:1"] = 1
        link = ReconnectingConnection("a:1", b"", look=lambda: None)
        await link.open(0)
        network.links[0].lost = True
        await link.ask(BEAT)
        assert [record.message for record in caplog.records] == ["connected to master number 1 at a:1"]

    asyncio.run(run())


# ---- the channel ----


class Master:
    """Stands for a `ReconnectingConnection`."""

    def __init__(self, error=None, beats=()):
        self.error, self.beats, self.closed, self.within_s = error, list(beats), 0, None
        self.idle, self.hello = threading.Event(), None
        self.connection = Link("a:1", 1)

    async def open(self, within_s):
        self.within_s = within_s
        if self.error:
            raise self.error

    def introduce(self, hello):
        self.hello = hello

    async def ask(self, request):
        if callable(request):
            if not self.beats:
                self.idle.set()
                await asyncio.Event().wait()
            answer = self.beats.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer
        return request

    async def close(self):
        self.closed += 1


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "springtide-link"]


def test_channel_whose_master_is_missing_leaves_no_thread():
    with pytest.raises(errors.MasterUnreachable, match="none"):
        channel.MasterChannel(Master(errors.MasterUnreachable("none")), connect_timeout_s=3)
    assert threads() == []


def test_open_channel_keeps_no_script_from_ending():
    own = channel.MasterChannel(Master(), connect_timeout_s=3)
    assert [thread.daemon for thread in threads()] == [True]
    own.close()


def test_closed_channel_has_no_thread_and_refuses_requests():
    master = Master()
    own = channel.MasterChannel(master, connect_timeout_s=3)
    own.introduce(HELLO)
    assert master.within_s == 3 and master.hello == HELLO
    assert own.ask(BEAT) == BEAT and own.own_host == "10.0.0.2"
    own.close()
    own.close()
    assert master.closed == 1 and threads() == []
    with pytest.raises(errors.JobFailed, match="no link to the master"):
        own.ask(BEAT)


def test_channel_of_a_parent_is_neither_used_nor_closed_by_a_child(monkeypatch):
    master = Master()
    own, parent = channel.MasterChannel(master, connect_timeout_s=3), os.getpid()
    monkeypatch.setattr(channel.os, "getpid", lambda: parent + 1)
    with pytest.raises(errors.JobFailed, match="forked from a worker"):
        own.ask(BEAT)
    own.close()
    assert master.closed == 0
    monkeypatch.undo()
    own.close()
    assert master.closed == 1


def test_forked_child_abandons_the_socket_of_an_open_channel_only(monkeypatch):
    closed, guarded = [], []
    monkeypatch.setattr(child_guard, "abandon_in_forks", guarded.append)
    master = Master()
    master.connection.sock = type("Sock", (), {"close": lambda self: closed.append(self)})()
    own = channel.MasterChannel(master, connect_timeout_s=3)
    assert guarded == [own]
    own.abandon()
    assert len(closed) == 1
    own.close()
    own.abandon()
    assert len(closed) == 1


def test_closing_a_channel_ends_its_heartbeat():
    master = Master()
    own = channel.MasterChannel(master, connect_timeout_s=3)
    own.start_heartbeat(0, lambda: BEAT, lambda reply: None)
    assert master.idle.wait(60)
    beating = own._beating
    own.close()
    assert beating.cancelling()


def test_interrupted_request_is_cancelled(monkeypatch):
    own, cancelled = channel.MasterChannel(Master(), connect_timeout_s=3), []

    class Interrupted:
        cancel = staticmethod(lambda: cancelled.append(True))

        def result(self):
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(channel.asyncio, "run_coroutine_threadsafe", lambda work, loop: work.close() or Interrupted())
        with pytest.raises(KeyboardInterrupt):
            own.ask(BEAT)
    assert cancelled == [True]
    own.close()


def test_fenced_member_hears_of_it_and_its_heartbeat_ends(caplog):
    heard, told = [], threading.Event()

    def pulse(reply):
        heard.append(reply)
        if reply.fenced:
            told.set()

    own = channel.MasterChannel(
        Master(beats=[messages.HeartbeatReply(), errors.Fenced("given up")]), connect_timeout_s=3
    )
    own.start_heartbeat(0, lambda: BEAT, pulse, lost=lambda: pytest.fail("the master is not lost"))
    assert told.wait(60)
    assert heard == [messages.HeartbeatReply(), messages.HeartbeatReply(fenced=True)]
    assert "heartbeat stopped: given up" in caplog.text
    own.close()


def test_heartbeats_keep_their_interval_when_a_reply_is_late(monkeypatch, caplog):
    async def run():
        loop, now, pauses = asyncio.get_running_loop(), 50.0, []
        monkeypatch.setattr(loop, "time", lambda: now)

        async def sleep(seconds):
            nonlocal now
            pauses.append(seconds)
            now += max(seconds, 0)

        class Slow:
            async def ask(self, beat):
                nonlocal now
                now += 2
                if len(pauses) == 3:
                    raise errors.MasterUnreachable("gone")
                return messages.HeartbeatReply()

        monkeypatch.setattr(channel.asyncio, "sleep", sleep)
        own = object.__new__(channel.MasterChannel)
        own._link, lost = Slow(), []
        await own._beat(7.0, lambda: BEAT, lambda reply: None, lambda: lost.append(True))
        assert pauses == [7.0, 5.0, 5.0] and lost == [True]
        assert "heartbeat stopped: gone" in caplog.text

    asyncio.run(run())


# ---- the channel of a role ----


def made_for(monkeypatch, settings):
    made = {}
    monkeypatch.setattr(channel, "ReconnectingConnection", lambda *args, **options: made.update(options) or args)
    monkeypatch.setattr(channel, "MasterChannel", lambda link, **options: made.update(options) or link)
    assert channel.for_member(settings, b"secret") == (settings.master, b"secret")
    return made


def test_role_with_a_master_file_reads_the_successor_from_it(monkeypatch, tmp_path):
    path, where = tmp_path / "master.json", MasterLocation(term=2, address="b:1")
    settings = config.Settings(
        master="a:1", master_file=str(path), connect_timeout_s=4, master_patience_s=60, tls="certificates"
    )
    made = made_for(monkeypatch, settings)
    assert made["look"]() is None
    addresses.write_master(path, where)
    assert made["look"]() == where
    assert made["connect_timeout_s"] == 4 and made["patience_s"] == 60 and made["certificates"] == "certificates"


@pytest.mark.parametrize(("connect_s", "patience_s"), [(4, 60), (90, 60)])
def test_role_with_a_stable_host_name_waits_for_the_longer_of_both_times(monkeypatch, connect_s, patience_s):
    settings = config.Settings(master="a:1", connect_timeout_s=connect_s, master_patience_s=patience_s)
    made = made_for(monkeypatch, settings)
    assert made["look"]() is None and made["connect_timeout_s"] == max(connect_s, patience_s)


def test_host_of_a_role_is_the_setting_or_the_interface_that_faces_the_master():
    own = channel.MasterChannel(Master(), connect_timeout_s=3)
    assert channel.own_host(config.Settings(host="worker.example"), own) == "worker.example"
    assert channel.own_host(config.Settings(), own) == "10.0.0.2"
    own.close()
