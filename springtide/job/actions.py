"""Pure. What the master must do after an event. In: `job.state`. Next: `master.desk` does it."""

from dataclasses import dataclass

from springtide.domain.job import Blame, Phase


@dataclass(frozen=True, slots=True)
class PlaceSlots:
    """All servers listen, at these addresses by rank: lay out the slots, let servers and workers go."""

    addresses: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Drain:
    """Let workers finish the batch in hand and stop."""

    why: str


@dataclass(frozen=True, slots=True)
class Conclude:
    """The job is over: tell whoever waits."""

    phase: Phase
    why: str
    blame: Blame


Action = PlaceSlots | Drain | Conclude
