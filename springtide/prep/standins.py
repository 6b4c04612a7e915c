"""Tables stand aside while a program is captured and tried: a stand-in takes the ids and gives made-up rows.

In: the model's tables (served ones, st.*, TorchRec's collections, nn.Embedding and nn.EmbeddingBag). A tracer sees one
node for each call, `springtide::table`; a trial run gets rows that change with every id, and nobody is asked for any.
Next: prep/rest.py calls the live module where the node was.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from springtide.embedding import modules
from springtide.embedding.table_weight import TableWeight
from springtide.prep import leaves

PLAIN = (nn.Embedding, nn.EmbeddingBag)
OPEN = (modules.EmbeddingBag, modules.Embedding, modules.EmbeddingBags)
COLLECTIONS = ("EmbeddingBagCollection", "EmbeddingCollection")

Inputs = Sequence[torch.Tensor | None]


class _Now:
    """What stands aside at the moment."""

    modules: list[nn.Module]
    watch: list[torch.Tensor] | None = None

    def __init__(self) -> None:
        self.modules = []


_now = _Now()

_library = torch.library.Library("springtide", "DEF")
_library.define("table(int number, str layout, Tensor?[] inputs) -> Tensor[]")


def tables(model: nn.Module, opaque: tuple[type, ...] = ()) -> dict[str, nn.Module]:
    """Modules that stay whole, by their path: tables, and those of the types given. What is inside one goes with it."""
    found: dict[str, nn.Module] = {}
    for path, module in model.named_modules():
        inside = any(path.startswith(f"{outer}.") for outer in found)
        if not inside and (isinstance(module, (*PLAIN, *OPEN, *opaque)) or _collection(module)):
            found[path] = module
    return found


@contextmanager
def standing_in(whole: Sequence[nn.Module], *, watch: list[torch.Tensor] | None = None) -> Iterator[None]:
    """Let stand-ins answer for these modules; their own forward is back afterwards.

    `watch` is filled with the rows that are given out, which then take gradients.
    """
    before, outer = [vars(module).get("forward") for module in whole], (list(_now.modules), _now.watch)
    _now.modules = list(whole)
    _now.watch = watch if watch is not None else _now.watch
    weights = _weights(whole)
    try:
        for part, _, plain in weights:
            part._parameters["weight"] = plain
        for number, module in enumerate(whole):
            forward = _forward(number, module)
            object.__setattr__(module, "forward", forward if watch is None else _watched(forward))
        yield
    finally:
        _now.modules, _now.watch = outer
        for part, weight, _ in weights:
            part._parameters["weight"] = weight
        for module, own in zip(whole, before, strict=True):
            if own is None:
                vars(module).pop("forward", None)
            else:
                object.__setattr__(module, "forward", own)


def _weights(whole: Sequence[nn.Module]) -> list[tuple[nn.Module, TableWeight, nn.Parameter]]:
    """Modules with a served table's weight, and a plain parameter of its size, which a tracer may read, for each."""
    parts = [part for module in whole for part in module.modules()]
    served = [(part, one) for part in parts if isinstance(one := part._parameters.get("weight"), TableWeight)]
    plain = {
        id(one): nn.Parameter(torch.full((), 0.5, dtype=one.dtype).expand(one.shape), one.requires_grad)
        for _, one in served
    }
    return [(part, one, plain[id(one)]) for part, one in served]


def call(module: nn.Module, layout: str, inputs: Inputs) -> list[torch.Tensor]:
    """What the stand-in's node means: the live module called as the user's forward called it, its tensors in order."""
    return [_watch(rows) for rows in _call(module, layout, inputs)]


def _watched(forward: Any) -> Any:
    """A stand-in's forward whose rows take gradients. Not for tracers."""

    def watched(*args: Any, **kwargs: Any) -> Any:
        given, shape = leaves.flatten(forward(*args, **kwargs))
        return shape.rebuild([_watch(one) for one in given])

    return watched


def _watch(rows: Any) -> Any:
    if _now.watch is not None and isinstance(rows, torch.Tensor) and not any(rows is one for one in _now.watch):
        rows = rows.detach().requires_grad_() if rows.is_floating_point() else rows
        _now.watch.append(rows)
    return rows


def _call(module: nn.Module, layout: str, inputs: Inputs) -> list[torch.Tensor]:
    if isinstance(module, modules.EmbeddingBags):
        if not layout:
            given = module(inputs[0])
            return list(given) if isinstance(given, list) else [given]
        rest = iter(inputs)
        named = {name: (next(rest), next(rest)) if bags else next(rest) for name, bags in json.loads(layout)}
        return list(module(named).values())
    if _collection(module):
        from springtide.prep import keyed

        return keyed.call(module, layout, inputs)
    return [module(*inputs) if isinstance(module, nn.EmbeddingBag | modules.EmbeddingBag) else module(inputs[0])]


def _forward(number: int, module: nn.Module) -> Any:
    """A forward that makes one node of its call, in words that dynamo follows too."""
    table = torch.ops.springtide.table
    if isinstance(module, modules.EmbeddingBags):
        return _bags_forward(number, module)
    if _collection(module):
        from springtide.prep import keyed

        return keyed.forward(number, module)
    if isinstance(module, nn.Embedding | modules.Embedding):
        return lambda ids: table(number, "", [ids])[0]
    if isinstance(module, nn.EmbeddingBag):
        return lambda input, offsets=None, per_sample_weights=None: table(
            number, "", [input, offsets, per_sample_weights]
        )[0]
    return lambda ids, offsets=None, per_sample_weights=None: table(number, "", [ids, offsets, per_sample_weights])[0]


def _bags_forward(number: int, module: modules.EmbeddingBags) -> Any:
    table, several = torch.ops.springtide.table, module.output == "list"

    def forward(ids: Any) -> Any:
        if isinstance(ids, torch.Tensor):
            outs = table(number, "", [ids])
            return list(outs) if several else outs[0]
        layout = json.dumps([(name, isinstance(given, tuple)) for name, given in ids.items()])
        flat = [one for given in ids.values() for one in (given if isinstance(given, tuple) else (given,))]
        return dict(zip(ids, table(number, layout, flat), strict=True))

    return forward


def _collection(module: nn.Module) -> bool:
    return any(kind.__name__ in COLLECTIONS for kind in type(module).__mro__)


def _shapes(module: Any, layout: str, inputs: Inputs) -> list[tuple[Any, ...]]:
    """Shapes of what the module would give; sizes may be symbols."""
    ids = inputs[0]
    assert ids is not None
    if isinstance(module, modules.EmbeddingBags):
        if not layout:
            dims = module.lengths if module.output == "list" else (sum(module.lengths),)
            return [(ids.shape[0], dim) for dim in dims]
        rest, shapes = iter(inputs), []
        for name, bags in json.loads(layout):
            shapes.append(_bag_shape(module.dims[name], next(rest), next(rest) if bags else None, False))
        return shapes
    if _collection(module):
        from springtide.prep import keyed

        return keyed.shapes(module, layout, inputs)
    dim = module.request.dim if isinstance(module, OPEN) else module.embedding_dim
    if isinstance(module, nn.Embedding | modules.Embedding):
        return [(*ids.shape, dim)]
    return [_bag_shape(dim, ids, inputs[1], bool(getattr(module, "include_last_offset", False)))]


def _bag_shape(dim: Any, ids: Any, offsets: torch.Tensor | None, closed: bool) -> tuple[Any, ...]:
    if ids.dim() == 2 or offsets is None:
        return (ids.shape[0], dim)
    return (offsets.shape[0] - int(closed), dim)


def _dtype(module: Any) -> torch.dtype:
    binding = getattr(module, "springtide_binding", None)
    if binding is not None and isinstance(module, PLAIN):
        dtype: torch.dtype = binding.dtype
        return dtype
    weight = getattr(module, "weight", None)
    return weight.dtype if isinstance(weight, torch.Tensor) and isinstance(module, PLAIN) else torch.float32


def _fake(number: int, layout: str, inputs: Inputs) -> list[torch.Tensor]:
    module, ids = _now.modules[number], inputs[0]
    assert ids is not None
    return [ids.new_empty(shape, dtype=_dtype(module)) for shape in _shapes(module, layout, inputs)]


def _made_up(number: int, layout: str, inputs: Inputs) -> list[torch.Tensor]:
    """Rows between -1 and 1, all of which change when any id, its place or the table does."""
    module, ids = _now.modules[number], inputs[0]
    assert ids is not None
    salt = sum((at + 2) * digest(one) for at, one in enumerate(inputs) if one is not None) + number
    rows = []
    for shape in _shapes(module, layout, inputs):
        size = int(torch.Size(shape).numel())
        bits = (torch.arange(size, dtype=torch.int64) * 2654435761 + salt % (1 << 40)) * 0x9E3779B1 >> 13
        rows.append(((bits & 0xFFFF).double() / 32768 - 1).to(_dtype(module)).reshape(shape).to(ids.device))
    return rows


def digest(tensor: torch.Tensor) -> int:
    """A number that changes with any bit of a tensor or its place in it."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    if flat.dtype.is_floating_point:
        whole = {2: torch.int16, 4: torch.int32, 8: torch.int64}[flat.element_size()]
        flat = flat.view(whole)
    mixed = (flat.to(torch.int64) + 0x1F3D5B79) * (2 * torch.arange(flat.numel(), dtype=torch.int64) + 1)
    return int((mixed * 0x9E3779B97F4A7C1).sum())


torch.library.register_fake("springtide::table", _fake, lib=_library)
_library.impl("table", _made_up, "CompositeExplicitAutograd")
