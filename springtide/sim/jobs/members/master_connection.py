"""How a virtual member reaches its master: late, sometimes twice, and not at all while it is cut off.

In: requests of `worker`, `server` and `machines`. Out: replies of the master of the day. As a real member does, it says
who it is to every master it meets, and repeats what had no answer.
"""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass

from springtide import errors
from springtide.rpc.messages import messages
from springtide.rpc.transport.listener import Peer
from springtide.sim.jobs.members.master import Masters

Asked = messages.Request | Callable[[], messages.Request]


@dataclass(frozen=True, slots=True, kw_only=True)
class Weather:
    """What messages meet on their way."""

    late_s: float = 0.001
    """Mean time that a message takes."""
    lost: float = 0.0
    """Share of answers that never come: the request is sent again."""


class Wire:
    """One member's connection, which outlives masters."""

    def __init__(self, masters: Masters, name: str, weather: Weather, chance: random.Random) -> None:
        self._masters, self._name, self._weather, self._chance = masters, name, weather, chance
        self._meeting = asyncio.Lock()
        self._hello: messages.Request | None = None
        self._met = 0
        self._peer = Peer(name)
        self._open = asyncio.Event()
        self._open.set()

    def introduce(self, hello: messages.Request) -> None:
        self._hello = hello

    def cut(self) -> None:
        self._open.clear()

    def mend(self) -> None:
        self._open.set()

    async def ask(self, request: Asked) -> messages.Reply:
        """The reply of the master of the day, however many it takes."""
        while True:
            try:
                await self._meet()
                await self._pass()
                reply = await self._masters.ask(self._peer, request() if callable(request) else request)
            except errors.MasterUnreachable:
                continue
            await self._pass()
            if self._chance.random() >= self._weather.lost:
                return reply

    async def _meet(self) -> None:
        """A master that this member does not know yet is told who it is."""
        if self._met == self._masters.term and self._masters.desk is not None:
            return
        async with self._meeting:
            term = await self._masters.present()
            if term == self._met:
                return
            await self._pass()
            peer = Peer(self._name)
            if self._hello is not None:
                await self._masters.ask(peer, self._hello)
            self._peer, self._met = peer, term

    async def _pass(self) -> None:
        if self._weather.late_s:
            await asyncio.sleep(self._chance.expovariate(1 / self._weather.late_s))
        await self._open.wait()
