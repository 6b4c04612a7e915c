"""`job.register(obj)`: save and restore the user's own objects with the job's checkpoints.

In: schedulers, random number generators, and any object with `state_dict` and `load_state_dict`. Out: their states as
bytes with the worker's heartbeats, and the position in the script where the states were taken.

A restarted worker, or a job that resumes from a checkpoint, restores a state when the script registers the same object.
The worker restores it again when the script reaches that position, which undoes changes on the way there. Next:
`worker.epochs.epochs` knows the position, `master.core.record` keeps the states, and a manifest stores them.
"""

import random
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from springtide import errors
from springtide.checkpoint.checkpointer import state_image
from springtide.domain.data.samples import EpochPlace

MOST_BYTES = 256 * 1024  # limit for all objects of a worker, because the master's journal stores them repeatedly


class ObjectRegistry:
    """Registered objects of one worker. `given` holds the states known when the worker joined; `tell` passes new states
    to the link.
    """

    def __init__(
        self,
        given: Mapping[str, bytes],
        tell: Callable[[dict[str, bytes], EpochPlace | None], None],
        *,
        every_s: float,
        clock: Callable[[], float] = time.monotonic,
        away: bool = False,
    ) -> None:
        """Create the registry. `away` means that the script has not reached the position of the given states."""
        self._given, self._tell, self._every_s, self._clock = dict(given), tell, every_s, clock
        self._objects: dict[str, Any] = {}
        self._due = clock()
        self.place: EpochPlace | None = None
        """Position in the script where states are taken; None for a script without epochs."""
        self.taken: dict[str, bytes] = {}
        """States that were sent last."""
        self._quiet = away
        """Whether the script is between two positions. Changes to objects then count only from the next position on."""

    def add(self, obj: Any, name: str | None) -> None:
        """Register an object, and restore its state if the state is known."""
        name = name or self._free_name(type(obj).__name__)
        if name in self._objects:
            raise errors.BadInput(f"job.register: {name!r} is registered already; give another name=")
        taken = self._checked({**self._objects, name: obj})
        known = self._given.get(name)
        if known is not None:
            put_back(obj, state_image.decode_state(known))
        self._objects[name] = obj
        if known is None and not self._quiet:
            self.taken = taken
            self._tell(taken, self.place)

    def holds(self, obj: Any) -> bool:
        return any(each is obj for each in self._objects.values())

    def come_back(self) -> None:
        """Restore all objects, because the script has reached the position of the given states."""
        for name, obj in self._objects.items():
            if (known := self._given.get(name)) is not None:
                put_back(obj, state_image.decode_state(known))
        self._given.clear()

    def take(self, place: EpochPlace) -> dict[str, bytes]:
        """Return the states at a new position of the script, to be sent at once. Later states belong to this
        position.
        """
        self.place, self._quiet = place, False
        self.taken = self._checked(self._objects)
        self._due = self._clock() + self._every_s
        return self.taken

    def rest(self) -> None:
        """Save the states between two steps, if the interval has passed."""
        if self._objects and not self._quiet and self._clock() >= self._due:
            self.send()

    def end_loop(self) -> None:
        """Save the states at the end of a loop, and then only at the next position.

        Code after the loop belongs to the epoch, so a worker that repeats the epoch repeats that code.
        """
        if not self._quiet:
            self.send()
            self._quiet = self.place is not None

    def send(self) -> None:
        """Save the current states, and pass them to the link if they have changed."""
        if not self._quiet:
            self._due = self._clock() + self._every_s
            taken = self._checked(self._objects)
            if taken == self.taken:
                return
            self.taken = taken
            self._tell(self.taken, self.place)

    def _checked(self, objects: Mapping[str, Any]) -> dict[str, bytes]:
        taken: dict[str, bytes] = {}
        for name, obj in objects.items():
            try:
                taken[name] = state_image.encode_state(state_of(obj))
            except errors.BadInput as error:
                raise errors.BadInput(f"job.register: {name!r} cannot be kept: {error}") from None
        if (size := sum(map(len, taken.values()))) > MOST_BYTES:
            largest = max(taken, key=lambda name: len(taken[name]))
            raise errors.BadInput(
                f"job.register: the registered objects have {size} bytes, {largest!r} most of them; at most "
                f"{MOST_BYTES} go along with a job. springtide.checkpoint.Checkpointer keeps larger states"
            )
        return taken

    def _free_name(self, kind: str) -> str:
        """Return a name by class and order of registration, so that a script always gets the same names."""
        number = 1
        while (name := kind if number == 1 else f"{kind}-{number}") in self._objects:
            number += 1
        return name


def state_of(obj: Any) -> Any:
    if isinstance(obj, torch.Generator):
        return obj.get_state()
    if isinstance(obj, np.random.Generator):
        return obj.bit_generator.state
    if isinstance(obj, random.Random):
        return obj.getstate()
    if not (callable(getattr(obj, "state_dict", None)) and callable(getattr(obj, "load_state_dict", None))):
        raise errors.BadInput(
            f"it is a {type(obj).__name__}; wanted an object with state_dict() and load_state_dict(), "
            "a torch.Generator, a numpy.random.Generator or a random.Random"
        )
    return obj.state_dict()


def put_back(obj: Any, state: Any) -> None:
    if isinstance(obj, torch.Generator):
        obj.set_state(state)
    elif isinstance(obj, np.random.Generator):
        obj.bit_generator.state = state
    elif isinstance(obj, random.Random):
        obj.setstate(state)
    else:
        obj.load_state_dict(state)
    if isinstance(obj, torch.optim.lr_scheduler.LRScheduler):
        set_rates(obj)


def set_rates(scheduler: torch.optim.lr_scheduler.LRScheduler) -> None:
    """Set the optimizer's rates to the scheduler's last rates, because loading a scheduler does not."""
    for group, rate in zip(scheduler.optimizer.param_groups, scheduler.get_last_lr(), strict=False):
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate
