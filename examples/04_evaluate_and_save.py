"""After the loop: evaluate on rank 0, and save a state dict that plain PyTorch reads."""

import pathlib
import tempfile

import numpy as np
import torch

import springtide as st
from springtide import zoo
from springtide.zoo.metrics import StreamingAUC

train, test = zoo.ClickLog(30_000).split(test_share=0.2)

torch.manual_seed(0)
model = zoo.model("widedeep", tables=train.tables)
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.03)
job = st.join()
model, optimizer, batches = job.prepare(model, optimizer, train, batch_size=256)

for batch in batches:
    optimizer.zero_grad()
    zoo.loss(model(batch.x), batch.y).backward()
    optimizer.step()

if job.rank == 0:
    model.eval()  # reading rows never changes them
    auc = StreamingAUC()
    with torch.no_grad():
        for first in range(0, len(test), 4096):
            x, y = test.batch(np.arange(first, min(first + 4096, len(test))))
            auc.update(y, model(x))
    better = "better than chance" if auc.value() > 0.6 else "no better than chance"
    print(f"the model is {better}, and the best possible AUC is {test.best_auc():.2f}")

    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "model.pt"
        torch.save(model.state_dict(), path)  # the tables are in it, under their usual names
        plain = zoo.model("widedeep", tables=train.tables)
        plain.load_state_dict(torch.load(path))
    plain.eval()
    with torch.no_grad():
        same = torch.allclose(plain(x), model(x), atol=1e-5)
    print("plain PyTorch predicts the same:", same)

# Expected output:
# the model is better than chance, and the best possible AUC is 0.82
# plain PyTorch predicts the same: True
