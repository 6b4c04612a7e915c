"""Requests leases ahead of need, so that the loop does not wait for the master.

In: the link, which puts new leases into worker/link/lease_tracker.py. Out: the master's last answer, for
batch_plan.py. Requests run in a separate thread, because the master holds a request while it has no lease to grant.
"""

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from springtide.domain.data.samples import DatasetCard
from springtide.rpc.messages import messages
from springtide.worker.link.clients import LeaseAnswer, LeaseClient
from springtide.worker.link.lease_tracker import LeaseTracker

Ask = Callable[[DatasetCard, int], LeaseAnswer]
PATIENCE_S = 0.02  # seconds to wait for an answer; after that, the reader continues with the leases that it holds
# seconds of work to hold at the recent pace: more than ten seconds, the time that a master may need to restart
LEAD_S = 12.0
LOOK_S = 0.1  # seconds between two checks of how much work is held
PACE_S = 10.0  # length in seconds of the window over which the pace is measured
MOST = 16  # most leases to request at a time
# most leases to hold; if a shard had only one or two batches, LEAD_S seconds of work would be thousands of leases
MOST_HELD = 64


class DirectLeases:
    """Source that requests a lease when it is needed, in a bsp group or without a cluster."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    def more(self, card: DatasetCard) -> LeaseAnswer:
        return self._ask(card, 1)

    def keep_up(self, card: DatasetCard, samples: int) -> None:
        """Request leases ahead of need, after the loop has claimed `samples`."""

    def close(self) -> None:
        """Tell the thread to end, without waiting for the end."""


def open_leases(client: LeaseClient, *, direct: bool) -> DirectLeases:
    return DirectLeases(client.lease) if direct else PrefetchedLeases(client.lease, client.tracker)


class PrefetchedLeases(DirectLeases):
    """Source that keeps at most one request in flight and holds `LEAD_S` seconds of work."""

    def __init__(
        self,
        ask: Ask,
        tracker: LeaseTracker,
        *,
        patience_s: float = PATIENCE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(ask)
        self._tracker, self._patience_s, self._clock = tracker, patience_s, clock
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="springtide-leases")
        self._asked: Future[LeaseAnswer] | None = None
        self._was_busy = False
        """Whether this worker had untrained leases when it sent the last request."""
        self._over = False
        """Whether the last answer was DataEnd, so that this worker gets no further leases in this pass."""
        self._looks: deque[tuple[float, int]] = deque()
        self._samples = 0

    def more(self, card: DatasetCard) -> LeaseAnswer:
        """Return the master's answer, or WaitReply if it has not arrived yet. The request stays open, so call again.

        A DataEnd counts only if this worker had trained all its leases when it sent the request. Otherwise, the
        master may have given a part of this worker's leases to other workers.
        """
        if self._asked is None:
            self._submit(card, 1 if len(self._looks) > 1 else 2)
        try:
            answer = self._answered(self._patience_s)
        except TimeoutError:
            return messages.WaitReply()
        return messages.WaitReply() if isinstance(answer, messages.DataEnd) and self._was_busy else answer

    def keep_up(self, card: DatasetCard, samples: int) -> None:
        self._samples += samples
        now = self._clock()
        if self._looks and now < self._looks[-1][0] + LOOK_S:
            return
        self._looks.append((now, self._samples))
        while now - self._looks[0][0] > PACE_S and len(self._looks) > 2:
            self._looks.popleft()
        if self._asked is not None and self._asked.done():
            self._answered(0)
        short = max(self._short(card), int(self._tracker.hurry))
        if self._asked is None and not self._over and short > 0:
            self._tracker.hurry = False
            self._submit(card, min(MOST, short))

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _submit(self, card: DatasetCard, most: int) -> None:
        self._was_busy = self._tracker.is_busy
        self._asked = self._thread.submit(self._ask, card, most)

    def _answered(self, patience_s: float) -> LeaseAnswer:
        assert self._asked is not None
        answer = self._asked.result(timeout=patience_s)
        self._asked = None
        self._over = isinstance(answer, messages.DataEnd)
        return answer

    def _short(self, card: DatasetCard) -> int:
        (began, before), (now, samples) = self._looks[0], self._looks[-1]
        pace = (samples - before) / (now - began) if now > began else 0.0
        missing = max(pace * LEAD_S, card.batch_size) - self._tracker.unclaimed
        return min(-(-int(missing) // card.shard_size), MOST_HELD - len(self._tracker))
