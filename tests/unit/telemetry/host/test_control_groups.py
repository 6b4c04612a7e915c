"""Control group files on a fake tree: what is written and read, versions 1 and 2.

The formats are the kernel's. That a real kernel obeys is tested by `tests/process/test_limits.py`, with the version
that the machine has; the other version is known to this file only.
"""

import pytest

from springtide.domain.core.resources import ProcessLimits, Usage
from springtide.telemetry.host import control_groups
from springtide.telemetry.host.control_groups import GroupV1, GroupV2


@pytest.fixture
def v1(tmp_path):
    folders = {name: tmp_path / name for name in ("cpu", "cpuacct", "memory")}
    for folder in folders.values():
        folder.mkdir()
    (tmp_path / "memory" / "memory.memsw.limit_in_bytes").write_text("9223372036854771712\n")
    return tmp_path, GroupV1(folders)


@pytest.fixture
def v2(tmp_path):
    (tmp_path / "memory.swap.max").write_text("max\n")
    return tmp_path, GroupV2(tmp_path)


def test_version_1_writes_quota_period_and_bytes(v1):
    root, group = v1
    group.hold_to(ProcessLimits(cpu=0.25, memory=64 << 20))
    assert (root / "cpu/cpu.cfs_quota_us").read_text() == "25000"
    assert (root / "cpu/cpu.cfs_period_us").read_text() == "100000"
    assert (root / "memory/memory.limit_in_bytes").read_text() == str(64 << 20)
    assert (root / "memory/memory.memsw.limit_in_bytes").read_text() == str(64 << 20)


def test_version_2_writes_limits_and_allows_no_swap(v2):
    root, group = v2
    group.hold_to(ProcessLimits(cpu=1.5, memory=64 << 20))
    assert (root / "cpu.max").read_text() == "150000 100000"
    assert (root / "memory.max").read_text() == str(64 << 20)
    assert (root / "memory.swap.max").read_text() == "0"


def test_accounting_only_group_reports_that_it_cannot_limit(v1, tmp_path):
    both = ProcessLimits(cpu=0.5, memory=64 << 20)
    assert v1[1].can_hold(both)
    counting = GroupV1({"cpuacct": tmp_path, "memory": tmp_path})
    assert counting.can_hold(ProcessLimits(memory=64 << 20)) and not counting.can_hold(both)
    (tmp_path / "memory.max").write_text("max")
    assert GroupV2(tmp_path).can_hold(ProcessLimits(memory=64 << 20)) and not GroupV2(tmp_path).can_hold(both)


@pytest.mark.parametrize("which", ["v1", "v2"])
def test_without_limits_nothing_is_written(which, request):
    root, group = request.getfixturevalue(which)
    before = sorted(root.rglob("*"))
    group.hold_to(ProcessLimits())
    assert sorted(root.rglob("*")) == before


def test_version_1_counts_nanoseconds_and_unreclaimable_memory(v1):
    root, group = v1
    (root / "cpuacct/cpuacct.usage").write_text("1500000000\n")
    (root / "cpu/cpu.stat").write_text("nr_periods 90\nnr_throttled 7\nthrottled_time 123456789\n")
    (root / "memory/memory.stat").write_text("cache 900\nrss 5\ntotal_cache 900\ntotal_rss 4096\ntotal_shmem 8192\n")
    (root / "memory/memory.max_usage_in_bytes").write_text("20480\n")
    assert group.usage() == Usage(cpu_s=1.5, memory=12288, peak=20480, throttled_s=0.7)


def test_version_2_counts_microseconds(v2):
    root, group = v2
    (root / "cpu.stat").write_text("usage_usec 1500000\nuser_usec 1\nnr_periods 90\nnr_throttled 7\n")
    (root / "memory.stat").write_text("anon 4096\nfile 900\nkernel 77\nshmem 8192\n")
    (root / "memory.peak").write_text("20480\n")
    assert group.usage() == Usage(cpu_s=1.5, memory=12288, peak=20480, throttled_s=0.7)


def test_kernels_out_of_memory_kill_count_is_read(v1, tmp_path):
    root, group = v1
    assert group.oom_kills() == 0
    (root / "memory/memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
    assert group.oom_kills() == 2
    (tmp_path / "memory.events").write_text("low 0\nhigh 0\nmax 31\noom 1\noom_kill 1\noom_group_kill 0\n")
    assert GroupV2(tmp_path).oom_kills() == 1


def test_hierarchies_mounted_together_are_one_folder(tmp_path):
    group = GroupV1({"cpu": tmp_path, "cpuacct": tmp_path})
    group.admit(42)
    assert group.folders() == (tmp_path,)
    assert group.members() == {42}


def test_removed_group_reads_as_empty(tmp_path):
    for group in (GroupV1({"memory": tmp_path / "gone"}), GroupV2(tmp_path / "gone")):
        assert group.usage() == Usage() and group.oom_kills() == 0 and group.members() == set()


V1 = """\
31 23 0:28 / {root} rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / {root}/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 {seen} {root}/memory rw,relatime shared:9 - cgroup cgroup rw,memory
41 31 0:38 / {root}/unified rw,relatime - cgroup2 cgroup2 rw
"""
V2 = "31 23 0:28 {seen} {root} rw,relatime shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"


def proc(folder, *, mountinfo, cgroup, **fields):
    (folder / "mountinfo").write_text(mountinfo.format(root=folder / "sys", **fields))
    (folder / "cgroup").write_text(cgroup)
    (folder / "sys" / "unified").mkdir(parents=True)
    return folder


def test_version_1_is_used_where_it_has_the_controllers(tmp_path):
    said = "4:memory:/jobs/a\n2:cpu,cpuacct:/\n0::/\n"
    found = control_groups.find_hierarchy(proc(tmp_path, mountinfo=V1, cgroup=said, seen="/"))
    sys = tmp_path / "sys"
    assert found.version == 1
    assert found.folders == {
        "cpu": sys / "cpu,cpuacct",
        "cpuacct": sys / "cpu,cpuacct",
        "memory": sys / "memory/jobs/a",
    }


def test_container_group_is_resolved_relative_to_its_root(tmp_path):
    said = "4:memory:/docker/abc/inner\n"
    found = control_groups.find_hierarchy(proc(tmp_path, mountinfo=V1, cgroup=said, seen="/docker/abc"))
    assert found.folders == {"memory": tmp_path / "sys/memory/inner"}


def test_version_2_is_used_where_it_has_the_controllers(tmp_path):
    folder = proc(tmp_path, mountinfo=V2, cgroup="0::/user.slice/mine.scope\n", seen="/")
    own = folder / "sys/user.slice/mine.scope"
    own.mkdir(parents=True)
    (own / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
    assert control_groups.find_hierarchy(folder) == control_groups.Hierarchy(2, {"cpu": own, "memory": own})
    (own / "cgroup.controllers").write_text("memory pids\n")
    assert control_groups.find_hierarchy(folder) == control_groups.Hierarchy(2, {"memory": own})


def test_machine_without_control_groups_has_none(tmp_path):
    assert control_groups.find_hierarchy(tmp_path).version == 0
    (tmp_path / "mountinfo").write_text("31 23 0:28 / /proc rw - proc proc rw\n")
    (tmp_path / "cgroup").write_text("")
    assert control_groups.find_hierarchy(tmp_path).version == 0
