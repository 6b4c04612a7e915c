"""Stream statistics of a master from its workers' reports."""

from springtide.domain.core.roles import Life, Role, RoleKind
from springtide.domain.data.streams import PartitionView, StreamUse
from springtide.master.autoscale.stream_stats import StreamStats
from springtide.planning.online.capacity_model import WorkerWork

WALL = 1_000_000.0
ONE, TWO = Role(RoleKind.WORKER, 0), Role(RoleKind.WORKER, 1)


def use(*views, records=0, busy_s=0.0, waited_s=0.0, **more):
    partitions = tuple(PartitionView(*view) for view in views)
    return StreamUse(partitions=partitions, records=records, busy_s=busy_s, waited_s=waited_s, **more)


def test_initial_backlog_counts_as_waiting_but_not_as_arrived():
    streams = StreamStats(wall=WALL, at=0.0)
    streams.on_report(ONE, 0, use((0, 100, 500, WALL - 60.0)), at=0.0)
    assert (streams.arrived, streams.backlog, streams.trained) == (0, 400, 100)
    assert streams.lag_s(0.0) == 60.0
    streams.on_report(ONE, 0, use((0, 300, 700, WALL - 20.0)), at=10.0)
    assert (streams.arrived, streams.backlog) == (200, 400)
    assert streams.lag_s(10.0) == 30.0


def test_lag_is_that_of_the_partition_furthest_behind():
    streams = StreamStats(wall=WALL, at=0.0)
    streams.on_report(ONE, 0, use((0, 100, 100, 0.0), (1, 5, 9, WALL - 3)), at=0.0)
    streams.on_report(TWO, 0, use((2, 5, 9, WALL - 8)), at=0.0)
    assert streams.lag_s(0.0) == 8.0
    assert streams.lag_s(1.0) == 9.0


def test_wall_clock_jump_leaves_lag_unchanged():
    streams = StreamStats(wall=WALL, at=0.0)
    streams.on_report(ONE, 0, use((0, 0, 1, WALL)), at=0.0)
    for at in range(1, 10):  # producers' clock jumps an hour ahead, then a day back
        stamp = WALL + 3600 if at % 2 else WALL - 86_400
        streams.on_report(ONE, 0, use((0, 10 * at, 10 * at + 10, stamp)), at=float(at))
        assert streams.lag_s(float(at)) <= 1.0


def test_partition_rolled_back_with_a_lost_server_counts_as_backlog_again():
    streams = StreamStats(wall=WALL, at=0.0)
    streams.on_report(ONE, 0, use((0, 90, 100, WALL)), at=0.0)
    streams.on_report(TWO, 0, use((0, 50, 100, WALL - 4.0)), at=1.0)
    assert streams.backlog == 50 and streams.arrived == 0
    assert streams.lag_s(1.0) == 5.0


def test_worker_rates_are_measured_over_their_time_in_the_job():
    streams = StreamStats(wall=WALL, at=0.0)
    first, second = Life(ONE, 0), Life(TWO, 0)
    for at in range(11):
        streams.on_report(ONE, 0, use(records=100 * at, busy_s=0.5 * at, waited_s=0.5 * at), at=float(at))
        if at > 7:
            streams.on_report(TWO, 0, use(records=50 * at, busy_s=1.0 * at), at=float(at))
        streams.poll([first, second], at=float(at))
    assert streams.works(5.0, [first, second], at=10.0) == {0: WorkerWork(500, 2.5, 2.5)}
    assert streams.works(2.0, [first, second], at=10.0)[1] == WorkerWork(100, 2.0, 0)
    assert streams.works(60.0, [first], at=10.0) == {}


def test_ended_incarnation_keeps_its_counts_but_not_its_queue():
    streams = StreamStats(wall=WALL, at=0.0)
    streams.on_report(ONE, 0, use(records=100, late=3, queue=7, lag_p99_s=9.0), at=0.0)
    streams.on_report(ONE, 1, use(records=10, late=1, queue=2, lag_p99_s=1.0), at=1.0)
    assert streams.total == StreamUse(records=110, late=4, queue=2, lag_p99_s=1.0)
