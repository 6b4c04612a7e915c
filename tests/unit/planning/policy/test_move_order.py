"""Workers or servers first."""

from dataclasses import replace

from hypothesis import given

from springtide.domain.core.roles import RoleKind
from springtide.domain.plan.profile import TimingSum
from springtide.domain.plan.view import LaunchTime
from springtide.domain.spec.planning_config import PlanningConfig
from springtide.planning.policy import acceptance
from tests.unit.planning import views
from tests.unit.planning.views import running, shape, uses

CONFIG = PlanningConfig()
NOW, BOTH = shape(workers=4, servers=2), shape(workers=8, servers=4)
SERVERS = shape(workers=5, servers=16)


def test_workers_come_first_where_servers_have_cores_to_spare():
    job = running(NOW, uses=uses(NOW, worker=0.9, server=0.2))
    assert not acceptance.servers_first(job, BOTH, CONFIG)


def test_servers_come_first_where_more_workers_would_only_wait_for_them():
    job = running(NOW, uses=uses(NOW, worker=0.3, server=1.0))
    assert acceptance.servers_first(job, BOTH, CONFIG)


def test_servers_that_take_an_hour_to_come_pay_less_than_workers_that_come_at_once():
    job = running(NOW, uses=uses(NOW, worker=0.4, server=0.97))
    for seconds, first in ((1.0, True), (3600.0, False)):
        starts = {RoleKind.WORKER: 1.0, RoleKind.SERVER: seconds}
        launches = tuple(LaunchTime(kind=kind, cpu=8.0, memory=0, seconds=each) for kind, each in starts.items())
        assert acceptance.servers_first(replace(job, launches=launches), SERVERS, CONFIG) is first


def test_without_a_model_busy_servers_come_first():
    garbage = replace(views.profile(NOW, at=200.0), timing=TimingSum(steps=10, samples=10, total_s=1.0))
    for share, first in ((0.95, True), (0.5, False)):
        job = running(NOW, profiles=(garbage,), uses=uses(NOW, server=share))
        assert acceptance.servers_first(job, BOTH, CONFIG) is first


def test_a_job_that_was_not_measured_changes_its_workers_first():
    assert not acceptance.servers_first(running(NOW, profiles=()), BOTH, CONFIG)
    assert not acceptance.servers_first(running(NOW, shape=None), BOTH, CONFIG)


@given(job=views.jobs("job"), to=views.shapes())
def test_any_view_has_an_answer(job, to):
    assert acceptance.servers_first(job, to, CONFIG) in (True, False)
