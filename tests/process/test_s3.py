"""Checkpoints and exports on S3, through s3fs to a local server of its protocol.

Needs `pip install 'moto[server]' s3fs` (about 150 MB), which `make setup-extra` does not install.
"""

import json
import socket
import subprocess
import sys
import urllib.error
import urllib.request

import pytest
import torch

from tests import waiting
from tests.process import running
from tests.process.test_export import TRAIN

pytestmark = [pytest.mark.process, pytest.mark.soak, pytest.mark.extra("moto", "s3fs"), pytest.mark.timeout(600)]

READ = """
import sys

import torch
from torch import nn

from springtide import export

plain = nn.Sequential(nn.EmbeddingBag(500, 8, mode="sum"), nn.Linear(8, 1))
export.into(plain, sys.argv[1])
torch.manual_seed(0)
torch.save(plain(torch.randint(0, 500, (4096, 4))[:100]).detach(), "read.pt")
"""
"""In a process of its own: what talks to a store for fsspec stays as long as its process does."""


@pytest.fixture
def bucket(monkeypatch):
    """The URL of an empty bucket; processes that are started from here on know how to reach it."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    endpoint = f"http://127.0.0.1:{port}"
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "anyone")
    server = subprocess.Popen([sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)])

    def made():
        try:
            urllib.request.urlopen(urllib.request.Request(f"{endpoint}/keep", method="PUT")).close()
        except urllib.error.URLError:
            return False
        return True

    try:
        waiting.until(made, "a bucket")
        yield "s3://keep"
    finally:
        server.kill()
        server.wait()


def command_output(*arguments, folder):
    with running.springtide(*arguments, folder=folder) as command:
        code, out = command.finish()
    assert code == 0
    return out


def predictions_fit(folder):
    torch.testing.assert_close(
        torch.load(folder / "read.pt"), torch.load(folder / "predicted.pt"), rtol=1e-5, atol=1e-6
    )


def test_s3_job_is_uploaded_resumed_and_exported(tmp_path, bucket):
    running.script(tmp_path, TRAIN)
    url, rules = f"{bucket}/ctr", ("--checkpoint-every", "1", "--upload-every", "1")
    command_output("run", "train.py", "--servers", "2", *rules, "--checkpoint-url", url, folder=tmp_path)
    assert json.loads(command_output("checkpoints", url, "--json", folder=tmp_path)[-1])

    card = json.loads(command_output("export", url, f"{bucket}/exports", "--json", folder=tmp_path)[-1])
    assert (card["samples"], card["tables"][0]["keys"]) == (4096, 500)
    subprocess.run([sys.executable, "-c", READ, f"{bucket}/exports"], cwd=tmp_path, check=True)
    predictions_fit(tmp_path)

    with running.springtide("export", url, "s3://nobody/exports", folder=tmp_path) as command:
        command.wait_for("s3://nobody/exports/export-")
        assert "bucket does not exist" in command.said[-1] and command.finish()[0] != 0

    (tmp_path / "predicted.pt").unlink()
    command_output("run", "train.py", "--name", "again", "--servers", "1", "--resume", url, folder=tmp_path)
    predictions_fit(tmp_path)
