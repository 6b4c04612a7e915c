"""Observe a torch call: the operations that it runs, their writes, and their random draws.

In: a call, run once under `OperationWatch`. Names and schemas of Python functions do not tell enough (`F.relu(x,
inplace=True)`, `F.dropout`). This module therefore observes the aten operations below them. Used by:
dataworker/split/recorder/call_recorder.py.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from springtide.dataworker.split.recorder import torch_functions

EXACT = frozenset(
    {
        "cat",
        "stack",
        "index",
        "index_select",
        "gather",
        "take",
        "take_along_dim",
        "repeat",
        "repeat_interleave",
        "flip",
        "roll",
        "sort",
        "argsort",
        "topk",
        "kthvalue",
        "max",
        "min",
        "amax",
        "amin",
        "aminmax",
        "argmax",
        "argmin",
        "median",
        "nanmedian",
        "mode",
        "unique",
        "_unique",
        "_unique2",
        "unique_dim",
        "unique_consecutive",
        "nonzero",
        "bucketize",
        "searchsorted",
        "masked_select",
        "masked_fill",
        "masked_fill_",
        "masked_scatter",
        "scatter",
        "index_put",
        "index_put_",
        "_index_put_impl_",
        "index_fill",
        "index_copy",
        "tril",
        "triu",
        "one_hot",
        "eq",
        "equal",
        "any",
        "all",
        "isin",
        "lift_fresh",
        "arange",
        "full",
        "full_like",
        "zeros",
        "zeros_like",
        "ones",
        "ones_like",
        "copy_",
        "fill_",
        "zero_",
        "_to_copy",
        "clone",
        "item",
        "_local_scalar_dense",
        "constant_pad_nd",
        "scalar_tensor",
        "eye",
        "embedding",
        "slice_scatter",
        "select_scatter",
        "as_strided_copy",
        "count_nonzero",
        "pin_memory",
        "empty",
        "empty_like",
        "new_empty",
        "resize_",
    }
)
"""Operations without rounding: any number of threads gives the same bits."""


UNSTEADY = getattr(torch.Tag, "nondeterministic_bitwise", None)


class OperationWatch(TorchDispatchMode):
    """Dispatch mode that records operations while it is active."""

    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: compiled code is not recorded, and disabling dynamo would import it, which takes seconds."""
        return False

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.against = ""
        """Reason why the call cannot move; empty if it can."""
        self.rounds = False
        """True if the number of threads can change the last bits of the result."""
        self.writes: set[int] = set()
        """Memory that the call wrote to."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Inspect an operation, and run it."""
        kwargs = kwargs or {}
        if isinstance(func, torch._ops.OpOverload):
            self._look(func, args, kwargs)
        else:
            self.against = self.against or f"{func} is no operation of torch's own"
        result = func(*args, **kwargs)
        if isinstance(func, torch._ops.OpOverload) and not self.rounds:
            name = func._schema.name.rpartition("::")[2]
            exact = torch.Tag.pointwise in func.tags or name in EXACT or func.is_view
            self.rounds = not exact and any(one.is_floating_point() for one in tensors((args, kwargs, result)))
        return result

    def _look(self, func: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        space, _, name = func._schema.name.rpartition("::")
        if space not in ("aten", "prims"):
            self.against = self.against or f"{func._schema.name} is no operation of torch's own"
        if torch.Tag.nondeterministic_seeded in func.tags:
            self.against = self.against or "random numbers"
        if UNSTEADY is not None and UNSTEADY in func.tags:
            self.against = self.against or "its last bits, which may be others each time"
        if name in torch_functions.HIDDEN_WRITES:
            self.against = self.against or "it may write to a buffer"
        if name in torch_functions.PRODUCTS:
            self.against = self.against or "a product of matrices, whose last bits depend on the machine"
        for argument, given in zip(func._schema.arguments, args, strict=False):
            if argument.alias_info is not None and argument.alias_info.is_write:
                self.writes |= {memory(one) for one in tensors(given)}
        for argument in func._schema.arguments:
            if argument.alias_info is not None and argument.alias_info.is_write and argument.name in kwargs:
                self.writes |= {memory(one) for one in tensors(kwargs[argument.name])}


def tensors(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors among the arguments or results of a call."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for one in value:
            yield from tensors(one)
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from tensors(one)


def memory(tensor: torch.Tensor) -> int:
    """Return an id of the memory behind a tensor, equal for all its views."""
    return int(tensor.untyped_storage()._cdata)
