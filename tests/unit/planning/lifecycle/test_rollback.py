"""A job slowed by a plan is rolled back from measurements, never by noise."""

from dataclasses import replace

import numpy as np
import pytest

from springtide.domain.core.shape import ResourceBudget, ShapeBounds
from springtide.domain.spec.planning_config import PlanningConfig, PlanningStage
from springtide.planning.lifecycle import stages
from springtide.planning.policy import registry
from tests.unit.planning import views

CONFIG = PlanningConfig(exact_seconds=0)
BEFORE, NOW, TWICE = views.shape(8, 2), views.shape(9, 2), views.shape(9, 2, 8.0, 16.0)


def windows(of, pace, *, first, count=4, noise=0.0, seed=0):
    """Windows in one shape, at this fraction of its modelled speed."""
    random = np.random.default_rng(seed)
    found = []
    for at in range(count):
        one = views.profile(of, at=first + 10.0 * at)
        factor = float(np.exp(random.normal(0.0, noise))) / pace
        timing = replace(
            one.timing,
            **{name: getattr(one.timing, name) * factor for name in ("total_s", "gradient_s", "update_s", "lookup_s")},
        )
        found.append(replace(one, timing=timing))
    return found


def job(before=1.0, now=0.8, *, of=NOW, was=BEFORE, **how):
    profiles = (*windows(was, before, first=0.0, **how), *windows(of, now, first=110.0, **{"seed": 1, **how}))
    return views.running(of, profiles=profiles, last_change_at=100.0)


def test_job_slowed_by_its_last_change_is_rolled_back():
    found = registry.load("springtide")(views.cluster(job()), CONFIG).plan_for("job")
    assert found is not None and stages.alike(found.shape, BEFORE)
    assert "back to 8 workers" in found.reason and found.stage is PlanningStage.ADJUSTING


def test_rolled_back_shape_is_not_tried_again():
    again = job(0.8, 1.0, of=BEFORE, was=NOW)
    assert stages.refuted(again, CONFIG) == NOW and stages.back(again, CONFIG) is None
    plan = registry.load("springtide")(views.cluster(again), CONFIG).plan_for("job")
    assert plan is None or not stages.alike(plan.shape, NOW)


@pytest.mark.parametrize("seed", range(20))
def test_noise_alone_causes_no_rollback(seed):
    assert stages.back(job(1.0, 1.0, of=BEFORE, was=NOW, noise=0.05, seed=seed), CONFIG) is None


@pytest.mark.parametrize(
    "stays",
    [
        job(1.0, 0.98),  # less than a change is worth
        job(count=2),  # measured for too short
        views.at_times(job(), last_change_at=None),
        job(1.3 * views.speed(NOW) / views.speed(TWICE), 1.0, was=TWICE),  # a third faster, for twice the money
        replace(job(), bounds=ShapeBounds(least=NOW, most=NOW, quota=ResourceBudget(cpu=1e6, memory=1e15))),
    ],
)
def test_uncertain_unprofitable_or_forbidden_rollback_is_not_made(stays):
    assert stages.back(stays, CONFIG) is None


def test_slower_machine_causes_at_most_one_rollback():
    oldest = views.shape(6, 2)
    back = job(0.7, 0.7, of=BEFORE, was=NOW)  # all of it slower by now
    all_of_it = replace(back, profiles=(*windows(oldest, 1.5, first=-200.0), *back.profiles))
    assert stages.back(all_of_it, CONFIG) is None
