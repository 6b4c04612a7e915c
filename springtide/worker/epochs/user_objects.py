"""Saves and restores the script's own objects with the job's checkpoints: `job.register(obj)`, learning-rate
schedules.

In: registered objects, and schedulers found in the script's variables. Out: their states, which heartbeats carry,
and the position in the script where they were saved. A restarted worker restores a state when the script registers
the object, and again when the script reaches that position.
"""

import logging
import random
import time
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch.optim.lr_scheduler import LRScheduler

from springtide import errors
from springtide.checkpoint.checkpointer import state_image
from springtide.domain.data.samples import EpochPlace
from springtide.worker.epochs import user_loops
from springtide.worker.link.optimizer import JobOptimizer, set_option

# size limit for all objects of a worker together, because the master's journal stores them repeatedly
MOST_BYTES = 256 * 1024
log = logging.getLogger(__name__)
NAME = "springtide.schedules"
RATES = ("lr", "weight_decay")  # options that servers follow during training


class ObjectRegistry:
    """Registered objects of one worker. `given` has the states that are known at the start, and `tell` sends new
    states."""

    def __init__(
        self,
        given: Mapping[str, bytes],
        tell: Callable[[dict[str, bytes], EpochPlace | None], None],
        *,
        every_s: float,
        clock: Callable[[], float] = time.monotonic,
        away: bool = False,
    ) -> None:
        """Create the registry. `away` is True if the script has not reached the position at which the given states were
        saved."""
        self._given, self._tell, self._every_s, self._clock = dict(given), tell, every_s, clock
        self._objects: dict[str, Any] = {}
        self._due = clock()
        self.place: EpochPlace | None = None
        """Position in the script where states are taken; None if the script has no epochs."""
        self.taken: dict[str, bytes] = {}
        """States that were sent last."""
        self._quiet = away
        """Whether the script is between two positions, where states are not saved: code there may run again after a
        restart."""

    def add(self, obj: Any, name: str | None) -> None:
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
        return any(known is obj for known in self._objects.values())

    def come_back(self) -> None:
        """Restore all objects, because the script has reached the position at which the given states were saved."""
        for name, obj in self._objects.items():
            if (known := self._given.get(name)) is not None:
                put_back(obj, state_image.decode_state(known))
        self._given.clear()

    def take(self, place: EpochPlace) -> dict[str, bytes]:
        """Return the states at a new position of the script. Later states belong to this position too."""
        self.place, self._quiet = place, False
        self.taken = self._checked(self._objects)
        self._due = self._clock() + self._every_s
        return self.taken

    def send_if_due(self) -> None:
        if self._objects and not self._quiet and self._clock() >= self._due:
            self.send()

    def end_loop(self) -> None:
        """Save the states at the end of a loop. The next save is at the next position, because the code in between may
        run again after a restart."""
        if not self._quiet:
            self.send()
            self._quiet = self.place is not None

    def send(self) -> None:
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
                raise errors.BadInput(f"job.register: {name!r} cannot be saved: {error}") from None
        if (size := sum(map(len, taken.values()))) > MOST_BYTES:
            largest = max(taken, key=lambda name: len(taken[name]))
            raise errors.BadInput(
                f"job.register: the registered objects have {size} bytes, {largest!r} most of them; at most "
                f"{MOST_BYTES} are allowed. springtide.checkpoint.Checkpointer saves larger states"
            )
        return taken

    def _free_name(self, kind: str) -> str:
        """Return a name made from the class and the order of registration, so that a script always gets the same
        names."""
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
            f"it is a {type(obj).__name__}; expected an object with state_dict() and load_state_dict(), "
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
    """Set the optimizer's rates to the last rates of its scheduler, because loading a scheduler does not set them."""
    for group, rate in zip(scheduler.optimizer.param_groups, scheduler.get_last_lr(), strict=False):
        set_option(group, "lr", float(rate))


class StepCounts(Protocol):
    """Interface of `worker.step.hyperparams.TableRates` that schedules need."""

    steps: list[int]

    @property
    def follow_steps(self) -> bool: ...


class Schedules:
    """Learning-rate schedules of some optimizers. Schedules that the script has `registered` itself are left out."""

    def __init__(
        self, optimizers: Sequence[JobOptimizer], registered: Callable[[Any], bool], counts: StepCounts | None = None
    ) -> None:
        """`counts` has the number of steps of each optimizer; None if they are saved elsewhere."""
        self._optimizers, self._registered, self._counts = list(optimizers), registered, counts
        self._ids = {id(known) for optimizer in self._optimizers for known in (optimizer, optimizer.own)}
        self._found: dict[str, LRScheduler] = {}
        self._left_out: set[str] = set()
        self._initial = [[_initial(group) for group in optimizer.param_groups] for optimizer in self._optimizers]
        """Rates that the script sets before training starts."""

    def find_schedulers(self, frame: types.FrameType | None) -> None:
        self._found = {}
        for variables in user_loops.variables(frame):
            for name, scheduler in _schedulers_in(variables):
                new = all(scheduler is not known for known in self._found.values()) and name not in self._found
                if new and id(vars(scheduler).get("optimizer")) in self._ids and not self._registered(scheduler):
                    self._add(name, scheduler)

    def _add(self, name: str, scheduler: LRScheduler) -> None:
        try:
            state_image.encode_state(scheduler.state_dict())
            self._found[name] = scheduler
        except errors.BadInput as error:
            if name not in self._left_out:
                self._left_out.add(name)
                log.warning("%s (a %s) is not saved with checkpoints: %s", name, type(scheduler).__name__, error)

    def state_dict(self) -> dict[str, Any]:
        rates = [[_rates(group) for group in optimizer.param_groups] for optimizer in self._optimizers]
        states = {name: scheduler.state_dict() for name, scheduler in self._found.items()}
        steps = self._counts.steps if self._counts is not None and self._counts.follow_steps else []
        return {"initial": self._initial, "rates": rates, "schedules": states, "steps": steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        steps = state.get("steps", [])
        if self._counts is not None and len(steps) == len(self._counts.steps):
            self._counts.steps = steps
        if state["initial"] != self._initial:
            log.warning(
                "the script sets other learning rates than the run from which this run continues (%s, then %s): "
                "schedules that are not registered start again",
                self._initial,
                state["initial"],
            )
            return
        for name, scheduler in self._found.items():
            if name in state["schedules"]:
                scheduler.load_state_dict(state["schedules"][name])
        for optimizer, groups in zip(self._optimizers, state["rates"], strict=True):
            for group, rates in zip(optimizer.param_groups, groups, strict=False):
                for name, rate in rates.items():
                    set_option(group, name, rate)
        for name, scheduler in self._found.items():
            if name not in state["schedules"]:  # the scheduler is new in this script, so its own rate applies
                set_rates(scheduler)


def _initial(group: Mapping[str, Any]) -> float:
    return float(group.get("initial_lr", group["lr"]))


def _rates(group: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(group[name]) for name in RATES if name in group}


def _schedulers_in(variables: Mapping[str, Any]) -> Iterator[tuple[str, LRScheduler]]:
    """Yield schedulers with their names in the script, such as `scheduler`, `schedulers.0`, `self.scheduler`."""
    for name, value in list(variables.items()):
        if issubclass(type(value), LRScheduler):
            yield name, value
        else:
            inside = [(key, scheduler) for key, scheduler in _parts(value) if issubclass(type(scheduler), LRScheduler)]
            yield from ((f"{name}.{key}", scheduler) for key, scheduler in inside)


def _parts(value: Any) -> list[tuple[Any, Any]]:
    """Return the items of a container or the attributes of an object, without running any of its code."""
    kind = type(value)
    if kind in (list, tuple):
        return list(enumerate(value))
    if kind is dict:
        return list(value.items())
    if issubclass(kind, types.ModuleType | type):
        return []
    try:
        return list(object.__getattribute__(value, "__dict__").items())
    except AttributeError:
        return []
