"""What a role process is told, equal on every platform."""

import importlib.util
import json

import pytest

from springtide import config
from springtide.domain.core.resources import ProcessLimits
from springtide.domain.core.roles import Life, Role, RoleKind
from springtide.domain.spec.job_spec import JobSpec
from springtide.platforms.agent import run_plan
from springtide.platforms.agent.run_plan import RunPlan

PLAN = RunPlan(spec=JobSpec(name="ctr", workers=2, servers=1), script="train.py", arguments=("--epochs", "2"))


@pytest.mark.parametrize("kind", [kind for kind in RoleKind if kind is not RoleKind.AGENT])
def test_every_role_has_a_module(kind):
    assert importlib.util.find_spec(run_plan.MODULES[kind]) is not None


def test_command_lines_contain_nothing_of_spec_or_script_arguments():
    assert run_plan.arguments_of(RoleKind.WORKER, PLAN) == ("train.py",)
    assert run_plan.arguments_of(RoleKind.SERVER, PLAN) == run_plan.arguments_of(RoleKind.DATA_WORKER, PLAN) == ()
    there = run_plan.arguments_of(RoleKind.MASTER, PLAN, root="/run/springtide/run")
    assert there == ("/run/springtide/run", "127.0.0.1", "0")


def test_only_workers_get_the_scripts_arguments():
    for kind in (RoleKind.WORKER, RoleKind.SERVER, RoleKind.DATA_WORKER):
        told = run_plan.settings_of(Life(Role(kind, 0)), {}, PLAN.arguments)
        assert json.loads(told.get("arguments", "[]")) == (["--epochs", "2"] if kind is RoleKind.WORKER else [])


def test_role_settings_are_read_back_by_the_role():
    told = run_plan.settings_of(
        Life(Role(RoleKind.SERVER, 3), 2),
        {},
        (),
        master="ctr-master.ctr.default.svc:7700",
        secret_file="/run/springtide/credentials/secret",
        host="10.1.2.3",
        master_patience_s=run_plan.PATIENCE_S,
        report_usage="1",
    )
    read = config.load(environ={config.PREFIX + name.upper(): value for name, value in told.items()})
    assert (read.member, read.incarnation, read.host) == ("server-3", 2, "10.1.2.3")
    assert (read.master, read.master_file) == ("ctr-master.ctr.default.svc:7700", "")
    assert read.report_usage and not read.debug and read.master_patience_s == run_plan.PATIENCE_S


def test_unset_options_are_not_passed():
    told = run_plan.settings_of(Life(Role(RoleKind.WORKER, 0)), {}, (), master="10.0.0.1:7700", tls="", debug=0)
    assert told == {"member": "worker-0", "incarnation": "0", "master": "10.0.0.1:7700", "debug": "0"}


def test_role_uses_at_most_as_many_threads_as_cores():
    many = RunPlan(spec=PLAN.spec, script="train.py", threads_per_worker=8)
    assert run_plan.environment_of(many, ProcessLimits())["OMP_NUM_THREADS"] == "8"
    assert run_plan.environment_of(many, ProcessLimits(cpu=1.5))["OMP_NUM_THREADS"] == "2"
    assert run_plan.environment_of(many, ProcessLimits(cpu=0.1))["OMP_NUM_THREADS"] == "1"
