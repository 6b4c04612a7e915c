"""A worker's shuffle unit: a queue without peers; with peers it sends and receives without loss."""

import threading

import pytest

from springtide import errors
from springtide.domain.data.leases import Grant
from springtide.domain.data.samples import DatasetCard
from springtide.worker.link.lease_tracker import BatchClaim, LeaseTracker
from springtide.worker.online.shuffle_unit import RecordRun, ShuffleUnit

CARD = DatasetCard(samples=1, batch_size=10)


class Bytes:
    def __init__(self, size=100):
        self.nbytes = size

    def to_bytes(self):
        return bytes(self.nbytes)


class RecordingPeers:
    def __init__(self):
        self.said, self.sent_bytes = [], 0

    def send(self, peer, run):
        self.said.append(("send", peer, run.claim))
        self.sent_bytes += run.records.nbytes

    def done(self, peer, claims):
        self.said += [("done", peer, claim) for claim in claims]

    def back(self, peer, claims):
        self.said += [("back", peer, claim) for claim in claims]

    def announce(self, ready):
        self.said.append(("tell", ready))


def holding(partitions=1, era=0):
    tracker = LeaseTracker()
    tracker.begin_pass(CARD)
    tracker.add_grants(CARD, [Grant(p, 0, p, 0, 2**40) for p in range(partitions)], era)
    return tracker


def run(tracker, size=100):
    """The next batch of the first lease that has one."""
    _, claim = tracker.claim(10)
    return RecordRun(claim, claim.shard, Bytes(size))


def shuffling(tracker, strategy="advanced", queue=(1, 2), now=None):
    unit, wires = ShuffleUnit(tracker, strategy=strategy, queue=queue, clock=(now or (lambda: 0.0))), RecordingPeers()
    unit.connect(wires)
    return unit, wires


def test_shuffle_unit_without_peers_is_a_bounded_queue():
    tracker = holding()
    unit = ShuffleUnit(tracker, queue=(1, 2))
    runs = [run(tracker) for _ in range(3)]
    assert unit.room == 2 and unit.take(0) is None
    for each in runs:
        unit.offer(each)
    assert unit.room == 0 and not unit.await_room(0)
    assert [unit.take(0) for _ in range(3)] == runs
    assert unit.room == 2 and not unit.idle
    unit.trained([each.claim for each in runs])
    assert unit.idle and tracker.report().progress[0].offset == 30


def test_waiting_loop_gets_an_offered_batch():
    tracker, came = holding(), []
    unit = ShuffleUnit(tracker)
    loop = threading.Thread(target=lambda: came.append(unit.take(30)))
    loop.start()
    one = run(tracker)
    unit.offer(one)
    loop.join()
    assert came == [one]


def test_waiting_loop_returns_when_the_shuffle_unit_closes():
    unit, came = ShuffleUnit(holding()), []
    loop = threading.Thread(target=lambda: came.append(unit.take(30)))
    loop.start()
    unit.close()
    loop.join()
    assert came == [None]


def test_batch_with_a_revoked_lease_is_skipped():
    tracker = holding(2)
    unit = ShuffleUnit(tracker)
    unit.offer(run(tracker))
    tracker.apply_changes([(0, 0)], [])
    later = run(tracker)
    unit.offer(later)
    assert later.claim.shard == 1 and unit.take(0) == later


def test_overflow_batch_goes_to_a_peer_and_counts_once_trained_there():
    tracker = holding()
    unit, wires = shuffling(tracker)
    unit.peer_ready("worker-1.0", True)
    runs = [run(tracker) for _ in range(3)]
    for each in runs:
        unit.offer(each)
    assert wires.said == [("tell", False), ("send", "worker-1.0", runs[2].claim)]
    assert unit.use.forwarded == 1 and unit.use.forwarded_bytes == 100
    unit.peer_done("worker-1.0", {runs[2].claim: 4})
    assert tracker.report().progress[0].offset == 0  # the first two are not trained yet
    assert [unit.take(0), unit.take(0)] == runs[:2]
    unit.trained([each.claim for each in runs[:2]])
    assert tracker.report().progress[0].offset == 30 and unit.idle
    assert tracker.report().progress[0].void == 4


def test_peer_reports_for_batches_it_never_got_are_ignored():
    tracker = holding()
    unit, _ = shuffling(tracker)
    unit.peer_ready("worker-1.0", True)
    unit.offer(run(tracker))
    unit.peer_done("worker-1.0", {BatchClaim(0, 0, 0, 2**39): 0, BatchClaim(7, 0, 0, 10): 9})
    assert tracker.report().progress[0].offset == 0 and unit.use.queue == 1


def test_batches_of_a_lost_peer_are_trained_here_first():
    tracker = holding()
    unit, _ = shuffling(tracker)
    unit.peer_ready("worker-1.0", True)
    runs = [run(tracker) for _ in range(3)]
    for each in runs:
        unit.offer(each)
    unit.peer_lost("worker-1.0")
    assert [unit.take(0) for _ in range(3)] == [runs[2], *runs[:2]] and unit.use.came_home == 1


def test_batch_of_a_peer_is_trained_and_acknowledged_to_its_owner():
    unit, wires = shuffling(LeaseTracker())
    claim = BatchClaim(7, 0, 20, 30)
    unit.peer_sent("worker-1.0", RecordRun(claim, 7, Bytes(), "worker-1.0"))
    taken = unit.take(0)
    assert taken.claim == claim and taken.owner == "worker-1.0"
    unit.trained([claim])
    assert wires.said == [("done", "worker-1.0", claim)] and unit.idle and unit.use.received == 1


def test_batch_of_a_future_era_waits_and_one_of_a_past_era_is_dropped():
    tracker = holding(era=1)
    unit, _ = shuffling(tracker)
    unit.peer_sent("worker-1.0", RecordRun(BatchClaim(7, 0, 0, 10, 0), 7, Bytes(), "worker-1.0"))
    unit.peer_sent("worker-1.0", RecordRun(BatchClaim(7, 0, 10, 20, 2), 7, Bytes(), "worker-1.0"))
    assert unit.take(0) is None
    tracker.apply_changes([], [], era=2)
    assert unit.take(0).claim.begin == 10


def test_draining_worker_returns_batches_of_peers():
    tracker = holding()
    unit, wires = shuffling(tracker)
    own, claim = run(tracker), BatchClaim(7, 0, 0, 10)
    unit.offer(own)
    unit.peer_sent("worker-1.0", RecordRun(claim, 7, Bytes(), "worker-1.0"))
    assert unit.drain(0)
    assert wires.said == [("tell", False), ("back", "worker-1.0", claim)]
    unit.peer_sent("worker-1.0", RecordRun(claim, 7, Bytes(), "worker-1.0"))
    assert wires.said[-1] == ("back", "worker-1.0", claim)


def test_drain_reports_an_unanswered_peer():
    tracker = holding()
    unit, _ = shuffling(tracker)
    unit.peer_ready("worker-1.0", True)
    for _ in range(3):
        unit.offer(run(tracker))
    assert not unit.drain(0)


def test_batch_too_large_to_send_stays_local():
    tracker = holding()
    unit, wires = shuffling(tracker)
    unit.peer_ready("worker-1.0", True)
    for _ in range(3):
        unit.offer(run(tracker, size=65 * 2**20))
    assert unit.use.queue == 3 and wires.said == [("tell", False)]


def test_taken_but_untrained_batch_goes_back_to_its_owner():
    unit, wires = shuffling(LeaseTracker())
    claim = BatchClaim(7, 0, 20, 30)
    unit.peer_sent("worker-1.0", RecordRun(claim, 7, Bytes(), "worker-1.0"))
    unit.drop(unit.take(0))
    assert wires.said == [("back", "worker-1.0", claim)] and unit.idle


def test_unknown_shuffle_strategy_is_named():
    with pytest.raises(errors.UnknownName, match="Did you mean 'advanced'"):
        ShuffleUnit(LeaseTracker(), strategy="advancd")
