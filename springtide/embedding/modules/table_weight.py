"""The `weight` parameter of a served table. Reading the parameter fetches all rows from the servers, or is refused.

`serve_weight` turns the nn.Parameter of an embedding into a `TableWeight` in place, so that optimizers and names stay
valid. Reading the size or the dtype needs no request to servers. A function that needs values reads the whole table,
with gradients if the loss uses the result. `grad` holds only the rows of the step.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils import _pytree as pytree

from springtide import errors
from springtide.embedding.lookup import calls, compile_guard
from springtide.embedding.lookup.lookup import Lookups
from springtide.embedding.lookup.table_client import chunk_rows
from springtide.embedding.lookup.tables import ServedTable
from springtide.embedding.modules import table_penalty

Function = Callable[..., Any]

_VALUES = ("T", "mT", "H", "mH", "real", "imag", "data", "grad")
_LIKE = ("empty", "zeros", "ones", "full", "rand", "randn", "randint")
_METHODS = (
    "size dim ndimension numel nelement stride storage_offset is_contiguous element_size is_floating_point "
    "is_complex is_signed is_conj is_neg is_inference is_pinned is_shared data_ptr untyped_storage get_device "
    "is_same_size _is_view __len__ requires_grad_ retain_grad new_empty new_zeros new_ones new_full new_tensor"
)
DESCRIBING: frozenset[Function] = frozenset(
    [
        *(
            getattr(torch.Tensor, name).__get__
            for name in dir(torch._C.TensorBase)
            if type(getattr(torch._C.TensorBase, name)).__name__ == "getset_descriptor" and name not in _VALUES
        ),
        torch.Tensor.requires_grad.__set__,  # type: ignore[attr-defined]
        *(getattr(torch.Tensor, name) for name in _METHODS.split()),
        *(getattr(torch, f"{name}_like") for name in _LIKE),
        torch.numel,
        torch.is_floating_point,
        torch.is_complex,
        torch.is_signed,
        torch.is_conj,
        torch.is_same_size,
    ]
)
"""Torch functions that need no values of the table. Such a function needs only the shape and the dtype, so servers get
no request.
"""
DETACHING: frozenset[Function] = frozenset(
    [torch.Tensor.detach, torch.detach, torch.Tensor.data.__get__]  # type: ignore[attr-defined]
)
AVERAGING: frozenset[Function] = frozenset([torch._foreach_copy_, torch._foreach_lerp_])
"""Torch functions that AveragedModel applies to the parameters of its copy of the model. The copy shares the model's
tables."""
COMBINING = frozenset(
    {"add", "sub", "mul", "div", "__add__", "__radd__", "__sub__", "__rsub__", "__mul__", "__rmul__", "__truediv__"}
)
HOOKING: frozenset[Function] = frozenset(
    [torch.Tensor.register_hook, torch.Tensor.register_post_accumulate_grad_hook, torch.autograd.grad]
)
_OPERATORS = "add sub mul truediv div floordiv mod pow and or xor lshift rshift matmul"
_IN_PLACE = frozenset(f"__i{name}__" for name in _OPERATORS.split())

INSTEAD = (
    "Call the module with the needed ids. Instead of a penalty l2 * sum(weight ** 2), set weight_decay=2 * l2 in the "
    "table's parameter group, which penalizes the rows of each step"
)


class TableRows(torch.Tensor):
    """Whole table as a tensor that takes no memory and reads its values from servers on use.

    A linear combination of a table with itself is also a TableRows. Averaging a copied model computes such
    combinations.
    """

    springtide_reader: "TableReader"
    springtide_scale = 1.0
    springtide_shift = 0.0

    @classmethod
    def __torch_function__(cls, func: Function, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a torch function on the whole table, or without reading it if no values are needed."""
        if func in DESCRIBING:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        return _run_on_whole(func, args, kwargs or {})

    def requires_grad_(self, requires_grad: bool = True) -> "TableRows":
        if requires_grad:
            self.springtide_reader.refuse_gradient(torch.Tensor.requires_grad_)
        return self

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"TableRows({self.springtide_reader})"

    def __format__(self, spec: str) -> str:
        return format(repr(self), spec)

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        memo[id(self)] = copy = self.springtide_reader.copy()
        return copy

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.springtide_reader.copy().__reduce_ex__(protocol)


class TableWeight(nn.Parameter):
    """nn.Parameter with the size of the whole table that takes no memory. `serve_weight` creates it."""

    springtide_reader: "TableReader"
    __torch_function__ = TableRows.__torch_function__

    @property
    def grad(self) -> torch.Tensor | None:
        """Gradient of the rows of this step, with one row per id. The next push sends this gradient."""
        grad: Any = self.__dict__.get("springtide_grad")
        rows: torch.Tensor | None = grad.springtide_rows() if hasattr(grad, "springtide_rows") else grad
        return rows

    @grad.setter
    def grad(self, grad: torch.Tensor | None) -> None:
        self.__dict__["springtide_grad"] = grad

    @grad.deleter
    def grad(self) -> None:
        self.__dict__["springtide_grad"] = None

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"TableWeight({self.springtide_reader}, requires_grad={self.requires_grad})"

    def __format__(self, spec: str) -> str:
        return format(repr(self), spec)

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Parameter:
        memo[id(self)] = copy = nn.Parameter(self.springtide_reader.copy(), self.requires_grad)
        return copy

    def __reduce_ex__(self, protocol: Any) -> Any:
        return nn.Parameter(self.springtide_reader.copy(), self.requires_grad).__reduce_ex__(protocol)


class FetchedRows(torch.Tensor):
    """Rows read from servers. Views of FetchedRows are FetchedRows too; results computed from FetchedRows are plain
    tensors."""

    springtide_reader: "TableReader"

    @classmethod
    @compile_guard.outside_graphs
    def __torch_function__(cls, func: Function, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a torch function, but refuse writes to the copy, because the table would not change."""
        kwargs = kwargs or {}
        written = next(_of(FetchedRows, _written(func, args, kwargs)), None)
        if written is not None and func is not torch.Tensor.requires_grad_:
            written.springtide_reader.refuse_write(func)
        with torch._C.DisableTorchFunctionSubclass():
            out = func(*args, **kwargs)
            source = next(_of(FetchedRows, (args, kwargs)), None)
            if source is None or func in DESCRIBING:
                return out
            return pytree.tree_map_only(torch.Tensor, lambda tensor: _same_memory(tensor, source), out)

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        memo[id(self)] = copy = _plain(self).clone()
        return copy

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _plain(self).__reduce_ex__(protocol)


class TableReader:
    """Reader of one whole served table, for its `TableWeight`."""

    def __init__(self, lookups: Lookups, table: ServedTable) -> None:
        self._lookups, self._table = lookups, table
        self._dtype: torch.dtype = getattr(torch, table.request.dtype)
        self._feature = calls.LookupFeature(table.name, table)

    def __repr__(self) -> str:
        request = self._table.request
        rows = f"{request.rows} rows" if request.rows else "any number of rows"
        return f"table {self._table.name!r}, {rows} of {request.dim} {request.dtype}, on servers"

    def detached(self, weight: Any, scale: float = 1.0, shift: float = 0.0) -> TableRows:
        """Return the whole table times `scale` plus `shift`, without gradients. The values are read on first use."""
        with torch._C.DisableTorchFunctionSubclass():
            rows: TableRows = weight.detach().as_subclass(TableRows)
        rows.springtide_reader, rows.springtide_scale, rows.springtide_shift = self, scale, shift
        return rows

    def copy(self) -> torch.Tensor:
        self._refuse_size()
        rows = torch.from_numpy(self._lookups.client.read(self._table.name, np.arange(self._table.request.rows)))
        return rows.to(self._table.gpu or "cpu", self._dtype)

    def read(self, weight: TableRows | TableWeight) -> torch.Tensor:
        """Read the whole table. With gradients enabled, look up all ids, so that gradients reach every row."""
        if torch.is_grad_enabled() and weight.requires_grad:
            self._refuse_size()
            lookups = self._lookups
            ids = torch.arange(self._table.request.rows, device="cpu").split(chunk_rows(self._table.request.dim))
            rows = torch.cat([lookups.run(self, part)[0] for part in ids]).to(self._dtype)
        else:
            rows = self.copy()
            if isinstance(weight, TableRows) and (weight.springtide_scale, weight.springtide_shift) != (1.0, 0.0):
                rows.mul_(weight.springtide_scale).add_(weight.springtide_shift)
        fetched = rows.as_subclass(FetchedRows)
        fetched.springtide_reader = self
        return fetched

    def call(self, ids: torch.Tensor) -> calls.Call:
        return calls.row_call(self._feature, ids)

    def _refuse_size(self) -> None:
        request, name = self._table.request, self._table.name
        if not request.rows:
            raise errors.BadInput(
                f"the weight of table {name!r} is read, but the table has no row count, so its size is not known. "
                f"{INSTEAD}; model.state_dict() has the keys and rows that exist"
            )
        size, most = request.rows * request.dim * self._dtype.itemsize, self._lookups.client.whole_table_bytes
        if size > most:
            raise errors.BadInput(
                f"the weight of table {name!r} is read, which pulls all of its {request.rows} rows: {size} bytes, more "
                f"than whole_table_bytes={most}. {INSTEAD}; or raise the limit: st.join(whole_table_bytes={size})"
            )

    def refuse_write(self, func: Function) -> None:
        raise errors.BadInput(
            f"{function_name(func)}() writes to the weight of table {self._table.name!r}, whose rows are on servers: "
            "the change would be lost. Set weights before job.prepare; a job of one worker may also call "
            "model.load_state_dict() later. For an AveragedModel, replace its avg_fn by a multi_avg_fn"
        )

    def refuse_gradient(self, func: Function) -> None:
        raise errors.BadInput(
            f"{function_name(func)}() on the weight of table {self._table.name!r}: servers get its gradient by rows, "
            "not through autograd. After loss.backward(), weight.grad has the gradient, with one row for each id of "
            "the step"
        )


def serve_weight(weight: nn.Parameter, lookups: Lookups, table: ServedTable) -> None:
    """Make the weight a TableWeight of this table. The weight is on the device that the table follows."""
    request = table.request
    weight.grad = None
    if request.rows:
        dtype: torch.dtype = getattr(torch, request.dtype)
        device = table.gpu or torch.device("cpu")
        nothing = torch.full((), math.nan, dtype=dtype, device=device).expand(request.rows, request.dim)
        if weight.is_meta:  # torch cannot set `data` of a meta tensor to a CPU tensor
            torch.utils.swap_tensors(weight, nn.Parameter(nothing, weight.requires_grad))
        weight.data = nothing
    weight.__class__ = TableWeight
    served: Any = weight
    served.springtide_reader = TableReader(lookups, table)


WHOLE = (TableWeight, TableRows)


@compile_guard.outside_graphs
def _run_on_whole(func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    first, reader = args[0] if args else None, next(_of(WHOLE, (args, kwargs))).springtide_reader
    if (penalty := table_penalty.delayed(func, args, kwargs)) is not None:
        return penalty
    if func in DETACHING:
        return reader.detached(first)
    if isinstance(first, WHOLE) and _stays(func, first, args[1:], kwargs):
        return first
    if func in HOOKING:
        reader.refuse_gradient(func)
    if (combined := _combined(func, args, kwargs)) is not None:
        return combined
    if func in AVERAGING and not (args := _apart(args))[0]:
        return None
    if func is torch.Tensor.copy_ and _one_table(*args[:2]):
        return first
    if (written := next(_of(WHOLE, _written(func, args, kwargs)), None)) is not None:
        written.springtide_reader.refuse_write(func)
    with torch.set_grad_enabled(torch.is_grad_enabled() and func is not torch.Tensor.tolist):
        args, kwargs = pytree.tree_map_only(WHOLE, lambda weight: weight.springtide_reader.read(weight), (args, kwargs))
    return func(*args, **kwargs)


def _stays(func: Function, rows: torch.Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return True if a move or cast changes nothing, in which case torch returns the tensor itself."""
    if func is torch.Tensor.cpu:
        return rows.is_cpu
    if func is not torch.Tensor.to or kwargs.get("copy") or any(isinstance(arg, torch.Tensor) for arg in args):
        return False
    device, dtype, _, layout = torch._C._nn._parse_to(*args, **kwargs)
    return device in (None, rows.device) and dtype in (None, rows.dtype) and layout is None


def _apart(args: tuple[Any, ...]) -> tuple[Any, ...]:
    pairs = [(to, of) for to, of in zip(*args[:2], strict=True) if not _one_table(to, of)]
    return [to for to, _ in pairs], [of for _, of in pairs], *args[2:]


def _one_table(to: Any, of: Any) -> bool:
    if not (isinstance(to, WHOLE) and isinstance(of, WHOLE) and to.springtide_reader is of.springtide_reader):
        return False
    scale, shift = getattr(of, "springtide_scale", 1.0), getattr(of, "springtide_shift", 0.0)
    return math.isclose(scale, 1.0, rel_tol=1e-6) and math.isclose(shift, 0.0, abs_tol=1e-12)


def _combined(func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> TableRows | None:
    """Combine a table linearly with itself without reading the table, as AveragedModel does. Return None if the
    function does anything else."""
    given = [*args, *kwargs.values()]
    rows = [argument for argument in given if isinstance(argument, TableRows)]
    others = [argument for argument in given if not isinstance(argument, TableRows)]
    if function_name(func) not in COMBINING or len({id(row.springtide_reader) for row in rows}) != 1:
        return None
    plain = len(rows) < 2 and (rows[0].springtide_scale, rows[0].springtide_shift) == (1.0, 0.0)
    if plain or not all(isinstance(argument, int | float) or getattr(argument, "ndim", 1) == 0 for argument in others):
        return None

    def at(value: float) -> float:
        scaled = lambda weight: torch.tensor(weight.springtide_scale * value + weight.springtide_shift).double()  # noqa: E731
        own, named = pytree.tree_map_only(TableRows, scaled, (args, kwargs))
        return float(func(*own, **named))

    shift, scale = at(0.0), at(1.0) - at(0.0)
    # check a third point, which rules out products of the table with itself
    is_line = math.isclose(at(2.0), shift + 2 * scale, abs_tol=1e-12)
    return rows[0].springtide_reader.detached(rows[0], scale, shift) if is_line else None


def _plain(rows: torch.Tensor) -> torch.Tensor:
    with torch._C.DisableTorchFunctionSubclass():
        return rows.as_subclass(torch.Tensor)


def _same_memory(out: torch.Tensor, source: FetchedRows) -> torch.Tensor:
    if out.layout is not torch.strided or out.untyped_storage().data_ptr() != source.untyped_storage().data_ptr():
        return out
    view = out.as_subclass(FetchedRows)
    view.springtide_reader = source.springtide_reader
    return view


def _written(func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Return the arguments to which a torch function writes, according to torch's naming conventions."""
    name = function_name(func)
    first = args[0] if args else next(iter(kwargs.values()), None)
    if name in _IN_PLACE or name in ("__set__", "__delete__", "__setitem__"):
        return (first,)
    in_place = name.endswith("_") and not name.endswith("__")
    return (first, kwargs.get("out")) if in_place else (kwargs.get("out"),)


def function_name(func: Function) -> str:
    return getattr(func, "__name__", type(func).__name__).split(".")[0]


def _of(kind: Any, tree: Any) -> Iterator[Any]:
    return (leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, kind))
