"""A member outlives its masters: finds the next one, introduces itself, asks again; and trusts no one of the past."""

import asyncio

import pytest

from springtide import errors
from springtide.rpc.messages import messages
from springtide.rpc.transport import listener
from springtide.rpc.transport.master_file import MasterLocation
from springtide.rpc.transport.reconnect import ReconnectingConnection
from tests.waiting import soon

SECRET = b"a secret of thirty-two bytes...."
HELLO = messages.JoinWorker(0, 7, 1)


class Master:
    """Answers heartbeats, remembers what it was asked; `mute` keeps it from answering."""

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


async def told(master, count):
    """Until the master was asked so often."""
    await soon(lambda: len(master.asked) >= count)


def test_a_request_whose_master_dies_is_answered_by_the_next():
    async def run():
        first, second = await Master(1).start(), await Master(2).start()
        where = first.where
        link = ReconnectingConnection(first.address, SECRET, patience_s=20, look=lambda: where)
        await link.open(20)
        link.introduce(HELLO)
        first.mute = True
        asking = asyncio.create_task(link.ask(messages.Heartbeat()))
        await told(first, 1)
        where = second.where
        await first.listener.close()
        assert (await asking).drain
        assert second.asked == [HELLO, messages.Heartbeat()]
        await link.close()
        await second.listener.close()

    asyncio.run(run())


def test_a_master_of_the_past_is_not_believed():
    async def run():
        new, old = await Master(3).start(), await Master(2).start()
        where = new.where
        link = ReconnectingConnection(new.address, SECRET, patience_s=0.3, look=lambda: where)
        await link.open(20)
        await new.listener.close()
        for lie in (old.where, MasterLocation(term=9, address=old.address)):
            where = lie
            with pytest.raises(errors.MasterUnreachable, match="number 3 is known"):
                await link.ask(messages.Heartbeat())
        assert old.asked == []
        await link.close()
        await old.listener.close()

    asyncio.run(run())


def test_a_member_that_was_given_up_hears_it_from_the_next_master():
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


def test_a_process_that_starts_while_the_master_is_replaced_finds_the_new_one():
    async def run():
        first, second = await Master(1).start(), await Master(2).start()
        await first.listener.close()
        link = ReconnectingConnection(first.address, SECRET, patience_s=0.1, look=lambda: second.where)
        await link.open(20)
        assert (await link.ask(messages.Heartbeat())).drain
        await link.close()
        await second.listener.close()

    asyncio.run(run())
