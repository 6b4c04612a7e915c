"""What the demo trains."""

import numpy as np
import torch

from springtide import zoo
from springtide.zoo import demo


def test_the_counting_table_sees_what_is_lost_and_what_is_repeated():
    train, _ = demo.log(2_000)
    model = demo.CountedModel(demo.model())
    optimizer = torch.optim.SGD(model.seen.parameters(), lr=1.0)

    def train_on(part):
        optimizer.zero_grad()
        model.count(train.batch(part)[0]).backward()
        optimizer.step()

    for part in np.array_split(np.arange(len(train)), 7):
        train_on(part)
    assert demo.compare(model.seen.weight, train) == demo.Count(counted=1_800, lost=0, repeated=0)
    train_on(np.arange(5))
    assert demo.compare(model.seen.weight, train).repeated == 5
    with torch.no_grad():
        model.seen.weight.zero_()
    assert demo.compare(model.seen.weight, train) == demo.Count(counted=0, lost=1_800, repeated=0)


def test_the_demo_model_fits_the_demo_log():
    train, test = demo.log(2_000)
    assert (len(train), len(test)) == (1_800, 200)
    x, y = train.batch(np.arange(demo.BATCH))
    zoo.loss(demo.model()(x), y).backward()
    assert 0.7 < demo.log(20_000)[1].best_auc() < 0.9


def test_steps_of_all_workers_count(tmp_path):
    workers = [demo.StepLog(str(tmp_path), rank) for rank in range(2)]
    for _ in range(3):
        for worker in workers:
            worker.done()
    for worker in workers:
        worker.close()

    times = demo.read(tmp_path)
    assert len(times) == 6 and times == sorted(times)


def test_without_a_folder_nothing_is_noted():
    demo.StepLog(None, 0).done()


def test_the_longest_gap_is_that_which_reaches_into_the_span():
    times = [0.0, 1.0, 4.0, 4.5, 10.0]

    assert demo.longest_gap(times, 0.0, 5.0) == 5.5
    assert demo.longest_gap(times, 0.0, 4.2) == 3.0
    assert demo.longest_gap([], 0.0, 4.2) == 0.0
