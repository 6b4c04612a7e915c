"""A stream in place of a data set: records come one after the other, ids are ever new, and one record is damaged.

The log is in a folder, so no broker is needed; "kafka://host:9092/topic" would do as well. The stream is sealed, so the
loop ends when all records are trained; otherwise it would wait for more.
"""

import json
import pathlib
import tempfile

import numpy as np
import torch
from torch import nn

import springtide as st
from springtide.data.stream.decode import Json
from springtide.data.stream.log.layout import LogSettings
from springtide.data.stream.log.stream import create


class Model(nn.Module):
    """Ids that came twice have a row, for an hour of the stream's time."""

    def __init__(self) -> None:
        super().__init__()
        self.ids = st.EmbeddingBag(4, optimizer="rowwise_adagrad", min_count=2, ttl=3600)
        self.out = nn.Linear(4, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """A logit a record."""
        return self.out(self.ids(ids)).squeeze(1)


folder = pathlib.Path(tempfile.mkdtemp())
log = create(folder / "clicks", LogSettings(partitions=2))
producer = log.writer()
for second in range(0, 7200, 10):  # two hours, a record every ten seconds; user 7 comes all the time, others once
    record = {"ids": [7, 1000 + second], "at": 1_700_000_000 + second, "label": second % 20 / 10}
    body = json.dumps(record).encode() if second != 5000 else b"damaged"
    producer.append(second // 10 % 2, body, np.array([len(body)]))
producer.close()
log.seal()

torch.manual_seed(0)
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
decode = Json({"ids": ("i8", 2), "label": "f4"}, event_time="at")
clicks = st.stream(log.url, decode=decode, dead_letters=str(folder / "dead"))
job = st.join()
model, optimizer, batches = job.prepare(model, optimizer, clicks, batch_size=32)

records = 0
for batch in batches:
    optimizer.zero_grad()
    nn.functional.binary_cross_entropy_with_logits(model(batch["ids"]), batch["label"]).backward()
    optimizer.step()
    records += len(batch["label"])
job.finish()

dead = [json.loads(line) for file in (folder / "dead").iterdir() for line in file.read_text().splitlines()]
print("trained:", records, "rows:", model.state_dict()["ids.keys"].tolist())
print("dead:", [(letter["partition"], letter["offset"], letter["why"]) for letter in dead])

# Expected output:
# trained: 719 rows: [7]
# dead: [(0, 250, 'corrupt')]
