"""Exclusive ownership of the place of a run's checkpoints, so that no two runs ever write to one folder or URL.

In: a place and the `Claim` of this run, from `master.checkpoint.round` and `checkpoint.transfer.upload`. Out: a file
`claim-000001.json` in that place, or `BadInput` that names the owner.

The claim with the highest number owns the place. A claim is created exclusively: of two runs that try at the same
moment, one finds the file there. A run that goes on from the checkpoints of a place takes it over by the next number;
the owner before sees that, since every publication looks at the claims first. A store that cannot create exclusively
keeps the last writer's claim; there the same look, and the run's id in every manifest, keep two runs apart.
"""

import os
import pathlib
import re
import time

import msgspec

from springtide import errors
from springtide.checkpoint.format import reader
from springtide.checkpoint.format.storage import Folder, Place, Remote

PATIENCE_S = 5.0
"""A process that was just killed may still be seen for a moment; a claim that is being written is empty for one."""
LOOK_S = 0.1
_NAME = re.compile(r"claim-(\d{6,})\.json")
_RACES = 100  # claims that others make while this one tries: there are never so many


class Process(msgspec.Struct, frozen=True, array_like=True):
    """A process of a machine; numbers are used again, the time of its start is not."""

    pid: int
    started: int
    """Clock ticks after the start of the machine."""


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """Which run owns a place, and who runs it."""

    run: str
    job: str
    resumed_run: str = ""
    """The run that this one goes on from, whose places it may take over; empty: it began anew."""
    at: float = 0.0
    """Time of day at which the run's master began."""
    host: str = ""
    space: str = ""
    """The machine, until it starts again, and the process namespace: there the numbers of processes mean something."""
    master: Process | None = None
    agent: Process | None = None

    @property
    def words(self) -> str:
        """The owner, for a message."""
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.at))
        pid = f", process {self.master.pid}" if self.master else ""
        return f"run {self.run} of job {self.job!r} (on {self.host}{pid}, since {when})"

    def is_running(self) -> bool:
        """Whether the run's master is known to live."""
        return self._is_here() and _lives(self.master)

    def is_over(self) -> bool:
        """Whether the run is known to be over: neither its master lives, nor whoever would start the next one."""
        return self._is_here() and not _lives(self.master) and not _lives(self.agent)

    def _is_here(self) -> bool:
        return bool(self.space) and self.space == _process_space()


def of_this_process(run: str, job: str) -> Claim:
    """The claim of a run whose master is this process."""
    return Claim(
        run=run, job=job, at=time.time(), host=os.uname().nodename, space=_process_space(),
        master=_process(os.getpid()), agent=_process(os.getppid()),
    )  # fmt: skip


def all_of(place: Place) -> dict[int, Claim | None]:
    """Every claim of a place, by its number; None: that one cannot be read."""
    numbers = sorted(int(match[1]) for name in place.names() if (match := _NAME.fullmatch(name)))
    return {number: read(place, name_of(number)) for number in numbers}


def read(place: Place, name: str) -> Claim | None:
    """A claim by the name of its file; None: it is not there, or cannot be read."""
    try:
        return msgspec.json.decode(place.read(name), type=Claim)
    except (FileNotFoundError, msgspec.MsgspecError):
        return None


def take(place: Folder | Remote, mine: Claim, *, option: str = "--checkpoint-dir") -> str:
    """Own this place from now on, or still; the name of the claim. BadInput: it is another run's.

    The places of the run that this one goes on from are taken over, unless that still runs. `option` is what the user
    would change.
    """
    for _ in range(_RACES):
        found = _settled(place)
        newest = max(found, default=0)
        owner = found.get(newest)
        if owner is not None and owner.run == mine.run:
            if owner != mine:  # of an earlier master of this run
                place.write(name_of(newest), msgspec.json.encode(mine))
            return name_of(newest)
        if any(claim is not None and claim.run == mine.run for claim in found.values()):
            who = owner.words if owner is not None else "another run"
            raise errors.BadInput(f"{place.where} was taken over by {who}; this is run {mine.run}, and keeps out")
        if newest:
            _refuse_owner(place, newest, owner, option)
        _refuse_checkpoints(place, newest, owner, (mine.run, mine.resumed_run), option)
        name = name_of(newest + 1)
        if place.create_new(name, msgspec.json.encode(mine)) and read(place, name) == mine:
            return name
    raise errors.BadInput(f"{place.where}: many runs claim it at once; choose another place with {option}")


def release(place: Place, run: str) -> None:
    """The run is over. A place without checkpoints is anybody's again; others stay that run's."""
    found = all_of(place)
    newest = max(found, default=0)
    owner = found.get(newest)
    if owner is not None and owner.run == run and not reader.numbers(place):
        place.remove(name_of(newest))


def name_of(number: int) -> str:
    """The file name of a claim."""
    return f"claim-{number:06d}.json"


def machine() -> str:
    """The same for all processes of one machine, until it starts again."""
    try:
        return pathlib.Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return os.uname().nodename


def _refuse_owner(place: Place, number: int, owner: Claim | None, option: str) -> None:
    """Raise where the owner of a place cannot be told, or still runs."""
    if owner is None:
        raise errors.BadInput(
            f"{place.where} belongs to a run that cannot be told: {name_of(number)} there cannot be read; choose "
            f"another place with {option}, or delete that file if no job uses the place"
        )
    if _still_runs(owner):
        raise errors.BadInput(
            f"{place.where} belongs to {owner.words}, which still runs; choose another place with {option}, or stop "
            "that job first"
        )


def _refuse_checkpoints(place: Place, number: int, owner: Claim | None, own: tuple[str, str], option: str) -> None:
    """Raise where the newest checkpoint is none of these runs', or there is none and the owner may still run."""
    newest = _newest_run(place)
    if newest is None and owner is not None and not owner.is_over():
        raise errors.BadInput(
            f"{place.where} belongs to {owner.words}, which may still run; choose another place with {option}, or "
            f"delete {name_of(number)} there if that job is over"
        )
    if newest is not None and newest not in filter(None, own):
        raise errors.BadInput(
            f"{place.where} has checkpoints of another run; choose another place with {option}, or go on from them "
            f"with --resume {place.where}"
        )


def _settled(place: Place) -> dict[int, Claim | None]:
    """Every claim of a place. The newest may be being written, and is waited for."""
    deadline = time.monotonic() + PATIENCE_S
    while (found := all_of(place)) and found[max(found)] is None and time.monotonic() < deadline:
        time.sleep(LOOK_S)
    return found


def _still_runs(claim: Claim) -> bool:
    deadline = time.monotonic() + PATIENCE_S
    while claim.is_running():
        if time.monotonic() > deadline:
            return True
        time.sleep(LOOK_S)
    return False


def _newest_run(place: Place) -> str | None:
    """The run of the newest checkpoint that lies there; empty: none can be read; None: there is none."""
    numbers = reader.numbers(place)
    for number in numbers:
        try:
            return reader.manifest_of(place, number).run
        except (errors.BadInput, OSError):
            continue
    return "" if numbers else None


def _process_space() -> str:
    """Where the number of a process means the same one; empty: nobody can tell."""
    try:
        return f"{machine()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _process(pid: int) -> Process | None:
    """A process that lives now; None: there is none, or it has ended and nobody has taken notice yet."""
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text("ascii", errors="replace")
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return Process(pid, int(fields[19])) if fields[0] not in "ZX" else None


def _lives(process: Process | None) -> bool:
    if process is None:
        return False
    found = _process(process.pid)
    return found == process if found is not None else _is_hidden(process.pid)


def _is_hidden(pid: int) -> bool:
    """Whether another user has a process of this number that /proc does not show (hidepid): it may be the one."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except OSError:
        return False
    return False
