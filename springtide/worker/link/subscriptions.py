"""Passes the master's news to subscribers: server addresses, slot placement, data workers, shuffle peers.

In: heartbeat replies and lease replies. Out: calls to the client of the tables and to the reader of batches, and the
epochs that the next heartbeat acknowledges. A server leaves only after every worker uses a placement without it.
"""

import logging
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec

from springtide import errors
from springtide.domain.core.roles import Placement
from springtide.rpc.messages import messages
from springtide.rpc.messages.coordination import Shufflers
from springtide.rpc.messages.data_workers import Feeders
from springtide.rpc.messages.messages import WorkerWelcome
from springtide.rpc.messages.types import ServerAddresses, SlotGoal

log = logging.getLogger(__name__)

Follow = Callable[[Placement, tuple[str, ...]], None]
News = TypeVar("News")


class SlotsFollower:
    """Subscriber to slot placements. The subscriber runs in its own thread, because connecting to a server must not
    delay heartbeats.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._call: Follow | None = None
        self._busy = False
        self.newest: SlotGoal | None = None
        self.epoch = 0
        """Epoch of the newest placement that requests use."""

    def begin(self, epoch: int) -> None:
        self.epoch = max(self.epoch, epoch)

    def take(self, goal: SlotGoal) -> None:
        with self._lock:
            if self.newest is None or goal.placement.epoch > self.newest.placement.epoch:
                self.newest = goal
            if self._call is None:  # the tables do not exist yet; they will start with the newest placement
                self.epoch = max(self.epoch, goal.placement.epoch)
            elif not self._busy and self.epoch < self.newest.placement.epoch:
                self._busy = True
                threading.Thread(target=self._catch_up, name="springtide-slots", daemon=True).start()

    def follow(self, call: Follow) -> None:
        """Pass every new placement to `call`, and the known placement now, if any."""
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
                return  # try again with the next heartbeat reply
            self.epoch = goal.placement.epoch


class Topic(Generic[News]):
    """The newest news of one kind, for one subscriber. The subscriber's calls must not block the link's thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._call: Callable[[News], None] = lambda _: None
        self.newest: News | None = None

    def take(self, news: News) -> None:
        with self._lock:
            self.newest = news
            self._call(news)

    def follow(self, call: Callable[[News], None]) -> None:
        """Pass all future news to `call`, and the newest news now, if any."""
        with self._lock:
            self._call = call
            if self.newest is not None:
                call(self.newest)


class Subscriptions:
    """All subscriptions of a worker."""

    def __init__(self) -> None:
        self.slots = SlotsFollower()
        self.servers, self.feeders, self.shufflers = Topic[ServerAddresses](), Topic[Feeders](), Topic[Shufflers]()
        self.shuffle_address = ""
        """Address where this worker accepts batches of other workers; empty if it accepts none."""

    def take_servers(self, servers: ServerAddresses | None) -> None:
        """Switch to the restarted servers, before the worker uses a lease of the new era.

        If the worker acknowledged an epoch before it switched, an old incarnation of a server could acknowledge a push
        that counts for the new incarnation.
        """
        if servers is not None and servers != self.servers.newest:
            self.servers.take(servers)

    def on_reply(self, reply: messages.HeartbeatReply) -> None:
        self.take_servers(reply.servers)
        if reply.goal is not None:
            self.slots.take(reply.goal)
        if reply.feeders is not None:
            self.feeders.take(reply.feeders)
        if reply.shufflers is not None:
            self.shufflers.take(reply.shufflers)

    def updated(self, welcome: WorkerWelcome) -> WorkerWelcome:
        if (goal := self.slots.newest) is not None:
            welcome = msgspec.structs.replace(welcome, placement=goal.placement, servers=goal.addresses)
        return welcome if self.servers.newest is None else with_current_servers(welcome, self.servers.newest)


def with_current_servers(welcome: WorkerWelcome, servers: ServerAddresses) -> WorkerWelcome:
    count = max(len(welcome.servers), len(servers.addresses))
    places = [*zip(welcome.servers, (*welcome.lives, *[0] * count), strict=False), *[("", 0)] * count][:count]
    for rank, (address, life) in enumerate(zip(servers.addresses, servers.lives, strict=False)):
        if address and life >= places[rank][1]:
            places[rank] = (address, life)
    addresses, lives = zip(*places, strict=True) if places else ((), ())
    return msgspec.structs.replace(welcome, servers=addresses, lives=lives)
