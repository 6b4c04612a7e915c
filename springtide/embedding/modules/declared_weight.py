"""Embedding weights without memory: `serving` builds weights that store only a rule for the initial values of their
rows.

In: torch.nn modules built inside `with st.serving():`, and the initialization that a script applies to their weights.
Out: `InitialValues`, from which convert.py declares the table. Next: embedding/modules/convert.py, table_weight.py.
"""

import copy
import functools
import inspect
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from springtide import errors
from springtide.domain.model.tables import Init
from springtide.embedding.modules.table_weight import DESCRIBING, DETACHING, function_name

Function = Callable[..., Any]
Rows = tuple[torch.Tensor, torch.Tensor]

INSTEAD = (
    "Rows of such a table can start with normal, uniform or constant values (not with nn.init.trunc_normal_ or "
    "orthogonal_), with rows that the script sets (weight.data[0] = 0), or with a loaded weight. For other values, "
    "build this embedding outside of `with st.serving():`"
)
UNPREPARED = (
    "an embedding that was built in `with st.serving():` has no rows yet: call `model, optimizer, batches = "
    "job.prepare(model, optimizer, dataset)` before the first forward (`job = st.join()` works without a cluster too)"
)
_building = threading.local()


@contextmanager
def serving() -> Iterator[None]:
    """Build the nn.Embedding and nn.EmbeddingBag modules of a model without memory for their weights.

    `job.prepare` serves these tables, and servers create each row when it is first trained. Other parameters of the
    model are built as usual.
    """
    kinds: Any = (nn.Embedding, nn.EmbeddingBag)
    before = [kind.__init__ for kind in kinds]
    nested, _building.here = getattr(_building, "here", False), True
    for kind, build in zip(kinds, before, strict=True):
        kind.__init__ = _declaring(build)
    try:
        yield
    finally:
        _building.here = nested
        for kind, build in zip(kinds, before, strict=True):
            kind.__init__ = build


def _declaring(build: Function) -> Function:
    signature = inspect.signature(build)

    @functools.wraps(build)
    def declare(*args: Any, **options: Any) -> None:
        call = signature.bind(*args, **options)
        given = call.arguments
        if not getattr(_building, "here", False) or given.get("_weight") is not None:
            build(*args, **options)
            return
        device = given.get("device")
        device = torch.get_default_device() if device is None else torch.device(device)
        size, dtype = (given["num_embeddings"], given["embedding_dim"]), given.get("dtype")
        given["_weight"] = torch.empty(size, dtype=dtype, device="meta")
        build(*call.args, **call.kwargs)
        module = args[0]
        _declare(module.weight, InitialValues(), torch.device("cpu") if device.type == "meta" else device)
        module.reset_parameters()  # call it here, because torch.nn skips this call for a module that was given a weight

    return declare


def _declare(weight: Any, values: "InitialValues", device: torch.device) -> None:
    weight.__class__ = DeclaredWeight
    weight.springtide_values, weight.springtide_device = values, device


@dataclass(slots=True)
class InitialValues:
    """Initial values of the rows of a table that no process holds."""

    init: Init = field(default_factory=Init)
    """Distribution from which servers draw rows."""
    loaded: torch.Tensor | None = None
    """Whole weight that the script has set, in the script's memory; it replaces `init`."""
    version: int = 0
    """Number of in-place changes of `loaded` when it was given."""
    rows: list[Rows] = field(default_factory=list)
    """Keys and values of single rows that the script has set, oldest first."""

    def draw(self, init: Init) -> None:
        self.init, self.loaded, self.rows = init, None, []

    def fill(self, value: float) -> None:
        self.draw(Init(kind="uniform", a=value, b=value) if value else Init())

    def load(self, values: torch.Tensor) -> None:
        self.draw(Init())
        self.loaded, self.version = values.detach(), 0 if values.is_inference() else values._version

    def change(self, scale: float, shift: float) -> None:
        """Multiply all values by `scale`, and add `shift`."""
        init = self.init
        if init.kind == "normal":
            self.init = replace(init, a=init.a * scale + shift, b=abs(init.b * scale))
        else:
            low, high = sorted((init.a * scale + shift, init.b * scale + shift))
            self.init = Init(kind="uniform", a=low, b=high) if low or high else Init()
        self.rows = [(keys, rows * scale + shift) for keys, rows in self.rows]
        self.loaded = None if self.loaded is None else self.loaded * scale + shift

    def take(self, other: "InitialValues") -> None:
        self.init, self.loaded, self.version, self.rows = other.init, other.loaded, other.version, list(other.rows)

    def copy(self) -> "InitialValues":
        return replace(self, rows=list(self.rows))

    def given(self, path: str) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Return the keys and rows to assign; None as keys means all rows."""
        if (whole := self.loaded) is not None:
            if not whole.is_inference() and whole._version != self.version:
                raise errors.BadInput(
                    f"the weight that was loaded into {path!r} has been changed in place since: load a copy of it "
                    "(.clone()), or change it before it is loaded"
                )
            if self.rows:
                whole = whole.clone()
                for keys, rows in self.rows:
                    whole[keys] = rows.to(whole)
            return None, whole
        latest: dict[int, torch.Tensor] = {}
        for keys, rows in self.rows:
            latest.update(zip(keys.tolist(), rows, strict=True))
        if not latest:
            return None, None
        return torch.tensor(list(latest), device="cpu"), torch.stack(list(latest.values()))


class _Declared(torch.Tensor):
    """Tensor on torch's meta device whose initial values are known."""

    springtide_values: InitialValues
    springtide_device: torch.device
    """Device on which the model uses rows."""
    springtide_keys: torch.Tensor | None = None
    """Keys of a part of the rows; None means the whole weight."""

    @classmethod
    def __torch_function__(cls, func: Function, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a torch function that needs no values, or record the values that it sets."""
        kwargs = dict(kwargs or {})
        if not args and "tensor" in kwargs:  # functions of nn.init pass the tensor by name
            args = (kwargs.pop("tensor"),)
        first = args[0] if args else None
        if isinstance(first, _Declared) and (handle := _HANDLERS.get(func)) is not None:
            return handle(first, *args[1:], **kwargs)
        if func in DESCRIBING or func in _PLAIN:
            return _plainly(func, args, kwargs)
        raise errors.BadInput(_refusal(func))

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"{type(self).__name__}({tuple(self.shape)}, {self.dtype}, in no process)"

    def __format__(self, spec: str) -> str:
        return format(repr(self), spec)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise errors.BadInput(f"a weight that no process holds cannot be pickled or saved: {UNPREPARED}")

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if self.springtide_keys is not None:
            raise errors.BadInput(_refusal(copy.deepcopy))
        made = nn.Parameter(torch.empty(self.shape, dtype=self.dtype, device="meta"), self.requires_grad)
        _declare(made, self.springtide_values.copy(), self.springtide_device)
        memo[id(self)] = made
        return made


class DeclaredWeight(_Declared, nn.Parameter):
    """Parameter of an embedding that was built inside `serving`. The parameter takes no memory."""


class DeclaredRows(_Declared):
    """Detached view of a `DeclaredWeight`, or of some of its rows."""


def take_values(weight: nn.Parameter) -> tuple[InitialValues, torch.device] | None:
    """Turn a declared weight into a plain parameter on the meta device. Return the weight's initial values, and the
    device on which the model uses its rows. Return None for any other weight.
    """
    if not isinstance(weight, DeclaredWeight):
        return None
    values, device = weight.springtide_values, weight.springtide_device
    weight.__class__ = nn.Parameter  # type: ignore[assignment]
    weight.__dict__.clear()
    return values, device


def _plainly(func: Function, args: Sequence[Any], kwargs: Any) -> Any:
    with torch._C.DisableTorchFunctionSubclass():
        return func(*args, **kwargs)


def _view(
    tensor: _Declared,
    keys: torch.Tensor | None = None,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
) -> Any:
    """Return a view of the weight, or of the rows with these keys. Values set in the view are set in the weight."""
    keys = tensor.springtide_keys if keys is None else keys
    size = tuple(tensor.shape) if keys is None else (len(keys), *tensor.shape[1:])
    view = torch.empty(size, dtype=dtype or tensor.dtype, device="meta").as_subclass(DeclaredRows)
    view.springtide_values, view.springtide_keys = tensor.springtide_values, keys
    view.springtide_device = device or tensor.springtide_device
    return view


def _refusal(func: Function) -> str:
    name = function_name(func)
    if name in ("embedding", "embedding_bag"):
        return UNPREPARED
    return (
        f"{name}() needs the values of an embedding's weight that was built in `with st.serving():`, and no process "
        f"holds them. {INSTEAD}"
    )


# -- what a script may do with the weight before job.prepare


def _whole(tensor: _Declared, name: str) -> InitialValues:
    if tensor.springtide_keys is not None:
        raise errors.BadInput(f"{name}() on a part of an embedding's weight that no process holds. {INSTEAD}")
    return tensor.springtide_values


def _normal(tensor: _Declared, mean: float = 0.0, std: float = 1.0, generator: Any = None) -> Any:
    _whole(tensor, "normal_").draw(Init(kind="normal", a=float(mean), b=float(std)))
    return tensor


def _uniform(tensor: _Declared, low: float = 0.0, high: float = 1.0, generator: Any = None, **named: float) -> Any:
    low, high = named.get("from", named.get("a", low)), named.get("to", named.get("b", high))
    _whole(tensor, "uniform_").draw(Init(kind="uniform", a=float(low), b=float(high)))
    return tensor


def _kaiming_uniform(
    tensor: _Declared,
    a: float = 0.0,
    mode: Any = "fan_in",
    nonlinearity: Any = "leaky_relu",
    generator: Any = None,
) -> Any:
    fan = tensor.shape[1] if mode == "fan_in" else tensor.shape[0]
    bound = nn.init.calculate_gain(nonlinearity, a) * (3.0 / fan) ** 0.5
    return _uniform(tensor, -bound, bound)


def _fill(tensor: _Declared, value: Any = 0.0, **named: Any) -> Any:
    value, values = float(named.get("val", value)), tensor.springtide_values
    if tensor.springtide_keys is None:
        values.fill(value)
    else:
        values.rows.append(
            (tensor.springtide_keys, _plainly(torch.full, (tuple(tensor.shape), value), {"device": "cpu"}))
        )
    return tensor


def _copy(tensor: _Declared, source: Any, non_blocking: bool = False) -> Any:
    values, keys = tensor.springtide_values, tensor.springtide_keys
    if isinstance(source, _Declared) and keys is None and source.springtide_keys is None:
        values.take(source.springtide_values)
    elif isinstance(source, _Declared):
        raise errors.BadInput(_refusal(torch.Tensor.copy_))
    elif keys is not None:
        values.rows.append((keys, source.detach().to("cpu", copy=True).expand(tensor.shape)))
    elif tuple(source.shape) == tuple(tensor.shape):
        values.load(source)
    elif source.numel() == 1:
        values.fill(float(source))
    else:
        raise errors.BadInput(
            f"values of shape {tuple(source.shape)} are copied to an embedding's weight that no process holds: "
            f"expected {tuple(tensor.shape)}"
        )
    return tensor


def _changing(change: Callable[[float, float], tuple[float, float]]) -> Function:
    def handle(tensor: _Declared, other: Any, alpha: float = 1.0) -> Any:
        if isinstance(other, torch.Tensor) and (isinstance(other, _Declared) or other.numel() != 1):
            raise errors.BadInput(_refusal(torch.Tensor.mul_))
        _whole(tensor, "an in-place function").change(*change(float(other), float(alpha)))
        return tensor

    return handle


_scaled, _divided = _changing(lambda by, _: (by, 0.0)), _changing(lambda by, _: (1.0 / by, 0.0))
_raised, _lowered = _changing(lambda by, times: (1.0, by * times)), _changing(lambda by, times: (1.0, -by * times))


def _rows_at(tensor: _Declared, index: Any) -> torch.Tensor | None:
    """Return the keys of the rows at this index; None for all rows."""
    if isinstance(index, tuple) and all(part is Ellipsis or part == slice(None) for part in index[1:]):
        index = index[0] if index else slice(None)
    if index is Ellipsis or index == slice(None):
        return None
    count = tensor.shape[0]
    if isinstance(index, slice):
        return torch.arange(*index.indices(count), device="cpu")
    keys = torch.as_tensor(index, device="cpu")
    if tensor.springtide_keys is not None or keys.dim() > 1 or keys.dtype not in (torch.int64, torch.int32):
        raise errors.BadInput(_refusal(torch.Tensor.__getitem__))
    if keys.numel() and (int(keys.min()) < -count or int(keys.max()) >= count):
        raise errors.BadInput(f"row {index} of an embedding with {count} rows: expected -{count} to {count - 1}")
    return keys.reshape(-1).remainder(count)


def _part(tensor: _Declared, index: Any) -> Any:
    return _view(tensor, _rows_at(tensor, index))


def _set_part(tensor: _Declared, index: Any, value: Any) -> None:
    part = _part(tensor, index)
    _copy(part, value) if isinstance(value, torch.Tensor) else _fill(part, value)


def _set_data(tensor: _Declared, value: torch.Tensor) -> None:
    if not isinstance(value, _Declared) or value.springtide_values is not tensor.springtide_values:
        _copy(tensor, value)
    elif value.dtype != tensor.dtype:
        _plainly(_DATA.__set__, (tensor, value), {})
    tensor.springtide_device = value.device


def _moved(tensor: _Declared, *args: Any, **kwargs: Any) -> Any:
    device, dtype, _, _ = torch._C._nn._parse_to(*args, **kwargs)
    if (device or tensor.device) == tensor.device and (dtype or tensor.dtype) == tensor.dtype:
        return tensor
    return _view(tensor, dtype=dtype, device=device)


def _like(tensor: _Declared, *_: Any, dtype: torch.dtype | None = None, **__: Any) -> torch.Tensor:
    """Return a tensor without memory, for the state of an optimizer. `torch.full_like` would also import torch's Python
    functions for the meta device, which take 35 MB."""
    return torch.empty(tuple(tensor.shape), dtype=dtype or tensor.dtype, device="meta")


def _attribute(name: str) -> Function:
    getter: Function = getattr(torch.Tensor, name).__get__
    return getter


_GRAD: Any = torch.Tensor.grad
_DATA: Any = torch.Tensor.data
# nn.Module.to() asks for the compatible type
_PLAIN = frozenset([_GRAD.__get__, _GRAD.__set__, _GRAD.__delete__, torch._has_compatible_shallow_copy_type])
_HANDLERS: dict[Function, Function] = {
    **dict.fromkeys(DETACHING, _view),
    **dict.fromkeys((torch.full_like, torch.zeros_like, torch.ones_like, torch.empty_like), _like),
    torch.Tensor.normal_: _normal,
    nn.init.normal_: _normal,
    torch.Tensor.uniform_: _uniform,
    nn.init.uniform_: _uniform,
    nn.init.kaiming_uniform_: _kaiming_uniform,
    torch.Tensor.zero_: _fill,
    torch.Tensor.fill_: _fill,
    nn.init.constant_: _fill,
    torch.Tensor.copy_: _copy,
    torch.Tensor.mul_: _scaled,
    torch.Tensor.__imul__: _scaled,
    torch.Tensor.div_: _divided,
    torch.Tensor.__itruediv__: _divided,
    torch.Tensor.add_: _raised,
    torch.Tensor.__iadd__: _raised,
    torch.Tensor.sub_: _lowered,
    torch.Tensor.__isub__: _lowered,
    torch.Tensor.__getitem__: _part,
    torch.Tensor.__setitem__: _set_part,
    _DATA.__set__: _set_data,
    torch.Tensor.to: _moved,
    torch.Tensor.cuda: lambda tensor, device=None, **_: _moved(
        tensor, torch.device("cuda" if device is None else device)
    ),
    torch.Tensor.cpu: lambda tensor, **_: _moved(tensor, torch.device("cpu")),
    torch.Tensor.float: lambda tensor: _moved(tensor, torch.float32),
    torch.Tensor.double: lambda tensor: _moved(tensor, torch.float64),
    torch.Tensor.half: lambda tensor: _moved(tensor, torch.float16),
    torch.Tensor.type: lambda tensor, dtype: _moved(tensor, dtype),
    torch.Tensor.bfloat16: lambda tensor: _moved(tensor, torch.bfloat16),
    _attribute("device"): lambda tensor, *_: tensor.springtide_device,
    _attribute("is_meta"): lambda tensor, *_: False,
    _attribute("is_cpu"): lambda tensor, *_: tensor.springtide_device.type == "cpu",
    _attribute("is_cuda"): lambda tensor, *_: tensor.springtide_device.type == "cuda",
}
