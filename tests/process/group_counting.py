"""The counting script for a bsp group, run on a real cluster while faults are injected.

In: a job's spec, and the faults. Out: its last status, and the errors of the counts (`counting.differences`).
"""

import re

import numpy as np

from springtide.domain.spec.job_spec import JobPhase
from springtide.testing.cluster import LocalCluster
from tests.process import counting

BATCH = 32

COUNTING = counting.SCRIPT.replace(
    "(-model(x[:, :1] % 50, x)).backward()",
    "(-(model(x[:, :1] % 50, x) - model.steps.sum()) / len(x) - model.steps.sum()).backward()",
).replace("model = Counter()", "while (folder / 'wait').exists():\n    time.sleep(0.02)\nmodel = Counter()")
"""In a group gradients are means: each occurrence counts 1 / BATCH, and the dense parameter one a step as ever.

While there is a file `wait`, workers that have joined prepare nothing, so no group is formed.
"""


FORMED = re.compile(r"form a bsp group of (\d+) workers?, number (\d+)")


def last_formed_group(job):
    """Workers and number of the last formed group, from the event log (a status has only the last decision)."""
    told = [FORMED.match(str(event["what"])) for event in job.story if event["event"] == "decision"]
    return next(((int(one[1]), int(one[2])) for one in reversed(told) if one), (0, 0))


def until_trained(job):
    """Wait until some more samples are trained, or all."""
    seen = job.status.samples
    job.until(lambda status: job.over or status.samples > seen)


def until_formed(job, workers):
    """Wait until a group of this size trains."""
    job.until(lambda _: last_formed_group(job)[0] == workers)
    until_trained(job)


def until_back(job, number):
    """Wait until the group trains again, in a later generation than this one."""
    job.until(lambda _: last_formed_group(job)[1] > number, within_s=240.0)
    until_trained(job)


def count(
    folder,
    spec,
    seed,
    *,
    batches,
    hurt,
    begun=lambda status: status.samples > 0,
    pause_s=0.01,
    text=COUNTING,
    rows=0,
    **more,
):
    """Run the counting job, inject faults with `hurt` once it began, then let it finish fast. Ids are below `rows`,
    unless that is 0."""
    assert COUNTING != counting.SCRIPT
    ids = counting.draw(np.random.default_rng(seed), batches * BATCH)
    ids = ids % rows if rows else ids
    script = counting.write(folder, ids, text)
    with LocalCluster(script, [folder, 1, BATCH, pause_s], spec=spec(seed=seed, **more), folder=folder / "runs") as job:
        job.until(begun)
        hurt(job)
        counting.hurry(folder)
        status = job.wait()
    assert status.phase is JobPhase.FINISHED, status
    assert status.samples == counting.told_samples(job) == len(ids)
    counts = dict(np.load(folder / "counts.npz"))
    np.savez(folder / "counts.npz", **{**counts, "small": counts["small"] * BATCH, "rows": counts["rows"] * BATCH})
    return status, counting.differences(folder, ids, epochs=1, batch=BATCH)
