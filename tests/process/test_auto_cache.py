"""A bsp job decides whether to cache rows: on a 1 Gbit/s network and on one machine."""

import re
import shutil

import pytest

from springtide.domain.model import cache_rules
from springtide.domain.model.checkpoints import CheckpointRules
from springtide.domain.spec.job_spec import JobPhase, JobSpec
from springtide.telemetry import event_sentences as events
from springtide.testing.cluster import LocalCluster
from tests.process import hosts
from tests.process.hosted_jobs import HostedJob

pytestmark = [pytest.mark.process, pytest.mark.soak, pytest.mark.timeout(600)]
REFUSED = hosts.refusal() if shutil.which("tc") else "no tc (iproute2)"
KEEP, KEEP_NOT = "keep rows in the workers", "keep no rows in the workers"
BATCHES = 450  # 32 are cold, 32 watched, 64 scheduled on paper, 64 fill the caches, 32 are watched again

SCRIPT = """
import pathlib, sys, time
import numpy as np
import torch
import springtide as st

folder, batch, batches, where = pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
USERS, FIELDS = 400, 8
torch.set_num_threads(1)
dense = torch.eye(512)


class Visits(torch.utils.data.Dataset):
    "Users come back, each with rows of their own."

    def __len__(self):
        return batch * batches

    def batch(self, indices):
        users = (indices * 2654435761) % 2**32 % USERS
        return torch.from_numpy(users[:, None] * FIELDS + np.arange(FIELDS))


job = st.join()
model = st.EmbeddingBag(1024, init="zeros")
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
model, optimizer, loop = job.prepare(model, optimizer, Visits(), batch_size=batch, shuffle=False)
for x in loop:
    optimizer.zero_grad()
    pooled = model(x)
    if not (folder / "hurry").exists():
        if where == "accelerator":
            time.sleep(0.3)
        else:
            for _ in range(24):
                dense = dense @ dense
    (pooled.sum() / len(x)).backward()
    optimizer.step()
"""


def job_of(folder, *, computes="accelerator", **where):
    (folder / "train.py").write_text(SCRIPT)
    spec = JobSpec(
        name="auto",
        workers=2,
        servers=1,
        sync="bsp",
        slots=64,
        heartbeat_s=0.5,
        silence_s=30.0,
        checkpoints=CheckpointRules(every_s=5.0),
        cache=cache_rules.rules("auto"),
    )
    arguments = [str(folder), "256", str(BATCHES), computes]
    if where:
        return HostedJob(folder / "train.py", arguments, spec=spec, folder=where["hosts"].disk / "runs", **where)
    return LocalCluster(folder / "train.py", arguments, spec=spec, folder=folder / "runs")


def explained(job):
    """Sentences of `springtide explain` on the cache."""
    told = [line["what"] for line in events.sentences(0.0, job.story)]
    return [what for what in told if KEEP in what or KEEP_NOT in what]


def cache_is_decided(use):
    """Whether it is off by a decision, or on and proven."""
    return use.why.startswith("a step took") or (not use.on and "of a step" in use.why)


def finish(folder, job):
    (folder / "hurry").touch()
    assert job.wait().phase is JobPhase.FINISHED


@pytest.mark.skipif(REFUSED is not None, reason=f"no network of our own here: {REFUSED}")
def test_job_on_a_1_gbit_network_turns_its_cache_on_and_gets_faster(tmp_path):
    with hosts.Hosts(["one", "two", "three", "four"], tmp_path) as cluster:
        cluster.shape(1.0)
        at = {"server-0": "two", "worker-0": "three", "worker-1": "four"}
        with job_of(tmp_path, hosts=cluster, place=lambda life: at[str(life.role)]) as job:
            job.until(
                lambda status: (
                    status.training.cache is not None and status.training.cache.why.startswith("a step took")
                ),
                within_s=300,
            )
            use = job.status.training.cache
            finish(tmp_path, job)
        told = explained(job)
        print(use, *told, sep="\n")
    assert use.on and use.hits > 0 and use.saved > 0, use
    assert told and told[0].startswith(KEEP), told
    assert not any(what.startswith(KEEP_NOT) for what in told), "the end of its pass is nobody's decision"
    waited, spared, gained = map(
        int, re.search(r"take (\d+)% .* spares (\d+)% .* (\d+)% of a step gained", told[0]).groups()
    )
    assert waited >= 15 and spared >= 50 and gained >= 10, told[0]
    assert "lost to deaths" in told[0], "what a death costs is in the decision"
    without, with_it = map(float, re.search(r"took ([\d.]+) ms without .* and ([\d.]+) ms with", use.why).groups())
    assert with_it < 0.9 * without, use.why


# tests/unit/planning/guards/test_cache_benefit.py covers the decision; one kind of job shows that it arrives
CORES = pytest.param("cores", marks=pytest.mark.soak)


@pytest.mark.parametrize("computes", ["accelerator", CORES])
def test_job_on_one_machine_keeps_its_cache_off_with_a_reason(tmp_path, computes):
    with job_of(tmp_path, computes=computes) as job:
        job.until(
            lambda status: status.training.cache is not None and cache_is_decided(status.training.cache), within_s=300
        )
        use = job.status.training.cache
        finish(tmp_path, job)
        told = explained(job)
    print(use, *told, sep="\n")
    share = int(re.search(r"pulls and pushes take (\d+)% of a step", told[0])[1])
    assert told[0].startswith(KEEP_NOT) or (share >= 5 and "of a step gained" in told[0]), told[0]  # others may be busy
    for what in told:  # one that was begun all the same was kept only if steps became shorter
        if proof := re.search(r"took ([\d.]+) ms without .* and ([\d.]+) ms with", what):
            assert what.startswith(KEEP_NOT) == (float(proof[2]) >= float(proof[1])), what
