"""Jobs with a split forward(): data workers hash ids, and each sample is trained exactly once."""

import re

import numpy as np
import pytest

from springtide.domain.data.data_workers import FeedRules
from springtide.domain.spec.job_spec import JobPhase, JobSpec
from springtide.testing.cluster import LocalCluster
from tests.process import counting, group_counting

pytestmark = pytest.mark.process

BATCH, BATCHES = 32, 400


def hashing(text):
    """The script, with ids that forward() makes itself."""
    text = text.replace(
        "def forward(self, small, large):",
        "def forward(self, large):\n"
        "        values, places = torch.unique(large % 50, return_inverse=True)\n        small = values[places][:, :1]",
    ).replace("model(x[:, :1] % 50, x)", "model(x)")
    text = text.replace(
        "    optimizer.zero_grad()\n", "    split = vars(model).get('forward')\n    optimizer.zero_grad()\n", 1
    )
    return text + "(folder / 'split-calls').write_text(str(split.split_calls if split else 0))\n"


HASHING = hashing(counting.SCRIPT)


@pytest.mark.timeout(400)
def test_ids_hashed_by_data_workers_are_counted_once_after_a_kill(tmp_path):
    ids = counting.draw(np.random.default_rng(3), BATCHES * BATCH - 5)
    script = counting.write(tmp_path, ids, HASHING)
    rules = JobSpec(
        name="split", workers=1, servers=1, heartbeat_s=0.1, backoff_s=0.0, feeding=FeedRules(workers=1), seed=3
    )
    with LocalCluster(script, [tmp_path, 1, BATCH, 0.4], spec=rules, folder=tmp_path) as job:
        made = job.until(lambda status: status.data.feed is not None and status.data.feed.made >= 10).data.feed.made
        job.kill_each("data-worker-0")
        job.until(
            lambda status: status.phase.over or (status.data.feed is not None and status.data.feed.made >= made + 10)
        )
        counting.hurry(tmp_path)
        status = job.wait()
    assert status.phase is JobPhase.FINISHED, status
    wrong = counting.differences(tmp_path, ids, epochs=1, batch=BATCH)
    assert not wrong, wrong
    assert int((tmp_path / "split-calls").read_text()) > 10
    (told,) = [str(each["why"]) for each in job.story if "hand reading" in str(each.get("what"))]
    assert re.search(r"operations of forward\(\) move .*; the loop was blocked for ", told), told


LISTED = hashing(counting.SCRIPT).replace(
    "def forward(self, large):", "def forward(self, rows):\n        large = torch.stack(rows)"
)
LISTED = LISTED.replace("batch_size=batch", "batch_size=batch, collate_fn=list")
"""A batch is a list of samples: the last one's is shorter, and so is that of half a batch."""


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_list_batches_are_fed_and_counted_once(tmp_path):
    ids = counting.draw(np.random.default_rng(8), BATCHES * BATCH - 5)
    script = counting.write(tmp_path, ids, LISTED)
    rules = JobSpec(name="lists", workers=1, servers=1, heartbeat_s=0.1, feeding=FeedRules(workers=1), seed=8)
    with LocalCluster(script, [tmp_path, 1, BATCH, 0.4], spec=rules, folder=tmp_path) as job:
        job.until(lambda status: status.data.feed is not None and status.data.feed.made >= 20)
        counting.hurry(tmp_path)
        status = job.wait()
    assert status.phase is JobPhase.FINISHED, status
    wrong = counting.differences(tmp_path, ids, epochs=1, batch=BATCH)
    assert not wrong, wrong


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_bsp_group_with_automatic_cache_is_split_and_counts_exactly(tmp_path):
    def hurt(job):
        made = job.until(lambda status: status.data.feed is not None and status.data.feed.made >= 40).data.feed.made
        job.kill_each("data-worker-0")
        job.until(
            lambda status: status.phase.over or (status.data.feed is not None and status.data.feed.made >= made + 40)
        )

    fed = dict(heartbeat_s=0.1, backoff_s=0.0, feeding=FeedRules(workers=1))
    rules = lambda **more: JobSpec(name="group", workers=2, servers=1, sync="bsp", **fed, **more)  # noqa: E731
    text = hashing(group_counting.COUNTING)
    _, wrong = group_counting.count(tmp_path, rules, 6, batches=BATCHES // 2, hurt=hurt, pause_s=0.4, text=text)
    assert not wrong, wrong
    assert int((tmp_path / "split-calls").read_text()) > 20


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_two_stage_job_counts_once_when_either_stage_loses_a_data_worker(tmp_path):
    ids = counting.draw(np.random.default_rng(4), 3 * BATCHES * BATCH - 5)
    script = counting.write(tmp_path, ids, HASHING)
    rules = JobSpec(
        name="stages",
        workers=1,
        servers=1,
        heartbeat_s=0.1,
        backoff_s=0.0,
        seed=4,
        relaunches=1000,
        feeding=FeedRules(workers=4, split="stages"),
    )
    with LocalCluster(script, [tmp_path, 1, BATCH, 0.05], spec=rules, folder=tmp_path) as job:
        job.until(
            lambda status: status.data.feed is not None and status.data.feed.workers == 2
        )  # those of the last stage
        for rank in (0, 1, 2, 3, 1):
            before = job.until(
                lambda status: status.roles.data_workers.alive == 4 and status.data.feed is not None
            ).data.feed.made
            assert job.kill(f"data-worker-{rank}")
            job.until(
                lambda status, before=before: status.data.feed is not None and status.data.feed.made >= before + 20
            )
        job.scale(data_workers=3)
        made = job.status.data.feed.made
        job.until(lambda status: status.phase.over or status.data.feed.made >= made + 20)
        counting.hurry(tmp_path)
        status = job.wait()
    assert status.phase is JobPhase.FINISHED, status
    wrong = counting.differences(tmp_path, ids, epochs=1, batch=BATCH)
    assert not wrong, wrong
    assert int((tmp_path / "split-calls").read_text()) > 20
    log = "".join(path.read_text() for path in tmp_path.rglob("data-worker-*"))
    assert "serving stage 1 of 2" in log and "serving stage 2 of 2" in log


STAGES = re.compile(r"stages: (\d+)[^,]*, (\d+)")
READING_SLOWLY = HASHING.replace(
    "        trap = ", "        time.sleep(0.0 if hurry.exists() else 0.002)\n        trap = "
)


def numbers(job):
    """Wanted data workers of each stage, in order of the tuning decisions."""
    said = (STAGES.search(str(each.get("what", ""))) for each in job.story)
    return [(int(found[1]), int(found[2])) for found in said if found]


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_tuning_gives_the_slower_stage_more_data_workers_with_exact_counts(tmp_path):
    ids = counting.draw(np.random.default_rng(5), 20 * BATCHES * BATCH - 5)
    script = counting.write(tmp_path, ids, READING_SLOWLY)
    rules = JobSpec(
        name="tuned",
        workers=1,
        servers=1,
        heartbeat_s=0.1,
        backoff_s=0.0,
        seed=5,
        relaunches=1000,
        feeding=FeedRules(cpu=0.5, cores=6.0, split="stages", every_s=2.0),
    )
    with LocalCluster(script, [tmp_path, 1, BATCH, 0.002], spec=rules, folder=tmp_path) as job:
        job.until(lambda status: any(first >= 4 for first, _ in numbers(job)), within_s=240)
        wanted = numbers(job)[-1]
        made = job.until(
            lambda status: status.roles.data_workers.alive >= sum(wanted) and status.data.feed is not None
        ).data.feed.made
        job.until(lambda status: status.data.feed is not None and status.data.feed.made >= made + 50)
        counting.hurry(tmp_path)
        status = job.wait()
    assert status.phase is JobPhase.FINISHED, status
    assert wanted[0] > 2 * wanted[1], f"reading is the slower stage: {numbers(job)}"
    wrong = counting.differences(tmp_path, ids, epochs=1, batch=BATCH)
    assert not wrong, wrong
    assert int((tmp_path / "split-calls").read_text()) > 20
