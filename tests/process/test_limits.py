"""Limits enforced by the kernel: CPU quotas and memory limits.

Needs control groups that this user may make; version 1 or 2, whichever the machine has.
"""

import asyncio
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from springtide.domain.core.resources import ProcessLimits
from springtide.domain.core.roles import Life, Role, RoleKind
from springtide.platforms.agent.platform_api import RoleLaunch
from springtide.platforms.local import platform as local
from springtide.platforms.local import process_group
from springtide.telemetry import logs
from springtide.telemetry.host import control_groups
from springtide.telemetry.host.control_groups import GroupV2
from tests import waiting
from tests.process import held, running

pytestmark = pytest.mark.process

WORKER = Life(Role(RoleKind.WORKER, 0), 3)
BURN = "import time\nwhile time.process_time() < {seconds}: pass"
BURN_UNTIL = "import os\nwhile not os.path.exists({path!r}): pass"
FILL = "x = b'x' * (400 << 20)"


@pytest.fixture
def limited():
    """Skip where the kernel or the user does not allow limits."""
    held.skip_unless(ProcessLimits(cpu=1.0, memory=64 << 20))


def statement(text):
    """A process that runs a statement, as `python -m` can."""
    return ("-n1", "-r1", *text.splitlines())


async def run_one(platform, *, text, limits, on_start=lambda pid: None, on_usage=lambda usage: None):
    """Run one process to its end: its exit, its duration and its last measured usage."""
    ended = asyncio.get_running_loop().create_future()
    launch = RoleLaunch(life=WORKER, module="timeit", arguments=statement(text), limits=limits)
    began = time.monotonic()
    on_start(platform.start(launch, ended.set_result))
    usage = None
    while not ended.done():
        usage = platform.usage().get(WORKER, (usage,))[0]
        on_usage(usage)
        await asyncio.wait({ended}, timeout=0.05)
    return ended.result(), time.monotonic() - began, usage


async def burn_until_seen(platform, folder, cpu_s, limits):
    """Run a process that burns CPU until its measured usage reaches a value."""
    enough = folder / "enough"

    def look(usage):
        if usage is not None and usage.cpu_s > cpu_s:
            enough.touch()

    return await run_one(platform, text=BURN_UNTIL.format(path=str(enough)), limits=limits, on_usage=look)


def run_on_platform(folder, work):
    """Run a coroutine function on a local platform of its own, and clean up."""

    async def body():
        said = []
        platform = local.LocalPlatform(logs.make_run(folder, "train"), said.append)
        try:
            return await work(platform)
        finally:
            platform.close()
            assert said == []

    result = asyncio.run(body())
    assert not list(own_groups())
    return result


def own_groups():
    """Control groups of this process."""
    for folder in set(control_groups.find_hierarchy().folders.values()):
        yield from folder.glob(f"springtide-{os.getpid()}-*")


def test_process_limited_to_half_a_core_uses_half_a_core(tmp_path, limited):
    exit, wall_s, usage = run_on_platform(
        tmp_path, lambda platform: burn_until_seen(platform, tmp_path, 0.8, ProcessLimits(cpu=0.5))
    )
    assert exit.code == 0 and not exit.oom
    print(f"{usage.cpu_s:.2f} s of CPU in {wall_s:.2f} s")
    assert 0.0 < usage.cpu_s / wall_s < 0.6, (usage, wall_s)  # much less than half where others want the cores too


def test_running_process_can_be_given_more_cpu(tmp_path, limited):
    async def work(platform):
        seen = []

        def more(pid):
            assert platform.hold(WORKER, ProcessLimits(cpu=0.5))
            assert not platform.hold(Life(WORKER.role, 4), ProcessLimits(cpu=0.5)), "there is no such life"
            names = ("cpu.cfs_quota_us", "cpu.max")
            found = [path for folder in own_groups() for name in names for path in folder.glob(f"*/{name}")]
            seen.extend(path.read_text().split()[0] for path in found)

        await run_one(platform, text=BURN.format(seconds=0.2), limits=ProcessLimits(cpu=0.1), on_start=more)
        return seen

    assert run_on_platform(tmp_path, work) == ["50000"]


def test_usage_is_measured_without_a_limit(tmp_path):
    exit, _, usage = run_on_platform(
        tmp_path, lambda platform: burn_until_seen(platform, tmp_path, 0.05, ProcessLimits())
    )
    assert exit.clean and usage.cpu_s > 0.05
    assert usage.peak > 1 << 20, "the process may have freed its memory before the last look"


def test_process_over_its_memory_limit_is_killed_with_the_cause_known(tmp_path, limited):
    exit, _, _ = run_on_platform(
        tmp_path, lambda platform: run_one(platform, text=FILL, limits=ProcessLimits(memory=128 << 20))
    )
    assert (exit.signal, exit.oom, exit.incarnation) == ("SIGKILL", True, 3)
    assert str(exit).endswith("was killed by SIGKILL for lack of memory")


def test_process_killed_by_a_signal_is_not_reported_as_out_of_memory(tmp_path, limited):
    exit, _, _ = run_on_platform(
        tmp_path,
        lambda platform: run_one(
            platform,
            text=BURN.format(seconds=60),
            limits=ProcessLimits(memory=128 << 20),
            on_start=lambda pid: os.kill(pid, signal.SIGKILL),
        ),
    )
    assert (exit.signal, exit.oom) == ("SIGKILL", False)


LIMITED = running.endless_loop(
    "if not trained:\n    print('limits', open('/proc/self/cgroup').read().split(), flush=True)"
)


def groups_of(job):
    """Control groups of a running command."""
    found = set(control_groups.find_hierarchy(pathlib.Path(f"/proc/{job.process.pid}")).folders.values())
    return [path for parent in found for path in parent.glob(f"springtide-{job.process.pid}-*/*") if path.is_dir()]


def test_each_role_of_a_job_is_held_to_its_limits(tmp_path, limited):
    running.script(tmp_path, LIMITED)
    with running.springtide("run", "train.py", "--cpu", "0.5", "--memory", "1G", folder=tmp_path) as job:
        assert f"springtide-{job.process.pid}-" in job.wait_for("limits")
        folders = groups_of(job)  # the worker has trained: all are there
        assert {folder.name for folder in folders} == {"worker-0", "server-0", "master.1"}
        limits = {}
        for folder in folders:
            for name in ("cpu.cfs_quota_us", "memory.limit_in_bytes", "cpu.max", "memory.max"):
                if (folder / name).exists():
                    limits[folder.name, name] = (folder / name).read_text().strip()
        v1 = ("worker-0", "cpu.cfs_quota_us") in limits
        cpu, memory = ("cpu.cfs_quota_us", "memory.limit_in_bytes") if v1 else ("cpu.max", "memory.max")
        for role in ("worker-0", "server-0"):
            assert limits[role, cpu] == ("50000" if v1 else "50000 100000")
            assert limits[role, memory] == str(1 << 30)
        assert limits["master.1", memory] != str(1 << 30), "the master has no limit"
        job.send(signal.SIGINT)
        assert job.finish()[0] == 130
    assert not any(folder.parent.exists() for folder in folders)


def test_control_groups_of_a_killed_agent_are_removed_by_the_next(tmp_path, limited):
    running.script(tmp_path, LIMITED)
    with running.springtide("run", "train.py", folder=tmp_path) as job:
        job.wait_for("limits")
        folders = groups_of(job)
        assert folders
        job.send(signal.SIGKILL)
        job.finish()

    def removed():
        process_group.Groups(pytest.fail)  # as the next agent makes it; it leaves groups whose processes still die
        return not any(folder.parent.exists() for folder in folders)

    waiting.until(removed, "the groups are gone")


def test_worker_killed_for_memory_returns_with_twice_as_much(tmp_path, limited):
    running.script(tmp_path, running.loop(body="if not trained:\n    keep = b'x' * (200 << 20)"))
    with running.springtide("run", "train.py", "--memory", "160M", "--json", folder=tmp_path) as job:
        code, out = job.finish()
    assert code == 0, out
    [first, *_] = [event for event in running.events(tmp_path) if event["event"] == "exited"]
    assert first["role"] == "worker-0" and first["how"].endswith("was killed by SIGKILL for lack of memory")
    [decision] = [event for event in running.events(tmp_path) if event["event"] == "decision"]
    assert decision["what"] == "relaunch worker-0 as incarnation 1" and "for lack of memory" in decision["why"]
    result = json.loads(out[-1])
    assert result["data"]["shards_done"] == 100 and result["roles"]["relaunches"] == 1
    print("\n".join(out))


SPAWN = (
    "import subprocess, sys\nprint(subprocess.Popen([sys.executable, '-c', 'input()'], stdin=-1).pid, flush=True)\n"
    + BURN
)


def test_child_processes_of_a_role_end_with_it(tmp_path, limited):
    async def work(platform):
        exit, _, _ = await run_one(
            platform, text=SPAWN.format(seconds=60), limits=ProcessLimits(), on_start=kill_when_spawned
        )
        return exit

    def kill_when_spawned(pid):
        waiting.until(lambda: log.exists() and log.read_text().endswith("\n"), "it has a child")
        os.kill(pid, signal.SIGKILL)

    log = tmp_path / "train" / "logs" / "worker-0.log"
    assert run_on_platform(tmp_path, work).signal == "SIGKILL"
    child = int(log.read_text().split()[0])  # it may complain about the end of its input before it goes, too
    waiting.until(lambda: not running.alive(child), "the child is gone")


def test_version_2_control_groups_count_members_and_cpu_seconds(tmp_path):
    """Without its controllers, which a machine with version 1 gives to that: no limits, but members and CPU seconds."""
    mounts = control_groups.parse_mounts(pathlib.Path("/proc/self/mountinfo").read_text())
    own = control_groups.parse_paths(pathlib.Path("/proc/self/cgroup").read_text()).get("", "/")
    folders = [
        control_groups.group_folder(mount, own) / f"springtide-{os.getpid()}-test"
        for mount in mounts
        if mount.version == 2
    ]
    try:
        folders[0].mkdir()
    except (IndexError, OSError) as error:
        pytest.skip(f"no version 2 group can be made here: {error}")
    group = GroupV2(folders[0])
    burn = BURN.format(seconds=0.2) + "\ninput()"
    process = subprocess.Popen([*local.within(group), sys.executable, "-c", burn], stdin=subprocess.PIPE)
    try:
        waiting.until(lambda: group.members() == {process.pid}, "the process is in")
        process.communicate(b"\n")
        assert process.returncode == 0
        assert group.usage().cpu_s > 0.05
    finally:
        process.kill()
        process.wait()
        waiting.until(lambda: process_group.remove_folder(folders[0]), "the group is gone")


TWO_WORKERS = """
import asyncio, pathlib, sys
from springtide.domain.core.roles import Life, Role, RoleKind
from springtide.domain.core.resources import ProcessLimits
from springtide.platforms.agent.platform_api import RoleLaunch
from springtide.platforms.local.platform import LocalPlatform
from springtide.telemetry import logs

async def main():
    platform = LocalPlatform(logs.make_run(pathlib.Path(sys.argv[1]), "train"), print)
    ends = []
    for rank in range(2):
        ended = asyncio.get_running_loop().create_future()
        life = Life(Role(RoleKind.WORKER, rank))
        limits = ProcessLimits(cpu=0.5, memory=64 << 20)
        launch = RoleLaunch(life=life, module="timeit", arguments=("-n1", "-r1"), limits=limits)
        platform.start(launch, ended.set_result)
        ends.append(await ended)
    platform.close()
    print(*(end.code for end in ends))

asyncio.run(main())
"""


READ_ONLY = """
awk '$3 ~ /^cgroup/ {print $2}' /proc/mounts | while read at; do mount -o remount,bind,ro $at; done
exec "$@"
"""


def test_read_only_control_groups_are_reported_once_and_the_job_continues(tmp_path, limited):
    try:
        subprocess.run(["unshare", "--mount", "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"needs a view of its own on the file system: {error}")
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-ec", READ_ONLY, "sh", sys.executable, "-c", TWO_WORKERS, str(tmp_path)],
        cwd=running.ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    said, codes = done.stdout.splitlines()
    assert said.startswith("no limits: ") and "Read-only file system" in said and codes == "0 0"
