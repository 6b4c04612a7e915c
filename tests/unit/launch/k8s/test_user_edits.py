from springtide.domain.core.shape import Shape, ShapeBounds
from springtide.domain.spec.elastic_job import ElasticJob, RoleWish
from springtide.domain.spec.job_spec import JobPhase
from springtide.launch.k8s import pod_requests
from springtide.rpc.messages import messages
from springtide.rpc.messages.types import JobStatus, RoleCount, RoleStatus

STATUS = JobStatus(
    name="ctr",
    phase=JobPhase.RUNNING,
    why="",
    elapsed_s=1.0,
    roles=RoleStatus(workers=RoleCount(wanted=4), servers=RoleCount(wanted=2)),
)
SHAPE = Shape(workers=1, servers=1, worker_cpu=0.5, server_cpu=0.2)


def plan(name, at="2026-01-01T00:00:00Z", status=None, **spec):
    thing = {"metadata": {"name": name, "creationTimestamp": at}, "spec": {"job": "ctr", **spec}}
    return thing | ({"status": status} if status else {})


def test_answered_or_deleted_plan_is_not_an_open_request():
    assert pod_requests.open_wish(plan("a", workers=2)).plan.workers == 2
    assert pod_requests.open_wish(plan("a", workers=2, status={"phase": "Applied"})) is None
    deleted = plan("a", workers=2)
    deleted["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert pod_requests.open_wish(deleted) is None


def test_empty_or_invalid_plan_is_kept_with_its_error():
    assert "expected workers" in pod_requests.open_wish(plan("a")).trouble
    assert "expected 1 or more" in pod_requests.open_wish(plan("a", workers=0)).trouble


def test_newest_plan_wins():
    older, newer = (
        pod_requests.open_wish(plan(name, at, workers=2)) for name, at in (("b", "2026-01-01"), ("a", "2026-01-02"))
    )
    assert pod_requests.newest([newer, older]) == (newer, [older])
    assert pod_requests.newest([]) == (None, [])


def test_master_gets_the_users_reason():
    wish = pod_requests.open_wish(plan("up", workers=3, dataWorkers=0, reason="black friday"))
    assert pod_requests.scale_request(wish.plan, "up") == messages.ScaleRequest(
        workers=3, data_workers=0, why="black friday"
    )


def job(workers=None, **fields):
    return ElasticJob(script="train.py", workers=workers or RoleWish(), **fields)


def test_changed_worker_count_in_the_spec_is_requested():
    scale = pod_requests.changed(job(RoleWish(count=4)), job(RoleWish(count=6)), STATUS)
    assert (scale.workers, scale.servers) == (6, None)
    assert pod_requests.changed(job(RoleWish(count=4)), job(RoleWish(count=4), stopped=True), STATUS) is None


def test_changed_bounds_scale_only_if_the_current_count_is_outside():
    assert pod_requests.changed(job(), job(RoleWish(min=1, max=8)), STATUS) is None
    assert pod_requests.changed(job(), job(RoleWish(max=3)), STATUS).workers == 3
    assert pod_requests.changed(job(), job(RoleWish(min=5)), STATUS).workers == 5


def test_data_workers_follow_the_spec():
    assert pod_requests.changed(job(), job(data_workers="2"), STATUS).data_workers == 2
    assert pod_requests.changed(job(), job(data_workers="off"), STATUS).data_workers == 0
    assert pod_requests.changed(job(data_workers="2"), job(), STATUS) is None


def test_bounds_of_a_planned_job_go_to_its_planner():
    two, four = RoleWish(min=1, max=2), RoleWish(min=2, max=3)
    limits = ShapeBounds(
        least=Shape(workers=2, servers=1, worker_cpu=0.5, server_cpu=0.2),
        most=Shape(workers=3, servers=7, worker_cpu=0.5, server_cpu=0.2),
    )
    assert pod_requests.changed(job(two), job(four), STATUS, planned=True) is None
    assert pod_requests.rebound(job(two), job(four), limits) == messages.BoundsRequest(
        workers=(2, 3), why=pod_requests.CHANGED
    )
    assert pod_requests.rebound(job(two), job(two), limits) is None
    freed = pod_requests.rebound(job(servers=RoleWish(max=2)), job(), limits)
    assert freed.servers == (1, 7), "a bound that was taken away leaves what the cluster has"


def test_count_given_to_a_planned_job_pins_it():
    bounded, given = job(RoleWish(max=8)), job(RoleWish(count=6))
    assert pod_requests.changed(bounded, given, STATUS, planned=True).workers == 6
    limits = ShapeBounds(least=SHAPE, most=SHAPE)
    assert pod_requests.rebound(bounded, given, limits) is None
    assert pod_requests.rebound(given, bounded, limits).workers == (1, 1), "the planner has it again"
