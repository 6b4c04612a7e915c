"""Reports add up to totals, rates and means."""

from dataclasses import replace

import pytest

from springtide.domain.core.resources import GpuUse
from springtide.domain.core.roles import Role, RoleKind, RoleUsage
from springtide.domain.model.cache_rules import CacheUse
from springtide.master.core.progress import LAG_WINDOW_S, STALE_S, LoopLag, ProgressTally, UsageTable
from springtide.rpc.messages.types import MemberReport

FIRST, SECOND = Role(RoleKind.WORKER, 0), Role(RoleKind.WORKER, 1)


def test_totals_use_the_newest_reports():
    tally = ProgressTally()
    tally.take(FIRST, MemberReport(samples=100), at=1)
    tally.take(SECOND, MemberReport(samples=50), at=1)
    tally.take(FIRST, MemberReport(samples=300), at=2)
    tally.take(Role(RoleKind.SERVER, 0), MemberReport(counters={"rows": 9.0}), at=2)
    assert tally.samples == 350


def test_new_incarnation_counts_from_zero_and_keeps_earlier_totals():
    tally = ProgressTally()
    tally.take(FIRST, MemberReport(samples=100), at=1)
    tally.take(FIRST, MemberReport(samples=30), at=2, incarnation=1)
    tally.take(FIRST, MemberReport(samples=40), at=3, incarnation=1)
    assert tally.samples == 140
    assert tally.grew_at == 3


def test_restarted_job_counts_from_zero():
    tally = ProgressTally()
    for role in (FIRST, SECOND):
        tally.take(role, MemberReport(samples=10), at=0.0)
    tally.restart()
    assert tally.samples == 0
    tally.take(SECOND, MemberReport(samples=3), at=1.0, incarnation=1)
    assert tally.samples == 3


def test_rate_covers_the_recent_window():
    tally = ProgressTally()
    for second in range(60):
        tally.note(1000 * second if second < 30 else 30_000 + 10 * (second - 30), at=second)
    assert tally.samples_per_s(at=59) == pytest.approx(10)
    assert tally.samples_per_s(at=64) == pytest.approx(5)  # nothing more was reported


def test_cache_decision_is_logged_once_and_not_while_undecided():
    tally = ProgressTally()
    on, off = CacheUse(on=True, why="asked for: 10%"), CacheUse(why="it would not pay")
    for_now = CacheUse(why="no pass is under way", passing=True)
    assert tally.cache_decision() is None
    told = []
    for use in (for_now, on, on, for_now, off):
        tally.take(FIRST, MemberReport(cache=use), at=1)
        told.append(tally.cache_decision())
    first, last = ("keep rows in the workers", "asked for: 10%"), ("keep no rows in the workers", "it would not pay")
    assert told == [None, first, None, None, last]


def test_means_are_weighted_by_samples():
    tally = ProgressTally()
    assert tally.loss is None
    tally.take(FIRST, MemberReport(samples=300, loss=1.0, metrics={"auc": 0.8}), at=1)
    tally.take(SECOND, MemberReport(samples=100, loss=2.0, metrics={"auc": 0.6}), at=1)
    assert tally.loss == pytest.approx(1.25)
    assert tally.metrics == {"auc": pytest.approx(0.75)}


def test_means_cover_active_workers_and_keep_metrics_reported_by_one():
    tally = ProgressTally()
    tally.take(FIRST, MemberReport(samples=10_000, loss=9.0, metrics={"auc": 0.1, "test_auc": 0.7}), at=1)
    tally.take(SECOND, MemberReport(samples=100, loss=0.5, metrics={"auc": 0.8}), at=2)
    assert tally.loss > 5
    tally.leave(FIRST)
    assert tally.loss == 0.5
    assert tally.metrics == {"auc": 0.8, "test_auc": 0.7}
    tally.take(FIRST, MemberReport(samples=100, loss=0.7), at=7, incarnation=1)
    assert tally.loss == pytest.approx(0.6)


def test_when_all_workers_left_means_cover_the_last_to_leave():
    tally = ProgressTally()
    for role, loss, at in ((FIRST, 9.0, 1), (SECOND, 0.5, 10), (Role(RoleKind.WORKER, 2), 0.7, 11)):
        tally.take(role, MemberReport(samples=100, loss=loss), at=at)
        tally.leave(role)
    assert tally.loss == pytest.approx(0.6)


SERVER, WORKER = Role(RoleKind.SERVER, 0), Role(RoleKind.WORKER, 1)


def role_usage(role, memory, incarnation=0):
    return RoleUsage(role=role, incarnation=incarnation, memory=memory)


def test_role_reports_its_own_usage_when_the_agent_measures_none():
    usages = UsageTable()
    usages.on_usages(())
    usages.on_report(SERVER, 2, role_usage(WORKER, 5), at=1.0)
    assert usages.now(at=2.0) == {SERVER: role_usage(SERVER, 5, 2)}, "and for nobody else"


def test_agent_measurement_overrides_the_roles_own():
    usages = UsageTable()
    usages.on_report(SERVER, 0, role_usage(SERVER, 5), at=1.0)
    usages.on_report(WORKER, 0, role_usage(WORKER, 7), at=1.0)
    usages.on_usages((role_usage(SERVER, 6),))
    assert usages.now(at=1.0) == {SERVER: role_usage(SERVER, 6), WORKER: role_usage(WORKER, 7)}


def test_gpu_usage_comes_from_the_role_itself():
    usages = UsageTable()
    gpu = GpuUse(memory=3, total=8)
    usages.on_report(WORKER, 0, replace(role_usage(WORKER, 7), gpu=gpu), at=1.0)
    usages.on_usages((role_usage(WORKER, 6), role_usage(SERVER, 2)))
    assert usages.now(at=1.0) == {WORKER: replace(role_usage(WORKER, 6), gpu=gpu), SERVER: role_usage(SERVER, 2)}
    usages.on_exit(WORKER, 0)
    assert usages.now(at=1.0)[WORKER].gpu is None


def test_ended_or_silent_role_uses_nothing():
    usages = UsageTable()
    usages.on_report(SERVER, 1, role_usage(SERVER, 5, 1), at=1.0)
    usages.on_report(WORKER, 0, role_usage(WORKER, 7), at=1.0)
    usages.on_exit(SERVER, 0)
    assert set(usages.now(at=1.0)) == {SERVER, WORKER}, "an earlier life's end is not this one's"
    usages.on_exit(SERVER, 1)
    assert set(usages.now(at=1.0)) == {WORKER}
    assert usages.now(at=1.1 + STALE_S) == {}


def test_missing_usage_report_is_ignored():
    usages = UsageTable()
    usages.on_report(SERVER, 0, None, at=1.0)
    assert usages.now(at=1.0) == {}


def test_longest_delay_is_that_of_the_window():
    lag = LoopLag(lambda: 0.0)
    assert lag.longest_s == 0.0
    for second, late in enumerate([0.01, 0.5, 0.02, 0.3, 0.1]):
        lag.note(late, at=float(second))
    assert lag.longest_s == 0.5
    lag.note(0.0, at=1 + LAG_WINDOW_S + 0.5)
    assert lag.longest_s == pytest.approx(0.3)
    lag.note(-0.001, at=100.0)
    assert lag.longest_s == 0.0
