"""`springtide run` with real training: drained loops, lost servers, forking data loaders, the demo."""

import json
import signal

import pytest

from tests.process import running

pytestmark = pytest.mark.process

TRAIN = """
import time

import torch
from torch import nn

import springtide as st

torch.manual_seed(0)
ids = torch.randint(0, 1000, ({samples}, 4))
data = torch.utils.data.TensorDataset(ids, (ids.sum(1) % 2).float())
job = st.join()
model = nn.Sequential(nn.EmbeddingBag(1000, 8, mode="sum"), nn.Linear(8, 1))
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
model, optimizer, batches = job.prepare(model, optimizer, {data}, batch_size=64, epochs={epochs})
seen = 0
for step, (x, y) in enumerate(batches):
    optimizer.zero_grad()
    loss = nn.functional.binary_cross_entropy_with_logits(model(x).squeeze(1), y)
    loss.backward()
    optimizer.step()
    seen += len(y)
    job.report(loss=loss.item())
    if step == 3:
        print("training", flush=True)
    if step > 200:
        time.sleep(0.02)  # only a loop that the test ends comes so far
print("after the loop", seen, flush=True)
"""


def write(folder, *, samples=4096, epochs=1, data="data"):
    running.script(folder, TRAIN.format(samples=samples, epochs=epochs, data=data))


def test_server_killed_without_checkpoints_is_named_first(tmp_path):
    write(tmp_path, epochs=10**6)
    options = ("--servers", "2", "--workers", "2", "--checkpoint-every", "0")
    with running.springtide("run", "train.py", *options, folder=tmp_path) as job:
        job.wait_for("training")
        pid = job.roles()["server-0"]
        running.kill(pid)
        code, out = job.finish()
    assert code == 3
    assert out[0].startswith(f"server-0 (pid {pid}) was killed by SIGKILL")


def test_ctrl_c_ends_the_loop_and_code_after_it_still_runs(tmp_path):
    write(tmp_path, epochs=10**6)
    with running.springtide("run", "train.py", "--workers", "2", folder=tmp_path) as job:
        job.wait_for("training")
        job.send(signal.SIGINT)
        job.wait_for("after the loop")
        code, out = job.finish()
    assert code == 130 and "stopped by Ctrl-C" in out[0]


def test_dataloader_forked_after_join_works(tmp_path):
    write(tmp_path, data="torch.utils.data.DataLoader(data, batch_size=64, shuffle=True, num_workers=2)")
    with running.springtide("run", "train.py", "--workers", "2", "--json", folder=tmp_path) as job:
        code, out = job.finish()
    assert code == 0, (out, job.said)
    assert json.loads(out[-1])["samples"] == 4096


@pytest.mark.timeout(400)
def test_demo_adds_a_server_kills_three_processes_and_counts_exactly(tmp_path):
    with running.springtide("demo", "--samples", "200000", "--json", folder=tmp_path) as job:
        job.wait_for("now: one more server, server-2; ")
        job.wait_for("now: kill -9 worker-1 ")
        job.wait_for("now: kill -9 server-1 ")
        job.wait_for("now: kill -9 the master ")
        code, out = job.finish()
    assert code == 0, (out, job.said)
    assert out[0].startswith("trained 180,000 clicks in ")
    assert out[1].startswith("added   server-2: ")
    assert out[2].startswith("killed  worker-1: ") and out[3].startswith("killed  server-1: it served again ")
    assert out[4].startswith("killed  the master: the next one listened ")
    assert out[5] == "counted 180,000 clicks in a separate table: 0 lost, 0 repeated"
    assert "the generator's true model gets 0.8" in out[6]
    assert "What to try next:" in out
    result = json.loads(out[-1])
    assert (
        0.6 < result["training"]["metrics"]["test_auc"] < result["training"]["metrics"]["best_auc"]
        and result["master"]["term"] == 2
    )


@pytest.mark.soak
def test_demo_without_kills_is_short(tmp_path):
    with running.springtide("demo", "--samples", "30000", "--no-kill", "--json", folder=tmp_path) as job:
        code, out = job.finish()
    assert code == 0, (out, job.said)
    assert out[0].startswith("trained 27,000 clicks in ")
    assert out[1] == "counted 27,000 clicks in a separate table: 0 lost, 0 repeated"
