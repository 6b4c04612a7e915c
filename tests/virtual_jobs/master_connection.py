"""Connection of a virtual member to its master: delayed, sometimes duplicated, cut off on request.

In: requests of `worker`, `server` and `machines`. Out: replies of the current master. Like a real member, the
connection registers with every new master and repeats requests without a reply.
"""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from math import log

from springtide import errors
from springtide.rpc.messages.types import Reply, Request
from springtide.rpc.transport.listener import Peer
from tests.virtual_jobs import virtual_loop
from tests.virtual_jobs.master import Masters

Asked = Request | Callable[[], Request]


@dataclass(frozen=True, slots=True, kw_only=True)
class Weather:
    """Network conditions of messages to the master."""

    late_s: float = 0.001
    """Mean delay of a message, in seconds."""
    lost: float = 0.0
    """Share of lost replies; the member sends the request again."""


class Wire:
    """A member's connection, which survives changes of the master."""

    def __init__(self, masters: Masters, name: str, weather: Weather, chance: random.Random) -> None:
        self._masters, self._name, self._weather = masters, name, weather
        self._random, self._a_second = chance.random, 1 / weather.late_s
        self._meeting = asyncio.Lock()
        self._hello: Request | None = None
        self._met = 0
        self._peer = Peer(name)
        self._open = asyncio.Event()
        self._open.set()

    def introduce(self, hello: Request) -> None:
        self._hello = hello

    def cut(self) -> None:
        self._open.clear()

    def mend(self) -> None:
        self._open.set()

    async def ask(self, request: Asked) -> Reply:
        """Return the reply of the current master; retry over any number of masters."""
        while True:
            try:
                if self._met != self._masters.term or self._masters.desk is None:
                    await self._meet()
                await virtual_loop.sleep(self._delay_s())
                if not self._open.is_set():
                    await self._open.wait()
                reply = await self._masters.ask(self._peer, request() if callable(request) else request)
            except errors.MasterUnreachable:
                continue
            await virtual_loop.sleep(self._delay_s())
            if not self._open.is_set():
                await self._open.wait()
            if self._random() >= self._weather.lost:
                return reply

    async def _meet(self) -> None:
        """Register this member with a new master."""
        async with self._meeting:
            term = await self._masters.present()
            if term == self._met:
                return
            await virtual_loop.sleep(self._delay_s())
            await self._open.wait()
            peer = Peer(self._name)
            if self._hello is not None:
                await self._masters.ask(peer, self._hello)
            self._peer, self._met = peer, term

    def _delay_s(self) -> float:
        return -log(1.0 - self._random()) / self._a_second
