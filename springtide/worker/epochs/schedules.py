"""Save and restore learning-rate schedules that the script did not register.

In: the optimizers passed to `job.prepare`, and the script's stack when an epoch starts. Out: one object for
worker/user_objects.py. Its state holds the rates of the optimizers' groups, and the state of every scheduler over these
optimizers. It finds schedulers in the script's variables, and in containers and object attributes one level below.

Rejected: a search through all objects of the process (`gc.get_objects`). It exposes tuples that other threads are still
building, which then fail (`SystemError: bad argument to internal function`).
"""

import logging
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from springtide import errors
from springtide.checkpoint.checkpointer import state_image
from springtide.worker.epochs import user_loops
from springtide.worker.link.optimizer import JobOptimizer

log = logging.getLogger(__name__)
NAME = "springtide.schedules"
RATES = ("lr", "weight_decay")  # options that servers follow during training


class Schedules:
    """Schedules of some optimizers, except those that the script has `registered` itself."""

    def __init__(self, optimizers: Sequence[JobOptimizer], registered: Callable[[Any], bool]) -> None:
        self._optimizers, self._registered = list(optimizers), registered
        self._ids = {id(one) for each in self._optimizers for one in (each, each.own)}
        self._found: dict[str, LRScheduler] = {}
        self._left_out: set[str] = set()
        self._initial = [[_initial(group) for group in each.param_groups] for each in self._optimizers]
        """Rates that the script sets before training starts."""

    def look(self, frame: types.FrameType | None) -> None:
        """Find the script's schedulers in this frame and in its callers."""
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
                log.warning("%s, a %s, is not kept: %s", name, type(scheduler).__name__, error)

    def state_dict(self) -> dict[str, Any]:
        rates = [[_rates(group) for group in each.param_groups] for each in self._optimizers]
        states = {name: scheduler.state_dict() for name, scheduler in self._found.items()}
        return {"initial": self._initial, "rates": rates, "schedules": states}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore schedules and rates. If the script now starts with other rates, keep those instead."""
        if state["initial"] != self._initial:
            log.warning(
                "the script sets other learning rates than in the run that this one goes on from (%s, then %s): "
                "schedules that are not registered begin anew",
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
                    if isinstance(group[name], torch.Tensor):
                        group[name].fill_(rate)
                    else:
                        group[name] = rate


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
            inside = [(key, one) for key, one in _parts(value) if issubclass(type(one), LRScheduler)]
            yield from ((f"{name}.{key}", one) for key, one in inside)


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
