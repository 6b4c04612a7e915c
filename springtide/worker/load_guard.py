"""Refuse to load weights after `job.prepare`, because every worker would overwrite trained rows.

In: the model that a job trains, from job.py. Out: BadInput if the script later loads the model or a part of it. Every
worker would load the weights, and a restarted worker would overwrite later training. Tables have their own check
(embedding/modules/served.py, embedding/modules/modules.py), because they load differently from other modules. Without a
cluster, loading is allowed.
"""

import weakref
from typing import Any

from torch import nn

from springtide import errors
from springtide.embedding.modules.served import LOAD_BEFORE


class LoadGuard:
    """Hook that refuses to load a watched model. Copies of the model may be loaded, because only the script uses
    them.
    """

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
        return LoadGuard, ()  # a part of the model that is sent elsewhere may be loaded there
