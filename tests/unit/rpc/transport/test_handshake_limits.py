"""Strangers hold no connection for long, and never take the place of a member."""

import asyncio
import threading

from springtide.rpc.messages import messages
from springtide.rpc.transport import connection, handshake_limits, listener
from tests.unit.rpc.strangers import PAUSE_S, is_dropped, is_dropped_while_it_drips, strangers

SECRET = b"a secret of thirty-two bytes...."


def test_the_oldest_gives_way_and_those_who_are_through_do_not(monkeypatch):
    monkeypatch.setattr(handshake_limits, "MOST", 2)
    limits, dropped = handshake_limits.PendingHandshakes(), []
    with limits.limited(lambda: dropped.append("through")):
        pass
    with limits.limited(lambda: dropped.append("first")), limits.limited(lambda: dropped.append("second")):
        assert dropped == []
        with limits.limited(lambda: dropped.append("third")):
            assert dropped == ["first"]
    assert limits.drop_overdue() is None and dropped == ["first"]


def test_one_deadline_is_for_the_whole_of_a_handshake(monkeypatch):
    limits, dropped = handshake_limits.PendingHandshakes(), threading.Event()
    monkeypatch.setattr(handshake_limits, "DEADLINE_S", 1e-3)
    with limits.limited(dropped.set):
        while (left := limits.drop_overdue()) is not None:
            assert left <= 1e-3
        assert dropped.is_set()


async def answer(peer, request):
    return messages.ValueFound(request.value)


def meeting(work):
    async def run():
        listening = listener.RpcListener(SECRET, answer, lambda peer: None)
        address = await listening.start("127.0.0.1", 0)
        try:
            await work(address)
        finally:
            await listening.close()

    asyncio.run(run())


def test_a_master_serves_members_whatever_strangers_do(monkeypatch):
    monkeypatch.setattr(handshake_limits, "MOST", 8)
    monkeypatch.setattr(handshake_limits, "DEADLINE_S", 600.0)

    async def work(address):
        member = await connection.connect(address, SECRET, within_s=60)
        with strangers(address, 50) as made:
            newcomer = await connection.connect(address, SECRET, within_s=60)
            for one in (member, newcomer):
                assert await one.ask(messages.ShareRequest("what", b"it")) == messages.ValueFound(b"it")
            assert await asyncio.to_thread(is_dropped, made[0])
            assert not is_dropped(made[-1], PAUSE_S)
            for one in (member, newcomer):
                await one.close()

    meeting(work)


def test_a_byte_now_and_then_does_not_keep_a_stranger_with_a_master(monkeypatch):
    monkeypatch.setattr(handshake_limits, "DEADLINE_S", 0.3)

    async def work(address):
        assert await asyncio.to_thread(is_dropped_while_it_drips, address)

    meeting(work)
