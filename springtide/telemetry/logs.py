"""Names the files of a run, finds runs by the card that each job's agent writes, and sets up logging in roles."""

import errno
import logging
import os
import pathlib
import re
import sys
from dataclasses import dataclass
from typing import BinaryIO

import msgspec

from springtide import private_files
from springtide.domain.core.roles import Role
from springtide.domain.core.validation import UNDECODABLE
from springtide.telemetry import events, output

SCRIPT_RAISED = "---- the script raised ----"
"""Line in a worker's log that marks the traceback of user code. The traceback follows this line."""
_FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
_ERROR = re.compile(r"\S+ \S+ (?:ERROR|CRITICAL) +\S+: (.*)")  # matches a line in the format _FORMAT
MOST_READ = 2**16  # number of bytes at the end of a log in which to search the last error
LONGEST = 500  # number of characters of an error to keep, because the error becomes a line of the job's status


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
    spec = RunFile("spec.json")
    """Spec for the job's masters, which only its owner can read."""
    secret = RunFile("secret")
    tls = RunFile("tls")
    """Folder of certificates in a job with TLS, with a subfolder for each kind of role."""
    master = RunFile("master.json")
    """The master's address, or the error with which the master failed to start."""
    journal = RunFile("journal.db")
    heeded = RunFile("heeded.json")
    """On Kubernetes, the spec that the master received last (`launch.k8s.pod_requests`)."""
    view = RunFile("view.json")
    """Last view that the planner got (`telemetry.planner_views`)."""
    views = RunFile("views")
    """Folder with the views behind the newest plans that were carried out, by number."""
    traffic = RunFile("traffic.jsonl")
    """Traffic history of the stream, for forecasts (`master.autoscale.forecast`)."""
    forecast = RunFile("forecast.json")
    progress = RunFile("progress.jsonl")
    """Time series of the job's progress (`telemetry.progress`)."""
    online = RunFile("online.jsonl")
    """Time series of an online job (`master.autoscale.online_loop`)."""
    checkpoints = RunFile("checkpoints")
    package = RunFile("package")
    """Package of the data workers (`dataworker.processes.job_package`)."""

    def certificates(self, role: str = "agent") -> str:
        folder = self.tls / role
        return str(folder.absolute()) if folder.is_dir() else ""

    def logged_roles(self) -> list[str]:
        return sorted(path.stem for path in self.logs.glob("*.log"))

    def tracker(self, kind: str) -> pathlib.Path:
        """Return the file that says what an experiment tracker has got so far (`telemetry.trackers`)."""
        return self.root / f"tracker-{kind}.json"

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
    """Open a log for appending. If the disk is full and the log cannot be opened, the output is discarded, so that
    the process can still run.
    """
    try:
        return private_files.opened(path, "ab")
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        logging.getLogger(__name__).warning("no room for %s: the output of its process is lost", path)
        return open(os.devnull, "ab")


def tail(path: pathlib.Path, lines: int = 20) -> list[str]:
    try:
        return [line for line in path.read_text(errors="replace").splitlines() if line.strip()][-lines:]
    except OSError:
        return []


class LogTail:
    """Reader of a growing log file, which returns each complete line once."""

    def __init__(self, path: pathlib.Path, at: int = 0) -> None:
        self._path, self.at = path, at
        """`at`: number of bytes read so far, up to the end of a line."""

    def more(self, most: int = -1) -> list[str]:
        """Return new lines, with at most this many bytes."""
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
    try:
        with open(path, "rb") as file:
            file.seek(max(since, os.fstat(file.fileno()).st_size - MOST_READ))
            return error_in(file.read().decode(errors="replace"))
    except OSError:
        return ""


def error_in(text: str) -> str:
    """Return the last error in a log: the line after a traceback, or an error that was logged. Cut the error to
    `LONGEST` characters.

    The text may begin in the middle of a traceback, because clusters keep only the end of a log.
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
    """Set up only Springtide's own logger, for warnings and errors, because the root logger of a worker belongs to the
    user."""
    ours = logging.getLogger("springtide")
    ours.addHandler(_handler())
    ours.setLevel(logging.DEBUG if debug else logging.WARNING)
    ours.propagate = False


def _handler() -> logging.Handler:
    output.keep_going()
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(output.RedactingFormatter(_FORMAT))
    return handler


class RunCard(msgspec.Struct, frozen=True, kw_only=True):
    """Card that an agent writes at the start of a run."""

    name: str
    script: str
    arguments: tuple[str, ...] = ()
    began_at: float
    """Time of day when the run began, in seconds."""
    agent_pid: int = 0
    agent_start: int = -1
    """Start time of the agent's process, in kernel ticks. The start time distinguishes two processes that had the same
    process id."""
    platform: str = "local"
    """Platform of the job. For a job on a platform other than local, this folder has only the card."""
    where: dict[str, str] = {}
    """How to find the job on its platform: an address, a namespace."""


class JobRun(msgspec.Struct, frozen=True):
    """The folder of one run, with its card."""

    files: RunFiles
    card: RunCard

    @property
    def job(self) -> str:
        """Return the name that users use: the name of the folder (`train-2` is the second run of `train`)."""
        return self.files.root.name

    @property
    def here(self) -> bool:
        return self.card.platform == "local"

    @property
    def running(self) -> bool:
        return start_of(self.card.agent_pid) == self.card.agent_start


def write_card(files: RunFiles, card: RunCard) -> None:
    private_files.replace(files.card, msgspec.json.encode(card))


def read_card(files: RunFiles) -> RunCard | None:
    """Return the card of a run. Return None if the card is being written or deleted, or belongs to another user."""
    try:
        return msgspec.json.decode(files.card.read_bytes(), type=RunCard)
    except (OSError, *UNDECODABLE):
        return None


def find_runs(base: pathlib.Path) -> list[JobRun]:
    found = []
    for path in base.glob("*/job.json"):
        files = RunFiles(path.parent)
        card = read_card(files)
        if card is not None:
            found.append(JobRun(files, card))
    return sorted(found, key=lambda run: run.card.began_at, reverse=True)


def start_of(pid: int) -> int | None:
    """Return the start time of a process, in kernel ticks since boot. Return None if the process does not run."""
    try:
        after = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return int(after[19]) if after[0] != "Z" else None
