"""Names the files of a run, and sets up the logs of its roles."""

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

SCRIPT_RAISED = "---- the script raised ----"
"""Marker line in a worker's log. The traceback of the user's code follows it."""
_FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
_ERROR = re.compile(r"\S+ \S+ (?:ERROR|CRITICAL) +\S+: (.*)")  # matches a line in _FORMAT
MOST_READ = 2**16  # bytes at the end of a log that are searched for its last error
LONGEST = 500  # characters of an error that are kept, because it becomes a line of the job's status


class RunFile:
    """A file or folder of a run, by its name in the run's folder."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, run: "RunFiles", _: type) -> pathlib.Path:
        return run.root / self._name


@dataclass(frozen=True)
class RunFiles:
    """Paths of the files of one run."""

    root: pathlib.Path

    logs = RunFile("logs")
    events = RunFile("events.jsonl")
    card = RunFile("job.json")
    """Card of the run (`telemetry.run_registry`)."""
    spec = RunFile("spec.json")
    """Spec for the job's masters, readable by its owner only."""
    secret = RunFile("secret")
    tls = RunFile("tls")
    """Folder of certificates, with a subfolder for each kind of role, in jobs with TLS."""
    master = RunFile("master.json")
    """The master's address, or its startup error."""
    journal = RunFile("journal.db")
    """Journal from which a new master continues."""
    heeded = RunFile("heeded.json")
    """Spec that the master last received on Kubernetes (`launch.k8s.pod_requests`)."""
    view = RunFile("view.json")
    """View that the planner was last shown (`telemetry.planner_views`)."""
    traffic = RunFile("traffic.jsonl")
    """Traffic history of the stream, for forecasts (`master.autoscale.forecast`)."""
    forecast = RunFile("forecast.json")
    online = RunFile("online.jsonl")
    """Time series of an online job (`master.autoscale.online_loop`)."""
    checkpoints = RunFile("checkpoints")
    package = RunFile("package")
    """Package of the data workers (`dataworker.processes.job_package`)."""

    def certificates(self, role: str = "agent") -> str:
        """Return the folder with a role's certificates; empty if the job has no TLS."""
        folder = self.tls / role
        return str(folder.absolute()) if folder.is_dir() else ""

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


class LogTail:
    """Reader of a growing log file, which returns each whole line once."""

    def __init__(self, path: pathlib.Path, at: int = 0) -> None:
        self._path, self.at = path, at
        """`at`: bytes read so far, up to a line's end."""

    def more(self, most: int = -1) -> list[str]:
        """Return new lines, of at most this many bytes."""
        try:
            with open(self._path, "rb") as file:
                file.seek(self.at)
                new = file.read(most)
        except OSError:
            return []
        whole = new[: new.rfind(b"\n") + 1]
        self.at += len(whole)
        return whole.decode(errors="replace").split("\n")[:-1]


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


def log_to_stderr(*, debug: bool = False) -> None:
    """Set up logging of a role's process. The platform redirects standard error to the role's log file."""
    logging.basicConfig(level=logging.DEBUG if debug else logging.INFO, handlers=[_handler()], force=True)


def log_quietly(*, debug: bool = False) -> None:
    """Set up only our own logger, for warnings and errors: in a worker, the root logger is the user's."""
    ours = logging.getLogger("springtide")
    ours.addHandler(_handler())
    ours.setLevel(logging.DEBUG if debug else logging.WARNING)
    ours.propagate = False


def _handler() -> logging.Handler:
    output.keep_going()
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(redactor.RedactingFormatter(_FORMAT))
    return handler
