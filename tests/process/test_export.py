"""`springtide export`: an exported model predicts the same in plain PyTorch."""

import json

import pytest
import torch
from torch import nn

from springtide import export
from springtide.cli import app
from tests.process import running

pytestmark = pytest.mark.process

TRAIN = """
import torch
from torch import nn

import springtide as st

torch.manual_seed(0)
ids = torch.randint(0, 500, (4096, 4))
data = torch.utils.data.TensorDataset(ids, (ids.sum(1) % 2).float())
job = st.join()
model = nn.Sequential(nn.EmbeddingBag(500, 8, mode="sum"), nn.Linear(8, 1))
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
model, optimizer, batches = job.prepare(model, optimizer, data, batch_size=64)
for x, y in batches:
    optimizer.zero_grad()
    nn.functional.binary_cross_entropy_with_logits(model(x).squeeze(1), y).backward()
    optimizer.step()
model.eval()
torch.save(model(ids[:100]).detach(), "predicted.pt")
"""


@pytest.mark.soak
def test_exported_model_predicts_the_same_in_plain_pytorch(tmp_path):
    running.script(tmp_path, TRAIN)
    with running.springtide("run", "train.py", "--servers", "2", folder=tmp_path) as job:
        code, _ = job.finish()
    assert code == 0
    for url, options in (("exports", ()), ("below/parquet", ("--format", "parquet"))):
        with running.springtide("export", "train", url, "--json", *options, folder=tmp_path) as command:
            code, out = command.finish()
        assert code == 0
        card = json.loads(out[-1])
        assert (card["samples"], card["since"], card["tables"][0]["keys"]) == (4096, None, 500)

        plain = nn.Sequential(nn.EmbeddingBag(500, 8, mode="sum"), nn.Linear(8, 1))
        export.into(plain, str(tmp_path / url))
        torch.manual_seed(0)
        ids = torch.randint(0, 500, (4096, 4))
        torch.testing.assert_close(plain(ids[:100]), torch.load(tmp_path / "predicted.pt"), rtol=1e-5, atol=1e-6)


def test_export_errors_are_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for arguments, said in (
        (("export", "nothing", "exports"), "no jobs in"),
        (("export", str(tmp_path), "exports", "--format", "parket"), "Did you mean 'parquet'?"),
        (("export", str(tmp_path), "exports"), "no checkpoint in"),
    ):
        assert app.main([*arguments]) == 2
        assert said in capsys.readouterr().err
