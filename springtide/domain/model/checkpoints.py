"""Pure. Checkpoint messages between master and servers, and the settings of checkpoints.

In: `cli.job.run` builds the rules. Next: `master.checkpoint.round` begins checkpoints, `server.checkpoints` writes the
part of each server, `checkpoint.format.cover` assembles the parts.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from springtide import errors

EVERY_S = 30.0
"""Seconds between two checkpoints, unless a job is told otherwise."""
UPLOAD_EVERY_S = 600.0
"""Seconds between two copies to a URL."""


class SlotExtent(NamedTuple):
    """Location of the image of one slot in a server's checkpoint file."""

    slot: int
    offset: int
    length: int
    checksum: int
    since: int = 0
    """The checkpoint whose image of this slot it is to be laid over; 0: it is full."""


class Written(NamedTuple):
    """File that one server incarnation has written for a checkpoint."""

    life: str
    file: str
    """Its path in the job's folder."""
    size: int
    pieces: tuple[SlotExtent, ...]
    buddy: str = ""
    """The server that has copies of this life's files; empty: none has."""
    mirrored: tuple[str, ...] = ()
    """Names of these files, this one and earlier ones."""
    node: str = ""
    """The machine on whose own disk its files lie; empty: in the job's folder, which all see."""
    buddy_node: str = ""
    """The same of the buddy's copies."""


class Buddy(NamedTuple):
    """Server that keeps copies of another server's checkpoint files."""

    server: str
    address: str
    """Where it takes them."""
    node: str = ""
    """The machine on whose own disk it puts them; empty: into the job's folder."""


class Lineage(NamedTuple):
    """Runs whose checkpoints a job may restore: its own run, and the run that it resumed."""

    run: str
    resumed_run: str = ""
    """The run that this one went on from; empty: it began anew."""
    resumed_number: int = 0
    """The checkpoint that it went on from: that run may have made others since."""

    def refusal(self, run: str, number: int, job: str) -> str:
        """Why a checkpoint is none of this job's; empty: it may be restored."""
        if run == self.run or (run and run == self.resumed_run and number <= self.resumed_number):
            return ""
        if run and run == self.resumed_run:
            return f"it is of run {run}, which this job left at checkpoint {self.resumed_number}"
        return f"it is of run {run} of job {job!r}; this is run {self.run}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRules:
    """Settings of a job's checkpoints: interval, location, copies and resume."""

    every_s: float = 0.0
    """Seconds from the begin of one to the begin of the next; 0: none at all."""
    folder: str = ""
    """Where servers write them, as far as they see it; others write to a disk of their own. Empty: in the run's
    folder."""
    keep: int = 2
    """How many complete ones stay. Two, so that a damaged newest one does not lose the job."""
    url: str = ""
    """Where they are copied to now and then, for anything that fsspec knows; empty: nowhere."""
    upload_every_s: float = 600.0
    """Seconds between two copies to `url`."""
    mirror: bool = False
    """Whether each server's files are also kept by another server, so that the loss of a host is not that of its
    files. Where servers have disks of their own and there is no `url`, they are so anyway."""
    resume: str = ""
    """Folder or URL of the checkpoints of another run that this one goes on from."""
    resume_number: int = 0
    """Which of them."""
    resume_run: str = ""
    """The run that made it. Another run's checkpoint of the same number is refused."""
    numbers_after: int = 0
    """Numbers up to this one are taken where the checkpoints of that run lie."""

    def __post_init__(self) -> None:
        if self.every_s < 0 or self.upload_every_s <= 0:
            raise errors.BadInput("checkpoints: wanted seconds, 0 or more between two and more than 0 between uploads")
        if self.keep < 1:
            raise errors.BadInput(f"checkpoints: keep is {self.keep}; wanted 1 or more")

    def mirrors(self, node: str) -> bool:
        """Whether another keeps the files of a server that is on this machine with a disk of its own; empty: it sees
        the job's folder.
        """
        return self.mirror or bool(node and not self.url)

    @property
    def on(self) -> bool:
        return self.every_s > 0


def buddy_of(rank: int, nodes: Mapping[int, str]) -> int | None:
    """The server that keeps copies of another's files: the next one in the ring of those there are. None: no other.

    `nodes` has the machine of each; one on another machine is preferred.
    """
    others = [other for other in nodes if other != rank]
    elsewhere = [other for other in others if nodes[other] != nodes.get(rank)]
    ring = sorted(elsewhere or others, key=lambda other: (other < rank, other))
    return ring[0] if ring else None
