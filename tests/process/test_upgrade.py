"""The roles of a running job are replaced one by one by those of a newer build; each sample counts exactly once."""

import os
import pathlib
import re
import shutil

import numpy as np
import pytest

from springtide.domain.model.checkpoints import CheckpointRules
from springtide.domain.spec.job_spec import JobPhase, JobSpec
from springtide.testing.cluster import LocalCluster
from tests.process import counting, running

pytestmark = [pytest.mark.process, pytest.mark.soak, pytest.mark.timeout(900)]

BATCH = 32


def build_tree(folder: pathlib.Path, version: str) -> pathlib.Path:
    """The package as a build of its own, which differs in its version."""
    shutil.copytree(running.ROOT / "springtide", folder / "springtide")
    package = folder / "springtide" / "__init__.py"
    text, count = re.subn(r'__version__ = ".*"', f'__version__ = "{version}"', package.read_text())
    assert count == 1
    package.write_text(text)
    return folder


def switch(current: pathlib.Path, to: pathlib.Path) -> None:
    """Make another build the one that processes start with, at once."""
    new = current.with_name("next")
    new.symlink_to(to)
    new.replace(current)


def build_of(pid: int) -> str:
    """The folder from which a process has loaded the native core."""
    try:
        maps = pathlib.Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return ""
    found = {line.split(maxsplit=5)[5] for line in maps.splitlines() if "springtide/_native" in line}
    return pathlib.Path(min(found)).parents[1].name if found else ""


def builds(job: LocalCluster) -> dict[str, str]:
    return {role: build_of(pid) for role, pid in job.pids().items()}


def test_roles_are_replaced_by_a_newer_build_one_by_one(tmp_path, monkeypatch, seed):
    old, new = (build_tree(tmp_path / version, version) for version in ("1.0.0", "1.1.0"))
    current = tmp_path / "current"
    current.symlink_to(old)
    monkeypatch.setenv("PYTHONPATH", str(current))
    monkeypatch.setattr(LocalCluster, "warm", None)
    (tmp_path / "code").mkdir()
    monkeypatch.chdir(tmp_path / "code")  # where no other springtide is
    ids = counting.draw(np.random.default_rng(seed), 1500 * BATCH - 5)
    script = counting.write(tmp_path / "code", ids)
    spec = JobSpec(
        name="counts",
        workers=2,
        servers=2,
        heartbeat_s=0.2,
        relaunches=1000,
        backoff_s=0.0,
        checkpoints=CheckpointRules(every_s=1.0),
        seed=seed,
    )
    everyone = {"master", "worker-0", "worker-1", "server-0", "server-1"}
    with LocalCluster(script, [tmp_path / "code", 1, BATCH, 0.3], spec=spec, folder=tmp_path / "runs") as job:
        job.until(lambda status: status.samples > 0 and job.pids().keys() >= everyone, within_s=300)
        assert builds(job) == dict.fromkeys(everyone, "1.0.0")
        switch(current, new)
        replaced = []
        for role in ("worker-0", "server-1", "master", "worker-1", "server-0"):
            before, samples = job.pids().get(role), job.status.samples
            job.kill_each(role)
            job.until(lambda _, role=role, before=before: job.pids().get(role) not in (None, before), within_s=300)
            job.until(lambda _, role=role: build_of(job.pids().get(role, 0)), within_s=300)
            replaced.append(role)
            found = builds(job)
            assert all(found[name] == "1.1.0" for name in replaced if name in found), found
            assert all(found[name] == "1.0.0" for name in everyone.difference(replaced) if name in found), found
            if role == "server-1":  # slots move between the builds, there and back
                for servers in (3, 2):
                    known = len(job.moves())
                    job.scale(servers=servers)
                    job.until(lambda status, n=servers, k=known: job.settled(status, n, known=k), within_s=300)
            job.until(lambda status, samples=samples: status.samples > samples, within_s=300)
        assert builds(job) == dict.fromkeys(everyone, "1.1.0")
        counting.hurry(tmp_path / "code")
        status = job.wait()
    assert status.phase is JobPhase.FINISHED, status
    assert status.samples == len(ids)
    wrong = counting.differences(tmp_path / "code", ids, epochs=1, batch=BATCH)
    assert not wrong, wrong
    assert os.readlink(current) == str(new)
