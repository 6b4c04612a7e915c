"""The generated click log as records: what the loop gets is what the generator made."""

import numpy as np

from springtide.data.stream.records import Records
from springtide.zoo.batches import ClickBatch
from springtide.zoo.clicklog import stream
from springtide.zoo.clicklog.clicklog import Generator
from springtide.zoo.clicklog.spec import LogSpec


def test_records_decode_to_the_samples_they_were_made_of() -> None:
    rows = stream.Clicks(seed=3).take(10, 20)
    made = Generator(LogSpec(seed=3)).between(10, 30)
    parsed = stream.decoder().parse(Records.of([row.tobytes() for row in rows]))
    x, y = parsed.batch(~parsed.bad)
    assert isinstance(x, ClickBatch)
    np.testing.assert_array_equal(x.sparse.numpy(), made.sparse)
    np.testing.assert_array_equal(x.dense.numpy(), made.dense)
    np.testing.assert_array_equal(y.numpy(), made.click)
