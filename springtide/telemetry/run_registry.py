"""Finds running and past jobs by the card that each job's agent leaves in its run folder."""

import pathlib
from dataclasses import dataclass

import msgspec

from springtide import private_files
from springtide.telemetry.logs import RunFiles


class RunCard(msgspec.Struct, frozen=True, kw_only=True):
    """Card that an agent writes at the start of a run."""

    name: str
    script: str
    arguments: tuple[str, ...] = ()
    began_at: float
    """Time of day when the run began, in seconds."""
    agent_pid: int = 0
    agent_start: int = -1
    """Start time of the agent's process, as the kernel counts. It tells apart two processes with the same id."""
    platform: str = "local"
    """Platform of the job. On platforms other than local, this folder has only the card."""
    where: dict[str, str] = {}
    """Coordinates of the job on its platform: an address, a namespace."""


@dataclass(frozen=True, slots=True)
class JobRun:
    """One run folder, with its card."""

    files: RunFiles
    card: RunCard

    @property
    def job(self) -> str:
        """Return the name that users give: the name of the folder (`train-2` is the second run of `train`)."""
        return self.files.root.name

    @property
    def here(self) -> bool:
        """Return True if the job runs, or ran, on this machine."""
        return self.card.platform == "local"

    @property
    def running(self) -> bool:
        """Return True if the job's agent is running on this machine."""
        return start_of(self.card.agent_pid) == self.card.agent_start


def write_card(files: RunFiles, card: RunCard) -> None:
    private_files.replace(files.card, msgspec.json.encode(card))


def read_card(files: RunFiles) -> RunCard | None:
    """Return the card of a run; None if it is being written or deleted, or belongs to another user."""
    try:
        return msgspec.json.decode(files.card.read_bytes(), type=RunCard)
    except (OSError, msgspec.DecodeError):
        return None


def find(base: pathlib.Path) -> list[JobRun]:
    """Return all runs in a folder, newest first."""
    found = []
    for path in base.glob("*/job.json"):
        files = RunFiles(path.parent)
        card = read_card(files)
        if card is not None:
            found.append(JobRun(files, card))
    return sorted(found, key=lambda run: run.card.began_at, reverse=True)


def start_of(pid: int) -> int | None:
    """Return the start time of a process, in kernel ticks since boot; None if it does not run."""
    try:
        after = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return int(after[19]) if after[0] != "Z" else None
