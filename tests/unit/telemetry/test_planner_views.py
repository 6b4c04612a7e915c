"""Planner views survive a file; hand-written files are read leniently or refused."""

import json
import math

import pytest

from springtide import errors
from springtide.domain.core.roles import Role, RoleKind
from springtide.domain.core.shape import ResourceBudget, Shape, ShapeBounds
from springtide.domain.plan.profile import ModelFacts, Profile, TimingSum
from springtide.domain.plan.view import ClusterView, FindingKind, GuardFinding, JobView, LaunchTime, PastJob, RoleUse
from springtide.domain.spec.planning_config import PlanningConfig, PlanningIdentity
from springtide.telemetry import planner_views
from springtide.telemetry.logs import RunFiles
from springtide.telemetry.planner_views import PlannerView

SMALL = Shape(workers=1, servers=1, worker_cpu=0.5, server_cpu=0.25)
LARGE = Shape(workers=4, servers=2, worker_cpu=2.0, server_cpu=1.0)
FACTS = ModelFacts(dense_bytes=4e5, bandwidth=4e9, dim=400.0, batch=512)


def whole_view() -> PlannerView:
    timing = TimingSum(steps=100, samples=51200, total_s=math.nan, gradient_s=math.inf)
    job = JobView(
        name="ads",
        facts=FACTS,
        bounds=ShapeBounds(least=SMALL, most=LARGE),
        identity=PlanningIdentity(user="eve", features={"tables": 26.0}),
        shape=SMALL,
        profiles=(Profile(shape=SMALL, batch=512, timing=timing, at=12.5),),
        uses=(RoleUse(role=Role(RoleKind.SERVER, 1), cpu_used=0.2, cpu=0.25),),
        findings=(GuardFinding(trouble=FindingKind.MEMORY, role=Role(RoleKind.SERVER, 0), why="rows grow", servers=2),),
    )
    view = ClusterView(
        now=20.0,
        capacity=ResourceBudget(cpu=math.inf, memory=2.0**34),
        jobs=(job,),
        history=(PastJob(name="old", facts=FACTS),),
        launches=(LaunchTime(kind=RoleKind.WORKER, cpu=0.5, memory=0, seconds=3.0),),
    )
    return PlannerView(view=view, config=PlanningConfig(policy="static", rho=1.0))


def test_planner_view_survives_a_file_including_nan(tmp_path):
    path = tmp_path / "view.json"
    planner_views.write(path, whole_view())
    found = planner_views.read(path)
    timing = found.view.jobs[0].profiles[0].timing
    assert math.isnan(timing.total_s) and timing.gradient_s == math.inf
    assert repr(found) == repr(whole_view())  # NaN is not equal to itself; its repr is
    assert [each.name for each in tmp_path.iterdir()] == ["view.json"]


def write_by_hand(tmp_path, **changes):
    job = {
        "name": "ads",
        "facts": {"dense_bytes": "4e5", "bandwidth": 4e9, "dim": 400, "batch": 512},
        "bounds": {
            "least": {"workers": 1, "servers": 1, "worker_cpu": 0.5, "server_cpu": 0.25},
            "most": {"workers": 4, "servers": 2, "worker_cpu": 2, "server_cpu": 1, "server_memory": "2G"},
        },
        **changes,
    }
    path = tmp_path / "job.json"
    path.write_text(json.dumps({"jobs": [job]}, indent=1))
    return path


def test_hand_written_view_may_omit_defaults_and_use_units(tmp_path):
    shown = planner_views.read(write_by_hand(tmp_path, progress={"last_change_at": 7.0}))
    job = shown.view.jobs[0]
    assert job.facts.dense_bytes == 4e5
    assert job.bounds.most.server_memory == 2**31
    assert shown.view.capacity.cpu == math.inf
    assert shown.view.now == 7.0
    assert shown.config == PlanningConfig()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"shpae": None}, "no field named 'shpae'. Did you mean 'shape'?"),
        ({"shape": {"workers": 1}}, "a Shape needs servers, worker_cpu, server_cpu too"),
        ({"shape": {"workers": 0, "servers": 1, "worker_cpu": 1, "server_cpu": 1}}, "a job needs at least one of each"),
        ({"identity": {"priority": "high"}}, "jobs[0].identity.priority"),
        ({"profiles": {}}, "expected a list"),
        ({"facts": 3}, "expected the fields of a ModelFacts"),
        ({"bounds": {"least": {}, "most": {}}}, "jobs[0].bounds.least"),
    ],
)
def test_invalid_field_is_named_with_its_file(tmp_path, changes, said):
    with pytest.raises(errors.BadInput) as raised:
        planner_views.read(write_by_hand(tmp_path, **changes))
    assert said in str(raised.value)
    assert str(tmp_path / "job.json") in str(raised.value)


def test_invalid_line_is_named(tmp_path):
    path = write_by_hand(tmp_path, identity={"priority": -1})
    with pytest.raises(errors.BadInput, match=r"job\.json:\d+: jobs\[0\]\.identity: planning: priority -1"):
        planner_views.read(path)


def test_duplicate_job_names_and_a_missing_file_are_refused(tmp_path):
    path = write_by_hand(tmp_path)
    content = json.loads(path.read_text())
    path.write_text(json.dumps({"jobs": content["jobs"] * 2}))
    with pytest.raises(errors.BadInput, match="two jobs have the same name"):
        planner_views.read(path)
    with pytest.raises(errors.MissingFile, match="plan_job"):
        planner_views.read(tmp_path / "none.yaml")


def test_views_behind_the_newest_plans_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(planner_views, "MOST_KEPT", 2)
    files = RunFiles(tmp_path)
    with pytest.raises(errors.MissingFile, match=r"has no view\.json: its size is fixed"):
        planner_views.path_of(files)
    planner_views.keep(files, 0)  # nothing to keep yet
    for epoch in (9, 10, 11):
        planner_views.write(files.view, whole_view())
        planner_views.keep(files, epoch)
    assert sorted(path.name for path in files.views.iterdir()) == ["10.json", "11.json"]
    assert planner_views.read(planner_views.path_of(files, 11)).view.jobs[0].name == "ads"
