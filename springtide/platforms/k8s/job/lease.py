"""Lease of a job, which one agent holds at a time, and the terms of its masters.

A term is the number of transitions of the Lease, which is increased by compare-and-set. An agent has lost the Lease
if it cannot renew the Lease in time, or finds another holder. If an old master survives, roles and the journal
reject it by its term.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable

from springtide import errors
from springtide.platforms.k8s.api import kinds
from springtide.platforms.k8s.api.client import Client
from springtide.platforms.k8s.api.kinds import LEASES, Object

log = logging.getLogger(__name__)

LASTS_S = 15.0
RENEW_S = 4.0
LOOK_S = 1.0  # seconds between two checks of a Lease that another agent holds

Alive = Callable[[str], Awaitable[bool]]
"""Function that returns True if the holder with this name still exists."""


def now() -> str:
    return kinds.timestamp(time.time(), micro=True)


class JobLease:
    """Lease of one job. `holder` identifies this agent, also after a restart of its container."""

    def __init__(self, client: Client, name: str, holder: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._client, self.name, self.holder, self._clock = client, name, holder, clock
        self.lost = asyncio.Event()
        """Set once another agent has the Lease, or once this agent renews it too late."""
        self._renewed_at = 0.0

    async def take(self, alive: Alive) -> None:
        """Wait until this agent can take the Lease: it has no other holder, it has expired, or its holder's pod is
        gone.
        """
        watched = ObservedLease()
        while True:
            lease = await self._client.get(LEASES, self.name)
            holder = lease["spec"].get("holderIdentity") or ""
            if holder in ("", self.holder) or watched.ran_out(lease, at=self._clock()) or not await alive(holder):
                with contextlib.suppress(errors.Conflict):
                    await self._put(lease, holderIdentity=self.holder, acquireTime=now())
                    return
            await asyncio.sleep(LOOK_S)

    async def next_term(self) -> int:
        """Increase the term and return it. Raise `Fenced` if another agent holds the Lease."""
        while True:
            lease = await self._own()
            term = int(lease["spec"].get("leaseTransitions") or 0) + 1
            with contextlib.suppress(errors.Conflict):
                await self._put(lease, leaseTransitions=term)
                return term

    async def keep(self) -> None:
        loop = asyncio.get_running_loop()
        self._renewed_at = loop.time()
        while not self.lost.is_set():
            await asyncio.sleep(RENEW_S)
            try:
                async with asyncio.timeout(LASTS_S - RENEW_S):
                    await self._put(await self._own())
                self._renewed_at = loop.time()
            except errors.Conflict:
                continue
            except errors.Fenced as error:
                log.warning("%s", error)
                self.lost.set()
            except (errors.SpringtideError, TimeoutError) as error:
                log.warning("the lease %s was not renewed: %s", self.name, error)
                if loop.time() - self._renewed_at > LASTS_S:
                    self.lost.set()

    async def give_back(self) -> None:
        with contextlib.suppress(errors.SpringtideError):
            await self._put(await self._own(), holderIdentity="")

    async def _own(self) -> Object:
        lease = await self._client.get(LEASES, self.name)
        holder = lease["spec"].get("holderIdentity") or ""
        if holder != self.holder:
            raise errors.Fenced(f"the lease {self.name} is {holder or 'nobody'}'s now: another agent keeps the job")
        return lease

    async def _put(self, lease: Object, **changes: object) -> None:
        spec = {
            **lease["spec"],
            **changes,
            "leaseDurationSeconds": int(LASTS_S),
            "renewTime": now(),
        }
        await self._client.update(LEASES, {**lease, "spec": spec})


class ObservedLease:
    """Another agent's Lease, timed by the local clock, because clocks of two machines may differ.

    The Lease has expired if it stays unchanged for its whole duration.
    """

    def __init__(self) -> None:
        self._seen: tuple[object, ...] = ()
        self._since = 0.0

    def ran_out(self, lease: Object, *, at: float) -> bool:
        spec = lease["spec"]
        seen = tuple(spec.get(key) for key in ("holderIdentity", "renewTime", "leaseTransitions"))
        if seen != self._seen:
            self._seen, self._since = seen, at
        return at - self._since > float(spec.get("leaseDurationSeconds") or LASTS_S)
