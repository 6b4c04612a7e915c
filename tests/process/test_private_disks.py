"""Hosts without shared disks are lost with servers, workers and masters: counts are exact."""

import functools
import json
import random

import numpy as np
import pytest

from springtide.checkpoint.format import checkpoint_io
from springtide.domain.model.checkpoints import CheckpointRules
from springtide.domain.spec.job_spec import JobPhase, JobSpec
from tests.process import counting, group_counting, private_disks, running, test_bsp_checkpoints

pytestmark = pytest.mark.process

BATCH, SEED = 32, 20261116


def ready_events(job, role):
    return [event for event in job.story if event["event"] == "ready" and event["role"] == role]


def begin(folder, seed, *, batches, servers=2, workers=2, pause=0.01, **rules):
    """A job that counts, and the hosts of its servers."""
    print("seed", seed)
    ids = counting.draw(np.random.default_rng(seed), batches * BATCH - 5)
    script = counting.write(folder, ids)
    spec = JobSpec(
        name="counts",
        workers=workers,
        servers=servers,
        heartbeat_s=0.2,
        relaunches=1000,
        backoff_s=0.0,
        slots=128,
        seed=seed,
        checkpoints=CheckpointRules(every_s=0.5, **rules),
    )
    hosts = private_disks.Hosts(folder / "hosts")
    arguments = [folder, 1, BATCH, pause]
    return ids, hosts, private_disks.Cluster(hosts, script, arguments, spec=spec, folder=folder / "runs")


def command_output(*command, folder):
    """Output of a successful command."""
    with running.springtide(*command, folder=folder) as running_command:
        code, out = running_command.finish()
    assert code == 0, out
    return out


def wait_until_ready_again(job, role, before):
    job.until(lambda _: len(ready_events(job, role)) > before or job.over)


@pytest.mark.timeout(400)
def test_lost_host_is_restored_from_its_buddy_over_the_network(tmp_path):
    ids, hosts, cluster = begin(tmp_path, SEED, batches=180, pause=0.5)
    with cluster as job:
        job.until(lambda status: status.checkpoints.number >= 2)
        before = len(ready_events(job, "server-1"))
        hosts.lose(job, "server-1", "worker-1")
        wait_until_ready_again(job, "server-1", before)
        counting.hurry(tmp_path)
        status = job.wait()
    assert status.phase is JobPhase.FINISHED, status
    back = ready_events(job, "server-1")[-1]
    assert back["checkpoint"] and "was read from its mirror" in back["mirror"], back
    told = [event for event in job.story if event["event"] == "checkpoint" and event["outcome"] == "complete"]
    last = checkpoint_io.latest(str(job.files.checkpoints)).manifest
    assert last.number == told[-1]["number"] and last.progress.samples == len(ids) and not last.apart, (
        "fetched at the end"
    )
    wrong = counting.differences(tmp_path, ids, epochs=1, batch=BATCH)
    assert not wrong, wrong


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_unmirrored_lost_host_is_restored_from_storage_and_a_run_resumes_there(tmp_path):
    url = f"file://{tmp_path}/copies"
    ids, hosts, cluster = begin(tmp_path, SEED, batches=500, url=url, upload_every_s=1.5)
    with cluster as job:
        job.until(lambda status: status.checkpoints.uploaded >= 2)
        before = len(ready_events(job, "server-0"))
        hosts.lose(job, "server-0", "worker-0", master=True)
        wait_until_ready_again(job, "server-0", before)
        job.stop()
        status = job.wait()
    assert status.phase is JobPhase.STOPPED, status
    assert ready_events(job, "server-0")[-1]["where"] == url
    last = checkpoint_io.latest(url).manifest
    assert last.progress.samples == status.samples < len(ids) and not last.apart, (
        "the last one is there when the job is over"
    )
    listed = json.loads(command_output("checkpoints", url, "--json", folder=tmp_path)[-1])
    assert [one["outcome"] for one in listed["checkpoints"]] == ["complete", "complete"]
    assert listed["checkpoints"][-1]["number"] == last.number
    command_output("export", url, str(tmp_path / "export"), folder=tmp_path)
    arguments = ["--", ".", "1", str(BATCH), "0"]
    command_output("run", "count.py", "--servers", "3", "--resume", url, *arguments, folder=tmp_path)
    wrong = counting.differences(tmp_path, ids, epochs=1, batch=BATCH)
    assert not wrong, wrong


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_without_any_copy_a_process_restarts_from_disk_but_a_lost_host_ends_the_job(tmp_path):
    _, hosts, cluster = begin(tmp_path, SEED, batches=2000, servers=1)
    with cluster as job:
        job.until(lambda status: status.checkpoints.number >= 2)
        assert "the job is lost" in job.status.checkpoints.trouble
        before = len(ready_events(job, "server-0"))
        job.kill("server-0")
        wait_until_ready_again(job, "server-0", before)
        assert ready_events(job, "server-0")[-1]["checkpoint"] and job.status.phase is JobPhase.RUNNING
        saved = job.status.checkpoints.number
        job.until(lambda status: status.checkpoints.number > saved)
        hosts.lose(job, "server-0")
        status = job.wait()
    assert status.phase is JobPhase.FAILED and "a mirror, or a checkpoint URL" in status.why, status


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(700, 706))
def test_hosts_processes_and_masters_lost_in_turn_lose_and_repeat_nothing(tmp_path, seed):
    chance = random.Random(seed)
    kept = {"mirror": True} if seed % 3 == 0 else {"url": f"file://{tmp_path}/copies", "upload_every_s": 1.0}
    kept |= {"mirror": True} if seed % 3 == 1 else {}
    ids, hosts, cluster = begin(tmp_path, seed, batches=2500, servers=3, **kept)
    with cluster as job:
        for _ in range(6):
            saved, copied = job.status.checkpoints.number, job.status.checkpoints.uploaded
            job.until(
                lambda status, saved=saved, copied=copied: (
                    status.checkpoints.number >= saved + 2
                    and (status.checkpoints.uploaded > copied or "url" not in kept)
                )
            )
            role = f"server-{chance.randrange(3)}"
            before = len(ready_events(job, role))
            if chance.random() < 0.3:
                job.kill(role)
            else:
                hosts.lose(job, role, f"worker-{chance.randrange(2)}", master=chance.random() < 0.4)
            wait_until_ready_again(job, role, before)
        status = job.wait()
    assert status.phase is JobPhase.FINISHED, status
    wrong = counting.differences(tmp_path, ids, epochs=1, batch=BATCH)
    assert not wrong, wrong


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kept", ["copies of each other", "storage"])
def test_bsp_group_rolls_back_with_a_lost_host_and_counts_once(tmp_path, monkeypatch, kept):
    hosts = private_disks.Hosts(tmp_path / "hosts")
    monkeypatch.setattr(group_counting, "LocalCluster", functools.partial(private_disks.Cluster, hosts))
    url = f"file://{tmp_path}/copies" if kept == "storage" else ""
    rules = CheckpointRules(every_s=0.5, url=url, upload_every_s=1.0)

    def hurt(job):
        for server, worker, master in (("server-0", "worker-1", False), ("server-1", "worker-0", True)):
            copied = job.status.checkpoints.uploaded
            job.until(lambda status, copied=copied: status.checkpoints.uploaded > copied or not url)
            _, before = group_counting.last_formed_group(job)
            hosts.lose(job, server, worker, master=master)
            group_counting.until_back(job, before)

    spec = functools.partial(test_bsp_checkpoints.spec, checkpoints=rules)
    begun = lambda status: status.checkpoints.number  # noqa: E731
    _, wrong = group_counting.count(tmp_path, spec, SEED, batches=2500, hurt=hurt, begun=begun)
    assert not wrong, wrong
