"""Events of a job: the most urgent first, and the same not twice."""

from dataclasses import replace

import pytest

from springtide import errors
from springtide.brain.decide import triggers
from springtide.brain.decide.triggers import Administrator, Event, EventKind
from springtide.domain.core.roles import Role, RoleKind
from springtide.domain.plan.view import FindingKind, GuardFinding
from tests.unit.planning import views

SERVER = Role(RoleKind.SERVER, 1)


def finding(trouble, role=SERVER):
    return GuardFinding(trouble=trouble, role=role, why="seen")


def administrator():
    return Administrator(period_s=10.0)


def event_kinds(*shown):
    """Which events views at these times raise."""
    one = administrator()
    events = [one.observe(view, at=at) for at, view in shown]
    return [event.kind if event else None for event in events]


def test_job_raises_its_events_from_its_creation_on():
    running = replace(views.running(), profiles=())
    assert event_kinds(
        (0.0, views.waiting()),
        (1.0, views.waiting()),
        (2.0, running),
        (5.0, views.running()),
        (6.0, views.running()),
        (15.0, views.running()),
    ) == [EventKind.CREATED, None, None, EventKind.ITERATING, None, EventKind.PERIODIC]


def test_job_waiting_for_room_is_reconsidered():
    one = administrator()
    assert one.observe(views.waiting(), at=0.0).why == "it is new"
    assert one.observe(views.waiting(), at=10.0).why == "the job still waits for its first shape"


def test_already_running_job_raises_no_created_event():
    assert event_kinds((0.0, views.running())) == [EventKind.PERIODIC]


def test_memory_event_comes_first():
    troubled = views.running(findings=(finding(FindingKind.STRAGGLER), finding(FindingKind.MEMORY)))
    assert event_kinds((0.0, troubled)) == [EventKind.OOM]
    assert event_kinds((0.0, views.waiting(findings=(finding(FindingKind.OOM),)))) == [EventKind.OOM]


def test_same_event_is_raised_once_per_period_and_another_at_once():
    hot = views.running(findings=(finding(FindingKind.SLOW_SERVER),))
    both = replace(hot, findings=(*hot.findings, finding(FindingKind.STRAGGLER, Role(RoleKind.WORKER, 2))))
    assert event_kinds((0.0, hot), (1.0, hot), (2.0, both), (3.0, both), (12.0, both)) == [
        EventKind.SLOW,
        None,
        EventKind.SLOW,
        None,
        EventKind.SLOW,
    ]


def test_job_slowing_down_in_the_same_shape_raises_slow():
    of = views.shape()
    steady = tuple(views.profile(of, at=float(at)) for at in range(4))
    late = views.profile(of, at=9.0)
    late = replace(late, timing=replace(late.timing, total_s=late.timing.total_s * 2))
    one = administrator()
    assert one.observe(views.running(profiles=steady), at=0.0).kind is EventKind.PERIODIC
    event = one.observe(views.running(profiles=(*steady, late)), at=1.0)
    assert event.kind is EventKind.SLOW and "in the same shape" in event.why
    other = replace(late, shape=views.shape(workers=9))
    assert administrator().observe(views.running(profiles=(*steady, other)), at=0.0).kind is EventKind.PERIODIC


def event(kind):
    return Event(kind, "seen")


@pytest.mark.parametrize(
    ("kind", "view", "cause"),
    [
        (EventKind.CREATED, views.waiting(), "new"),
        (EventKind.CREATED, views.waiting(features={"model": "wide"}), "new, with features"),
        (EventKind.ITERATING, views.running(), "sampled"),
        (EventKind.PERIODIC, views.running(), "adjusting"),
        (EventKind.SLOW, views.running(findings=(finding(FindingKind.SLOW_SERVER),)), "slow server"),
        (EventKind.SLOW, views.running(uses=views.uses(views.shape(), server=0.95)), "too little server CPU"),
        (EventKind.SLOW, views.running(uses=views.uses(views.shape(), worker=0.95)), "too little worker CPU"),
        (EventKind.SLOW, views.running(uses=()), "unknown"),
        (EventKind.OOM, views.running(findings=(finding(FindingKind.OOM),)), "server memory"),
    ],
)
def test_each_event_has_a_cause(kind, view, cause):
    assert triggers.request(event(kind), view, {}, otherwise="springtide").cause == cause


def test_algorithm_is_chosen_by_cause_then_by_event():
    chosen = triggers.checked({"slow": "static", "slow/slow server": "half", "oom": "static"})
    hot, other = views.running(findings=(finding(FindingKind.SLOW_SERVER),)), views.running()

    def policy(kind, view):
        return triggers.request(event(kind), view, chosen, otherwise="springtide").policy

    assert policy(EventKind.SLOW, hot) == "half"
    assert policy(EventKind.SLOW, other) == "static"
    assert policy(EventKind.OOM, other) == "static"
    assert policy(EventKind.PERIODIC, other) == "springtide"


def test_unknown_event_is_refused():
    with pytest.raises(errors.UnknownName, match="Did you mean 'slow'"):
        triggers.checked({"slwo": "static"})
