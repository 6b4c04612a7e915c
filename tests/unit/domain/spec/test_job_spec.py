"""Jobs, roles and sizes as plain values."""

import pytest

from springtide import errors
from springtide.domain.core import resources
from springtide.domain.core.roles import RANKED, Placement, Role, RoleExit, RoleKind, parse_role
from springtide.domain.model.checkpoints import CheckpointRules
from springtide.domain.spec.job_spec import JobPhase, JobSpec
from springtide.domain.spec.planning_config import AdviserRules, PlanRules


@pytest.mark.parametrize("kind", RoleKind)
def test_role_is_parsed_from_its_name(kind):
    role = Role(kind, 12 if kind in RANKED else 0)
    assert parse_role(str(role)) == role


@pytest.mark.parametrize("name", ["", "worker", "worker-", "worker-x", "worker-²", "master-0", "nobody-1", "-1"])
def test_invalid_role_name_parses_to_none(name):
    assert parse_role(name) is None


def test_roles_print_as_their_log_names():
    assert str(Role(RoleKind.WORKER, 1)) == "worker-1"
    assert str(Role(RoleKind.MASTER)) == "master"
    assert (
        str(RoleExit(role=Role(RoleKind.SERVER, 0), pid=5, signal="SIGKILL"))
        == "server-0 (pid 5) was killed by SIGKILL"
    )
    assert str(RoleExit(role=Role(RoleKind.SERVER, 0), pid=5, code=2)) == "server-0 (pid 5) exited with status 2"
    told = RoleExit(role=Role(RoleKind.SERVER, 0), pid=5, code=1, error="OSError: disk full")
    assert str(told) == "server-0 (pid 5) exited with status 1: OSError: disk full"


def test_placement_names_only_existing_servers():
    laid = Placement(epoch=1, servers=2, server_of_slot=(0, 1) * 32)
    assert laid.slots_of(1)[:3] == (1, 3, 5)
    with pytest.raises(errors.BadInput, match=r"outside 0\.\.1"):
        Placement(epoch=1, servers=2, server_of_slot=(0, 2) * 32)
    with pytest.raises(errors.BadInput, match="65 slots"):
        Placement(epoch=1, servers=1, server_of_slot=(0,) * 65)


def test_job_needs_at_least_one_worker_and_server():
    with pytest.raises(errors.BadInput, match="0 servers and 1 workers"):
        JobSpec(name="job", servers=0)
    assert JobPhase.FAILED.over and not JobPhase.DRAINING.over


@pytest.mark.parametrize(
    ("cores", "given", "sizes"),
    [
        (2, {}, (1, 1, 2)),
        (4, {}, (1, 2, 2)),
        (16, {"workers": 4, "servers": 2}, (2, 4, 4)),
        (2, {"workers": 5}, (1, 5, 1)),
    ],
)
def test_local_cores_are_divided_among_workers(cores, given, sizes):
    found = resources.size_locally(cores, **given)
    assert (found.servers, found.workers, found.threads_per_worker) == sizes


def test_members_get_no_urls_with_credentials():
    secret = "postgresql://u:hidden@host/past"
    spec = JobSpec(
        name="job",
        checkpoints=CheckpointRules(every_s=5.0, url="s3://key:hidden@bucket/x", resume="s3://key:hidden@bucket/y"),
        planning=PlanRules(adviser=AdviserRules(history=secret)),
    )
    sent = spec.for_members()
    assert "hidden" not in repr(sent)
    assert sent.checkpoints.on and sent.name == "job"
