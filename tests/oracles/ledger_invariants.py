"""Invariants of a job's ledger, which hold after each call."""

import itertools

from springtide.data.ledger.async_ledger import AsyncLedger, PendingQueue, SharedLedger
from springtide.data.ledger.bsp_ledger import BspLedger, BspStreamLedger
from springtide.data.ledger.job_ledger import JobLedger
from springtide.data.ledger.stream_ledger import StreamLedger, join_spans, untrained_spans
from springtide.domain.data.streams import FAR


def check(book: JobLedger) -> None:
    for ledger in book.passes:
        if isinstance(ledger, AsyncLedger):
            _check_async(ledger)
        elif isinstance(ledger, StreamLedger):
            _check_stream(ledger)
        else:
            _check_bsp(ledger)
    for shared in book.shared():
        _check_leases(shared)
        for lease in shared.leases.values():
            rank, incarnation = lease.holder
            assert book.holders.living[rank] == incarnation, f"{lease.holder} holds a lease, but is not the living one"
            assert incarnation > book.holders.fenced.get(rank, -1), f"{lease.holder} is fenced and holds a lease"


def _check_leases(ledger: SharedLedger) -> None:
    for key, lease in ledger.leases.items():
        assert key == (ledger.base + lease.running, lease.first), "a lease has the wrong key"
        assert lease.first <= lease.offset < lease.end, "a lease with nothing left to do is kept"
        assert ledger.held[lease.holder.rank][key] is lease, "a lease is not listed under its holder"
    assert sum(len(mine) for mine in ledger.held.values()) == len(ledger.leases), "a rank lists an unknown lease"


def _check_async(ledger: AsyncLedger) -> None:
    todo, spans = ledger.todo, dict[int, list[tuple[int, int]]]()
    for running, first, end in (*todo.returned, *todo.failed):
        spans.setdefault(running, []).append((first, end))
    for lease in ledger.leases.values():
        spans.setdefault(lease.running, []).append((lease.offset, lease.end))
    for poisoned in ledger.poisoned:
        spans.setdefault(poisoned.shard - ledger.base, []).append((poisoned.first, poisoned.end))
    if todo.cut:
        spans.setdefault(todo.running, []).append((todo.cut, todo.size_of(todo.running)))
    for running, parts in spans.items():
        parts.sort()
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(parts)), "samples are listed twice"
        assert sum(end - first for first, end in parts) == ledger.left[running], "samples are lost"
    assert spans.keys() == ledger.left.keys(), "a begun shard is neither done nor listed"
    assert ledger.done + len(ledger.left) == todo.running + bool(todo.cut), "shards are lost"
    waiting = PendingQueue(ledger.card, todo.running, todo.cut, todo.returned, todo.failed, todo.length).samples
    assert todo.samples == waiting, "the queue's count is wrong"
    elsewhere = sum(part.end - part.offset for part in ledger.leases.values())
    elsewhere += sum(part.end - part.first for part in ledger.poisoned)
    assert ledger.samples_done + waiting + elsewhere == ledger.length, "samples are miscounted"


def _check_stream(ledger: StreamLedger) -> None:
    left = 0
    for number, partition in ledger.partitions.items():
        spans = sorted(untrained_spans(ledger.leases.values(), ledger.poisoned, ledger.base, number, partition))
        assert all(first < end for first, end in spans), "a part is empty"
        joined = sum(end - first for first, end in join_spans(spans))
        assert joined == sum(end - first for first, end in spans), "offsets are listed twice"
        assert all(partition.start <= first and end <= partition.end for first, end in spans), "beyond the end"
        assert partition.final or spans[-1].end == FAR, "coming offsets are not listed"
        assert partition.waiting == join_spans(partition.waiting), "the queue is not in order"
        assert partition.cuts == sorted(set(partition.cuts)), "cuts are not in order"
        assert (number in ledger.waiting) == bool(partition.waiting), "`waiting` misses a partition"
        left += partition.end - partition.start - joined
    assert left == ledger.samples_done, "offsets are miscounted"
    assert 0 <= ledger.void <= ledger.samples_done, "more offsets held nothing to train than are done"


def _check_bsp(ledger: BspLedger) -> None:
    for done, leased in zip(ledger.done_by, ledger.leased_to, strict=True):
        assert 0 <= done <= leased <= ledger.total, "a rank has done what it was not given"
    if not isinstance(ledger, BspStreamLedger):
        return
    plan = ledger.stream
    assert all(plan.starts[partition] <= place for partition, place in plan.places.items()), "before its beginning"
    assert all(plan.places[partition] <= end for partition, end in plan.ends.items()), "beyond its end"
    for running in range(min(ledger.done_by), ledger.total):
        assert running in plan.stretches, "a range is lost"
    ends = dict(plan.places)
    for _, (partition, first, end) in sorted(plan.stretches.items(), reverse=True):
        assert ends[partition] == end and first < end, "ranges of a partition do not join"
        ends[partition] = first
