"""The master's server guards: what counts as a slow machine."""

import asyncio
from types import SimpleNamespace

import pytest

from springtide.domain.core.roles import Role, RoleKind, RoleUsage
from springtide.job.core import events
from springtide.master.core.progress import ProgressTally
from springtide.master.servers.guards import ServerGuards
from springtide.rpc.messages.types import MemberReport
from tests.unit.master.servers.test_recovery import Job

KEYS = 10_000.0  # a second, of each server
USUAL, SLOW = 20_000.0, 400_000.0  # nanoseconds a key: with these keys at work all the time, the slow one with threads


class Watch:
    """Guards over the two servers of a job, with a report a second of each."""

    def __init__(self, folder):
        self.job, self.tally, self.happened, self.now = Job(folder), ProgressTally(), [], 0.0
        self.sums = {0: [0.0, 0.0], 1: [0.0, 0.0]}
        asyncio.run(self.job.begin())
        self.guards = ServerGuards(
            SimpleNamespace(record=self.job.desk.record, apply=self.happened.append), self.job.desk.parts.migration
        )
        self.job.story.close()

    def second(self, *ns_a_key):
        """A second in which the servers took so long a key."""
        self.now += 1.0
        for rank, ns in enumerate(ns_a_key):
            self.sums[rank][0] += KEYS
            self.sums[rank][1] += KEYS * ns
            keys, total = self.sums[rank]
            self.tally.reports[Role(RoleKind.SERVER, rank)] = MemberReport(
                counters={"pulled_keys": keys, "lookup_ns": total}
            )
        self.guards.poll(self.tally, {}, self.now)


@pytest.fixture
def watch(tmp_path):
    return Watch(tmp_path)


@pytest.mark.parametrize("in_step", [False, True])
def test_server_far_slower_in_two_reports_is_replaced_at_once(watch, in_step):
    watch.job.desk.record.state.bsp.in_step = in_step
    for _ in range(8):
        watch.second(USUAL, USUAL)
    watch.second(USUAL, SLOW)
    assert not watch.happened
    watch.second(USUAL, SLOW)
    (event,) = watch.happened
    assert isinstance(event, events.ServerReplaced) and event.rank == 1


def test_single_slow_second_triggers_no_replacement(watch):
    for second in range(30):
        watch.second(USUAL, SLOW if second % 10 == 9 else USUAL)
    assert not watch.happened


def test_first_seconds_of_load_are_not_judged(watch):
    for _ in range(3):
        watch.second(USUAL, SLOW)
    for _ in range(20):
        watch.second(USUAL, USUAL)
    assert not watch.happened


@pytest.mark.parametrize("in_step", [False, True])
def test_cpu_throttled_server_is_replaced_at_once(watch, in_step):
    watch.job.desk.record.state.bsp.in_step = in_step
    nodes = {rank: watch.job.desk.record.state.node(Role(RoleKind.SERVER, rank)) for rank in (0, 1)}
    for node in nodes.values():
        node.cpu = 0.7

    def measured(at, *cpu_and_throttled):
        usage = {
            nodes[rank].role: RoleUsage(role=nodes[rank].role, cpu_s=cpu, throttled_s=throttled)
            for rank, (cpu, throttled) in enumerate(cpu_and_throttled)
        }
        watch.guards.glance(usage, at)

    measured(0.0, (5.0, 1.0), (5.0, 1.0))
    measured(0.2, (5.1, 1.0), (5.1, 1.0))
    measured(0.4, (5.2, 1.0), (5.15, 1.1))
    assert not watch.happened
    measured(0.6, (5.3, 1.0), (5.154, 1.3))
    (event,) = watch.happened
    assert isinstance(event, events.ServerReplaced) and (event.rank, event.at_once) == (1, True)


def test_throttling_of_a_quarter_quota_needs_four_periods(watch):
    nodes = [watch.job.desk.record.state.node(Role(RoleKind.SERVER, rank)) for rank in (0, 1)]
    for node in nodes:
        node.cpu = 0.4

    def measured(at, cpu, throttled):
        healthy, slow = (node.role for node in nodes)
        usage = {
            healthy: RoleUsage(role=healthy, cpu_s=at / 4),
            slow: RoleUsage(role=slow, cpu_s=cpu, throttled_s=throttled),
        }
        watch.guards.glance(usage, at)

    measured(0.0, 1.0, 0.0)
    measured(0.2, 1.02, 0.2)
    assert not watch.happened
    measured(0.4, 1.04, 0.4)
    (event,) = watch.happened
    assert isinstance(event, events.ServerReplaced) and event.rank == 1


def test_memory_of_bsp_servers_is_guarded(watch, monkeypatch):
    watch.job.desk.record.state.bsp.in_step = True
    monkeypatch.setattr(watch.job.desk.parts.migration, "bytes_on", lambda rank: 80e6)
    grown = MemberReport(counters={"rows": 1e6, "table_bytes": 90e6})
    watch.tally.reports = {Role(RoleKind.SERVER, rank): grown for rank in (0, 1)}
    roles = [Role(RoleKind.SERVER, rank) for rank in (0, 1)]
    usage = {role: RoleUsage(role=role, memory=150_000_000, memory_limit=200_000_000) for role in roles}
    watch.guards.poll(watch.tally, usage, 40.0)
    (event,) = watch.happened
    assert isinstance(event, events.ServersScaled) and event.servers > 2 and "memory would run out" in event.why
