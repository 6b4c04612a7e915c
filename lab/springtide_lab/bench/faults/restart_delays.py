"""What a cluster adds to stopping a job and starting it again, in seconds. Arguments of `bench straggler`, printed.

In: what the user gave with --delay. Out: `Delays`; those of the baseline that was run here are all zero.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields

from springtide import errors


@dataclass(frozen=True, slots=True, kw_only=True)
class Delays:
    """Seconds that stopping and restarting takes, besides training."""

    notice_s: float = 0.0
    """Until the straggler is noticed; training goes on meanwhile."""
    save_s: float = 0.0
    """A checkpoint to remote storage."""
    pull_s: float = 0.0
    """The image, on the new machine."""
    start_s: float = 0.0
    """Pods scheduled, processes started, everyone joined."""
    load_s: float = 0.0
    """The checkpoint again."""

    @staticmethod
    def of(given: Mapping[str, float]) -> "Delays":
        """What the user gave over what is usual on a cluster: minutes until all is back."""
        usual = {"notice": 30.0, "save": 30.0, "pull": 60.0, "start": 60.0, "load": 30.0}
        for name in given:
            if name not in usual:
                raise errors.UnknownName("delay", name, usual)
        return Delays(**{f"{name}_s": seconds for name, seconds in {**usual, **given}.items()})

    @property
    def idle_s(self) -> float:
        """Nobody trains for so long."""
        return self.save_s + self.pull_s + self.start_s + self.load_s

    def __str__(self) -> str:
        return "delays: " + ", ".join(
            f"{one.name.removesuffix('_s')} {getattr(self, one.name):g} s" for one in fields(self)
        )
