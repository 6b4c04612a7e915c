"""Pure. What a job with fixed parts would take, with a straggler: nothing done about it, or everything begun again.

In: work left and paces, as `bench.straggler` measures them; delays that such a restart has on a cluster. Out: seconds.
"""

from collections.abc import Mapping, Sequence
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


def equal_parts_s(left: float, capacity: Sequence[float]) -> float:
    """Every worker has an equal part: the slowest decides."""
    return max(left / len(capacity) / pace for pace in capacity)


def restart_s(left: float, capacity: Sequence[float], healthy: Sequence[float], delays: Delays) -> float:
    """Equal parts until the straggler is noticed, then all stop, and healthy workers share what is left."""
    part = left / len(capacity)
    trained = sum(min(part, delays.notice_s * pace) for pace in capacity)
    if trained >= left:
        return equal_parts_s(left, capacity)
    return delays.notice_s + delays.idle_s + (left - trained) / sum(healthy)
