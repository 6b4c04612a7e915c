"""What the demo trains."""

import numpy as np
import torch

from springtide import zoo
from springtide.zoo import demo


def test_counting_table_detects_lost_and_repeated_samples():
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


def test_demo_model_fits_the_demo_log():
    train, test = demo.log(2_000)
    assert (len(train), len(test)) == (1_800, 200)
    x, y = train.batch(np.arange(demo.BATCH))
    zoo.loss(demo.model()(x), y).backward()
    assert 0.7 < demo.log(20_000)[1].best_auc() < 0.9
