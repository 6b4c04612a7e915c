"""Resource usage of a process, from /proc."""

import os

import pytest

from springtide import config
from springtide.domain.core.resources import Usage
from springtide.domain.core.roles import Role, RoleKind
from springtide.telemetry.host import usage


def test_this_process_has_used_cpu_and_memory():
    mine = usage.of_process(os.getpid())
    assert mine.cpu_s > 0 and mine.memory > 1 << 20 and mine.peak >= mine.memory >> 1


def test_process_names_with_spaces_and_brackets_are_parsed(tmp_path):
    (tmp_path / "7").mkdir()
    fields = ["S", *map(str, range(4, 14)), "250", "50", *map(str, range(20))]
    (tmp_path / "7" / "stat").write_text(f"7 (a) b (c) {' '.join(fields)}\n")
    (tmp_path / "7" / "status").write_text(
        "Name:\ta) b\nVmHWM:\t  9 kB\nRssAnon:\t  3 kB\nRssShmem:\t 2 kB\nThreads:\t1\n"
    )
    assert usage.of_process(7, tmp_path) == Usage(cpu_s=300 / usage.TICKS_PER_S, memory=5 << 10, peak=9 << 10)


def test_ended_process_uses_nothing(tmp_path):
    assert usage.of_process(7, tmp_path) == Usage()


MOUNTS_V2 = "30 23 0:26 / {at} rw - cgroup2 cgroup2 rw\n"
MOUNTS_V1 = "".join(
    f"3{n} 23 0:2{n} / {{at}}/{name} rw - cgroup cgroup rw,{name}\n"
    for n, name in enumerate(("cpu", "cpuacct", "memory"))
)


def role_settings(**values):
    return config.load(environ={}, overrides={"member": "server-3", "incarnation": 2, "report_usage": True, **values})


def container(root, processes, *, mounts, cgroup, members):
    """A /proc with these processes (pid: parent), and control groups; process 7 is the one that measures."""
    for pid, parent in processes.items():
        (root / "proc" / str(pid)).mkdir(parents=True)
        times = " ".join(["0"] * 9 + ["250", "150"] + ["0"] * 10)
        (root / "proc" / str(pid) / "stat").write_text(f"{pid} (python) S {parent} {times}")
        (root / "proc" / str(pid) / "status").write_text("RssAnon:\t1024 kB\nRssShmem:\t0 kB\n")
    at = root / "cgroup"
    (root / "proc" / "7" / "mountinfo").write_text(mounts.format(at=at))
    (root / "proc" / "7" / "cgroup").write_text(cgroup)
    for name in ("", "cpu", "cpuacct", "memory"):
        (at / name).mkdir(parents=True, exist_ok=True)
        (at / name / "cgroup.procs").write_text("\n".join(map(str, members)))
    return at


def test_version_2_container_usage_includes_children_and_limits(tmp_path):
    at = container(tmp_path, {1: 0, 7: 1, 8: 7}, mounts=MOUNTS_V2, cgroup="0::/\n", members=[1, 7, 8])
    (at / "cgroup.controllers").write_text("cpu memory\n")
    (at / "cpu.stat").write_text("usage_usec 12500000\nnr_throttled 3\n")
    (at / "memory.stat").write_text("anon 5000\nfile 70000\nshmem 200\n")
    (at / "cpu.max").write_text("150000 100000\n")
    (at / "memory.max").write_text("2147483648\n")
    own = usage.OwnUsage(role_settings(), proc=tmp_path / "proc", pid=7)
    read = own.read()
    assert (read.role, read.incarnation) == (Role(RoleKind.SERVER, 3), 2)
    assert (read.cpu_s, read.memory, read.throttled_s) == (12.5, 5200, pytest.approx(0.3))
    assert (read.cpu_limit, read.memory_limit) == (1.5, 2 << 30)
    (at / "memory.max").write_text("max\n")  # resized in place
    (at / "cpu.max").write_text("max 100000\n")
    assert (own.read().cpu_limit, own.read().memory_limit) == (None, None)


def test_version_1_container_usage_includes_children_and_limits(tmp_path):
    at = container(
        tmp_path, {1: 0, 7: 1}, mounts=MOUNTS_V1, cgroup="4:cpu:/\n5:cpuacct:/\n6:memory:/\n", members=[1, 7]
    )
    (at / "cpuacct" / "cpuacct.usage").write_text("3000000000\n")
    (at / "cpu" / "cpu.cfs_quota_us").write_text("50000\n")
    (at / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    (at / "memory" / "memory.stat").write_text("total_rss 4096\ntotal_shmem 0\n")
    (at / "memory" / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    read = usage.OwnUsage(role_settings(), proc=tmp_path / "proc", pid=7).read()
    assert (read.cpu_s, read.memory, read.cpu_limit, read.memory_limit) == (3.0, 4096, 0.5, None)


def test_group_shared_with_other_processes_is_not_used(tmp_path):
    at = container(tmp_path, {1: 0, 7: 1, 9: 1}, mounts=MOUNTS_V2, cgroup="0::/\n", members=[1, 7, 9])
    (at / "cgroup.controllers").write_text("cpu memory\n")
    (at / "memory.stat").write_text("anon 99999999\n")
    read = usage.OwnUsage(role_settings(), proc=tmp_path / "proc", pid=7).read()
    assert read.memory == 1 << 20 and read.memory_limit is None
    assert read.cpu_s == pytest.approx(400 / os.sysconf("SC_CLK_TCK"))


def test_invisible_process_counts_as_foreign():
    assert usage.alone({7, 8}, 7, {7: 1, 8: 7})
    assert not usage.alone({0, 7}, 7, {7: 1})
    assert not usage.alone({8}, 7, {8: 7})


def test_nothing_is_read_when_usage_reports_are_off(tmp_path):
    assert usage.OwnUsage(role_settings(report_usage=False), proc=tmp_path / "none", pid=7).read() is None


def test_this_process_can_be_measured():
    read = usage.OwnUsage(role_settings()).read()
    assert read.cpu_s > 0 and read.memory > 1 << 20
