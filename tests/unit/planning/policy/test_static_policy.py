"""The policy that keeps every job at its requested size."""

from springtide.domain.spec.planning_config import PlanningConfig
from springtide.planning.policy import registry
from tests.unit.planning import views


def next_shape(job):
    plan = registry.load("static")(views.cluster(job), PlanningConfig()).plan_for(job.name)
    return plan.shape if plan else None


def test_static_policy_starts_as_requested_and_never_changes():
    asked = views.shape(workers=7)
    assert next_shape(views.waiting(requested=asked)) == asked
    assert next_shape(views.running(asked)) is None
    assert next_shape(views.waiting()).workers == 1
