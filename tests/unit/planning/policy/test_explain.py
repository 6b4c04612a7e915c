"""Explain a decision: model, candidates, and the chosen one."""

import itertools
import math
import pathlib
from dataclasses import replace

import pytest

from springtide.domain.core.shape import ResourceBudget
from springtide.domain.plan.plan import nothing
from springtide.planning.perf_model.fit import FittedModel
from springtide.planning.policy import explain, registry
from springtide.telemetry import planner_views

EXAMPLE = pathlib.Path(__file__).parents[4] / "examples" / "plan_job.yaml"


@pytest.fixture
def example_view():
    return planner_views.read(EXAMPLE)


def test_explanation_marks_the_chosen_and_current_shapes(example_view):
    decision = registry.load("springtide")(example_view.view, example_view.config)
    (one,) = explain.outlooks(example_view.view, example_view.config, decision)
    assert isinstance(one.model, FittedModel)
    (chosen,) = [each for each in one.options if each.chosen]
    (now,) = [each for each in one.options if each.now]
    assert chosen.shape == decision.plans[0].shape
    assert chosen.throughput == pytest.approx(decision.plans[0].throughput)
    assert now.shape == example_view.view.jobs[0].shape
    assert sum(one.shares) == pytest.approx(1.0)


def test_explained_options_are_mutually_undominated(example_view):
    (one,) = explain.outlooks(example_view.view, example_view.config, nothing("only looked"))
    free = [each for each in one.options if not each.now]
    assert len(free) > 5
    for cheaper, dearer in itertools.pairwise(free):
        assert cheaper.cost < dearer.cost and cheaper.throughput < dearer.throughput


def test_explained_options_stay_within_the_cluster_and_core_limits(example_view):
    small = replace(example_view.view, capacity=ResourceBudget(cpu=14.0, memory=math.inf))
    (one,) = explain.outlooks(small, example_view.config, nothing("only looked"))
    assert max(each.shape.cpu for each in one.options) <= 14.0
    measured, job = one.measured, example_view.view.jobs[0]
    worker_pace = measured / sum(use.cpu_used for use in job.uses if use.role.kind == "worker")
    for each in one.options:
        assert each.throughput <= worker_pace * each.shape.workers * each.shape.worker_cpu * (1 + 1e-9)


def test_unmeasured_job_has_no_candidates_and_a_reason(example_view):
    bare = replace(example_view.view, jobs=(replace(example_view.view.jobs[0], profiles=()),))
    (one,) = explain.outlooks(bare, example_view.config, nothing("only looked"))
    assert not isinstance(one.model, FittedModel)
    assert one.why.startswith("no candidates: ")
    assert [each.now for each in one.options] == [True]
