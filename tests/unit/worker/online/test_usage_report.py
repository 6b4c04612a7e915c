import numpy as np

from springtide.domain.data.leases import Grant
from springtide.domain.data.streams import FAR, PartitionView, StepSums
from springtide.worker.link.lease_tracker import BatchClaim, LeaseTail
from springtide.worker.online.usage_report import StreamMeter
from tests.unit.data.stream.made_records import records_of


def records(first, count, at):
    return records_of([b"x"] * count, first=first, appended_at=at)


def test_lag_runs_from_append_to_training_and_is_never_negative():
    now = [100.0]
    use = StreamMeter(clock=lambda: now[0])
    one, two = BatchClaim(0, 0, 0, 4), BatchClaim(1, 0, 0, 4)
    use.handed(one, records(0, 4, [90.0, 92.0, 94.0, 96.0]), 4)
    use.handed(two, records(0, 4, 500.0), 4)  # appended by a clock that is ahead
    use.trained([one])
    found = use.report([])
    assert (found.records, found.lag_p50_s) == (4, 7.0) and 9.9 < found.lag_p99_s <= 10.0
    use.trained([two, BatchClaim(7, 0, 0, 4)])
    found = use.report([])
    assert found.records == 8 and found.lag_p50_s >= 0.0


def test_partition_age_is_that_of_its_first_untrained_record():
    use = StreamMeter()
    grant = Grant(3, 0, 3, 0, FAR)
    assert use.report([LeaseTail(grant, 0, FAR, 0)]).partitions == (), "nobody has looked yet where it ends"
    use.record_position({3: 50.0}, {3: 40})
    assert use.report([LeaseTail(grant, 0, FAR, 0)]).partitions == (PartitionView(3, 0, 40, 50.0),)
    use.claimed(BatchClaim(3, 0, 0, 8), records(0, 8, 50.0))
    use.claimed(BatchClaim(3, 0, 8, 16), records(8, 8, 60.0))
    use.record_position({3: 70.0}, {3: 40})
    assert use.report([LeaseTail(grant, 16, FAR, 0)]).partitions == (PartitionView(3, 0, 40, 50.0),)
    assert use.report([LeaseTail(grant, 16, FAR, 8)]).partitions == (PartitionView(3, 8, 40, 60.0),)
    assert use.report([LeaseTail(grant, 16, FAR, 16)]).partitions == (PartitionView(3, 16, 40, 70.0),)
    use.record_position({}, {})
    assert use.report([LeaseTail(grant, 16, FAR, 16)]).partitions == (PartitionView(3, 16, 40, 0.0),), (
        "it is not read now"
    )
    assert use.report([]).partitions == ()


def test_worker_time_is_counted_as_waiting_or_busy():
    now = [0.0]
    use = StreamMeter(counter=lambda: now[0])
    now[0] = 3.0
    use.waits(False)
    now[0] = 5.0
    use.waits(True)
    now[0] = 6.0
    found = use.report([])
    assert (found.waited_s, found.busy_s) == (4.0, 2.0)


def test_step_time_sums_include_the_current_wait():
    now = [0.0]
    use = StreamMeter(counter=lambda: now[0])
    use.waits(False, 10)
    now[0] = 1.0
    assert use.report([]).steps == StepSums()
    now[0] = 2.0
    use.waits(False, 4)
    now[0] = 3.0
    use.waits(True)
    now[0] = 9.0
    use.waits(False, 7)
    assert use.report([]).steps == StepSums(number=2, samples=14, seconds=3.0, squared=116, crossed=24.0)


def test_read_expired_and_refused_records_are_counted():
    use = StreamMeter()
    use.read(records(0, 5, np.zeros(5)), expired=2)
    use.refused("late", 3)
    use.refused("corrupt")
    found = use.report([])
    assert (use.read_bytes, found.expired, found.late, found.corrupt, found.oversized) == (5, 2, 3, 1, 0)
    use.not_kept(2, "full")
    assert (use.report([]).unkept, use.report([]).unkept_why) == (2, "full")
