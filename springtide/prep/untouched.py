"""Trying a program leaves nothing behind: parameters, buffers, attributes, random numbers are as before.

In: a model about to be captured and run on examples. Out: a context, and what the model's own forward wrote meanwhile.
Used by: prep/split.py around everything it does.
"""

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.modules import module as modules


class Untouched:
    """What a model was like."""

    def __init__(self, model: nn.Module, whole: Sequence[nn.Module]) -> None:
        inside = {id(part) for table in whole for part in table.modules()}
        self._modules = [(path, part) for path, part in model.named_modules() if id(part) not in inside]
        self._vars = [(path, part, _copied(vars(part))) for path, part in self._modules]
        tensors = {
            id(one): (f"{path}.{name}" if path else name, one)
            for path, part in self._modules
            for name, one in (*part._parameters.items(), *part._buffers.items(), *vars(part).items())
            if isinstance(one, torch.Tensor)
        }
        self._tensors = [(path, one, one._version, one.detach().clone()) for path, one in tensors.values()]
        self._chance = random.getstate(), np.random.get_state(), torch.get_rng_state()
        self._cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []

    def changed(self) -> set[str]:
        """Paths of tensors whose content or version is no longer what it was."""
        return {path for path, one, version, was in self._tensors if one._version != version or not same(one, was)}

    def written(self) -> list[str]:
        """Attributes of modules that are another object now, or a list or dict that holds something else."""
        found = []
        for path, part, was in self._vars:
            now = vars(part)
            for name in [*now, *(gone for gone in was if gone not in now)]:
                if name != "training" and not _alike(was.get(name, part), now.get(name, part)):
                    found.append(f"{path}.{name}" if path else name)
        return found

    def restore(self) -> None:
        """Put everything back."""
        for _, one, version, was in self._tensors:
            if one._version != version or not same(one, was):
                one.data.copy_(was)
        for _, part, held in self._vars:
            now = vars(part)
            for name in [name for name in now if name not in held]:
                del now[name]
            for name, value in held.items():
                kept = now.get(name)
                if isinstance(value, _Kept):
                    if kept is not value.object or not value.holds():
                        now[name] = value.put_back()
                elif kept is not value:
                    now[name] = value
        random.setstate(self._chance[0])
        np.random.set_state(self._chance[1])
        torch.set_rng_state(self._chance[2])
        if self._cuda:
            torch.cuda.set_rng_state_all(self._cuda)

    def rewind_chance(self) -> None:
        """Random numbers from the beginning again, so that two runs draw the same."""
        torch.set_rng_state(self._chance[2])
        if self._cuda:
            torch.cuda.set_rng_state_all(self._cuda)

    def rewind_tensors(self) -> None:
        """Parameters and buffers as they were at the beginning."""
        for _, one, version, was in self._tensors:
            if one._version != version or not same(one, was):
                one.data.copy_(was)


@contextmanager
def untouched(model: nn.Module, whole: Sequence[nn.Module]) -> Iterator[Untouched]:
    """Whatever happens inside, the model and the random numbers are as before when it is over."""
    before = Untouched(model, whole)
    bars: Any = vars(torch.hub)["tqdm"]  # torch's interpreters make them, shown or not, and the first starts a thread
    interval, bars.monitor_interval = getattr(bars, "monitor_interval", 0), 0
    try:
        yield before
    finally:
        bars.monitor_interval = interval
        before.restore()


def hooks(model: nn.Module, whole: Sequence[nn.Module]) -> str:
    """The first submodule with a hook, which a captured program would not call; empty when there is none."""
    inside = {id(part) for table in whole for part in table.modules()}
    if modules._global_forward_hooks or modules._global_forward_pre_hooks:
        return "a hook on all modules (register_module_forward_hook)"
    for path, part in model.named_modules():
        if part is model or id(part) in inside:
            continue
        if part._forward_hooks or part._forward_pre_hooks or part._backward_hooks or part._backward_pre_hooks:
            return f"a hook on {path} ({type(part).__name__})"
    return ""


def same(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether two tensors are equal bit by bit, NaN to NaN."""
    if left.shape != right.shape or left.dtype != right.dtype:
        return False
    left, right = left.detach(), right.detach()
    if torch.equal(left, right) and not left.is_floating_point():
        return True
    if not (left.is_floating_point() or left.is_complex()):
        return False
    one, other = left.cpu().contiguous().reshape(-1), right.cpu().contiguous().reshape(-1)
    return bool(torch.equal(one.view(torch.uint8), other.view(torch.uint8)))


class _Kept:
    """A list or a dict that may be written to, and what it held."""

    def __init__(self, value: Any) -> None:
        self.object = value
        self.content: Any = dict(value) if isinstance(value, dict) else list(value)

    def holds(self) -> bool:
        if isinstance(self.object, dict):
            return list(self.object) == list(self.content) and all(
                self.object[key] is one for key, one in self.content.items()
            )
        return len(self.object) == len(self.content) and all(
            one is other for one, other in zip(self.object, self.content, strict=True)
        )

    def put_back(self) -> Any:
        self.object.clear()
        if isinstance(self.object, dict):
            self.object.update(self.content)
        else:
            self.object.extend(self.content)
        return self.object


def _copied(attributes: dict[str, Any]) -> dict[str, Any]:
    return {
        name: _Kept(value) if isinstance(value, dict) or type(value) is list else value
        for name, value in attributes.items()
    }


def _alike(was: Any, now: Any) -> bool:
    if isinstance(was, _Kept):
        return now is was.object and was.holds()
    if was is now:
        return True
    return type(was) is type(now) and isinstance(was, int | float | str | bool) and was == now
