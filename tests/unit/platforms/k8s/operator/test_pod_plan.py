from hypothesis import given
from hypothesis import strategies as st

from springtide.domain.plan.scale_plan import PlanStatus, PodState, PodWish, ScalePlan
from springtide.platforms.k8s.objects import pods
from springtide.platforms.k8s.operator import job_view, pod_plan, status_reports
from springtide.platforms.k8s.operator.lifecycle import DeletePod, EvictPod, MakePod, ResizePod, SetBudget
from tests.unit.platforms.k8s import making

JOB = making.job(spec={"kubernetes": {"graceS": 7}})
WORKER = PodWish(role="worker", rank=0, cpu=1.0)
AT = 1_800_000_000.0


def operator_view(*entries, pods=(), job=JOB, kill=(), **more):
    plan = ScalePlan(job=job.name, origin="master", pods=entries, kill=kill)
    own = {each["metadata"]["name"]: each for each in pods}
    status = more.pop("status", PlanStatus(budget=sum(each.role == "server" for each in entries)))
    return job_view.OperatorView(job=job, site=making.SITE, at=AT, plan=plan, pods=own, plan_status=status, **more)


def running_pod(entry, **more):
    name = entry.pod_name(JOB.name)
    pod = making.pod(name, JOB, role=entry.role, rank=entry.rank, incarnation=entry.incarnation, **more)
    pod["spec"]["containers"][0]["resources"] = pods.resources_of(JOB, entry)
    return pod


def test_missing_pod_is_created():
    (step,) = pod_plan.decide_pods(operator_view(WORKER)).steps
    assert isinstance(step, MakePod) and step.pod["metadata"]["name"] == "ctr-worker-0-0"


def test_pod_of_an_incarnation_is_created_once_and_its_deletion_reported():
    made = PlanStatus(budget=0, made={"worker-0": 0}, pods={"ctr-worker-0-0": PodState(phase="Running")})
    now = operator_view(WORKER, status=made)
    assert pod_plan.decide_pods(now).steps == ()
    status = status_reports.plan_status(now, status_reports.StepOutcome())
    assert status.pods["ctr-worker-0-0"] == PodState(phase="Gone", why="somebody has deleted it")
    assert status.made == {"worker-0": 0}


def test_next_incarnation_is_created():
    made = PlanStatus(budget=0, made={"worker-0": 0})
    (step,) = pod_plan.decide_pods(operator_view(PodWish(role="worker", rank=0, incarnation=1), status=made)).steps
    assert step.pod["metadata"]["name"] == "ctr-worker-0-1"


def test_unplanned_pod_is_deleted():
    (step,) = pod_plan.decide_pods(operator_view(pods=[running_pod(WORKER)])).steps
    assert step == DeletePod("ctr-worker-0-0", "u-ctr-worker-0-0", 7, "it is no longer in the plan")


def test_pod_to_kill_gets_no_grace_period():
    (step,) = pod_plan.decide_pods(operator_view(pods=[running_pod(WORKER)], kill=("ctr-worker-0-0",))).steps
    assert isinstance(step, DeletePod) and step.grace_s == 0


def test_terminating_pod_is_left_alone_until_overdue():
    leaving = running_pod(WORKER, deleted_at="2027-01-15T08:00:00Z")  # AT
    decided = pod_plan.decide_pods(operator_view(pods=[leaving]))
    assert decided.steps == () and decided.again_s == 30
    late = running_pod(WORKER, deleted_at="2027-01-15T07:59:00Z")
    (step,) = pod_plan.decide_pods(operator_view(pods=[late])).steps
    assert isinstance(step, DeletePod) and step.grace_s == 0


def test_newest_ended_pod_of_each_role_stays_for_its_logs():
    lives = [PodWish(role="worker", rank=0, incarnation=number) for number in range(5)]
    ended = [running_pod(each, phase="Failed") for each in lives[:4]]
    steps = pod_plan.decide_pods(operator_view(lives[4], pods=[*ended, running_pod(lives[4])])).steps
    assert {step.name for step in steps} == {"ctr-worker-0-0", "ctr-worker-0-1"}


def test_finished_job_has_no_running_pods():
    over = making.job(status={"phase": "Succeeded"})
    ended = PodWish(role="worker", rank=1)
    found = operator_view(WORKER, ended, job=over, pods=[running_pod(WORKER), running_pod(ended, phase="Succeeded")])
    assert [step.name for step in pod_plan.decide_pods(found).steps] == ["ctr-worker-0-0"]


def test_changed_resources_are_patched_where_the_cluster_supports_it():
    more = PodWish(role="worker", rank=0, cpu=2.0)
    (step,) = pod_plan.decide_pods(operator_view(more, pods=[running_pod(WORKER)], can_resize=True)).steps
    assert step == ResizePod("ctr-worker-0-0", "worker", {"requests": {"cpu": "2000m"}, "limits": {"cpu": "2000m"}})
    without = operator_view(more, pods=[running_pod(WORKER)])
    assert pod_plan.decide_pods(without).steps == ()
    said = status_reports.plan_status(without, status_reports.StepOutcome()).pods["ctr-worker-0-0"]
    assert said.resized == "Unsupported"


def test_cluster_defaulted_resources_cause_no_resize():
    pod = running_pod(WORKER)
    resources = pod["spec"]["containers"][0]["resources"]
    resources["limits"] = {"cpu": "1", "memory": "2Gi"}  # by a LimitRange
    resources["requests"] = {"cpu": "1", "memory": "1Gi", "ephemeral-storage": "1Gi"}
    as_it_is = operator_view(WORKER, pods=[pod], can_resize=False)
    assert pod_plan.decide_pods(as_it_is).steps == ()
    assert status_reports.plan_status(as_it_is, status_reports.StepOutcome()).pods["ctr-worker-0-0"].resized == ""
    more = PodWish(role="worker", rank=0, cpu=2.0)
    (step,) = pod_plan.decide_pods(operator_view(more, pods=[pod], can_resize=True)).steps
    assert step.resources == {
        "limits": {"cpu": "2000m", "memory": "2Gi"},
        "requests": {"cpu": "2000m", "memory": "1Gi", "ephemeral-storage": "1Gi"},
    }


def test_infeasible_resize_is_not_repeated_for_the_same_plan():
    more = PodWish(role="worker", rank=0, cpu=2.0)
    known = PlanStatus(
        budget=0, pods={"ctr-worker-0-0": PodState(phase="Running", resized="Infeasible")}, observed_generation=3
    )
    same = operator_view(more, pods=[running_pod(WORKER)], can_resize=True, status=known, plan_generation=3)
    assert pod_plan.decide_pods(same).steps == ()
    later = operator_view(more, pods=[running_pod(WORKER)], can_resize=True, status=known, plan_generation=4)
    assert len(pod_plan.decide_pods(later).steps) == 1


def test_disruption_budget_follows_the_number_of_servers():
    servers = [PodWish(role="server", rank=rank) for rank in range(3)]
    known = PlanStatus(budget=2)
    steps = pod_plan.decide_pods(
        operator_view(*servers, pods=[running_pod(each) for each in servers], status=known)
    ).steps
    assert steps == (SetBudget(3),)


def test_pods_are_evicted_from_a_node_about_to_be_removed():
    taint = {"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}
    doomed = job_view.doomed([{"metadata": {"name": "n1"}, "spec": {"taints": [taint]}}, {"metadata": {"name": "n2"}}])
    there, elsewhere = running_pod(WORKER), running_pod(PodWish(role="worker", rank=1, cpu=1.0))
    there["spec"]["nodeName"], elsewhere["spec"]["nodeName"] = "n1", "n2"
    found = operator_view(WORKER, PodWish(role="worker", rank=1, cpu=1.0), pods=[there, elsewhere], doomed=doomed)
    (step,) = pod_plan.decide_pods(found).steps
    assert isinstance(step, EvictPod) and step.name == "ctr-worker-0-0" and "Karpenter" in step.why


def test_pod_of_an_earlier_job_is_waited_for():
    decided = pod_plan.decide_pods(operator_view(WORKER, foreign=frozenset({"ctr-worker-0-0"})))
    assert decided.steps == () and decided.again_s is not None


ENTRIES = st.lists(
    st.builds(
        PodWish,
        role=st.sampled_from(["worker", "server", "data-worker"]),
        rank=st.integers(0, 3),
        incarnation=st.integers(0, 2),
        cpu=st.sampled_from([None, 0.5, 2.0]),
    ),
    unique_by=lambda each: (each.role, each.rank, each.incarnation),
    max_size=6,
)


@given(ENTRIES, ENTRIES, st.lists(st.sampled_from(["Pending", "Running", "Succeeded", "Failed"]), min_size=6))
def test_plan_converges_after_one_pass_and_repeats_no_step(entries, before, phases):
    """In an obedient cluster all wanted pods, and no others, run after one pass."""
    cluster = {
        each.pod_name("ctr"): running_pod(each, phase=phase) for each, phase in zip(before, phases, strict=False)
    }
    status = PlanStatus()
    for look in range(4):
        now = operator_view(*entries, pods=cluster.values(), can_resize=True, status=status)
        steps = pod_plan.decide_pods(now).steps
        assert look < 2 or not steps
        done, made = {}, {}
        for step in steps:
            match step:
                case MakePod(entry):
                    cluster[entry.pod_name("ctr")] = running_pod(entry)
                    made[str(entry.life.role)] = max(entry.incarnation, made.get(str(entry.life.role), -1))
                case DeletePod(name):
                    del cluster[name]
                case ResizePod(name, _, resources):
                    cluster[name]["spec"]["containers"][0]["resources"] = resources
                case SetBudget(servers):
                    done["budget"] = servers
        status = status_reports.plan_status(now, status_reports.StepOutcome(made=made, **done))
    alive = {name for name, pod in cluster.items() if pod["status"]["phase"] in ("Pending", "Running")}
    assert alive <= {each.pod_name("ctr") for each in entries}
    newest = {str(each.life.role): each.incarnation for each in sorted(entries, key=lambda each: each.incarnation)}
    for each in entries:
        assert each.pod_name("ctr") in cluster or status.made[str(each.life.role)] >= each.incarnation
        assert status.made[str(each.life.role)] <= newest[str(each.life.role)]
