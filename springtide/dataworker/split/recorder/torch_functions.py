"""Classifies torch functions for the split: stable names, in-place writes, memory access, rounding, calling line.

In: function objects from a `TorchFunctionMode`. Out: a name that every process resolves to the same function, and the
possible effects of a call. Names and schemas of Python functions do not show all effects (`F.relu(x, inplace=True)`,
`F.dropout`), so `OperationWatch` also observes the aten operations below a call: their writes and random draws.
"""

import functools
import importlib
import linecache
import os
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from springtide import errors

PLACES = (
    "torch",
    "torch.functional",
    "torch.nn.functional",
    "torch._C._nn",
    "torch.special",
    "torch.linalg",
    "torch.fft",
    "torch._C._special",
    "torch._C._linalg",
)
"""Modules in which to search for a function by name."""
GETTER = ".__get__"


def name_set(names: str) -> frozenset[str]:
    return frozenset(names.split())


EXPOSING = name_set(
    """
    Tensor.data.__get__ Tensor.numpy Tensor.__array__ Tensor.__dlpack__ Tensor.data_ptr Tensor.untyped_storage
    Tensor.storage Tensor._typed_storage Tensor.__cuda_array_interface__.__get__ Tensor.as_subclass
    Tensor.unsafe_chunk Tensor.unsafe_split Tensor.unsafe_split_with_sizes torch.unsafe_chunk torch.unsafe_split
    torch.unsafe_split_with_sizes torch.as_strided Tensor.as_strided
    """
)
"""Functions that expose a tensor's memory, so that later writes do not increase the tensor's version."""
DESCRIBING = name_set(
    """
    Tensor.shape.__get__ Tensor.dtype.__get__ Tensor.device.__get__ Tensor.ndim.__get__ Tensor.layout.__get__
    Tensor.requires_grad.__get__ Tensor.is_cuda.__get__ Tensor.is_cpu.__get__ Tensor.is_sparse.__get__
    Tensor.is_quantized.__get__ Tensor.is_meta.__get__ Tensor.is_nested.__get__ Tensor.is_mkldnn.__get__
    Tensor.itemsize.__get__ Tensor.nbytes.__get__ Tensor.names.__get__ Tensor.is_leaf.__get__ Tensor.grad.__get__
    Tensor.grad_fn.__get__ Tensor.size Tensor.dim Tensor.ndimension Tensor.numel Tensor.nelement Tensor.__len__
    Tensor.is_floating_point Tensor.is_complex Tensor.is_signed Tensor.element_size Tensor.get_device
    Tensor.is_inference Tensor.has_names Tensor.is_same_size torch.numel torch.is_floating_point torch.is_complex
    torch.is_tensor torch.is_inference
    """
)
"""Functions that read only metadata, no values. A tensor that was not sent can answer these functions."""
UNMOVED = name_set(
    """
    torch.empty torch.empty_like torch.empty_strided torch.empty_permuted Tensor.new_empty Tensor.new_empty_strided
    Tensor.new Tensor.tolist Tensor.__repr__ Tensor.__format__ Tensor.storage Tensor.is_pinned Tensor.pin_memory
    Tensor.stride Tensor.storage_offset Tensor.is_contiguous Tensor._version.__get__ Tensor.__deepcopy__
    Tensor.__reduce_ex__ Tensor.__hash__ Tensor.backward Tensor.register_hook Tensor.retain_grad Tensor.is_shared
    Tensor.share_memory_ torch.set_printoptions torch.manual_seed torch.seed
    """
)
"""Functions that never move, because their result depends on more than their arguments or cannot be sent."""
HIDDEN_WRITES = name_set(
    """
    native_batch_norm batch_norm cudnn_batch_norm miopen_batch_norm _batch_norm_impl_index _batch_norm_with_update
    instance_norm native_batch_norm_backward
    """
)
"""aten operations that write to their arguments although their schema does not say so."""
PRODUCTS = name_set(
    """
    mm bmm addmm baddbmm addbmm mv addmv dot vdot matmul linear convolution _convolution mkldnn_convolution
    mkldnn_linear cdist _cdist_forward _scaled_dot_product_attention scaled_dot_product_attention lstm gru rnn_tanh
    rnn_relu
    """
)
"""aten operations that call libraries (BLAS, convolutions) whose rounding depends on the machine's number of cores."""
EXACT = name_set(
    """
    cat stack index index_select gather take take_along_dim repeat repeat_interleave flip roll sort argsort topk
    kthvalue max min amax amin aminmax argmax argmin median nanmedian mode unique _unique _unique2 unique_dim
    unique_consecutive nonzero bucketize searchsorted masked_select masked_fill masked_fill_ masked_scatter scatter
    index_put index_put_ _index_put_impl_ index_fill index_copy tril triu one_hot eq equal any all isin lift_fresh
    arange full full_like zeros zeros_like ones ones_like copy_ fill_ zero_ _to_copy clone item _local_scalar_dense
    constant_pad_nd scalar_tensor eye embedding slice_scatter select_scatter as_strided_copy count_nonzero
    pin_memory empty empty_like new_empty resize_
    """
)
"""Operations that never round, so that any number of threads gives the same bits."""


@functools.cache
def _by_identity() -> dict[int, str]:
    found: dict[int, str] = {}
    for place in reversed(PLACES):
        for name, value in vars(importlib.import_module(place)).items():
            if callable(value) and not isinstance(value, type):
                found[id(value)] = f"{place}.{name}"
    for name in dir(torch.Tensor):
        found.setdefault(id(getattr(torch.Tensor, name)), f"Tensor.{name}")
    return found


@functools.cache
def name_of(function: Any) -> str:
    """Return a name that `resolve` finds in any process; empty if the function has none."""
    owner, name = getattr(function, "__self__", None), str(getattr(function, "__name__", ""))
    if type(function).__name__ == "method-wrapper" and owner is not None:
        candidate = f"Tensor.{getattr(owner, '__name__', '')}.{name}"
    elif name and getattr(torch.Tensor, name, None) is function:
        candidate = f"Tensor.{name}"
    elif isinstance(function, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        candidate = f"torch.ops.{str(function).replace('::', '.')}"
    else:
        candidate = _by_identity().get(id(function), "")
    try:
        return candidate if candidate and resolve(candidate) == function else ""
    except (AttributeError, ImportError):
        return ""


def resolve(name: str) -> Callable[..., Any]:
    if name.startswith("Tensor."):
        return _attribute(torch.Tensor, name.removeprefix("Tensor."))
    if name.startswith("torch.ops."):
        return _attribute(torch.ops, name.removeprefix("torch.ops."))
    place, _, own = name.rpartition(".")
    return _attribute(importlib.import_module(place), own)


def _attribute(owner: Any, path: str) -> Callable[..., Any]:
    return functools.reduce(getattr, path.split("."), owner)  # type: ignore[no-any-return]


def operation(name: str) -> str:
    if name.startswith("marked:"):
        return name.rpartition(":")[2]
    short = name.removesuffix(GETTER).rpartition(".")[2]
    return short.strip("_") or short


def writes(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> bool:
    """Return True if a call may write to one of its tensors, judged by the function's name and schema."""
    known = _by_name_or_schema(function)
    if known is True or known is False:
        return known or bool(kwargs and kwargs.get("out") is not None)
    return bool(kwargs.get("inplace") if kwargs and "inplace" in kwargs else known < len(args) and args[known])


READING = ("__index__", "__int__", "__invert__", "__iter__")


@functools.cache
def _by_name_or_schema(function: Any) -> bool | int:
    """Return True, False, or the position of the argument `inplace`, whose value decides."""
    if isinstance(function, torch._ops.OpOverload):
        return bool(function._schema.is_mutable)
    if isinstance(function, torch._ops.OpOverloadPacket):
        schemas = [getattr(function, overload)._schema for overload in function.overloads() if "out" not in overload]
        return any(schema.is_mutable for schema in schemas)
    name = str(getattr(function, "__name__", ""))
    if name.startswith("__"):
        return name in ("__setitem__", "__set__", "__delete__", "__setstate__") or (
            name.startswith("__i") and name not in READING
        )
    if name.endswith("_"):
        return True
    if isinstance(function, types.FunctionType):
        names = function.__code__.co_varnames[: function.__code__.co_argcount]
        return names.index("inplace") if "inplace" in names else False
    return False


def touches(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> bool:
    """Return True if a call writes to one of its tensors, or exposes its memory."""
    return name_of(function) in EXPOSING or writes(function, args, kwargs)


UNSTEADY = getattr(torch.Tag, "nondeterministic_bitwise", None)


class OperationWatch(TorchDispatchMode):
    """Dispatch mode that records operations while it is active."""

    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False, because this mode does not record compiled code. Otherwise torch would import dynamo to disable
        it, which takes seconds."""
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
        kwargs = kwargs or {}
        if isinstance(func, torch._ops.OpOverload):
            self._inspect(func, args, kwargs)
        else:
            self.against = self.against or f"{func} is not an operation of torch"
        result = func(*args, **kwargs)
        if isinstance(func, torch._ops.OpOverload) and not self.rounds:
            name = func._schema.name.rpartition("::")[2]
            exact = torch.Tag.pointwise in func.tags or name in EXACT or func.is_view
            self.rounds = not exact and any(tensor.is_floating_point() for tensor in tensors((args, kwargs, result)))
        return result

    def _inspect(self, func: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        space, _, name = func._schema.name.rpartition("::")
        if space not in ("aten", "prims"):
            self.against = self.against or f"{func._schema.name} is not an operation of torch"
        if torch.Tag.nondeterministic_seeded in func.tags:
            self.against = self.against or "it draws random numbers"
        if UNSTEADY is not None and UNSTEADY in func.tags:
            self.against = self.against or "its last bits may change from call to call"
        if name in HIDDEN_WRITES:
            self.against = self.against or "it may write to a buffer"
        if name in PRODUCTS:
            self.against = self.against or "the last bits of a matrix product depend on the machine"
        for argument, given in zip(func._schema.arguments, args, strict=False):
            if argument.alias_info is not None and argument.alias_info.is_write:
                self.writes |= {memory(tensor) for tensor in tensors(given)}
        for argument in func._schema.arguments:
            if argument.alias_info is not None and argument.alias_info.is_write and argument.name in kwargs:
                self.writes |= {memory(tensor) for tensor in tensors(kwargs[argument.name])}


def tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors(item)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors(item)


def memory(tensor: torch.Tensor) -> int:
    """Return an id of the memory behind a tensor, equal for all its views."""
    return int(tensor.untyped_storage()._cdata)


OWN = (os.path.dirname(torch.__file__) + os.sep, os.path.dirname(errors.__file__) + os.sep, "<")
"""Paths of torch, of this package, and of code without a file."""
TABLES = os.path.join(OWN[1], "embedding", "")
"""Files with the code of served tables. Other files of this package may contain models (zoo). Springtide splits these
models like user models.
"""
PYTHON = os.path.dirname(os.__file__) + os.sep
PACKAGES = f"{os.sep}site-packages{os.sep}"


def users_line() -> tuple[str, str]:
    """Return the innermost running line of user code: its position, such as "model.py:12", and its text.

    If no user code runs, return a line of an installed package, or empty strings.
    """
    installed: FrameType | None = None
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        path = frame.f_code.co_filename
        if not path.startswith(OWN):
            if not path.startswith(PYTHON) and PACKAGES not in path:
                return place(path, frame.f_lineno)
            installed = installed or (frame if PACKAGES in path else None)
        frame = frame.f_back
    return place(installed.f_code.co_filename, installed.f_lineno) if installed is not None else ("", "")


def is_served_table() -> bool:
    """Return True if the innermost running code, besides torch and the recorder, belongs to a served table."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename.startswith((OWN[0], "<")):
        frame = frame.f_back
    return frame is not None and frame.f_code.co_filename.startswith(TABLES)


def is_users(path: str) -> bool:
    """Return True if a file belongs neither to torch, Python, an installed package nor this package."""
    return not path.startswith((*OWN, PYTHON)) and PACKAGES not in path


def place(path: str, number: int) -> tuple[str, str]:
    return f"{os.path.basename(path)}:{number}", linecache.getline(path, number).strip()
