"""Notices when a model is no longer the one that was split: constants that travelled, modes, hooks.

In: the model at the moment of the split. Called before every split forward by prep/split.py's `stale`, so it is quick.
"""

from collections.abc import Sequence

import torch
from torch import nn

from springtide.prep.captured import State
from springtide.prep.untouched import same


class Watch:
    """What crossing values rest on, beside the batch."""

    def __init__(self, model: nn.Module, whole: Sequence[nn.Module], shipped: Sequence[State]) -> None:
        inside = {id(part) for table in whole for part in table.modules()}
        self._constants = [
            (state, state.live(), state.live()._version, state.live().detach().clone()) for state in shipped
        ]
        self._modules = [
            (path, part, part.training, part is model) for path, part in model.named_modules() if id(part) not in inside
        ]
        self._autocast = _autocast()

    def changed(self) -> str:
        """What is no longer as it was; empty when all is."""
        for at, (state, value, version, sent) in enumerate(self._constants):
            live = state.live()
            if live is not value or live._version != version:
                if not same(live, sent):
                    return f"{state.kind} {state.path} has changed since it was sent to data workers"
                self._constants[at] = state, live, live._version, sent  # loaded again, and equal
        for path, part, training, top in self._modules:
            if part.training is not training:
                return f"{path or 'the model'} is in {'train' if part.training else 'eval'} mode now"
            if not top and (part._forward_hooks or part._forward_pre_hooks):
                return f"{path} has a hook now"
        return "autocast is used otherwise than when the split was made" if _autocast() != self._autocast else ""


def _autocast() -> tuple[bool, bool]:
    return torch.is_autocast_enabled("cpu"), torch.is_autocast_enabled("cuda")
