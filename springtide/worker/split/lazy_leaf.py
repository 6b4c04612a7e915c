"""Placeholder tensor for a leaf that data workers did not send; it reads its values on first use.

In: controller.py puts placeholders in place of leaves that only the moved part of forward() reads. Out: shape and dtype
at no cost. The first operation that needs values reads the samples again.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree

from springtide.dataworker.split.recorder import torch_functions
from springtide.embedding.lookup.id_routes import is_absent

Read = Callable[[], torch.Tensor]


class Absent(torch.Tensor):
    """Placeholder that turns into its tensor on first use."""

    springtide_absent = True
    """Mark by which dataworker/split/program/arguments.py and embedding/lookup/id_routes.py recognize a placeholder
    without importing this module.
    """
    springtide_read: Read
    springtide_here: torch.Tensor | None
    springtide_version: int
    springtide_fresh: Read
    """Function that reads the original values again, without any later writes."""
    springtide_exposed: bool
    """Whether the script holds the tensor's memory (`.numpy()`, `.data`) and can write to it undetected."""

    @staticmethod
    def __new__(cls, shape: tuple[int, ...], dtype: torch.dtype, read: Read, fresh: Read | None = None) -> "Absent":
        """Create a placeholder. `read` is called once, when values are needed; `fresh` reads the original values
        again.
        """
        made: Absent = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=dtype)
        made.springtide_read, made.springtide_here, made.springtide_version = read, None, 0
        made.springtide_fresh, made.springtide_exposed = fresh or read, False
        return made

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, read: Read, fresh: Read | None = None) -> None:
        """Do nothing, because __new__ sets all attributes."""

    def here(self) -> torch.Tensor:
        if self.springtide_here is None:
            self.springtide_here = self.springtide_read()
            self.springtide_version = self.springtide_here._version
        return self.springtide_here

    @property
    def changed(self) -> bool:
        here = self.springtide_here
        return here is not None and (
            self.springtide_exposed or here._version != self.springtide_version or here.requires_grad
        )

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Answer functions that need no values, return the placeholder for no-op casts, and run all others on the
        tensor.

        Once the values are read, the tensor answers everything, because its gradient or shape may have changed.
        """
        kwargs = kwargs or {}
        if func in KNOWN and args and is_absent(args[0]) and args[0].springtide_here is None:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        if func in STAYING and args and is_absent(args[0]) and _stays(func, *args, **kwargs):
            return args[0]
        if torch_functions.name_of(func) in torch_functions.EXPOSING:
            for one in args:
                if is_absent(one):
                    one.springtide_exposed = True
        return func(*present(args), **present(kwargs))

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        return func(*present(args), **present(kwargs or {}))


def present(tree: Any) -> Any:
    return _pytree.tree_map(lambda leaf: leaf.here() if is_absent(leaf) else leaf, tree)


def whole(leaf: Any) -> Any:
    """Return the real tensor of a placeholder, and any other leaf unchanged; for `pytree.substituted`."""
    return leaf.here() if is_absent(leaf) else leaf


def behind(leaf: Any) -> Any:
    """Return the real tensor but leave the placeholder untouched, so that the next use counts as the first."""
    return leaf.springtide_read() if is_absent(leaf) else leaf


def _getters(*names: str) -> set[Any]:
    return {getattr(torch.Tensor, name).__get__ for name in names}


KNOWN = _getters(
    "shape",
    "dtype",
    "device",
    "ndim",
    "layout",
    "requires_grad",
    "grad",
    "grad_fn",
    "is_leaf",
    "is_cuda",
    "is_sparse",
    "is_quantized",
    "is_meta",
    "is_nested",
    "itemsize",
    "nbytes",
) | {
    torch.Tensor.size,
    torch.Tensor.dim,
    torch.Tensor.ndimension,
    torch.Tensor.numel,
    torch.Tensor.nelement,
    torch.Tensor.stride,
    torch.Tensor.is_contiguous,
    torch.Tensor.is_floating_point,
    torch.Tensor.is_complex,
    torch.Tensor.is_signed,
    torch.Tensor.element_size,
    torch.Tensor.__len__,
    torch.Tensor.get_device,
    torch.numel,
    torch.is_floating_point,
    torch.is_complex,
}
"""Torch functions that the shape and the dtype alone can answer."""

OF_TYPE = {
    torch.Tensor.long: torch.int64,
    torch.Tensor.int: torch.int32,
    torch.Tensor.float: torch.float32,
    torch.Tensor.double: torch.float64,
    torch.Tensor.half: torch.float16,
    torch.Tensor.bfloat16: torch.bfloat16,
    torch.Tensor.bool: torch.bool,
}
STAYING = {torch.Tensor.to, torch.Tensor.cpu, torch.Tensor.contiguous, *OF_TYPE}


def _stays(func: Any, value: Absent, *args: Any, **kwargs: Any) -> bool:
    if func in OF_TYPE:
        return not args and not kwargs and value.dtype is OF_TYPE[func]
    if func is not torch.Tensor.to:
        return not args and not kwargs
    if kwargs.get("copy") or any(isinstance(one, torch.Tensor) for one in args):
        return False
    try:
        device, dtype, _, layout = torch._C._nn._parse_to(*args, **kwargs)
    except (TypeError, RuntimeError):
        return False
    return (device is None or device == value.device) and dtype in (None, value.dtype) and layout is None
