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
        return self.root / "logs"

    @property
    def events(self) -> pathlib.Path:
        """Return the event log of the job."""
        return self.root / "events.jsonl"

    @property
    def card(self) -> pathlib.Path:
        """Return the card of the run (`telemetry.run_registry`)."""
        return self.root / "job.json"

    @property
    def spec(self) -> pathlib.Path:
        """Return the job's spec for its masters, readable by its owner only."""
        return self.root / "spec.json"

    @property
    def secret(self) -> pathlib.Path:
        """Return the file with the job's secret, readable by its owner only."""
        return self.root / "secret"

    @property
    def tls(self) -> pathlib.Path:
        """Return the folder of certificates, with a subfolder for each kind of role, in jobs with TLS."""
        return self.root / "tls"

    def certificates(self, role: str = "agent") -> str:
        """Return the folder with a role's certificates; empty if the job has no TLS."""
        folder = self.tls / role
        return str(folder.absolute()) if folder.is_dir() else ""

    @property
    def master(self) -> pathlib.Path:
        """Return the file with the master's address, or its startup error."""
        return self.root / "master.json"

    @property
    def journal(self) -> pathlib.Path:
        """Return the journal, from which a new master continues."""
        return self.root / "journal.db"

    @property
    def heeded(self) -> pathlib.Path:
        """Return the spec that the master last received on Kubernetes (`launch.k8s.pod_requests`)."""
        return self.root / "heeded.json"

    @property
    def view(self) -> pathlib.Path:
        """Return the view that the planner was last shown (`telemetry.planner_views`)."""
        return self.root / "view.json"

    @property
    def traffic(self) -> pathlib.Path:
        """Return the traffic history of the stream, for forecasts (`master.autoscale.forecast`)."""
        return self.root / "traffic.jsonl"

    @property
    def online(self) -> pathlib.Path:
        """Return the time series of an online job (`master.autoscale.online_loop`)."""
        return self.root / "online.jsonl"

    @property
    def forecast(self) -> pathlib.Path:
        """Return the latest traffic forecast (`master.autoscale.forecast`)."""
        return self.root / "forecast.json"

    @property
    def checkpoints(self) -> pathlib.Path:
        """Return the default folder of the job's checkpoints."""
        return self.root / "checkpoints"

    @property
    def package(self) -> pathlib.Path:
        """Return the folder of the data workers' package (`dataworker.processes.job_package`)."""
        return self.root / "package"

    def log_of(self, role: Role) -> pathlib.Path:
        return self.logs / f"{role}.log"


def make_run(base: pathlib.Path, job: str) -> RunFiles:
    """Create a new directory for a run: `base/job`, or `base/job-2` and so on if that name exists."""
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
    """Open a log for appending. On a full disk the output is lost, because the process matters more than its log."""
    try:
        return private_files.opened(path, "ab")
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        logging.getLogger(__name__).warning("no room for %s: what its process prints is lost", path)
        return open(os.devnull, "ab")


def tail(path: pathlib.Path, lines: int = 20) -> list[str]:
    """Return the last non-empty lines of a log; none if there is no log."""
    try:
        return [line for line in path.read_text(errors="replace").splitlines() if line.strip()][-lines:]
    except OSError:
        return []


def last_error(path: pathlib.Path, since: int = 0) -> str:
    """Return the last error in a role's log after byte `since`; empty if there is none."""
    try:
        with open(path, "rb") as file:
            file.seek(max(since, os.fstat(file.fileno()).st_size - MOST_READ))
            return error_in(file.read().decode(errors="replace"))
    except OSError:
        return ""


def error_in(text: str) -> str:
    """Return the last error in a log: the line after a traceback, or a logged error, cut to `LONGEST` characters.

    The text may begin within a traceback, because clusters keep only the end of a log.
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
_ERROR = re.compile(r"\S+ \S+ (?:ERROR|CRITICAL) +\S+: (.*)")  # matches a line in _FORMAT
MOST_READ = 2**16  # bytes at the end of a log that are searched for its last error
LONGEST = 500  # characters of an error that are kept, because it becomes a line of the job's status


def log_to_stderr(*, debug: bool = False) -> None:
    """Set up logging of a role's process. The platform redirects standard error to the role's log file."""
    output.keep_going()
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(redactor.RedactingFormatter(_FORMAT))
    logging.basicConfig(level=logging.DEBUG if debug else logging.INFO, handlers=[handler], force=True)


def log_quietly(*, debug: bool = False) -> None:
    """Set up only our own logger, for warnings and errors. In a worker, the root logger belongs to the
    user's script.
    """
    output.keep_going()
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(redactor.RedactingFormatter(_FORMAT))
    ours = logging.getLogger("springtide")
    ours.addHandler(handler)
    ours.setLevel(logging.DEBUG if debug else logging.WARNING)
    ours.propagate = False
