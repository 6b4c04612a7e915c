"""The counting script for a bsp group, run on a real cluster while something hurts it.

In: a job's spec and what is done to it. Out: its last status, and what the counts are off by (`counting.differences`).
"""

import numpy as np

from springtide.domain.job import Phase
from springtide.testing.cluster import LocalCluster
from tests.process import counting

BATCH = 32

COUNTING = counting.SCRIPT.replace(
    "(-model(x[:, :1] % 50, x)).backward()",
    "(-(model(x[:, :1] % 50, x) - model.steps.sum()) / len(x) - model.steps.sum()).backward()",
).replace("time.sleep(pause_s)", "time.sleep(0 if (folder / 'hurry').exists() else pause_s)")
"""In a group gradients are means: each occurrence counts 1 / BATCH, and the dense parameter one a step as ever."""


def count(folder, spec, seed, *, batches, hurt, begun=lambda status: status.samples > 0, pause_s=0.01, **more):
    """Hurt it once it has begun; what is left then may be trained as quickly as can be."""
    assert COUNTING != counting.SCRIPT
    ids = counting.draw(np.random.default_rng(seed), batches * BATCH)
    script = counting.write(folder, ids, COUNTING)
    with LocalCluster(script, [folder, 1, BATCH, pause_s], spec=spec(seed=seed, **more), folder=folder / "runs") as job:
        job.until(begun)
        hurt(job)
        (folder / "hurry").touch()
        status = job.wait()
    assert status.phase is Phase.FINISHED, status
    assert status.samples == len(ids)
    counts = dict(np.load(folder / "counts.npz"))
    np.savez(folder / "counts.npz", **{**counts, "small": counts["small"] * BATCH, "rows": counts["rows"] * BATCH})
    return status, counting.differences(folder, ids, epochs=1, batch=BATCH)
