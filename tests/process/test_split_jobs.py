"""A job whose forward() is split: ids are hashed by data workers, and each sample is still trained exactly once."""

import numpy as np
import pytest

from springtide.domain.feeding import FeedRules
from springtide.domain.job import JobSpec, Phase
from springtide.testing.cluster import LocalCluster
from tests.process import counting

pytestmark = pytest.mark.process

BATCH, BATCHES = 32, 400
HASHING = counting.SCRIPT.replace(
    "def forward(self, small, large):", "def forward(self, large):\n        small = large[:, :1] % 50"
)
HASHING = HASHING.replace("(-model(x[:, :1] % 50, x))", "(-model(x))").replace(
    "    optimizer.zero_grad()\n", "    split = vars(model).get('forward')\n    optimizer.zero_grad()\n", 1
)
HASHING += """
(folder / "split-calls").write_text(str(split.split_calls if split else 0))
"""


@pytest.mark.timeout(240)
def test_ids_that_data_workers_hash_are_counted_once_also_when_one_is_killed(tmp_path):
    ids = counting.draw(np.random.default_rng(3), BATCHES * BATCH - 5)
    script = counting.write(tmp_path, ids, HASHING)
    rules = JobSpec(
        name="split", workers=1, servers=1, heartbeat_s=0.1, backoff_s=0.0, feeding=FeedRules(workers=1), seed=3
    )
    with LocalCluster(script, [tmp_path, 1, BATCH, 0.01], spec=rules, folder=tmp_path) as job:
        made = job.until(lambda status: status.feed is not None and status.feed.made >= 20).feed.made
        job.kill("data-worker-0")
        job.until(lambda status: status.phase.over or (status.feed is not None and status.feed.made >= made + 20))
        status = job.wait()
    assert status.phase is Phase.FINISHED, status
    wrong = counting.differences(tmp_path, ids, epochs=1, batch=BATCH)
    assert not wrong, wrong
    assert int((tmp_path / "split-calls").read_text()) > 20


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_a_job_of_two_stages_counts_once_whichever_stage_loses_a_data_worker(tmp_path):
    ids = counting.draw(np.random.default_rng(4), 3 * BATCHES * BATCH - 5)
    script = counting.write(tmp_path, ids, HASHING)
    rules = JobSpec(
        name="stages", workers=1, servers=1, heartbeat_s=0.1, backoff_s=0.0, seed=4, relaunches=1000,
        feeding=FeedRules(workers=4, split="stages"),
    )  # fmt: skip
    with LocalCluster(script, [tmp_path, 1, BATCH, 0.02], spec=rules, folder=tmp_path) as job:
        job.until(lambda status: status.feed is not None and status.feed.workers == 2)  # those of the last stage
        for rank in (0, 1, 2, 3, 1):
            before = job.until(lambda status: status.data_workers_alive == 4 and status.feed is not None).feed.made
            assert job.kill(f"data-worker-{rank}")
            job.until(lambda status, before=before: status.feed is not None and status.feed.made >= before + 20)
        job.scale(data_workers=3)
        made = job.status.feed.made
        job.until(lambda status: status.phase.over or status.feed.made >= made + 20)
        status = job.wait()
    assert status.phase is Phase.FINISHED, status
    wrong = counting.differences(tmp_path, ids, epochs=1, batch=BATCH)
    assert not wrong, wrong
    assert int((tmp_path / "split-calls").read_text()) > 20
    log = "".join(path.read_text() for path in tmp_path.rglob("data-worker-*"))
    assert "serving stage 1 of 2" in log and "serving stage 2 of 2" in log
