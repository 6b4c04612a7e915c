"""Refuse to load weights after `job.prepare`: each worker would do it, over trained rows.

In: the model that a job trains, from job.py. Out: BadInput when the script loads it, or a part of it, later: each
worker would do so, and one that is started again would write over what was trained since. Tables refuse by themselves
(embedding/modules/served.py, embedding/modules/modules.py), since they do not load as other modules do. Alone all of it
is allowed.
"""

import weakref
from typing import Any

from torch import nn

from springtide import errors
from springtide.embedding.modules.served import LOAD_BEFORE


class LoadGuard:
    """Watches a model, and refuses to load it. Copies of it may be loaded: they are nobody's but the script's."""

    def __init__(self, model: nn.Module | None = None) -> None:
        self._watched: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        for module in () if model is None else model.modules():
            self._watched.add(module)
            module.register_load_state_dict_pre_hook(self)

    def __call__(self, module: nn.Module, *_: Any) -> None:
        if module in self._watched:
            raise errors.BadInput(LOAD_BEFORE)

    def __deepcopy__(self, memo: dict[int, Any]) -> "LoadGuard":
        return self

    def __reduce__(self) -> Any:
        return LoadGuard, ()  # with a part of the model that is sent elsewhere, where it may be loaded
