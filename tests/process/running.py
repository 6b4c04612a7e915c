"""Start `springtide run` like a user, wait for its output, and end all its processes."""

import contextlib
import fcntl
import os
import pathlib
import pty
import queue
import signal
import struct
import subprocess
import sys
import termios
import threading
import time

from springtide.telemetry import events as event_log
from springtide.testing.cluster import LocalCluster
from tests import waiting
from tests.process import forked_command

ROOT = pathlib.Path(__file__).resolve().parents[2]
PATIENCE_S = 180.0  # far more than anything takes; a test that waits so long has failed

LOOP = """
import sys
import termios
import time
from springtide.domain.data.samples import DatasetCard
from springtide.rpc.messages.messages import DataEnd, MemberReport
from springtide.worker.link import master_link

here = master_link.current()
welcome = here.join()
card = DatasetCard(samples={samples}, batch_size=10, shard_batches=2, in_step=welcome.spec.sync == "bsp")
trained = 0
here.leases.tracker.begin_pass(card)
while True:
    if not (claimed := here.leases.tracker.claim(card.shard_size)):
        if isinstance(here.leases.lease(card, 1), DataEnd):
            break
        continue
    lease = claimed[0]
    {body}
    trained += lease.end - lease.first
    here.leases.tracker.acknowledge(claimed[1:])
    here.reports.report(MemberReport(step=trained // 10, samples=trained, loss=1 / trained))
print("trained", trained)
"""
"""A worker that speaks to its master as the training loop does, but without torch, which takes seconds to import."""


class Command:
    """A running `springtide` command, forked where that is possible, or `cold` as a user starts it.

    `given` are more variables, `before` words in front of the command that end with its execution.
    """

    def __init__(self, arguments, folder, *, given=None, before=(), cold=False):
        if arguments[0] == "run" and "--plan" not in arguments:
            arguments = ("run", "--no-plan", *arguments[1:])  # tests count roles: however long one takes, none comes
        environment = {name: value for name, value in os.environ.items() if not name.startswith("SPRINGTIDE_")}
        environment["PYTHONPATH"] = str(ROOT)
        if cold or given or before or LocalCluster.warm is None:
            environment |= {"SPRINGTIDE_WARM_STARTS": str(_uses_torch(folder)), **(given or {})}
            self.process = subprocess.Popen(
                [*before, sys.executable, "-m", "springtide.cli.app", *arguments],
                cwd=folder,
                env=environment,
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        else:
            self.process = forked_command.ForkedCommand(["springtide", *arguments], folder, environment)
        self.folder = folder
        self.said = []
        self._lines = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self):
        for line in self.process.stderr:
            self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    def wait_for(self, text):
        """The first line on standard error with this text in it."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            assert line is not None, f"{text!r} was never said: {self.said}\n{self.process.stdout.read()}"
            self.said.append(line)
            if text in line:
                return line

    def rest(self):
        """Remaining lines of standard error of a finished command."""
        while (line := self._lines.get()) is not None:
            self.said.append(line)
        return self.said

    def finish(self):
        """Exit code, lines of standard output."""
        out = self.process.stdout.read()
        code = self.process.wait(PATIENCE_S)
        self._reader.join()
        return code, out.splitlines()

    def send(self, number):
        """A signal to the command itself."""
        self.process.send_signal(number)

    def roles(self):
        """Processes of the job by name, from the story."""
        return {event["role"]: event["pid"] for event in events(self.folder) if event["event"] == "joined"}

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join()
        self.process.stdout.close()
        self.process.stderr.close()


def _uses_torch(folder):
    """Whether a script in the folder imports torch. Others need no interpreter that has spent seconds to import it."""
    return any("import torch" in path.read_text() for path in pathlib.Path(folder).glob("*.py"))


@contextlib.contextmanager
def springtide(*arguments, folder, cold=False):
    """Run a command in a folder; it is dead afterwards."""
    command = Command(arguments, folder, cold=cold)
    try:
        yield command
    finally:
        command.close()


def script(folder, text, name="train.py"):
    """Write a training script."""
    (folder / name).write_text(text)
    return name


MEET = """
here.shared.share(f"trained by {welcome.rank}", str(trained).encode())
while any(int(here.shared.lookup(f"trained by {rank}")) < trained for rank in range(welcome.spec.workers)):
    time.sleep(0.01)
""".strip()
"""A body of the loop that waits until every worker has trained as much as this one."""


def loop(*, body="pass", samples=2000):
    """The text of a training script without torch."""
    return LOOP.format(body=body.replace("\n", "\n    "), samples=samples)


TELLS = "if not trained:\n    print('training', flush=True)"
"""A body of the loop that prints once that training has begun."""


def endless_loop(body=TELLS):
    """The text of a training script that ends only when the test ends it. It leaves the processor to the job's other
    processes and to other tests."""
    return loop(body=f"{body}\ntime.sleep(0.1)", samples=10**12)


def events(folder, run="train"):
    """The event log of a run so far."""
    return event_log.read(folder / ".springtide" / "runs" / run / "events.jsonl")


def wait_for_event(job, kind, **fields):
    """The first event of the story of that kind with these fields."""
    found = []

    def told():
        found[:] = [
            event
            for event in events(job.folder)
            if event["event"] == kind and all(event.get(name) == value for name, value in fields.items())
        ]
        return found

    waiting.until(told, f"{kind} {fields}", every_s=0.02)  # each look reads the whole story
    return found[0]


def alive(pid):
    """Whether a process runs (a zombie does not)."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def states(pid):
    """Of each thread of a process, as the kernel has it: T is stopped."""
    found = []
    for task in pathlib.Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(OSError):  # a thread that has just ended
            found.append(task.read_text().rpartition(")")[2].split()[0])
    return found


def kill(pid):
    """As an out-of-memory killer does."""
    os.kill(pid, signal.SIGKILL)


def on_a_terminal(*arguments, folder, **variables):
    """Run a command on a terminal of 80 columns to its end; all that the terminal was sent."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", **variables}
    command = [sys.executable, "-m", "springtide.cli.app", *arguments]
    process = subprocess.Popen(command, cwd=folder, env=environment, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    shown = b""
    try:
        while part := _read(ours):
            shown += part
        assert process.wait(PATIENCE_S) == 0, shown
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    return shown.decode()


def _read(terminal):
    """Read available output; nothing once the other side has closed."""
    try:
        return os.read(terminal, 65536)
    except OSError:
        return b""
