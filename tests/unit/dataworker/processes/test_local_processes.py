"""The fork server of data workers ends with its loader and removes the package."""

import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading

import msgspec
import psutil
import pytest

from springtide import errors
from springtide.dataworker.processes import job_package, local_processes
from tests.waiting import until


def test_loader_killed_with_an_unread_reply_leaves_no_package(tmp_path, monkeypatch):
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    folder = tmp_path / "package"
    folder.mkdir()

    def load(*_, **__):
        theirs.send(b"a reply")
        ours.close()  # the kernel resets a connection that is closed with something unread

    monkeypatch.setattr(job_package, "load", load)
    monkeypatch.setattr(os, "_exit", lambda status: None)
    ours.send(msgspec.msgpack.encode(local_processes.PackageSetup(str(folder), b"s" * 32, 0, os.getppid())))
    with theirs:
        local_processes.main(os.dup(theirs.fileno()))
    assert not folder.exists()


SILENT = "import os, sys, time; os.set_inheritable(int(sys.argv[2]), True); os.fork(); time.sleep(1000)"


@pytest.mark.process
def test_closed_fork_server_ends_waiting_requests_and_refuses_later_ones(tmp_path, monkeypatch):
    """A child keeps the server's end of the socket, so that its death alone does not end the wait."""
    monkeypatch.setattr(local_processes, "_RUN", SILENT)
    forker = local_processes.WorkerForker(tmp_path, b"s" * 32)
    early, late = forker.start(0), forker.start(1)
    server = psutil.Process(forker.pid)
    reasons = []

    def wait():
        with pytest.raises(errors.JobFailed) as said:
            early.ready(300)
        reasons.append(str(said.value))

    waiting = threading.Thread(target=wait)
    waiting.start()
    try:
        until(server.children)
        until(early._server._lock.locked)
        forker.close()
        waiting.join()
        with pytest.raises(errors.JobFailed, match="the fork server has ended"):
            late.ready(300)
    finally:
        os.killpg(server.pid, signal.SIGKILL)
    assert "the fork server has ended" in reasons[0]


EXITING = "import os, sys, time; os.close(int(sys.argv[2])); time.sleep(1000)"


@pytest.mark.process
def test_fork_server_that_closed_its_socket_but_has_not_ended_is_replaced(tmp_path, monkeypatch):
    """As after kill -9 on a busy machine: its files are closed before the process has ended."""
    monkeypatch.setattr(local_processes, "_RUN", EXITING)
    forker = local_processes.WorkerForker(tmp_path, b"s" * 32)
    try:
        early = forker.start(0)
        exiting = forker.pid
        with pytest.raises(errors.JobFailed, match="the fork server has ended"):
            early.ready(300)
        forker.start(1)
        assert forker.pid != exiting
    finally:
        forker.close()


TRAINER = """
import os
import pathlib
import sys
import threading
import time

from torch.utils import data

from springtide.data import ElasticLoader

folder = pathlib.Path(sys.argv[1])


def load():
    while not (folder / "go").exists():
        time.sleep(0.01)
    return Slow()


class Slow(data.Dataset):
    # there at once here, and in the fork server when the file is there
    def __len__(self):
        return 100

    def __getitem__(self, index):
        return index

    def __reduce__(self):
        return load, ()


loader = ElasticLoader(Slow(), batch_size=10, num_workers=1, seed=1)
threading.Thread(target=list, args=(loader,), daemon=True).start()
while (running := loader._pool._running) is None or running.forker.pid is None:
    time.sleep(0.01)
if sys.argv[2] == "with a fork":  # which has the trainer's end of the socket too
    fork = os.fork()
    if not fork:
        threading.Event().wait()
    print(fork, flush=True)
print(running.forker.pid, running.folder, flush=True)
threading.Event().wait()
"""


def trainer(tmp_path, how):
    script = tmp_path / "train.py"
    script.write_text(TRAINER)
    return subprocess.Popen(
        [sys.executable, script, tmp_path, how],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(pathlib.Path(__file__).parents[4])},
    )


@pytest.mark.process
@pytest.mark.parametrize("how", ["while it loads", "with a fork"])
def test_fork_server_ends_with_its_program_even_while_loading_a_dataset(tmp_path, how):
    if how == "with a fork":
        (tmp_path / "go").touch()
    with trainer(tmp_path, how) as program, program.stdout as said:
        fork = psutil.Process(int(said.readline())) if how == "with a fork" else None
        pid, folder = said.readline().split()
        server = psutil.Process(int(pid))
        if fork is not None:  # it has loaded, and has a data worker
            until(server.children)
        program.kill()
        program.wait()
        try:
            until(lambda: not server.is_running(), "the end of the fork server")
        finally:
            for left in (server, fork):
                if left is not None and left.is_running():
                    left.kill()
    assert not pathlib.Path(folder).exists()
