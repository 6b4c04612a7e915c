"""Where workers meet: barriers and a few small shared values.

In: `BarrierRequest`, `Share`, `Lookup` through `master.desk`. Out: the moment everyone is there, or the value.
"""

import asyncio

from springtide import errors

MAX_SHARED_BYTES = 2**20  # of one value: addresses and the like, not tensors
MAX_SHARED_KEYS = 10_000


class Barriers:
    """One gate a name; opens when every worker has come, and can be used again."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._gates: dict[str, tuple[set[int], asyncio.Event]] = {}

    async def arrive(self, name: str, worker: int) -> None:
        """Wait for the others."""
        here, gate = self._gates.setdefault(name, (set(), asyncio.Event()))
        here.add(worker)
        if len(here) == self._workers:
            del self._gates[name]
            gate.set()
        await gate.wait()


class SharedValues:
    """Small values by name. Whoever asks for one that is not there yet waits."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._changed = asyncio.Condition()

    async def share(self, key: str, value: bytes) -> None:
        """Put a value; sharing another under the same name replaces it."""
        if len(value) > MAX_SHARED_BYTES or (len(self._values) >= MAX_SHARED_KEYS and key not in self._values):
            raise errors.BadInput(
                f"shared value {key!r} of {len(value)} bytes: "
                f"at most {MAX_SHARED_KEYS} values of {MAX_SHARED_BYTES} bytes each"
            )
        async with self._changed:
            self._values[key] = value
            self._changed.notify_all()

    async def lookup(self, key: str) -> bytes:
        """A value, as soon as it is there."""
        async with self._changed:
            await self._changed.wait_for(lambda: key in self._values)
            return self._values[key]
