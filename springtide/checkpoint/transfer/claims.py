"""Reserves a checkpoint folder or URL for one run at a time, so that two runs never write to the same place.

The claim with the highest number (`claim-000001.json`) determines the owner of the place. A run that resumes from the
place takes it over with a claim of the next number. The previous owner notices, because every publication reads the
claims first.
"""

import errno
import os
import pathlib
import re
import stat
import tempfile
import time
from typing import NamedTuple

import msgspec

from springtide import errors
from springtide.checkpoint.format import checkpoint_io
from springtide.checkpoint.format.storage import FileStore, FolderStore, UrlStore
from springtide.domain.core.validation import UNDECODABLE
from springtide.telemetry.logs import start_of

PATIENCE_S = 5.0
"""Seconds to wait before a claim counts as held or unreadable. A killed process may remain visible for a moment, and a
claim is empty while it is written."""
LOOK_S = 0.1
_NAME = re.compile(r"claim-(\d{6,})\.json")
_RACES = 100  # most attempts to claim a place; only a claim of another run makes an attempt fail


class ProcessId(msgspec.Struct, frozen=True, array_like=True):
    """A process of a machine, identified by its id and its start time. Process ids are reused, but the pair of id and
    start time is unique."""

    pid: int
    started: int
    """Start time of the process, in clock ticks after the boot."""


class RunClaim(msgspec.Struct, frozen=True, kw_only=True):
    """Run that owns a checkpoint place, and the processes of that run."""

    run: str
    job: str
    resumed_run: str = ""
    """The run that the present run resumes. This run may take over the resumed run's places. Empty: none."""
    at: float = 0.0
    """When the run's master began, in seconds since 1970."""
    host: str = ""
    space: str = ""
    """Boot id and process namespace; process ids are comparable only within the same pair."""
    master: ProcessId | None = None
    agent: ProcessId | None = None

    @property
    def words(self) -> str:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.at))
        pid = f", process {self.master.pid}" if self.master else ""
        return f"run {self.run} of job {self.job!r} (on {self.host}{pid}, since {when})"

    def is_running(self) -> bool:
        return self._is_here() and _lives(self.master)

    def is_over(self) -> bool:
        """Return True if both the run's master and its agent, which would restart the master, have ended."""
        return self._is_here() and not _lives(self.master) and not _lives(self.agent)

    def _is_here(self) -> bool:
        return bool(self.space) and self.space == _process_space()


def of_this_process(run: str, job: str) -> RunClaim:
    return RunClaim(
        run=run,
        job=job,
        at=time.time(),
        host=os.uname().nodename,
        space=_process_space(),
        master=_process(os.getpid()),
        agent=_process(os.getppid()),
    )


def all_of(place: FileStore) -> dict[int, RunClaim | None]:
    """Return every claim of a place, by number; None for an unreadable claim."""
    numbers = sorted(int(match[1]) for name in place.names() if (match := _NAME.fullmatch(name)))
    return {number: read(place, name_of(number)) for number in numbers}


def read(place: FileStore, name: str) -> RunClaim | None:
    """Read a claim by file name; None if the file is missing or unreadable."""
    try:
        return msgspec.json.decode(place.read(name), type=RunClaim)
    except (FileNotFoundError, *UNDECODABLE):
        return None


def take(place: FolderStore | UrlStore, mine: RunClaim, *, option: str = "--checkpoint-dir") -> str:
    """Claim a place, or confirm the claim, and return its file name. Raise BadInput if another run owns the place.

    Take over the places of the resumed run, unless the resumed run is still running. `option` is the command-line
    option that chooses the place.
    """
    for _ in range(_RACES):
        known = _settled(place)
        newest = max(known, default=0)
        owner = known.get(newest)
        if owner is not None and owner.run == mine.run:
            if owner != mine:  # the claim belongs to an earlier master of this run
                place.write(name_of(newest), msgspec.json.encode(mine))
            return name_of(newest)
        if any(claim is not None and claim.run == mine.run for claim in known.values()):
            who = owner.words if owner is not None else "another run"
            raise errors.BadInput(f"{place.where} was taken over by {who}; this run, {mine.run}, must not write there")
        if newest:
            _refuse_owner(place, newest, owner, option)
        _refuse_checkpoints(place, newest, owner, (mine.run, mine.resumed_run), option)
        name = name_of(newest + 1)
        if place.create_new(name, msgspec.json.encode(mine)) and read(place, name) == mine:
            return name
    raise errors.BadInput(f"{place.where}: several runs claim it at the same time; choose another place with {option}")


def release(place: FileStore, run: str) -> None:
    """End the run's ownership. A place without checkpoints becomes free. A place with checkpoints stays with the
    run."""
    known = all_of(place)
    newest = max(known, default=0)
    owner = known.get(newest)
    if owner is not None and owner.run == run and not checkpoint_io.numbers(place):
        place.remove(name_of(newest))


def name_of(number: int) -> str:
    return f"claim-{number:06d}.json"


def machine() -> str:
    """Return an id of this machine, which stays the same until the next boot."""
    try:
        return pathlib.Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return os.uname().nodename


def _refuse_owner(place: FileStore, number: int, owner: RunClaim | None, option: str) -> None:
    if owner is None:
        raise errors.BadInput(
            f"{place.where} belongs to an unknown run: {name_of(number)} there cannot be read; choose "
            f"another place with {option}, or delete that file if no job uses the place"
        )
    if _still_runs(owner):
        raise errors.BadInput(
            f"{place.where} belongs to {owner.words}, which still runs; choose another place with {option}, or stop "
            "that job first"
        )


def _refuse_checkpoints(
    place: FileStore, number: int, owner: RunClaim | None, own: tuple[str, str], option: str
) -> None:
    """Raise if the newest checkpoint belongs to another run. Also raise if there is no checkpoint and the owner of the
    place may still run.
    """
    newest = _newest_run(place)
    if newest is None and owner is not None and not owner.is_over():
        raise errors.BadInput(
            f"{place.where} belongs to {owner.words}, which may still run; choose another place with {option}, or "
            f"delete {name_of(number)} there if that job is over"
        )
    if newest is not None and newest not in filter(None, own):
        raise errors.BadInput(
            f"{place.where} has checkpoints of another run; choose another place with {option}, or continue from them "
            f"with --resume {place.where}"
        )


def _settled(place: FileStore) -> dict[int, RunClaim | None]:
    deadline = time.monotonic() + PATIENCE_S
    while (known := all_of(place)) and known[max(known)] is None and time.monotonic() < deadline:
        time.sleep(LOOK_S)
    return known


def _still_runs(claim: RunClaim) -> bool:
    deadline = time.monotonic() + PATIENCE_S
    while (running := claim.is_running()) and time.monotonic() <= deadline:
        time.sleep(LOOK_S)
    return running


def _newest_run(place: FileStore) -> str | None:
    """Return the run of the newest readable checkpoint; empty if no checkpoint is readable, None without
    checkpoints.
    """
    numbers = checkpoint_io.numbers(place)
    for number in numbers:
        try:
            return checkpoint_io.manifest_of(place, number).run
        except (errors.BadInput, OSError):
            continue
    return "" if numbers else None


def _process_space() -> str:
    """Return the scope in which process ids are comparable; empty if unknown."""
    try:
        return f"{machine()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _process(pid: int) -> ProcessId | None:
    started = start_of(pid)
    return None if started is None else ProcessId(pid, started)


def _lives(process: ProcessId | None) -> bool:
    if process is None:
        return False
    current = _process(process.pid)
    return current == process if current is not None else _is_hidden(process.pid)


def _is_hidden(pid: int) -> bool:
    """Return True if a process with this id exists but belongs to a user whose processes /proc hides (hidepid)."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except OSError:
        return False
    return False


class CheckpointDisk(NamedTuple):
    """Folder in which a server writes checkpoint files."""

    folder: pathlib.Path
    """The job's folder if it is shared. Otherwise a folder of this machine, with a subfolder named after the server."""
    node: str = ""
    """Machine of the server, if no other machine sees the folder. Empty for a shared folder."""


def find_disk(folder: str, run: str, claim: str, *, scratch: str = "", node: str = "") -> CheckpointDisk:
    """Return the job's folder if the run's claim is visible there and no scratch folder is given. Otherwise return a
    private folder of this machine.

    An empty claim means that the folder was not writable. Then return the job's folder, because the next save reports a
    clearer error for that folder.
    """
    if not scratch and (not claim or _sees(folder, run, claim)):
        return CheckpointDisk(pathlib.Path(folder))
    base = pathlib.Path(scratch) if scratch else pathlib.Path(tempfile.gettempdir()) / f"springtide-{os.getuid()}"
    own = base / run
    try:
        if not scratch:
            _keep_private(base)
        own.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise errors.BadInput(
            f"this server does not see the job's folder {folder}, and cannot write to {own} either: "
            f"{error.strerror or error}. Set SPRINGTIDE_SCRATCH to a writable folder of this machine."
        ) from error
    return CheckpointDisk(own, node or machine())


def _keep_private(base: pathlib.Path) -> None:
    """Create a private folder below a world-writable folder. Reject an existing folder that belongs to a different
    user.
    """
    base.mkdir(parents=True, exist_ok=True, mode=0o700)
    there = base.lstat()
    if not stat.S_ISDIR(there.st_mode) or there.st_uid != os.getuid():
        raise PermissionError(errno.EPERM, f"{base} belongs to another user")


def _sees(folder: str, run: str, claim: str) -> bool:
    try:
        seen = read(FolderStore(pathlib.Path(folder)), claim)
    except OSError:
        return False
    return seen is not None and seen.run == run
