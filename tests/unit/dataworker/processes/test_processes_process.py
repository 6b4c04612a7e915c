"""The data worker process: its stage, what it waits for, and its sources."""

import threading

import msgspec
import pytest

from springtide import errors
from springtide.dataworker.processes import __main__
from springtide.domain.data.data_workers import stage_of
from springtide.rpc.messages import data_workers, messages
from springtide.rpc.messages.coordination import ValueFound


def test_lowest_rank_runs_the_last_stage_and_stages_fill_evenly():
    assert [stage_of(rank, 1) for rank in range(3)] == [0, 0, 0]
    assert [stage_of(rank, 3) for rank in range(6)] == [2, 1, 0, 2, 1, 0]
    roster = data_workers.Feeders(
        1, 3, tuple(data_workers.Feeder(f"d{rank}", f"host:{rank}", rank) for rank in range(3))
    )
    assert [each.name for each in data_workers.feeds(roster, stage=1, stages=2)] == ["d0", "d2"]
    assert [each.name for each in data_workers.feeds(roster, stage=0, stages=2)] == ["d1"]


class FakeServing:
    """Records from which workers a serving part takes batches."""

    made, state = 3, None

    def __init__(self):
        self.before = {}

    def attach(self, name, address):
        self.before[name] = address

    def detach(self, name):
        del self.before[name]


def test_middle_stage_reads_from_workers_of_the_previous_stage():
    roster, serving = __main__.FeederRoster(), FakeServing()
    assert roster.beat().feeders == 0
    roster.take(
        data_workers.Feeders(4, 2, (data_workers.Feeder("d0", "host:0", 0), data_workers.Feeder("d1", "host:1", 1)))
    )
    roster.follow(serving, 1, 2)
    assert serving.before == {"d1": "host:1"}
    roster.take(
        data_workers.Feeders(5, 4, (data_workers.Feeder("d0", "host:0", 0), data_workers.Feeder("d3", "host:3", 3)))
    )
    assert serving.before == {"d3": "host:3"}
    assert roster.beat().feeders == 5 and roster.beat().report.counters == {"made": 3.0}


def test_first_stage_reads_from_no_worker():
    roster, serving = __main__.FeederRoster(), FakeServing()
    roster.follow(serving, 0, 1)
    roster.take(data_workers.Feeders(1, 1, (data_workers.Feeder("d0", "host:0", 0),)))
    assert serving.before == {}


class FakeChannel:
    """In place of the channel to the master."""

    def __init__(self, answer):
        self.answer = answer

    def ask(self, request):
        return self.answer()


def test_data_worker_waits_for_the_package_until_told_to_drain():
    packaged = data_workers.Package("whole", 2)
    found = ValueFound(msgspec.msgpack.encode(packaged))
    assert __main__.await_package(FakeChannel(lambda: found), __main__.ExitPlan()) == packaged
    never, leaving = threading.Event(), __main__.ExitPlan()
    leaving.apply(messages.HeartbeatReply(drain=True))
    assert __main__.await_package(FakeChannel(never.wait), leaving) is None
    never.set()


def test_master_lost_while_waiting_for_the_package_is_an_error():
    def gone():
        raise errors.MasterUnreachable("gone")

    with pytest.raises(errors.MasterUnreachable):
        __main__.await_package(FakeChannel(gone), __main__.ExitPlan())


def test_master_reply_drains_stops_or_fences_a_data_worker():
    drains, stops, fenced = __main__.ExitPlan(), __main__.ExitPlan(), __main__.ExitPlan()
    __main__.apply_reply(messages.HeartbeatReply(drain=True), drains, __main__.FeederRoster())
    __main__.apply_reply(messages.HeartbeatReply(stop=True), stops, __main__.FeederRoster())
    __main__.apply_reply(messages.HeartbeatReply(fenced=True), fenced, __main__.FeederRoster())
    assert (drains.drain.is_set(), drains.over.is_set()) == (True, False)
    assert stops.over.is_set() and fenced.over.is_set() and fenced.drain.is_set()
