"""Reports on a script under observation, training or not."""

import sys

import msgspec
import pytest

import springtide
from springtide.dataworker.split.report import ScriptReport
from springtide.worker import explain_split

BEGIN = """
import torch
from torch import nn
import springtide as st

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.top = nn.Linear(3, 1)

    def forward(self, x):
        return self.top(x).squeeze(1)

model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.rand(200, 3), torch.rand(200))
"""
LOOP = """
model, optimizer, batches = st.join().prepare(model, optimizer, data, batch_size=10)
for x, y in batches:
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
"""


class FakeExit(BaseException):
    """Instead of the end of the process."""


@pytest.fixture
def explain_script(tmp_path, monkeypatch):
    """Report on a script with this text."""
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(springtide, "join", springtide.join)

    def run(text):
        script, report = tmp_path / "train.py", tmp_path / "report.json"
        script.write_text(text)

        def end(status):
            raise FakeExit

        with pytest.raises(FakeExit):
            explain_split.main(str(report), [str(script)], end)
        return msgspec.json.decode(report.read_bytes(), type=ScriptReport)

    return run


def test_explain_reports_a_raising_script_with_its_line(explain_script):
    found = explain_script("rows = 3\nraise ValueError('no such column')\n")
    assert (found.error, found.blame) == ("ValueError: no such column (train.py:2)", "script")
    assert "Traceback" in found.trace


def test_explain_reports_the_exit_status_of_a_script(explain_script):
    assert explain_script("import sys\nsys.exit(3)\n").error == "the script exited with status 3"


def test_explain_reports_a_script_without_prepare(explain_script):
    found = explain_script(BEGIN)
    assert "never called job.prepare" in found.error and found.blame == "usage"


def test_explain_reports_that_an_iterable_has_no_sample_access(explain_script):
    iterable = (
        "class Endless(torch.utils.data.IterableDataset):\n    def __iter__(self):\n        return iter([])\n"
        "data = Endless()\n"
    )
    found = explain_script(BEGIN + iterable + LOOP)
    assert not found.error and "IterableDataset" in found.why


@pytest.mark.parametrize("size", [10, 25], ids=["a long loop", "a short one"])
def test_explain_reports_a_loop_that_never_calls_its_model(explain_script, size):
    loop = LOOP.replace("batch_size=10", f"batch_size={size}")
    found = explain_script(BEGIN + loop.replace("model(x)", "x.sum(1).requires_grad_()"))
    assert not found.error and "not called in training mode" in found.why and found.read_s > 0


def test_explain_names_the_line_of_a_computed_model_argument(explain_script):
    text = BEGIN + LOOP.replace("model(x)", "model(x * 2)")
    line = text.splitlines().index("    nn.functional.mse_loss(model(x * 2), y).backward()") + 1
    found = explain_script(text)
    assert (
        f"argument 1 of model(...) is not a part of the batch, because the loop computes it (train.py:{line})"
        in found.why
    )
    assert found.called == f"train.py:{line}" and found.split is None


def test_explain_reports_a_loop_with_too_few_batches(explain_script):
    found = explain_script(BEGIN + LOOP.replace("batch_size=10", "batch_size=100"))
    assert not found.error and "fewer than 4 batches" in found.why
