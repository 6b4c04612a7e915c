"""The parameter server. Native threads serve the tables; Python starts, watches and stops the server, and assigns
its slots.

Out: an address to which `embedding.lookup.table_client` connects, and counters. Next: cpp/server/server.h.
server/__main__.py runs the process. docs/design/wire.md describes the protocol.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from springtide import _native
from springtide.domain.core.roles import Placement
from springtide.rpc.transport import addresses
from springtide.server.slot_loads import SlotCount
from springtide.telemetry.host import usage

DRAIN_S = 10.0
"""Seconds in which a server that stops must answer the requests that have arrived."""

LOOKUP_THREADS = 4
"""Most threads that share one large request."""


class HandedOver(msgspec.Struct, frozen=True, kw_only=True):
    """Outcome of a handover of slots to another server."""

    moved: tuple[int, ...]
    server: int
    bytes: int
    seconds: float
    longest_freeze_s: float
    """Longest time in seconds for which a slot had no owner."""
    local: bool = False
    """True if the images went through a Unix socket on this host instead of the network."""
    why: str = ""
    """Reason why some slots did not move."""

    def __str__(self) -> str:
        rate = self.bytes / self.seconds / 1e6 if self.seconds else 0.0
        return (
            f"{len(self.moved)} slots to server-{self.server}{' on this host' if self.local else ''}: "
            f"{self.bytes / 1e6:.1f} MB in {self.seconds:.3f} s "
            f"({rate:.0f} MB/s), none without an owner for longer than {self.longest_freeze_s * 1e3:.2f} ms"
        )


class ServerRole:
    """One parameter server of a job. The server serves from `start` to `stop`. Call ``place`` to assign slots to the
    server.
    """

    def __init__(
        self,
        *,
        index: int,
        slots: int,
        seed: int,
        workers: int,
        secret: bytes,
        host: str = "127.0.0.1",
        threads: int | None = None,
        certificates: str = "",
        **limits: Any,
    ) -> None:
        """Create the server. `limits` has the remaining fields of `_native.ServerOptions`, such as `port` or
        `stall_s`.
        """
        self.index = index
        self.hurried = False
        """Whether the checkpoint being written is urgent, because a caller waits for it."""
        self.address = ""
        self.leaves = False
        """Whether the server refuses further slots."""
        self.in_doubt: dict[int, int] = {}
        """Slots that this server closed for a handover which the target never acknowledged, with the target server."""
        # more threads than usable cores would compete with the client that sends a large request
        threads = threads or min(LOOKUP_THREADS, usage.cores())
        self.store = _native.Store(slots=slots, seed=seed, threads=threads)
        options = _native.ServerOptions()
        settings = {"host": host, "secret": secret, "index": index, "workers": workers, "tls": certificates, **limits}
        for name, value in settings.items():
            setattr(options, name, value)
        self._server = _native.Server(self.store, options)
        self._placed = False

    def start(self) -> str:
        """Listen and return the address; port 0 selects a free port. Raise PortTaken if another process has the
        port.
        """
        host, port = self._server.start()
        self.address = addresses.join(host, port)
        return self.address

    def place(self, placement: Placement) -> None:
        """Serve the slots that `placement` assigns to this server, and refuse all other slots."""
        self.set_owners(placement.epoch, placement.server_of_slot)

    def set_owners(self, epoch: int, server_of_slot: Sequence[int] | npt.NDArray[np.uint16]) -> None:
        owners = np.ascontiguousarray(server_of_slot, dtype=np.uint16)
        self._server.set_placement(epoch, owners)
        self._placed = True

    def learn(self, placement: Placement, addresses: Sequence[str]) -> None:
        """Learn which servers own the other slots, in order to redirect clients. This server's own slots do not
        change."""
        known = {rank: address for rank, address in enumerate(addresses) if address and rank != self.index}
        owners = np.ascontiguousarray(placement.server_of_slot, dtype=np.uint16)
        self._server.learn_placement(placement.epoch, owners, known)

    def owned(self) -> tuple[int, ...]:
        return tuple(self._server.owned()) if self._placed else ()

    def owns(self, slot: int) -> bool:
        """Return True if this server owns the slot. The server owns no slot before slots are placed, and does not
        own a slot in the last phase of the slot's handover.
        """
        return self._placed and bool(self.store.is_open(slot))

    def slot_counts(self) -> list[SlotCount]:
        loads = ((slot, self.store.load(slot)) for slot in self.owned())
        return [SlotCount(slot, load.bytes, load.requests) for slot, load in loads]

    def hand_over(
        self, slots: Sequence[int], server: int, address: str, *, timeout_s: float = 30.0, hurry: bool = False
    ) -> HandedOver:
        """Hand over slots while both servers serve, then redirect clients. With `hurry`, use as little CPU as
        possible."""
        host, port = addresses.parse(address)
        done = self._server.hand_over(host, port, server, list(slots), timeout_s, hurry)
        doubtful = set(done["in_doubt"])
        self.in_doubt = {slot: self.in_doubt.get(slot, server) for slot in doubtful}
        return HandedOver(
            moved=tuple(done["moved"]),
            server=server,
            bytes=done["bytes"],
            seconds=done["seconds"],
            longest_freeze_s=done["longest_freeze_s"],
            local=done["local"],
            why=done["why"],
        )

    def take_back(self, slot: int) -> None:
        self.in_doubt.pop(slot, None)
        self._server.take_back(slot)

    def release(self, slot: int) -> None:
        """Drop a slot that was closed for a transfer. Call this method when the target certainly owns the slot,
        although the target has not answered.
        """
        self.in_doubt.pop(slot, None)
        self._server.let_go(slot)

    def take_no_more(self) -> None:
        self._server.take_no_more(True)
        self.leaves = True

    def expect_anew(self) -> None:
        """From now on, accept slots only over new connections, so that slots that a dead server sent before its death
        are refused."""
        self._server.expect_anew()

    def restart_group(self, *, generation: int, workers: int) -> None:
        """Refuse requests of older bsp generations. The group's leader tells the servers the last complete step."""
        self._server.set_generation(generation, workers)

    def counters(self) -> dict[str, float]:
        """Return sums since the start: requests, keys, bytes, nanoseconds in lookups and updates, rows, connections."""
        figures = {name: float(value) for name, value in self._server.stats().items()}
        remembered = self.store.identity_stats()
        return figures | {
            "rows": float(self.store.rows()),
            "table_bytes": float(self.store.resident_bytes()),
            "identity_ranges": float(remembered.runs),
            "identity_bytes": float(remembered.bytes),
        }

    def stop(self, drain_s: float = DRAIN_S) -> None:
        self._server.stop(drain_s)

    def __enter__(self) -> "ServerRole":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
