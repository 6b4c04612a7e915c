"""Measures how a worker uses a stream, for its reports: records, dead letters, positions, lag. Thread-safe.

The lag of a record is the time from its append until every server has it. The clocks of two machines measure these
times. If a clock jumps, only the lag is wrong.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from springtide.data.stream.records import Records
from springtide.domain.data.leases import LeaseKey
from springtide.domain.data.streams import PartitionView, StepSums, StreamUse
from springtide.worker.link.lease_tracker import BatchClaim, LeaseTail

KEPT_LAGS = 4096  # number of records from which the quantiles are computed
OF_A_BATCH = 16  # number of records to sample from each batch
NO_TIMES: NDArray[np.float64] = np.empty(0)


class LoopTime:
    """Times for which the loop waited and worked, and times of its steps."""

    def __init__(self, counter: Callable[[], float]) -> None:
        self._counter = counter
        self.waited_s = self.busy_s = 0.0
        self.steps = StepSums()
        self._since, self._idle = counter(), True
        self._step = (0, 0.0)
        """Number of records of the current step, and its start time."""

    def switch(self, idle: bool, records: int) -> None:
        now = self.count()
        size, began = self._step
        if size:
            self.steps = self.steps.and_one(size, now - began)
        self._step = (records, now)
        self._idle = idle

    def count(self) -> float:
        now = self._counter()
        if self._idle:
            self.waited_s += now - self._since
        else:
            self.busy_s += now - self._since
        self._since = now
        return now


class StreamMeter:
    """Totals since the start of this worker."""

    def __init__(
        self, clock: Callable[[], float] = time.time, counter: Callable[[], float] = time.perf_counter
    ) -> None:
        self._lock = threading.Lock()
        self._clock = clock
        self._time = LoopTime(counter)
        self._records = 0
        self._under_way: dict[BatchClaim, tuple[int, NDArray[np.float64]]] = {}
        """Batches in training: number of records, and append times of some of them."""
        self._lags: deque[float] = deque(maxlen=KEPT_LAGS)
        self._claimed: dict[LeaseKey, deque[tuple[int, float]]] = {}
        """Claimed batches, perhaps untrained, by lease: end of the batch, append time of its first record."""
        self.read_bytes = self._expired = 0
        self._refused = {"late": 0, "corrupt": 0, "oversized": 0}
        self.unkept, self._unkept_why = 0, ""
        """Number of dead letters that could not be stored, and the reason."""
        self._oldest: Mapping[int, float] = {}
        self._ends: dict[int, int] = {}

    def read(self, records: Records, expired: int) -> None:
        with self._lock:
            self.read_bytes += records.nbytes
            self._expired += expired

    def claimed(self, claim: BatchClaim, records: Records) -> None:
        """Record that a batch of a partition was claimed for the loop of this worker or of a peer."""
        with self._lock:
            batches = self._claimed.setdefault(LeaseKey(claim.shard, claim.first), deque())
            batches.append((claim.end, float(records.appended_at[0])))

    def refused(self, why: str, count: int = 1) -> None:
        with self._lock:
            self._refused[why] += count

    def not_kept(self, letters: int, why: str) -> None:
        with self._lock:
            self.unkept, self._unkept_why = letters, why

    def handed(self, claim: BatchClaim, records: Records, count: int) -> None:
        every = max(1, len(records) // OF_A_BATCH)
        with self._lock:
            self._under_way[claim] = (count, np.array(records.appended_at[::every]))

    def trained(self, claims: Iterable[BatchClaim]) -> None:
        now = self._clock()
        with self._lock:
            for claim in claims:
                count, appended_at = self._under_way.pop(claim, (0, NO_TIMES))
                self._records += count
                self._lags.extend(np.maximum(0.0, now - appended_at).tolist())

    def forget(self, claims: Iterable[BatchClaim]) -> None:
        with self._lock:
            for claim in claims:
                self._under_way.pop(claim, None)

    def record_position(self, oldest: Mapping[int, float], ends: Mapping[int, int]) -> None:
        """Record what was read: the append times of the oldest unclaimed records, and the ends of partitions."""
        with self._lock:
            self._oldest = oldest
            self._ends |= ends  # if no worker reads a partition, the partition keeps its last known end

    def waits(self, idle: bool, records: int = 0) -> None:
        """Record that the loop is idle, or begins a batch of `records` records. The previous batch is then done."""
        with self._lock:
            self._time.switch(idle, records)

    def report(self, tails: Iterable[LeaseTail]) -> StreamUse:
        """Return all totals except those of the shuffle unit. `tails` has this worker's partitions."""
        with self._lock:
            self._time.count()
            p50, p99 = np.quantile(np.array(self._lags or [0.0]), (0.5, 0.99)).tolist()
            ours = {LeaseKey(tail.grant.shard, tail.grant.first): tail for tail in tails}
            self._claimed = {key: batches for key, batches in self._claimed.items() if key in ours}
            views = [
                PartitionView(tail.grant.nth, tail.offset, end, self._oldest_of(key, tail))
                for key, tail in ours.items()
                if (end := self._end_of(tail)) is not None
            ]
            return StreamUse(
                partitions=tuple(sorted(views)),
                records=self._records,
                expired=self._expired,
                waited_s=self._time.waited_s,
                busy_s=self._time.busy_s,
                steps=self._time.steps,
                lag_p50_s=p50,
                lag_p99_s=p99,
                unkept=self.unkept,
                unkept_why=self._unkept_why,
                **self._refused,
            )

    def _oldest_of(self, key: LeaseKey, tail: LeaseTail) -> float:
        batches = self._claimed.get(key, deque())
        while batches and batches[0][0] <= tail.offset:
            batches.popleft()
        return batches[0][1] if batches else self._oldest.get(tail.grant.nth, 0.0)

    def _end_of(self, tail: LeaseTail) -> int | None:
        """Return the end offset of a partition; None as long as the lag is unknown. A guessed end would look like a
        sudden burst of records.
        """
        end = self._ends.get(tail.grant.nth)
        return None if end is None else max(tail.offset, tail.begin, min(tail.end, end))
