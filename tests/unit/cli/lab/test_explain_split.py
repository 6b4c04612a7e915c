"""`springtide explain-split`: its output, and one script from end to end."""

import json

import msgspec
import pytest

from springtide.cli import app
from springtide.cli.lab import explain_split
from springtide.dataworker.split.report import ScriptReport

SCRIPT = """
import torch
from torch import nn
import springtide as st

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.bag = nn.EmbeddingBag(50, 4, mode="sum")
        self.top = nn.Linear(4, 1)

    def forward(self, raw):
        ids = raw * 31 % 50
        return self.top(self.bag(ids)).squeeze(1)

model = Net()
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.randint(0, 1000, (200, 3)), torch.rand(200))
model, optimizer, batches = st.join().prepare(model, optimizer, data, batch_size=20)
for x, y in batches:
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
    print("a step")
raise SystemExit("it was to end before this")
"""


def test_explain_split_runs_a_script_and_stops_it(tmp_path, capfd, monkeypatch):
    monkeypatch.setenv("SPRINGTIDE_MASTER", "127.0.0.1:1")  # of a job that this is called in: none of its business
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    assert app.main(["explain-split", str(script), "--json"]) == 0
    out, err = capfd.readouterr()
    assert "it was to end" not in err and "a step" in err
    told = json.loads(out)
    shown = explain_split.text_of("train.py", msgspec.convert(told, ScriptReport)).splitlines()
    assert told["called"] == "train.py:22" and not told["why"] and not told["error"]
    moved = [group["text"] for group in told["split"]["moved"]]
    assert moved == ["ids = raw * 31 % 50"] and told["left"] == ["batch.x"]
    assert "train.py:13  ids = raw * 31 % 50" in "\n".join(shown) and max(map(len, shown)) <= 80
    assert told["found_s"] > 0 and "own calls of the model." in shown[-1]
    assert told["split"]["guards"][0]["line"] == "train.py:13"
    assert "train.py:13: arguments 31, 50" in "\n".join(shown)


@pytest.mark.parametrize(
    ("told", "code"),
    [
        (ScriptReport(error="ValueError: no such column (train.py:2)", blame="script", trace="Traceback"), 1),
        (ScriptReport(error="the script never called job.prepare(model, optimizer, dataset)", blame="usage"), 2),
    ],
)
def test_explain_split_errors_have_no_traceback(told, code, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(explain_split, "observe", lambda script, *, timeout_s: told)
    script = tmp_path / "train.py"
    script.write_text("")
    assert app.main(["explain-split", str(script)]) == code
    err = capsys.readouterr().err
    assert err.startswith("error: train.py: ") and "Traceback" not in err
    assert app.main(["explain-split", str(script), "--debug"]) == code
    assert ("Traceback" in capsys.readouterr().err) is bool(told.trace)


def test_unsplit_forward_is_explained_in_80_columns():
    told = ScriptReport(why="argument 1 of model(...) " + "is computed " * 10, called="train.py:3", read_s=0.002)
    lines = explain_split.text_of("train.py", told).splitlines()
    assert lines[0] == "train.py calls its model at train.py:3." and "2.00 ms" in lines[1]
    assert lines[2].startswith("forward() stays whole: argument 1") and max(map(len, lines)) <= 80


def test_missing_script_is_bad_usage(capsys):
    assert app.main(["explain-split", "nowhere.py"]) == 2
    assert capsys.readouterr().err.startswith("error: no script nowhere.py.")
