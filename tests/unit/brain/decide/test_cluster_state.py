"""All jobs of a brain: every caller is answered, and no capacity is promised twice."""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from springtide import errors
from springtide.brain.decide.cluster_state import BrainRules, ClusterState
from springtide.brain.store import rows
from springtide.domain.core.shape import ResourceBudget
from springtide.domain.data.data_workers import FeedShare
from springtide.domain.plan.plan import Advice, Decision, ShapePlan, nothing
from springtide.domain.spec.planning_config import PlanningConfig
from springtide.planning.policy import acceptance, registry
from tests.unit.planning import views

SMALL = ResourceBudget(cpu=100.0, memory=1e15)


def cluster_state(capacity=SMALL, **more):
    return ClusterState(BrainRules(capacity=capacity, config=PlanningConfig(exact_seconds=0), **more))


def plan(job, **more):
    return ShapePlan(job=job, shape=views.shape(**more), reason="because")


def decided(brain, *plans, at=0.0):
    """Answer all waiting jobs with these plans, and jobs without a plan with none."""
    told = {}
    for one in brain.assignments((), at):
        told |= brain.advise(one, Decision(plans=plans, why="so"), at)
    return told


def test_new_job_waits_for_a_decision_and_gets_it():
    brain = cluster_state()
    assert brain.consult(views.waiting(), epoch=3, at=0.0) is None
    (one,) = brain.assignments((), 1.0)
    assert one.policy == "springtide" and dict(one.asking) == {"job": 3} and one.view.capacity == SMALL
    advice = brain.advise(one, registry.load("springtide")(one.view, brain.rules.config), 1.0)["job"]
    assert advice.epoch == 3 and advice.plan is not None and advice.notes[0].startswith("created (new): it is new")


def test_unchanged_job_gets_the_same_answer_at_once():
    brain = cluster_state()
    brain.consult(views.running(), epoch=0, at=0.0)
    decided(brain)
    assert brain.consult(views.running(), epoch=0, at=3.0).why == "the job does not change: so"
    assert brain.consult(views.running(), epoch=1, at=4.0) == Advice(epoch=1, why="the job does not change: so")


def test_data_workers_of_all_jobs_share_the_remaining_cores():
    brain = cluster_state()
    fed = FeedShare(trainers=1, speed=1.0, capable=100.0, cpu=1.0, least=1.0)
    held = views.running().shape.cpu
    for name, share in (("one", fed), ("two", replace(fed, speed=2.0)), ("none", None)):
        assert brain.consult(replace(views.running(), name=name, fed=share), epoch=0, at=0.0) is None
    told = decided(brain)
    assert told["none"].data_cores is None and told["one"].data_cores == 1.0
    assert told["one"].data_cores + told["two"].data_cores == int(2 * (SMALL.cpu - 3 * held)) / 2
    assert any(note.startswith("data workers: ") for note in told["two"].notes)
    again = brain.consult(replace(views.running(), name="two", fed=fed), epoch=0, at=1.0)
    assert again.data_cores == told["two"].data_cores
    brain.conclude("two")
    brain.consult(replace(views.running(), name="one", fed=fed), epoch=0, at=60.0)
    assert decided(brain, at=60.0)["one"].data_cores > told["one"].data_cores


def test_unknown_metric_is_refused_at_once():
    with pytest.raises(errors.UnknownName, match="maxtp"):
        ClusterState(BrainRules(capacity=SMALL, config=PlanningConfig(data_workers="maxpt")))


def test_promised_resources_count_until_they_are_used():
    brain = cluster_state()
    brain.consult(views.waiting("one"), epoch=0, at=0.0)
    brain.consult(views.waiting("two"), epoch=0, at=0.0)
    big = {"workers": 4, "worker_cpu": 10.0, "servers": 2, "server_cpu": 15.0}  # 70 cores
    told = decided(brain, plan("one", **big), plan("two", **big))
    assert [name for name, advice in told.items() if advice.plan] == ["one"]
    assert "waits until other jobs have released" in told["two"].why
    assert brain.held().cpu == 70
    # being carried out: its epoch has risen, its shape is not there yet
    assert "does not have that shape yet" in brain.consult(views.waiting("one"), epoch=1, at=20.0).why
    brain.consult(views.waiting("two"), epoch=0, at=20.0)
    (one,) = brain.assignments((), 20.0)
    assert [job.name for job in one.view.jobs] == ["two"] and one.view.capacity.cpu == 30


def test_jobs_share_the_gpus_of_the_cluster():
    brain = cluster_state(ResourceBudget(cpu=100.0, memory=1e15, gpu=4.0))
    brain.consult(views.waiting("one"), epoch=0, at=0.0)
    brain.consult(views.waiting("two"), epoch=0, at=0.0)
    told = decided(brain, plan("one", workers=5, worker_gpu=0.5), plan("two", workers=2, worker_gpu=1.0))
    assert [name for name, advice in told.items() if advice.plan] == ["one"]
    assert brain.held().gpu == 3
    brain.consult(views.running(views.shape(worker_gpu=0.5), name="one"), epoch=1, at=1e4)
    brain.consult(views.waiting("two"), epoch=1, at=1e4)
    assert decided(brain, plan("two", workers=2, worker_gpu=1.0), at=1e4)["two"].plan, "4 workers on 2 GPUs leave 2"


def test_resources_of_an_untaken_plan_are_free_again():
    brain = cluster_state()
    brain.consult(views.waiting(), epoch=0, at=0.0)
    assert decided(brain, plan("job"))["job"].plan
    brain.consult(views.waiting(), epoch=0, at=1.0)
    assert brain.held().cpu == 0
    brain.consult(views.waiting(), epoch=0, at=20.0)
    decided(brain, plan("job"), at=20.0)
    assert brain.held().cpu > 0
    assert brain.forget(21.0 + brain.rules.pledge_s) == ["job"]  # nothing of it ever ran
    assert brain.held().cpu == 0


def test_promise_holds_while_a_job_may_still_be_changing():
    brain = cluster_state()
    brain.consult(views.running(views.shape(workers=1)), epoch=0, at=150.0)
    decided(brain, plan("job", workers=8), at=150.0)
    late = 150.0 + brain.rules.pledge_s + 1
    assert brain.forget(late) == [] and not brain.assignments((), late)
    assert brain.held().cpu == views.shape(workers=8).cpu
    brain.consult(views.running(views.shape(workers=1)), epoch=1, at=late)  # there it is, and is not what it was to be
    assert brain.held().cpu == views.shape(workers=1).cpu


def test_promise_ends_when_a_job_took_another_shape():
    brain = cluster_state()
    brain.consult(views.running(), epoch=0, at=150.0)
    decided(brain, plan("job", workers=9), at=150.0)
    half = views.running(views.shape(workers=6), last_change_at=160.0)
    brain.consult(half, epoch=2, at=170.0)
    assert brain.jobs["job"].pledge is None and brain.held().cpu == views.shape(workers=6).cpu


def test_job_that_took_its_planned_shape_holds_just_that():
    brain = cluster_state()
    brain.consult(views.running(views.shape(workers=8)), epoch=0, at=0.0)
    decided(brain, plan("job", workers=2))
    assert brain.held().cpu == views.shape(workers=8).cpu
    brain.consult(views.running(views.shape(workers=2)), epoch=1, at=5.0)
    assert brain.held().cpu == views.shape(workers=2).cpu and brain.jobs["job"].pledge is None


def test_released_resources_are_given_away_only_once_free():
    brain = cluster_state()
    brain.consult(views.running(views.shape(workers=16, worker_cpu=5.0), name="large"), epoch=0, at=0.0)  # 96 cores
    decided(brain)
    brain.consult(views.waiting("new"), epoch=0, at=2.0)
    shrunk = plan("large", workers=4, worker_cpu=5.0)
    told = decided(brain, shrunk, plan("new"), at=2.0)
    assert told["new"].plan is None and "have released" in told["new"].why
    large = brain.consult(views.running(views.shape(workers=16, worker_cpu=5.0), name="large"), epoch=0, at=4.0)
    assert large.plan == shrunk and large.notes == ("decided with other jobs",)
    brain.consult(views.running(views.shape(workers=4, worker_cpu=5.0), name="large"), epoch=1, at=13.0)
    brain.consult(views.waiting("new"), epoch=0, at=13.0)
    assert decided(brain, plan("new"), at=13.0)["new"].plan is not None


def test_offer_expires_when_the_job_changes_or_after_its_time():
    for later, of in ((4.0, views.shape(workers=5)), (40.0, views.shape())):
        brain = cluster_state(period_s=15.0)
        for name in ("other", "job"):
            brain.consult(views.running(views.shape(workers=1), name=name), epoch=0, at=0.0)
        decided(brain)
        brain.consult(views.running(views.shape(), name="job"), epoch=0, at=1.0)
        brain.consult(views.waiting("new"), epoch=0, at=2.0)
        decided(brain, plan("job", workers=2), at=2.0)
        assert brain.jobs["job"].offer is not None
        advice = brain.consult(views.running(of), epoch=0, at=later)
        assert advice is None or advice.plan is None


def test_each_policy_decides_only_on_jobs_with_its_events():
    brain = cluster_state(algorithms={"created": "static"})
    brain.consult(views.waiting("new"), epoch=0, at=0.0)
    brain.consult(views.running(name="old"), epoch=0, at=0.0)
    found = {one.policy: dict(one.asking) for one in brain.assignments((), 0.0)}
    assert found == {"static": {"new": 0}, "springtide": {"old": 0}}
    for one in brain.assignments((), 0.0):
        told = brain.advise(one, Decision(plans=(plan("new"), plan("old", workers=2)), why="so"), 0.0)
        assert set(told) == set(one.asking)


def test_times_use_the_brains_clock():
    brain = cluster_state()
    brain.consult(views.running(started_at=5.0, last_change_at=None), epoch=0, at=1000.0, ahead=990.0)
    (one,) = brain.assignments((), 1000.0)
    (job,) = one.view.jobs
    assert (job.progress.started_at, job.progress.last_change_at, job.profiles[0].at) == (995.0, None, 1190.0)


def test_ended_or_silent_jobs_are_forgotten():
    brain = cluster_state(forget_s=60.0)
    for name in ("ends", "silent", "talks"):
        brain.consult(views.running(name=name), epoch=0, at=0.0)
    brain.conclude("ends")
    brain.consult(views.running(name="talks"), epoch=0, at=50.0)
    assert brain.forget(61.0) == ["silent"] and list(brain.jobs) == ["talks"]


def test_job_that_never_began_is_forgotten_with_its_promise():
    brain = cluster_state()
    brain.consult(views.waiting(), epoch=0, at=0.0)
    decided(brain, plan("job"))
    assert brain.forget(brain.rules.pledge_s) == [] and brain.forget(brain.rules.pledge_s + 1) == ["job"]


def test_answer_for_a_replaced_view_is_dropped():
    brain = cluster_state()
    brain.consult(views.waiting(), epoch=0, at=0.0)
    (one,) = brain.assignments((), 0.0)
    brain.consult(views.running(), epoch=1, at=1.0)
    assert brain.advise(one, nothing("so"), 1.0) == {}
    assert brain.jobs["job"].asks


@given(jobs=st.lists(views.jobs("job"), max_size=4), clocks=st.lists(st.floats(), min_size=4, max_size=4))
@settings(
    max_examples=20, suppress_health_check=list(HealthCheck), phases=[Phase.explicit, Phase.reuse, Phase.generate]
)
def test_any_views_are_answered_without_an_error(jobs, clocks):
    brain = cluster_state()
    for number, (job, clock) in enumerate(zip(jobs, clocks, strict=False)):
        brain.consult(replace(job, name=f"job-{number}"), epoch=0, at=1000.0, ahead=1000.0 - clock)
        rows.live_row(brain.jobs[f"job-{number}"])
    told = {}
    for one in brain.assignments((), 1000.0):
        told |= brain.advise(one, registry.load(one.policy)(one.view, brain.rules.config), 1000.0)
    assert len(told) == len(jobs)


def test_invalid_brain_rules_are_refused():
    with pytest.raises(errors.BadInput, match="period_s 0"):
        cluster_state(period_s=0.0)


class Cluster(RuleBasedStateMachine):
    """Masters that take plans, refuse or miss them, or die, with a brain that is killed now and then."""

    @initialize()
    def begin(self):
        self.brain, self.now, self.masters, self.count = cluster_state(), 0.0, {}, 0

    @rule()
    def job_is_created(self):
        self.count += 1
        self.masters[f"job-{self.count}"] = {"shape": None, "target": None, "epoch": 0, "changed_at": 0.0}

    @precondition(lambda self: self.masters)
    @rule(data=st.data(), after=st.floats(0, 12))
    def some_ask_and_all_is_decided(self, data, after):
        self.now += after
        asking = {}
        for name, master in self.masters.items():
            if data.draw(st.booleans()):
                self.told(name, self.brain.consult(self.view(name), epoch=master["epoch"], at=self.now), data)
                asking[name] = master
        for one in self.brain.assignments((), self.now):
            wild = st.builds(views.shape, workers=st.integers(1, 8), worker_cpu=st.sampled_from([1.0, 4.0, 10.0]))
            plans = tuple(
                ShapePlan(job=job.name, shape=data.draw(wild), reason="wild")
                for job in one.view.jobs
                if data.draw(st.booleans())
            )
            safe = acceptance.without_impossible(Decision(plans=plans, why="wild"), one.view, self.brain.rules.config)
            for name, advice in self.brain.advise(one, safe, self.now).items():
                self.told(name, advice, data)

    def told(self, name, advice, data):
        master = self.masters[name]
        if advice is not None and advice.plan is not None and data.draw(st.booleans()):
            assert master["target"] is None
            master["target"], master["epoch"] = advice.plan.shape, master["epoch"] + 1

    @precondition(lambda self: self.masters)
    @rule(data=st.data())
    def one_has_become_what_it_was_told(self, data):
        master = self.masters[data.draw(st.sampled_from(sorted(self.masters)))]
        if master["target"] is not None:
            master["shape"], master["target"], master["changed_at"] = master["target"], None, self.now

    @precondition(lambda self: self.masters)
    @rule(data=st.data())
    def one_ends(self, data):
        name = data.draw(st.sampled_from(sorted(self.masters)))
        del self.masters[name]
        self.brain.conclude(name)

    @rule()
    def the_brain_is_killed_and_started_again(self):
        kept = [rows.live_row(live) for live in self.brain.jobs.values()]
        self.brain = cluster_state()
        assert rows.restore_live(self.brain, [*kept, {"name": "garbage", "view": b"?"}], at=self.now) == 1

    def view(self, name):
        shape, since = self.masters[name]["shape"], self.masters[name]["changed_at"]
        return views.waiting(name) if shape is None else views.running(shape, name=name, last_change_at=since)

    @invariant()
    def all_that_may_come_true_fits(self):
        shapes = [(one["shape"], one["target"]) for one in getattr(self, "masters", {}).values()]
        total = sum(max((part.cpu for part in pair if part), default=0.0) for pair in shapes)
        assert total <= SMALL.cpu * (1 + 1e-9)


TestCluster = Cluster.TestCase


def test_job_survives_the_database():
    brain = cluster_state()
    odd = views.at_times(views.running(), samples_total=float("inf"), started_at=float("-inf"))
    brain.consult(odd, epoch=4, at=0.0)
    decided(brain, replace(plan("job"), gain=float("inf")))
    again = cluster_state()
    rows.restore_live(again, [rows.live_row(brain.jobs["job"])], at=1.0)
    assert again.jobs["job"].pledge == brain.jobs["job"].pledge and again.jobs["job"].epoch == 4
    assert again.jobs["job"].view == brain.jobs["job"].view
