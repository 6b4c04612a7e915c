"""Kill a trainer or its saver process: finished saves are found, partial ones never visible."""

import os
import pathlib
import resource
import signal
import subprocess
import sys

import psutil
import pytest
import torch

from springtide.checkpoint import Checkpointer, Outcome
from springtide.checkpoint.checkpointer.saver import whole_images

pytestmark = pytest.mark.process

TRAINER = """
import sys, torch
from springtide.checkpoint import Checkpointer
checkpointer = Checkpointer(sys.argv[1], memory=sys.argv[2])
for step in (1, 2):
    checkpointer.save(step, {"x": torch.full((500_000,), step)})
print("saved", flush=True)
sys.stdin.read()
"""


def test_killed_trainer_loses_no_save(tmp_path: pathlib.Path) -> None:
    url, memory = tmp_path / "saves", tmp_path / "memory"
    command = [sys.executable, "-c", TRAINER, str(url), str(memory)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as trainer:
        assert trainer.stdout is not None and trainer.stdout.readline() == b"saved\n"
        trainer.kill()

    found = Checkpointer(url, memory=memory).load()
    assert found and (found.step, found.source) == (2, "memory")
    with Checkpointer(url, memory=memory) as successor:  # its first save waits until the orphaned saver is done
        assert successor.save(3, {}).wait() is Outcome.PERSISTED
        assert [manifest.step for manifest in successor.saved()][:2] == [3, 2]
    found = Checkpointer(url, memory=tmp_path / "none").load(2)
    assert found and torch.equal(found.state["x"], torch.full((500_000,), 2))


def test_killed_saver_is_replaced_and_the_save_persists(tmp_path: pathlib.Path) -> None:
    url, memory = tmp_path / "saves", tmp_path / "memory"
    with Checkpointer(url, memory=memory) as checkpointer:
        checkpointer.save(1, {}).wait()
        saver = the_saver()
        os.kill(saver.pid, signal.SIGSTOP)  # so that it dies with the image in hand
        save = checkpointer.save(2, {"x": torch.ones(100_000)})
        os.kill(saver.pid, signal.SIGKILL)

        assert save.wait() is Outcome.PERSISTED
        assert [manifest.step for manifest in checkpointer.saved()] == [2, 1]
    assert whole_images(checkpointer.folder)[0][0].step == 2


def test_idle_killed_saver_is_replaced_at_the_next_save(tmp_path: pathlib.Path) -> None:
    with Checkpointer(tmp_path / "saves", memory=tmp_path / "memory") as checkpointer:
        checkpointer.save(1, {}).wait()
        saver = the_saver()
        saver.kill()
        saver.wait()
        assert checkpointer.save(2, {"x": torch.ones(10)}).wait() is Outcome.PERSISTED
        assert the_saver().pid != saver.pid


def the_saver() -> psutil.Process:
    """The only one of this process."""
    (saver,) = [child for child in psutil.Process().children() if "checkpointer.saver" in " ".join(child.cmdline())]
    return saver


def test_full_disk_fails_one_save_and_the_next_is_complete(
    tmp_path: pathlib.Path,
) -> None:
    url, memory = tmp_path / "saves", tmp_path / "memory"
    with Checkpointer(url, memory=memory) as checkpointer:
        checkpointer.save(1, {"x": torch.ones(10)}).wait()
        soft, hard = resource.prlimit(the_saver().pid, resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
        full = checkpointer.save(2, {"x": torch.full((100_000,), 2.0)})
        assert full.wait() is Outcome.FAILED and "could not write to" in full.error
        assert sorted(path.name for path in url.iterdir()) == ["00000001-step1.json", "00000001-step1.state"]
        found = checkpointer.load()
        assert found and (found.step, found.source) == (2, "memory"), "it is lost only with the host"

        resource.prlimit(the_saver().pid, resource.RLIMIT_FSIZE, (soft, hard))
        assert checkpointer.save(3, {"x": torch.full((120_000,), 3.0)}).wait() is Outcome.PERSISTED
        assert [manifest.step for manifest in checkpointer.saved()] == [3, 1]
    found = Checkpointer(url, memory=tmp_path / "none").load()
    assert found and found.step == 3 and torch.equal(found.state["x"], torch.full((120_000,), 3.0))
