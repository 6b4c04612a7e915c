"""Finding one's own control group from what the kernel says in /proc."""

from springtide.telemetry.host import cgroup_hierarchy

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


def test_version_1_where_the_controllers_are_there(tmp_path):
    said = "4:memory:/jobs/a\n2:cpu,cpuacct:/\n0::/\n"
    found = cgroup_hierarchy.find(proc(tmp_path, mountinfo=V1, cgroup=said, seen="/"))
    sys = tmp_path / "sys"
    assert found.version == 1
    assert found.folders == {
        "cpu": sys / "cpu,cpuacct",
        "cpuacct": sys / "cpu,cpuacct",
        "memory": sys / "memory/jobs/a",
    }


def test_a_container_sees_a_part_of_the_tree_as_the_whole(tmp_path):
    said = "4:memory:/docker/abc/inner\n"
    found = cgroup_hierarchy.find(proc(tmp_path, mountinfo=V1, cgroup=said, seen="/docker/abc"))
    assert found.folders == {"memory": tmp_path / "sys/memory/inner"}


def test_version_2_where_it_has_the_controllers(tmp_path):
    folder = proc(tmp_path, mountinfo=V2, cgroup="0::/user.slice/mine.scope\n", seen="/")
    own = folder / "sys/user.slice/mine.scope"
    own.mkdir(parents=True)
    (own / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
    assert cgroup_hierarchy.find(folder) == cgroup_hierarchy.Hierarchy(2, {"cpu": own, "memory": own})
    (own / "cgroup.controllers").write_text("memory pids\n")
    assert cgroup_hierarchy.find(folder) == cgroup_hierarchy.Hierarchy(2, {"memory": own})


def test_no_control_groups_at_all(tmp_path):
    assert cgroup_hierarchy.find(tmp_path).version == 0
    (tmp_path / "mountinfo").write_text("31 23 0:28 / /proc rw - proc proc rw\n")
    (tmp_path / "cgroup").write_text("")
    assert cgroup_hierarchy.find(tmp_path).version == 0
