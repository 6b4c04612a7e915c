"""Penalties on whole tables, such as `l2 * torch.sum(weight ** 2)`, which read a table only when the loss uses them.

In: torch functions of a table's `weight`, from table_weight.py. Out: a `TablePenalty`, which becomes a tensor with
gradients when it is added to the loss. A penalty times zero becomes zero without a read. For example, SASRec's loss has
`0.0 * torch.norm(weight)` by default.
"""

import functools
import logging
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree

from springtide.embedding.lookup import compile_guard

log = logging.getLogger(__name__)
Function = Callable[..., Any]
TIMES = {"mul", "multiply", "__mul__", "__rmul__"}
STAYS_ZERO = TIMES | {"sum", "mean", "abs", "__abs__", "absolute", "square", "neg", "__neg__"}
"""Names of the torch functions whose result is zero if their tensor or one factor is zero."""
NORMS = {"norm", "linalg_norm", "linalg_vector_norm", "linalg_matrix_norm", "vector_norm", "matrix_norm"}
SUMS = {"add", "__add__", "__radd__", "sub", "__sub__", "__rsub__"}
WAITING = STAYS_ZERO | NORMS | SUMS | {"pow", "__pow__", "sqrt", "div", "divide", "__truediv__"}
"""Names of the torch functions that delay their result until code reads the value of a penalty. Such a function returns
one new tensor and changes nothing.
"""
PLAIN = (int, float, str, torch.dtype, type(None))
NOTED_BYTES = 1 << 20  # smaller tables take less than a millisecond of a step


class TablePenalty(torch.Tensor):
    """Result of a function of whole tables. Every use except a function in WAITING computes the value first."""

    springtide_func: Function
    springtide_args: tuple[Any, ...]
    springtide_kwargs: dict[str, Any]
    springtide_value: torch.Tensor | None
    springtide_zero: bool

    @classmethod
    @compile_guard.outside_graphs
    def __torch_function__(cls, func: Function, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a torch function on the value, or delay the function too."""
        kwargs = kwargs or {}
        if (penalty := delayed(func, args, kwargs)) is not None:
            return penalty
        args, kwargs = pytree.tree_map_only(TablePenalty, _used_value, (args, kwargs))
        return func(*args, **kwargs)


def delayed(func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor | None:
    """Return the result of a torch function of whole tables as a `TablePenalty`. Return None if the function must run
    now."""
    if (name := getattr(func, "__name__", "")) not in WAITING or torch._C._len_torch_function_stack():
        return None
    leaves, tree = pytree.tree_flatten((args, kwargs))
    if not torch.is_grad_enabled() or not all(isinstance(leaf, PLAIN) or _is_trained(leaf) for leaf in leaves):
        return None
    parts = [_plain(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    device = next(part.device for part in parts if isinstance(part, torch.Tensor))
    shape, dtype = _result(
        func, tuple((part.shape, part.dtype) if isinstance(part, torch.Tensor) else part for part in parts), tree
    )
    zero = name in TIMES and any(type(leaf) in (int, float) and leaf == 0 for leaf in leaves)
    zero |= name in STAYS_ZERO and any(getattr(leaf, "springtide_zero", False) for leaf in leaves)
    filled = torch.full((), 0.0 if zero else torch.nan, dtype=dtype, device=device).expand(shape)
    penalty = filled.as_subclass(TablePenalty)
    penalty.springtide_zero, penalty.springtide_value = zero, filled if zero else None
    penalty.springtide_func = func
    penalty.springtide_args, penalty.springtide_kwargs = args, kwargs
    return penalty


@functools.lru_cache(maxsize=256)  # a run on the meta device takes half a millisecond
def _result(func: Function, leaves: tuple[Any, ...], tree: Any) -> tuple[torch.Size, torch.dtype]:
    """Return the shape and dtype of a function's result. A tensor in `leaves` is given as its shape and dtype."""
    metas = [torch.empty(leaf[0], dtype=leaf[1], device="meta") if isinstance(leaf, tuple) else leaf for leaf in leaves]
    args, kwargs = pytree.tree_unflatten(metas, tree)
    result = func(*args, **kwargs)
    return result.shape, result.dtype


def _is_trained(leaf: Any) -> bool:
    if isinstance(leaf, TablePenalty):
        return True
    return isinstance(leaf, torch.nn.Parameter) and hasattr(leaf, "springtide_reader") and leaf.requires_grad


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.detach().as_subclass(torch.Tensor)


def _used_value(penalty: TablePenalty) -> torch.Tensor:
    value = _value(penalty)
    if not value.dim() and not penalty.springtide_zero:
        for weight in _weights(penalty):
            _note_cost(weight)
    return value


def _weights(penalty: TablePenalty) -> Iterator[Any]:
    for leaf in pytree.tree_leaves((penalty.springtide_args, penalty.springtide_kwargs)):
        if isinstance(leaf, TablePenalty):
            yield from _weights(leaf)
        elif isinstance(leaf, torch.Tensor):
            yield leaf


def _value(penalty: TablePenalty) -> torch.Tensor:
    """Compute the value with gradients. Each table is read once per function."""
    if penalty.springtide_value is None:
        read: dict[int, torch.Tensor] = {}

        def computed(tensor: Any) -> Any:
            if isinstance(tensor, TablePenalty):
                return _value(tensor)
            if id(tensor) not in read:
                read[id(tensor)] = tensor.springtide_reader.read(tensor)
            return read[id(tensor)]

        with torch.enable_grad():
            args, kwargs = pytree.tree_map_only(
                torch.Tensor, computed, (penalty.springtide_args, penalty.springtide_kwargs)
            )
            penalty.springtide_value = penalty.springtide_func(*args, **kwargs)
    return penalty.springtide_value


def _note_cost(weight: Any) -> None:
    """Log a warning once for each large table of which a penalty reads and trains all rows in every step."""
    if weight.nbytes >= NOTED_BYTES and not getattr(weight, "springtide_cost_noted", False):
        weight.springtide_cost_noted = True
        log.warning(
            "a penalty in the loss reads the whole %r (%.1f MB) in every step, and sends as many gradients. To "
            "penalize only the rows of the step, set weight_decay=2 * l2 in the table's parameter group instead",
            weight.springtide_reader,
            weight.nbytes / 1e6,
        )
