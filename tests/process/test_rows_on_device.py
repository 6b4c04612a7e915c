"""A worker that trains the rows of its servers in device memory counts every occurrence once when anything is lost.

Without a GPU, the device is the CPU: then the script tells tables that they are on a GPU. tests/gpu runs the same job
on a GPU.
"""

import functools
import random

import pytest

from springtide.domain.model import cache_rules
from springtide.domain.model.checkpoints import CheckpointRules
from springtide.domain.spec.job_spec import JobSpec
from tests.process import group_counting
from tests.process.group_counting import COUNTING, last_formed_group, until_back, until_formed, until_trained

pytestmark = pytest.mark.process

PRETEND = """
from springtide.embedding.lookup import lookup
from springtide.embedding.lookup.tables import ServedTable

ServedTable.follow_device = lambda table, device: setattr(table, "gpu", torch.device("cpu"))
lookup._on_gpu = lambda ids: True
job = st.join()
"""
ROWS = 1000
SEEN = """state = dict(model.state_dict())
    seen = state["open.rows"][:, 0] > 0
    state |= {"open.keys": seen.nonzero().squeeze(1), "open.rows": state["open.rows"][seen]}"""
MIXED = COUNTING.replace("\njob = st.join()\n", PRETEND)
"""One table is on the device. The other has no row count, so it stays on the servers."""
ON_CPU = MIXED.replace('init="zeros")', f'init="zeros", rows={ROWS})').replace("state = model.state_dict()", SEEN)
ON_GPU = ON_CPU.replace(PRETEND, "\njob = st.join()\n").replace("model = Counter()", "model = Counter().cuda()")
ON_GPU = ON_GPU.replace("dict(model.state_dict())", "{name: value.cpu() for name, value in model.state_dict().items()}")


def spec(**more):
    given = dict(
        workers=1,
        servers=2,
        sync="bsp",
        heartbeat_s=0.1,
        silence_s=30.0,
        relaunches=1000,
        backoff_s=0.0,
        slots=64,
        checkpoints=CheckpointRules(every_s=0.5),
        cache=cache_rules.rules(),
    )
    return JobSpec(name="resident", **(given | more))


def until_on_device(job):
    job.until(
        lambda status: status.training.cache is not None and "GPU memory of this worker" in status.training.cache.why
    )


def count_under_faults(folder, text, *, cache=None):
    """Kill the worker and a server, and change the number of workers and servers, while rows are on the device. With a
    `cache`, only this share of the rows is in device memory.
    """

    def hurt(job):
        for role in ("worker-0", "server-1"):
            until_on_device(job)
            until_trained(job)
            _, before = last_formed_group(job)
            job.kill_each(role)
            until_back(job, before)
        until_on_device(job)
        job.scale(workers=2)
        until_formed(job, 2)
        job.scale(workers=1, servers=1)
        until_formed(job, 1)
        until_on_device(job)
        until_trained(job)

    begun = lambda status: status.checkpoints.number  # noqa: E731
    made = functools.partial(spec, cache=cache_rules.rules(cache))
    return group_counting.count(folder, made, 1, batches=500, hurt=hurt, begun=begun, pause_s=0.1, text=text, rows=ROWS)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("cache", [None, "10%"])
def test_rows_on_the_device_survive_losses_and_changes_of_the_group(tmp_path, cache):
    _, wrong = count_under_faults(tmp_path, ON_CPU, cache=cache)
    assert not wrong, wrong


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("mixed", [False, True, "10%"], ids=["all", "mixed", "few"])
@pytest.mark.parametrize("seed", range(500, 506))
def test_random_kills_and_rescaling_with_rows_on_the_device_lose_and_repeat_nothing(tmp_path, seed, mixed):
    chance = random.Random(seed)
    print("seed", seed)

    def hurt(job):
        for _ in range(8):
            if job.over:
                return
            (_, before), alive = last_formed_group(job), sorted(job.pids())
            if chance.random() < 0.4:
                job.scale(**{chance.choice(["workers", "workers", "servers"]): chance.randint(1, 3)})
            else:
                chosen = chance.sample(alive, chance.randint(1, min(2, len(alive))))
                print("kill", [(role, job.kill(role)) for role in chosen])
                if chosen != ["master"]:
                    until_back(job, before)
            seen = job.status.samples
            job.until(lambda status, seen=seen: job.over or status.samples > seen + chance.randint(100, 1000))

    how = {"text": MIXED} if mixed is True else {"text": ON_CPU, "rows": ROWS}
    made = functools.partial(spec, cache=cache_rules.rules(mixed or None if mixed is not True else None))
    _, wrong = group_counting.count(tmp_path, made, seed, batches=8000, hurt=hurt, **how)
    assert not wrong, wrong
