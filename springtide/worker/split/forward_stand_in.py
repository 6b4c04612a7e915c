"""Replace a model's forward() without changing its hooks, `state_dict` or copies.

In: a model. The replacement is an attribute of the instance, and `remove` deletes it. Next: forward_recorder.py,
split_forward.py.
"""

import abc
import copy
import functools
import types
from typing import Any

from torch import nn


class ForwardStandIn(abc.ABC):
    """Replacement of the model's `forward` until `remove` is called."""

    def __init__(self, model: nn.Module) -> None:
        functools.update_wrapper(self, model.forward)
        self._model = model
        self._instances_own = "forward" in vars(model)
        self._before: Any = model.forward if self._instances_own else None
        model.forward = self

    def remove(self) -> None:
        if vars(self._model).get("forward") is self:
            if self._instances_own:
                self._model.forward = self._before
            else:
                del self._model.forward

    def own(self, *args: Any, **kwargs: Any) -> Any:
        if self._instances_own:
            return self._before(*args, **kwargs)
        return type(self._model).forward(self._model, *args, **kwargs)

    @abc.abstractmethod
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the result of the user's own forward."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if self._instances_own:
            return copy.deepcopy(self._before, memo)
        return types.MethodType(type(self._model).forward, memo.get(id(self._model), self._model))

    def __reduce__(self) -> Any:
        if self._instances_own:
            return functools.partial, (self._before,)
        return getattr, (
            self._model,
            "forward",
        )  # resolves to the class, because the unpickled instance has no attributes yet
