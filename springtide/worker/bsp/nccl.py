"""All-reduce over NCCL between workers with one GPU each; gloo connects the same ranks for all other messages.

In: the ranks' devices, over the master's connection. worker/bsp/group.py calls this module for each new group. Out:
`NcclGroup`, or None where gloo must sum: on CPUs, and where two workers share a GPU, which NCCL refuses. Next:
worker/bsp/allreduce.py.
"""

import datetime
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import distributed

from springtide import config, errors
from springtide.worker.bsp import allreduce
from springtide.worker.bsp.allreduce import GroupStore

log = logging.getLogger(__name__)

POLL_S = 2e-5  # seconds between two checks of a sum, which takes some 50 us over NVLink
DEVICE = "gpu/"  # prefix of the keys under which the group's store has the ranks' devices
SETTINGS = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",  # without this, torch would end this process when another rank is lost
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
}
LOOPBACK = {"NCCL_SOCKET_IFNAME": "lo"}

_broken = False
"""True if NCCL failed to connect this worker. Its later groups use gloo."""


def device_id(device: torch.device | None) -> str:
    """Return the UUID of this worker's GPU; empty if the worker cannot use NCCL."""
    if device is None or device.type != "cuda" or _broken or not distributed.is_nccl_available():
        return ""
    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", "")
    return str(uuid) if hasattr(distributed.ProcessGroupNCCL, "abort") else ""


def all_apart(ids: Sequence[str]) -> bool:
    """Return True if each rank has a GPU of its own."""
    return all(ids) and len(set(ids)) == len(ids)


class NcclGroup:
    """NCCL communicator of one group. Every wait ends when a member is lost or when a time limit has passed."""

    def __init__(self, group: Any, store: GroupStore, device: torch.device, lost: Callable[[], bool]) -> None:
        self.device = device
        self._group, self._store, self._lost = group, store, lost

    def allreduce(self, tensor: torch.Tensor) -> None:
        """Sum the tensor over all ranks in place, and wait for the sum. Raise `GroupChanged` if a member is lost."""
        with allreduce.noticing_loss():
            done = self.begin(tensor)
        self.await_done(done, allreduce.TIMEOUT)

    def begin(self, tensor: torch.Tensor) -> Callable[[], bool]:
        """Begin to sum. Return a function that says, without waiting, whether the sum is complete."""
        self._group.allreduce([tensor]).wait()  # the GPU's stream waits for the sum; this thread does not
        summed = torch.cuda.Event()
        summed.record(torch.cuda.current_stream(self.device))
        return summed.query

    def connect(self) -> None:
        """Create the communicator by a first sum, in another thread, because NCCL may wait for a rank forever."""
        failures: list[BaseException] = []

        def first_sum() -> None:
            try:
                self.allreduce(torch.zeros(1, device=self.device))
            except BaseException as error:
                failures.append(error)

        first = threading.Thread(target=first_sum, name="springtide-nccl", daemon=True)
        first.start()
        self.await_done(lambda: not first.is_alive(), allreduce.MEETING)
        if failures:
            raise failures[0]

    def await_done(self, done: Callable[[], bool], limit: datetime.timedelta) -> None:
        """Wait until `done`, without a blocking call. If a member is lost or the limit has passed, abort the
        communicator and raise `GroupChanged`."""
        ends = time.monotonic() + limit.total_seconds()
        while not done():
            late = time.monotonic() > ends
            if late or self._lost():
                self.abort()
                why = f"no sum in {limit.total_seconds():.0f} s" if late else "a member of the group is lost"
                raise errors.GroupChanged(f"{why}: NCCL's communicator is aborted")
            time.sleep(POLL_S)

    def abort(self) -> None:
        """Free this rank from the communicator, even in the middle of a sum. A second call does nothing."""
        group, self._group = self._group, None
        if group is not None:
            group.abort()


def open_group(
    store: GroupStore, *, rank: int, workers: int, device: torch.device, lost: Callable[[], bool]
) -> NcclGroup:
    """Return a communicator that is not connected yet."""
    options = distributed.ProcessGroupNCCL.Options()
    options._timeout = allreduce.TIMEOUT
    apart = distributed.PrefixStore("nccl", store)  # type: ignore[attr-defined]
    group = distributed.ProcessGroupNCCL(apart, rank, workers, options)
    return NcclGroup(group, store, device, lost)


def form(
    store: GroupStore, gloo: Any, *, rank: int, workers: int, host: str, device: torch.device, lost: Callable[[], bool]
) -> NcclGroup | None:
    """Return the communicator of this group. Return None if any rank cannot use NCCL, or if two ranks share a GPU."""
    global _broken
    if gloo is None:
        return None
    if not all_apart(ids := store.values(DEVICE, workers)):
        if all(ids):
            log.info("two workers of the group share a GPU, which NCCL refuses: gloo sums their gradients")
        return None
    made: NcclGroup | None = None
    with config.default_environment(SETTINGS | (LOOPBACK if host.startswith("127.") else {})):
        try:
            made = open_group(store, rank=rank, workers=workers, device=device, lost=lost)
            made.connect()
        except (errors.GroupChanged, RuntimeError) as error:
            if lost():
                raise errors.GroupChanged(f"a member of the group is lost: {error}") from None
            log.warning("NCCL cannot connect this worker's GPU, so gloo sums the gradients: %s", str(error))
            _broken = True
    failed = torch.tensor([_broken], dtype=torch.int32, device="cpu")
    with allreduce.noticing_loss():
        gloo.allreduce([failed]).wait()
    if made is not None and int(failed):
        made.abort()
    return None if int(failed) else made
