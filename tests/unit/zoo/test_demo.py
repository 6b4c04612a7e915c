"""What the demo trains."""

import numpy as np

from springtide import zoo
from springtide.zoo import demo


def test_the_demo_model_fits_the_demo_log():
    train, test = demo.log(2_000)
    assert (len(train), len(test)) == (1_800, 200)
    x, y = train.batch(np.arange(demo.BATCH))
    zoo.loss(demo.model()(x), y).backward()
    assert 0.7 < demo.log(20_000)[1].best_auc() < 0.9
