"""Reports add up to totals, rates and means."""

import pytest

from springtide.domain.core.roles import Role, RoleKind
from springtide.master.core.progress import ProgressTally
from springtide.rpc.messages.messages import MemberReport

FIRST, SECOND = Role(RoleKind.WORKER, 0), Role(RoleKind.WORKER, 1)


def test_totals_are_of_the_newest_reports():
    tally = ProgressTally()
    tally.take(FIRST, MemberReport(samples=100), at=1)
    tally.take(SECOND, MemberReport(samples=50), at=1)
    tally.take(FIRST, MemberReport(samples=300), at=2)
    tally.take(Role(RoleKind.SERVER, 0), MemberReport(counters={"rows": 9.0}), at=2)
    assert tally.samples == 350


def test_a_new_life_counts_from_zero_and_what_the_last_one_did_stays():
    tally = ProgressTally()
    tally.take(FIRST, MemberReport(samples=100), at=1)
    tally.take(FIRST, MemberReport(samples=30), at=2, incarnation=1)
    tally.take(FIRST, MemberReport(samples=40), at=3, incarnation=1)
    assert tally.samples == 140
    assert tally.grew_at == 3


def test_the_rate_is_of_the_last_seconds():
    tally = ProgressTally()
    for second in range(60):
        tally.note(1000 * second if second < 30 else 30_000 + 10 * (second - 30), at=second)
    assert tally.samples_per_s(at=59) == pytest.approx(10)
    assert tally.samples_per_s(at=64) == pytest.approx(5)  # nothing more was reported


def test_means_are_weighted_by_samples():
    tally = ProgressTally()
    assert tally.loss is None
    tally.take(FIRST, MemberReport(samples=300, loss=1.0, metrics={"auc": 0.8}), at=1)
    tally.take(SECOND, MemberReport(samples=100, loss=2.0, metrics={"auc": 0.6}), at=1)
    assert tally.loss == pytest.approx(1.25)
    assert tally.metrics == {"auc": pytest.approx(0.75)}


def test_means_are_of_those_who_train_still_and_what_one_alone_has_told_stays():
    tally = ProgressTally()
    tally.take(FIRST, MemberReport(samples=10_000, loss=9.0, metrics={"auc": 0.1, "test_auc": 0.7}), at=1)
    tally.take(SECOND, MemberReport(samples=100, loss=0.5, metrics={"auc": 0.8}), at=2)
    assert tally.loss > 5
    tally.leave(FIRST)
    assert tally.loss == 0.5
    assert tally.metrics == {"auc": 0.8, "test_auc": 0.7}
    tally.take(FIRST, MemberReport(samples=100, loss=0.7), at=7, incarnation=1)
    assert tally.loss == pytest.approx(0.6)


def test_when_all_have_left_means_are_of_those_who_left_last():
    tally = ProgressTally()
    for role, loss, at in ((FIRST, 9.0, 1), (SECOND, 0.5, 10), (Role(RoleKind.WORKER, 2), 0.7, 11)):
        tally.take(role, MemberReport(samples=100, loss=loss), at=at)
        tally.leave(role)
    assert tally.loss == pytest.approx(0.6)
