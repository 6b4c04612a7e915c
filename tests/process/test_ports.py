"""A port of a package's loop runs as it is, alone, on two workers and servers, with kills, and resumed."""

import hashlib

import pytest

from springtide_lab.ports import runner
from springtide_lab.ports.program import Change, Program

pytestmark = [pytest.mark.process, pytest.mark.soak, pytest.mark.timeout(1200)]

LOOP = """
import torch


def fit(model, optimizer, batches):
    for x, y in batches:
        optimizer.zero_grad()
        torch.nn.functional.binary_cross_entropy_with_logits(model(x).squeeze(1), y).backward()
        optimizer.step()
"""
TEXT = """
import sys

import numpy as np
import torch
from small_trainer import fit
from springtide.zoo.metrics import StreamingAUC
from torch.utils.data import DataLoader, TensorDataset

clicks, seed, result = np.load(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
torch.manual_seed(seed)
x, y = torch.from_numpy(clicks["ids"]) % 500, torch.from_numpy(clicks["y"])
cut = clicks["cut"]
model = torch.nn.Sequential(torch.nn.EmbeddingBag(500, 8, mode="sum"), torch.nn.Linear(8, 1))
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
batches = DataLoader(TensorDataset(x[:cut], y[:cut]), batch_size=8, shuffle=True)
for epoch in range(2):
    fit(model, optimizer, batches)
auc = StreamingAUC()
with torch.no_grad():
    auc.update(y[cut:], model(x[cut:]).squeeze(1))
with open(result, "w") as file:
    print(auc.value(), file=file)
"""


def test_port_trains_each_sample_once_in_every_way_to_run_it(tmp_path):
    (tmp_path / "small_trainer.py").write_text(LOOP)
    port = Program(
        name="small",
        package="small-trainer==1",
        needs=(),
        source="small_trainer.py",
        sha256=hashlib.sha256(LOOP.encode()).hexdigest(),
        text=TEXT,
        changes=(
            Change(
                "for epoch",
                (
                    "import springtide as st",
                    "model, optimizer, batches = st.join().prepare(model, optimizer, batches)",
                    "for epoch in range(2):",
                ),
            ),
        ),
        epochs=2,
    )
    found = runner.measure(port, tmp_path, [1], quick=True)

    assert found.changed_lines == 2
    assert list(found.runs) == ["original", "alone", "2 x 2", "killed", "resumed"]
    for way, runs in found.runs.items():
        assert runs.once, f"{way}: some samples were lost or trained twice"
        assert runs.mean > 0.5, f"{way}: nothing was learnt"
        assert runs.mean <= found.best_auc
