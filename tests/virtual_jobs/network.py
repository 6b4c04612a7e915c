"""Virtual network between workers and servers: pushes arrive late, after their sender died, or twice.

In: pushes of `worker`, by address. Out: the server's reply, or None if the server is gone.
"""

import asyncio
import itertools
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, TypeVar

from springtide.domain.core.roles import Placement
from tests.virtual_jobs.counting_oracle import BatchRun


class Push(NamedTuple):
    """Batches of a shard, with the slots that the push covers."""

    batches: BatchRun
    covers: tuple[int, ...]


class PushReply(NamedTuple):
    """A server's reply to a push."""

    refused: frozenset[int] = frozenset()
    """Slots that another server owns."""
    torn: frozenset[int] = frozenset()
    """Slots that hold only some of the batches; send these batches one by one."""
    owners: Mapping[int, tuple[int, str]] | None = None
    """Owner and address of the refused slots, as far as the server knows."""
    placement: Placement | None = None
    addresses: tuple[str, ...] = ()
    failed: bool = False
    """True if the server has no memory for the push. It may have applied the push to some slots."""


class PushTarget(Protocol):
    """A server that accepts pushes."""

    def apply(self, push: Push) -> PushReply: ...


Target = TypeVar("Target", bound=PushTarget)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataWeather:
    """Network conditions of pushes and slot transfers."""

    late_s: float = 0.0
    """Mean delay to a server in seconds; at 0 all parts of a push arrive at once."""
    lost: float = 0.0
    """Share of pushes that get lost; the sender notices after `late_s`."""
    twice: float = 0.0
    """Share of pushes with a late duplicate."""
    later_s: float = 60.0
    """Mean delay of a duplicate, in seconds."""
    broken: float = 0.0
    """Share of slot transfers whose confirmation is lost."""


class Network(Generic[Target]):
    """The data plane of one job."""

    def __init__(self, weather: DataWeather, chance: random.Random) -> None:
        self._weather, self._chance = weather, chance
        self._ports = itertools.count(1)
        self._there: dict[str, Target] = {}
        self._cut_off: dict[str, float] = {}
        self.copies = 0
        """Number of duplicate pushes that arrived."""

    def breaks(self) -> bool:
        return self._chance.random() < self._weather.broken

    def listen(self, server: Target) -> str:
        address = f"host:{next(self._ports)}"
        self._there[address] = server
        return address

    def hang_up(self, server: Target) -> None:
        self._there = {address: one for address, one in self._there.items() if one is not server}

    def cut_off(self, server: Target, until: float) -> None:
        """Let no push reach a server before this time. Half of them arrive then, the others are lost."""
        self._cut_off |= {address: until for address, one in self._there.items() if one is server}

    def delay_s(self) -> float:
        return self._chance.expovariate(1 / self._weather.late_s) if self._weather.late_s else 0.0

    def reach(self, address: str) -> Target | None:
        """Return the server at an address unless it is cut off or a message gets lost."""
        cut_off = self._cut_off.get(address, 0.0) > asyncio.get_running_loop().time()
        return None if cut_off or self._chance.random() < self._weather.lost else self._there.get(address)

    def at(self, address: str) -> Target | None:
        return self._there.get(address)

    def send(self, address: str, push: Push) -> asyncio.Future[PushReply | None]:
        """Send a push, which arrives even if the sender dies. The future's result is None if no server listens."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[PushReply | None] = loop.create_future()

        def arrive() -> None:
            server = self._there.get(address) if not lost else None
            said = server.apply(push) if server is not None else None
            if not answer.done():
                answer.set_result(said)

        def arrive_again() -> None:
            server = self._there.get(address)
            if server is not None:
                server.apply(push)
                self.copies += 1

        lost, late_s = bool(self._weather.lost) and self._chance.random() < self._weather.lost, 0.0
        if self._cut_off.get(address, 0.0) > loop.time():
            lost, late_s = lost or self._chance.random() < 0.5, self._cut_off[address] - loop.time()
        if not self._weather.late_s and not late_s:
            arrive()
        else:
            late_s += self._chance.expovariate(1 / self._weather.late_s) if self._weather.late_s else 0.0
            loop.call_later(late_s, arrive)
        if self._weather.twice and self._chance.random() < self._weather.twice:
            loop.call_later(self._chance.expovariate(1 / self._weather.later_s), arrive_again)
        return answer
