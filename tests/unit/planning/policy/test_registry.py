"""Policies by name, including those of other packages."""

import pathlib
import sys
import tomllib

import pytest

from springtide import errors
from springtide.domain.spec.planning_config import PlanningConfig
from springtide.planning.dataworkers import allocation
from springtide.planning.policy import registry
from tests.unit.planning import views

EXAMPLE = pathlib.Path(__file__).parents[4] / "examples" / "policy_plugin"
CONFIG = PlanningConfig()


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """The example package as an installer leaves it: its module on the path, its entry points in a dist-info folder."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    folder = tmp_path / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    lines = [
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in points.items())
        for group, points in project["entry-points"].items()
    ]
    (folder / "entry_points.txt").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.syspath_prepend(str(EXAMPLE))
    yield folder
    sys.modules.pop("half_policy", None)


def test_policy_of_an_installed_package_is_found_by_name(installed):
    assert "half" in registry.names()
    view = views.cluster(views.waiting(requested=views.shape(workers=8)))
    (plan,) = registry.load("half")(view, CONFIG).plans
    assert plan.shape == views.shape(workers=4)
    assert "half of the 8 workers" in plan.reason


def test_plug_in_plans_are_held_to_the_quota(installed):
    view = views.cluster(views.waiting(requested=views.shape(workers=40, worker_cpu=16)))
    decision = registry.load("half")(view, CONFIG)
    assert decision.plans == ()
    assert "refused" in decision.notes[0]


def test_policy_is_found_by_dotted_name_without_installation(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLE))
    policy = registry.load("half_policy:half")
    assert policy.__name__ == "half"
    with pytest.raises(errors.UnknownName, match="Did you mean 'half'"):
        registry.load("half_policy:hlaf")
    sys.modules.pop("half_policy")


def test_metric_of_an_installed_package_allots_data_worker_cores(installed):
    assert "soonest" in registry.offered(allocation.GROUP) and "soonest" not in registry.names()
    jobs = [
        allocation.FedJob(name=name, gpus=1, speed=0.1, capable=1.0, cpu=1.0, steps_left=left)
        for name, left in (("late", 900.0), ("soon", 90.0))
    ]
    assert allocation.allot(jobs, 6, allocation.load("soonest")).cores == {"late": 1.0, "soon": 5.0}


def test_broken_entry_point_names_its_package(installed):
    (installed / "entry_points.txt").write_text(f"[{registry.GROUP}]\nhalf = nowhere_at_all:half\n")
    with pytest.raises(errors.BadInput, match="package half-policy cannot be loaded"):
        registry.load("half")


def test_unknown_policy_suggests_the_nearest_name():
    with pytest.raises(errors.UnknownName, match=r"no policy named 'statik'\. Did you mean 'static'"):
        registry.load("statik")


@pytest.mark.parametrize(
    "name", ["no_such_module_anywhere:policy", ":policy", "springtide.planning.policy.registry:POLICIES"]
)
def test_dotted_name_of_a_non_function_is_a_clear_error(name):
    with pytest.raises(errors.BadInput, match="policy"):
        registry.load(name)


@pytest.mark.parametrize("text", ["raise RuntimeError('no licence')", "def half(:", "import sys; sys.exit(3)"])
def test_module_that_cannot_be_imported_is_a_clear_error(monkeypatch, tmp_path, text):
    (tmp_path / "broken_policy.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(errors.BadInput, match=r"module broken_policy cannot be imported: (Runtime|Syntax|System)"):
        registry.load("broken_policy:half")
