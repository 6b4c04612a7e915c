"""Pure. Checkpoint messages between master and servers, and the settings of checkpoints."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from springtide.domain.core import validation

EVERY_S = 30.0
"""Default seconds between two checkpoints."""
UPLOAD_EVERY_S = 600.0
"""Default seconds between two copies to a URL."""


class SlotExtent(NamedTuple):
    """Location of the image of one slot in a server's checkpoint file."""

    slot: int
    offset: int
    length: int
    """Number of bytes from `offset` on: the image without its identities."""
    checksum: int
    since: int = 0
    """Number of the earlier checkpoint whose image of this slot this increment builds on; 0 means a full image."""
    identities: tuple[int, int] = (0, 0)
    """Offset and length of the identities, which several images of the file may share."""


class Written(NamedTuple):
    """A file that one server incarnation has written for a checkpoint."""

    life: str
    file: str
    """Path in the job's folder."""
    size: int
    pieces: tuple[SlotExtent, ...]
    buddy: str = ""
    """Server that stores copies of this incarnation's files; empty if there are no copies."""
    mirrored: tuple[str, ...] = ()
    """Names of the mirrored files: this file and earlier files."""
    node: str = ""
    """Machine whose local disk has this incarnation's files; empty if the files are in the job's shared folder."""
    buddy_node: str = ""
    """Machine whose local disk has the buddy's copies; empty if the copies are in the job's shared folder."""


class Buddy(NamedTuple):
    """Server that keeps copies of another server's checkpoint files."""

    server: str
    address: str
    """Address at which the buddy receives copies."""
    node: str = ""
    """Machine whose local disk stores the copies; empty if the buddy writes to the job's shared folder."""


class Lineage(NamedTuple):
    """Runs whose checkpoints a job may restore: the present run, and the run that it resumed."""

    run: str
    resumed_run: str = ""
    """Run that the present run resumed; empty for a fresh start."""
    resumed_number: int = 0
    """Number of the checkpoint that the present run resumed. The earlier run may have made later checkpoints."""

    def refusal(self, run: str, number: int, job: str) -> str:
        """Return the reason why this job may not restore a checkpoint; empty if it may."""
        if run == self.run or (run and run == self.resumed_run and number <= self.resumed_number):
            return ""
        if run and run == self.resumed_run:
            return f"the checkpoint is of run {run}, from which this job continued at checkpoint {self.resumed_number}"
        return f"the checkpoint is of run {run} of job {job!r}, but this is run {self.run}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRules:
    """Settings of a job's checkpoints: interval, location, copies and resume."""

    every_s: float = 0.0
    """Seconds from the start of one checkpoint to the start of the next; 0 means no checkpoints."""
    folder: str = ""
    """Folder for servers that can see it; a server that cannot see the folder writes to its local disk. Empty means the
    run's folder.
    """
    keep: int = 2
    """Number of complete checkpoints to keep. With two, the job survives damage to the newest checkpoint."""
    url: str = ""
    """URL for periodic copies, of any kind that fsspec supports; empty means no copies."""
    upload_every_s: float = 600.0
    """Seconds between two copies to `url`."""
    mirror: bool = False
    """True if a second server also stores each server's files, so that the files survive the loss of a host. Servers
    with local disks and no `url` always mirror.
    """
    resume: str = ""
    """Folder or URL of the checkpoints of the run to resume."""
    resume_number: int = 0
    """Number of the checkpoint to resume."""
    resume_run: str = ""
    """Run that made the checkpoint to resume. The resuming run refuses a checkpoint with the same number from any other
    run.
    """
    numbers_after: int = 0
    """Highest checkpoint number in the resumed run's folder. The checkpoint numbers of the resuming run start
    after it.
    """
    new_data: bool = False
    """True if the run takes the checkpoint's model, but reads new data from the beginning. The earlier run's folder
    stays unchanged.
    """

    def __post_init__(self) -> None:
        validation.check_range(self, "every_s", least=0, unit="seconds", of="checkpoints: ")
        validation.check_range(self, "upload_every_s", above=0, unit="seconds", of="checkpoints: ")
        validation.check_range(self, "keep", least=1, of="checkpoints: ")

    def mirrors(self, node: str) -> bool:
        """Return True if a second server mirrors the files of a server on machine `node`. `node` is empty if the server
        sees the job's folder.
        """
        return self.mirror or bool(node and not self.url)

    @property
    def on(self) -> bool:
        return self.every_s > 0


def buddy_of(rank: int, nodes: Mapping[int, str]) -> int | None:
    """Return the server that keeps copies of a server's files: the next server in the ring. Return None if the job has
    only one server.

    `nodes` has the machine of each server. Servers on other machines are preferred.
    """
    others = [other for other in nodes if other != rank]
    elsewhere = [other for other in others if nodes[other] != nodes.get(rank)]
    ring = sorted(elsewhere or others, key=lambda other: (other < rank, other))
    return ring[0] if ring else None
