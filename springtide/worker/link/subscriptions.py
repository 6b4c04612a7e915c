"""Where slots are, who feeds and who shuffles, as the master tells it: from pulses to those who go by it.

In: what `worker.link.master_link`'s pulses say. Out: calls of whoever routes requests
(`embedding.lookup.table_client`), off the heartbeat's thread, or is fed (`worker.input.feed_switch`); and the epochs
that the next heartbeat acknowledges: a server leaves only once every worker goes by a placement without it.
"""

import logging
import threading
from collections.abc import Callable

from springtide import errors
from springtide.domain.core.roles import Placement
from springtide.rpc.messages.messages import Feeders, Shufflers, SlotGoal

log = logging.getLogger(__name__)

Follow = Callable[[Placement, tuple[str, ...]], None]


class SlotsFollower:
    """Connecting to a new server may take a moment, so it is never done where heartbeats are sent."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._call: Follow | None = None
        self._busy = False
        self.newest: SlotGoal | None = None
        self.epoch = 0
        """Of the newest placement that requests go by."""

    def begin(self, epoch: int) -> None:
        """The placement that came with the welcome."""
        self.epoch = max(self.epoch, epoch)

    def take(self, goal: SlotGoal) -> None:
        """News from the master; never waits."""
        with self._lock:
            if self.newest is None or goal.placement.epoch > self.newest.placement.epoch:
                self.newest = goal
            if self._call is None:  # no tables yet: they will be connected by the newest
                self.epoch = max(self.epoch, goal.placement.epoch)
            elif not self._busy and self.epoch < self.newest.placement.epoch:
                self._busy = True
                threading.Thread(target=self._catch_up, name="springtide-slots", daemon=True).start()

    def follow(self, call: Follow) -> None:
        """From now on tell this one; at once what is known already."""
        with self._lock:
            self._call = call
            newest = self.newest
        if newest is not None:
            call(newest.placement, newest.addresses)

    def _catch_up(self) -> None:
        while True:
            with self._lock:
                goal, call = self.newest, self._call
                if goal is None or call is None or goal.placement.epoch <= self.epoch:
                    self._busy = False
                    return
            try:
                call(goal.placement, goal.addresses)
            except errors.SpringtideError as error:
                log.warning("placement %d is not followed yet: %s", goal.placement.epoch, error)
                with self._lock:
                    self._busy = False
                return  # the next pulse tries again
            self.epoch = goal.placement.epoch


class FeedersFollower:
    """The newest word on who feeds, for one who wants to know."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._call: Callable[[Feeders], None] = lambda _: None
        self._newest: Feeders | None = None

    @property
    def epoch(self) -> int:
        """Of the roster that is known; 0: none."""
        return 0 if self._newest is None else self._newest.epoch

    def take(self, news: Feeders) -> None:
        """News from the master."""
        with self._lock:
            self._newest = news
            self._call(news)

    def follow(self, call: Callable[[Feeders], None]) -> None:
        """From now on tell this one; at once what is known already."""
        with self._lock:
            self._call = call
            if self._newest is not None:
                call(self._newest)


class ShufflersFollower:
    """The newest word on where workers take batches from each other."""

    def __init__(self, call: Callable[[Shufflers], None]) -> None:
        self._call = call
        self.digest = 0
        """Of the list that is known; 0: none."""

    def take(self, news: Shufflers) -> None:
        """News from the master."""
        self.digest = news.digest
        self._call(news)
