"""Hands slots over to other servers according to the master's goal, and reports the moves.

In: goals, which arrive with heartbeat replies. Out: slots at their new owners, and `SlotsMoved` to the master. The
native core moves slots while both servers serve (cpp/migrate/handover.h). Design: docs/design/migration.md.
"""

import contextlib
import logging
import os
import pathlib
import threading
from collections.abc import Callable

from springtide import errors
from springtide.rpc.messages.types import SlotGoal, SlotHoldings, SlotParcel, SlotsMoved
from springtide.server.server import ServerRole

log = logging.getLogger(__name__)
NICEST = 19

CHUNK_SLOTS = 64  # number of slots to hand over between two reports to the master
# number of slots between two reports if the job waits, because reports then cost more time than the moves
HURRIED_SLOTS = 1024
# seconds to wait for the current chunk; after that the process ends, and slots that were not acknowledged stay on this
# server
STOP_S = 5.0
AGAIN_S = 0.5  # seconds to wait before a retry, after a target has refused or was unreachable


class SlotHandover:
    """Thread that carries out the newest goal. A repeated goal does no harm."""

    def __init__(
        self, role: ServerRole, tell: Callable[[SlotsMoved], object], answer: Callable[[], object] = lambda: None
    ) -> None:
        """Start the thread. `answer` sends a heartbeat immediately; it is the answer to a roll call of the master."""
        self._role, self._tell, self._answer = role, tell, answer
        self._call = 0
        self.hurried = False
        """Whether slots must leave with as little CPU as possible. Then heartbeats leave out the slot counts."""
        self._goal: SlotGoal | None = None
        self._news, self._over = threading.Condition(), False
        self._thread = threading.Thread(target=self._run, name="springtide-handover", daemon=True)
        self._thread.start()

    def follow(self, goal: SlotGoal) -> None:
        """Take the newest goal without blocking. Replies arrive through two threads, so they may arrive out of
        order.
        """
        with self._news:
            if self._goal is not None and overtaken(goal, self._goal):
                return
            self._role.learn(goal.placement, goal.addresses)
            if goal.leave and not self._role.leaves:
                self._role.take_no_more()
            if goal != self._goal:
                self._goal = goal
                self.hurried = goal.hurry and bool(goal.parcels)
                self._news.notify_all()

    @property
    def holding(self) -> SlotHoldings:
        """Return the newest roll call that arrived while no handover was running, the slots in doubt, and whether this
        server leaves."""
        return SlotHoldings(self._call, dict(self._role.in_doubt), self._role.leaves)

    def stop(self) -> None:
        with self._news:
            self._over = True
            self._news.notify_all()
        self._thread.join(STOP_S)

    def _run(self) -> None:
        goal: SlotGoal | None = None
        whole = True
        while not self._over:
            with self._news:
                if self._goal is goal and not self._over:
                    self._news.wait(None if whole else AGAIN_S)
                goal = self._goal
            if goal is None or self._over:
                continue
            try:
                self._heed_call(goal)
                whole = self._work_off(goal)
            except errors.SpringtideError as error:
                log.warning("slots stay for now: %s", error)
                whole = False
            with self._news:
                self.hurried = self.hurried and self._goal is not goal

    def _heed_call(self, goal: SlotGoal) -> None:
        """Answer a roll call. From this moment, the server hands over no slot, and refuses slots from servers that
        missed the roll call.
        """
        if goal.call > self._call:
            self._role.expect_anew()
            self._call = goal.call
            self._answer()

    def _work_off(self, goal: SlotGoal) -> bool:
        """Hand over all parcels, one after another. Return True if all are done. After each chunk, check for a newer
        goal."""
        if not goal.settled:
            return True
        chunk = CHUNK_SLOTS
        if goal.hurry and goal.parcels:
            chunk = HURRIED_SLOTS
            step_back()
        for parcel in (*self._settle_doubts(goal), *goal.parcels):
            for first in range(0, len(parcel.slots), chunk):
                if self._goal is not goal or self._over:
                    return False
                slots = parcel.slots[first : first + chunk]
                handed = self._role.hand_over(slots, parcel.server, parcel.address, hurry=goal.hurry)
                if handed.moved:
                    log.info("%s", handed)
                    self._tell(
                        SlotsMoved(handed.moved, parcel.server, handed.bytes, handed.seconds, handed.longest_freeze_s)
                    )
                if handed.why:
                    log.warning("some slots did not move yet: %s", handed.why)
                    return False
        return True

    def _settle_doubts(self, goal: SlotGoal) -> list[SlotParcel]:
        """Settle slots that were closed for a server that never answered. Return the handovers to retry.

        If another server owns one of these slots now, this server drops the slot. If the target has left permanently,
        this server serves the slot again.
        """
        ask: list[SlotParcel] = []
        for slot, server in dict(self._role.in_doubt).items():
            owner = goal.placement.server_of_slot[slot]
            address = goal.addresses[server] if server < len(goal.addresses) else ""
            if owner != self._role.index:
                self._role.release(slot)
            elif address:
                ask.append(SlotParcel(server, address, (slot,)))
            else:
                self._role.take_back(slot)
        return ask


def overtaken(goal: SlotGoal, known: SlotGoal) -> bool:
    """Pure. Return True if the goal is older than the known goal. Epochs and numbers of calls only increase. Call 0
    means no call."""
    return goal.placement.epoch < known.placement.epoch or 0 < goal.call < known.call


def step_back() -> None:
    """Set the native serving threads to the lowest priority until the process ends, so that the thread that hands over
    slots runs first.
    """
    ours = {thread.native_id for thread in threading.enumerate()}
    for task in pathlib.Path("/proc/self/task").iterdir():
        if int(task.name) not in ours:
            with contextlib.suppress(OSError):  # the thread may have ended already
                os.setpriority(os.PRIO_PROCESS, int(task.name), NICEST)
