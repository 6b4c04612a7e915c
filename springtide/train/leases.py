"""Ask for the next shard before this one is through, so that a loop does not wait for the master between two shards.

In: the link. Out: leases for orders.py. The request runs in a thread of its own, since the master holds it for a while
when there is nothing to hand out.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

from springtide.domain.leases import Grant
from springtide.domain.samples import DatasetCard
from springtide.rpc import messages

Answer = Grant | messages.Wait | messages.End
PATIENCE_S = 0.02  # how long a reader waits for an answer before it turns to what it has in hand


class Leases(Protocol):
    """Where orders come from."""

    def take(self, card: DatasetCard) -> Answer:
        """A shard, or why there is none."""
        ...

    def ask_ahead(self, card: DatasetCard) -> None:
        """The shard in hand is nearly through."""
        ...

    def close(self) -> None:
        """No more are wanted."""
        ...


class Direct:
    """Asks when a shard is wanted: alone the answer is here at once."""

    def __init__(self, lease: Callable[[DatasetCard], Answer]) -> None:
        self.take = lease

    def ask_ahead(self, card: DatasetCard) -> None:
        """Not needed."""

    def close(self) -> None:
        """Nothing is open."""


class Ahead:
    """Keeps one request under way at most."""

    def __init__(self, lease: Callable[[DatasetCard], Answer], *, patience_s: float = PATIENCE_S) -> None:
        self._lease = lease
        self._patience_s = patience_s
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="springtide-leases")
        self._asked: Future[Answer] | None = None

    def ask_ahead(self, card: DatasetCard) -> None:
        """Ask now, so that the answer is here when it is wanted."""
        if self._asked is None:
            self._asked = self._thread.submit(self._lease, card)

    def take(self, card: DatasetCard) -> Answer:
        """The answer, or Wait when it is not here yet; then ask again, the request goes on."""
        self.ask_ahead(card)
        assert self._asked is not None
        try:
            answer = self._asked.result(timeout=self._patience_s)
        except TimeoutError:
            return messages.Wait()
        self._asked = None
        return answer

    def close(self) -> None:
        """Let the thread end by itself."""
        self._thread.shutdown(wait=False, cancel_futures=True)
