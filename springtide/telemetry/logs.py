"""Names the files of a run, and sets up the logs of its roles.

In: the directory of a run. Out: `logs/<role>.log` (standard output and error of that process) beside `events.jsonl`.
"""

import errno
import logging
import os
import pathlib
import re
import sys
from dataclasses import dataclass
from typing import BinaryIO

from springtide import private_files
from springtide.domain.core.roles import Role
from springtide.telemetry import events, output, redactor


@dataclass(frozen=True, slots=True)
class RunFiles:
    """Paths of the files of one run."""

    root: pathlib.Path

    @property
    def logs(self) -> pathlib.Path:
        """Directory of the logs."""
        return self.root / "logs"

    @property
    def events(self) -> pathlib.Path:
        """The story of the job."""
        return self.root / "events.jsonl"

    @property
    def card(self) -> pathlib.Path:
        """Who runs it: `telemetry.run_registry`."""
        return self.root / "job.json"

    @property
    def spec(self) -> pathlib.Path:
        """The job's spec as its masters read it, readable by its owner only."""
        return self.root / "spec.json"

    @property
    def secret(self) -> pathlib.Path:
        """The job's secret, readable by its owner only."""
        return self.root / "secret"

    @property
    def tls(self) -> pathlib.Path:
        """Where the job's certificates lie, a folder for each kind of role; only jobs with TLS have it."""
        return self.root / "tls"

    def certificates(self, role: str = "agent") -> str:
        """The folder of certificates with which a `role` speaks; empty when the job has no TLS."""
        folder = self.tls / role
        return str(folder.absolute()) if folder.is_dir() else ""

    @property
    def master(self) -> pathlib.Path:
        """Where the master listens, or why it does not."""
        return self.root / "master.json"

    @property
    def journal(self) -> pathlib.Path:
        """What a master that takes over needs to know."""
        return self.root / "journal.db"

    @property
    def heeded(self) -> pathlib.Path:
        """On Kubernetes: the job's spec as its master was told of it last: `launch.k8s.pod_requests`."""
        return self.root / "heeded.json"

    @property
    def view(self) -> pathlib.Path:
        """What its planner was shown last: `telemetry.planner_views`."""
        return self.root / "view.json"

    @property
    def traffic(self) -> pathlib.Path:
        """Traffic of the stream that it reads, by steps, for forecasts: `master.autoscale.forecast`."""
        return self.root / "traffic.jsonl"

    @property
    def online(self) -> pathlib.Path:
        """What a job that reads a stream was like over time: `master.autoscale.online_loop`."""
        return self.root / "online.jsonl"

    @property
    def forecast(self) -> pathlib.Path:
        """What is expected to come, as it was forecast last: `master.autoscale.forecast`."""
        return self.root / "forecast.json"

    @property
    def checkpoints(self) -> pathlib.Path:
        """Checkpoints of the job, unless it was told to put them elsewhere."""
        return self.root / "checkpoints"

    @property
    def package(self) -> pathlib.Path:
        """What data workers need of the job: `dataworker.processes.job_package`."""
        return self.root / "package"

    def log_of(self, role: Role) -> pathlib.Path:
        """One role's log."""
        return self.logs / f"{role}.log"


def make_run(base: pathlib.Path, job: str) -> RunFiles:
    """Make a fresh directory for a run: `base/job`, or `base/job-2` and so on when that is taken."""
    number = 1
    while True:
        root = base / (job if number == 1 else f"{job}-{number}")
        try:
            root.mkdir(parents=True, mode=private_files.FOLDER)
            (root / "logs").mkdir(mode=private_files.FOLDER)
            return RunFiles(root)
        except FileExistsError:
            number += 1
        except OSError as error:
            raise events.as_disk_error(error, root) from error


def open_log(path: pathlib.Path) -> BinaryIO:
    """A log to append to. On a disk that takes no new file the output is lost: a process is worth more than its log."""
    try:
        return private_files.opened(path, "ab")
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        logging.getLogger(__name__).warning("no room for %s: what its process prints is lost", path)
        return open(os.devnull, "ab")


def tail(path: pathlib.Path, lines: int = 20) -> list[str]:
    """The last lines of a log that say something; none when there is no log."""
    try:
        return [line for line in path.read_text(errors="replace").splitlines() if line.strip()][-lines:]
    except OSError:
        return []


def last_error(path: pathlib.Path, since: int = 0) -> str:
    """The error that a role's log ends with, of what was written from byte `since` on; empty: it names none."""
    try:
        with open(path, "rb") as file:
            file.seek(max(since, os.fstat(file.fileno()).st_size - MOST_READ))
            return error_in(file.read().decode(errors="replace"))
    except OSError:
        return ""


def error_in(text: str) -> str:
    """The last error of a log: the line below a traceback, or the words of a logged error, cut to a line's length.

    The text may begin amid a traceback: clusters keep the end of a log only.
    """
    found, in_trace = "", False
    for line in text.splitlines():
        logged = _ERROR.match(line)
        if line.startswith(("Traceback (most recent call last)", '  File "')):
            in_trace = True
        elif logged is not None:
            found, in_trace = logged[1], False
        elif in_trace and line[:1].strip():
            found, in_trace = line, False
    return found if len(found) <= LONGEST else f"{found[: LONGEST - 3]}..."


SCRIPT_RAISED = "---- the script raised ----"
"""Marker line in a worker's log. The traceback of the user's code follows it."""

_FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
_ERROR = re.compile(r"\S+ \S+ (?:ERROR|CRITICAL) +\S+: (.*)")  # a line of that
MOST_READ = 2**16  # bytes of a log that are looked at for its last error
LONGEST = 500  # characters of an error that are passed on: it becomes a line of the job's status


def log_to_stderr(*, debug: bool = False) -> None:
    """Set up logging of a role's process; the platform has pointed standard error at the role's log file."""
    output.keep_going()
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(redactor.RedactingFormatter(_FORMAT))
    logging.basicConfig(level=logging.DEBUG if debug else logging.INFO, handlers=[handler], force=True)


def log_quietly(*, debug: bool = False) -> None:
    """Set up our own logger only, warnings and worse: in a worker the root logger belongs to the user's script."""
    output.keep_going()
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(redactor.RedactingFormatter(_FORMAT))
    ours = logging.getLogger("springtide")
    ours.addHandler(handler)
    ours.setLevel(logging.DEBUG if debug else logging.WARNING)
    ours.propagate = False
