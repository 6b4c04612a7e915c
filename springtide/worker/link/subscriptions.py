"""Pass the master's news to subscribers: server addresses, slot placement, data workers, shuffle peers.

In: heartbeat replies and lease replies. Out: calls to the client of the tables and to the reader of batches, and the
epochs that the next heartbeat acknowledges. A server leaves only after every worker uses a placement without it.
"""

import logging
import threading
from collections.abc import Callable

import msgspec

from springtide import errors
from springtide.domain.core.roles import Placement
from springtide.rpc.messages import messages
from springtide.rpc.messages.messages import Feeders, ServerAddresses, Shufflers, SlotGoal, WorkerWelcome

log = logging.getLogger(__name__)

Follow = Callable[[Placement, tuple[str, ...]], None]


class SlotsFollower:
    """Subscriber to slot placements with its own thread: connecting to a server must not delay heartbeats."""

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
            if self._call is None:  # the tables do not exist yet, and will use the newest placement
                self.epoch = max(self.epoch, goal.placement.epoch)
            elif not self._busy and self.epoch < self.newest.placement.epoch:
                self._busy = True
                threading.Thread(target=self._catch_up, name="springtide-slots", daemon=True).start()

    def follow(self, call: Follow) -> None:
        """Call `call` now with the known placement, if any, and with every new placement."""
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
                return  # the next heartbeat reply retries
            self.epoch = goal.placement.epoch


class FeedersFollower:
    """Subscriber to the list of data workers. Calls run in the link's thread and must not block."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._call: Callable[[Feeders], None] = lambda _: None
        self._newest: Feeders | None = None

    @property
    def epoch(self) -> int:
        return 0 if self._newest is None else self._newest.epoch

    def take(self, news: Feeders) -> None:
        with self._lock:
            self._newest = news
            self._call(news)

    def follow(self, call: Callable[[Feeders], None]) -> None:
        """Call `call` now with the known list of data workers, and with every new list."""
        with self._lock:
            self._call = call
            if self._newest is not None:
                call(self._newest)


class ShufflersFollower:
    """Subscriber to the addresses of workers that exchange stream batches. Calls run in the link's thread."""

    def __init__(self) -> None:
        self._call: Callable[[Shufflers], None] = lambda _: None
        self.own_address = ""
        """Address where this worker accepts batches of other workers; empty if it accepts none."""
        self.digest = 0
        """Digest of the newest list; 0 without a list."""

    def take(self, news: Shufflers) -> None:
        self.digest = news.digest
        self._call(news)

    def follow(self, own_address: str, call: Callable[[Shufflers], None]) -> None:
        self.own_address, self._call = own_address, call


class Subscriptions:
    """All subscriptions of a worker."""

    def __init__(self) -> None:
        self.slots, self.feeders, self.shufflers = SlotsFollower(), FeedersFollower(), ShufflersFollower()
        self._servers: ServerAddresses | None = None
        self._follow_servers: Callable[[ServerAddresses], None] = lambda _: None

    def follow_servers(self, call: Callable[[ServerAddresses], None]) -> None:
        """Call `call` now with the known server addresses, if any, and later, in the link's thread, after every restart
        of a server."""
        self._follow_servers = call
        if self._servers is not None:
            call(self._servers)

    def take_servers(self, servers: ServerAddresses | None) -> None:
        """Switch to restarted servers before the worker uses a lease of their new era.

        If it switched later, an old incarnation of a server that still runs could acknowledge a push that counts for
        the new incarnation.
        """
        if servers is not None and servers != self._servers:
            self._servers = servers
            self._follow_servers(servers)

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
        return welcome if self._servers is None else with_current_servers(welcome, self._servers)


def with_current_servers(welcome: WorkerWelcome, servers: ServerAddresses) -> WorkerWelcome:
    count = max(len(welcome.servers), len(servers.addresses))
    places = [*zip(welcome.servers, (*welcome.lives, *[0] * count), strict=False), *[("", 0)] * count][:count]
    for rank, (address, life) in enumerate(zip(servers.addresses, servers.lives, strict=False)):
        if address and life >= places[rank][1]:
            places[rank] = (address, life)
    addresses, lives = zip(*places, strict=True) if places else ((), ())
    return msgspec.structs.replace(welcome, servers=addresses, lives=lives)
