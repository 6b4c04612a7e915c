"""Create and remove control groups on a fake tree; `tests/process/test_limits.py` uses real ones."""

import os
import pathlib

import pytest

from springtide.domain.core.resources import ProcessLimits
from springtide.platforms.local import process_group
from springtide.telemetry.host.control_groups import Hierarchy

LIMITS = ProcessLimits(cpu=0.5, memory=64 << 20)


@pytest.fixture
def messages():
    return []


def v1(folder):
    folders = {name: folder / name for name in ("cpu", "cpuacct", "memory")}
    for each in folders.values():
        each.mkdir()
    return Hierarchy(1, folders)


def v2(folder, handed_on=""):
    (folder / "cgroup.subtree_control").write_text(handed_on)
    return Hierarchy(2, {"cpu": folder, "memory": folder})


def test_quota_uses_every_hierarchy_and_counting_leaves_cpu_shares_unset(tmp_path, messages):
    groups = process_group.Groups(messages.append, v1(tmp_path))
    assert {folder.parent.parent.name for folder in groups.make("worker-0", LIMITS).folders()} == {
        "cpu",
        "cpuacct",
        "memory",
    }
    counting = groups.make("worker-1", ProcessLimits())
    assert {folder.parent.parent.name for folder in counting.folders()} == {"cpuacct", "memory"}
    assert messages == []


def test_control_group_folders_are_named_for_this_process_and_removed(tmp_path, messages):
    found = v1(tmp_path)
    groups = process_group.Groups(messages.append, found)
    one, two = groups.make("worker-0", ProcessLimits()), groups.make("worker-0.1", ProcessLimits())
    [base] = {folder.parent.name for folder in one.folders()}
    assert base.startswith(process_group.name_of(os.getpid()) + "-")
    groups.remove(one)
    assert not any(folder.exists() for folder in one.folders())
    assert all(folder.exists() for folder in two.folders())
    groups.close()
    assert groups.folders() == [] and not list(tmp_path.rglob("springtide-*"))


def test_missing_permission_is_reported_once_and_roles_run_without_limits(tmp_path, messages):
    found = Hierarchy(1, {"cpu": tmp_path / "none", "memory": tmp_path / "none"})
    groups = process_group.Groups(messages.append, found)
    assert groups.make("worker-0", ProcessLimits()) is None and messages == []
    assert groups.make("worker-0", LIMITS) is None
    assert groups.make("worker-1", LIMITS) is None
    [line] = messages
    assert line.startswith("no limits: ") and "No such file or directory" in line and "systemd-run" in line


def test_missing_control_groups_are_reported(messages):
    assert process_group.Groups(messages.append, Hierarchy()).make("worker-0", LIMITS) is None
    assert "there is no control group for cpu here" in messages[0]


def test_version_2_group_enables_the_requested_controllers(tmp_path, messages):
    found = v2(tmp_path, "memory cpu")
    groups = process_group.Groups(messages.append, found)
    first = groups.make("probe", ProcessLimits())  # a kernel would make the files of a group with it
    assert first is None
    [base] = tmp_path.glob("springtide-*")
    (base / "cgroup.subtree_control").write_text("")
    group = groups.make("worker-0", LIMITS)
    assert group.folders() == (base / "worker-0",) and messages == []
    assert (base / "cgroup.subtree_control").read_text() == "+cpu +memory"


def test_two_agents_of_one_process_do_not_share_a_group(tmp_path, messages):
    found = v1(tmp_path)
    one, two = (process_group.Groups(messages.append, found).make("worker-0", ProcessLimits()) for _ in range(2))
    assert not set(one.folders()) & set(two.folders())


def test_dead_agents_groups_are_removed_by_the_next(tmp_path, messages):
    found = v1(tmp_path)
    dead = f"springtide-{os.getpid()}-1-1"  # this process has another start time
    for folder in found.folders.values():
        (folder / dead / "worker-0").mkdir(parents=True)
        (folder / "springtide-of-someone").mkdir()
    alive = tmp_path / "memory" / f"{process_group.name_of(os.getppid())}-1"
    alive.mkdir()
    process_group.Groups(messages.append, found)
    assert {path.name for path in tmp_path.rglob("springtide-*")} == {"springtide-of-someone", alive.name}


def test_concurrent_removal_of_a_dead_agents_groups_is_harmless(tmp_path, monkeypatch):
    gone = tmp_path / f"springtide-{os.getpid()}-1-1"
    monkeypatch.setattr(process_group.pathlib.Path, "glob", lambda path, _: [gone] if path == tmp_path else [])
    assert process_group.remove_stale(tmp_path) == [gone]


def test_process_group_is_named_by_pid_and_start_time():
    mine = process_group.name_of(os.getpid())
    start = pathlib.Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
    assert mine == f"springtide-{os.getpid()}-{start}"
    assert process_group.name_of(2**22 + 1) == ""
