"""Converts a model's embeddings to served embeddings in place. The `nn.Parameter` objects stay the same.

In: a model with nn.Embedding, nn.EmbeddingBag, st.* or TorchRec collections. Out: the served tables, numbered in the
order of the model. Next: worker/setup.py sets optimizers, declares the tables and assigns the weights.
"""

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import torch
from torch import nn

from springtide import errors
from springtide.domain.core.validation import plain
from springtide.domain.model import tables
from springtide.domain.spec.elastic_job import TableWish
from springtide.embedding.lookup import calls
from springtide.embedding.lookup.lookup import Lookups
from springtide.embedding.lookup.tables import ServedTable, TableBook, TableRequest
from springtide.embedding.modules import declared_weight, modules, served, table_weight
from springtide.embedding.modules.declared_weight import InitialValues

log = logging.getLogger(__name__)
InitFunction = Callable[[torch.Tensor], Any]
PLAIN: dict[type[nn.Module], type[nn.Module]] = {
    nn.EmbeddingBag: served.ServedEmbeddingBag,
    nn.Embedding: served.ServedEmbedding,
}
OPEN = (modules.EmbeddingBag, modules.Embedding, modules.EmbeddingBags)
POOLS_MAX = "lookups of the table pool by max"
COLLECTIONS = ("EmbeddingBagCollection", "EmbeddingCollection")


def convert(model: nn.Module, lookups: Lookups) -> list[ServedTable]:
    """Bind every table of the model to these lookups. The model changes in place and keeps all its parameters."""
    book = TableBook()
    paths = _paths(model)
    by_weight: dict[int, ServedTable] = {}
    tied = _held_by_others(paths)
    collections = [module for module in paths if _is_collection(module)]
    init_of = {table: init for module in collections for table, init in _torchrec().first_values(module)}
    for module, places in paths.items():
        path = places[0] or "table"
        if isinstance(module, OPEN):
            _bind_open(module, path, lookups, book)
        elif isinstance(module, nn.EmbeddingBag | nn.Embedding):
            why = _why_whole(module, paths, tied)
            if why is None:
                _bind_plain(module, path, lookups, book, by_weight, init_of.get(module))
            else:
                log.warning("%r is not served by servers, but trained as a dense parameter: %s", path, why)
    for module in collections:
        _torchrec().bind(module, paths[module][0])
    return list(book.by_name.values())


def _is_collection(module: nn.Module) -> bool:
    kind = type(module)
    return kind.__name__ in COLLECTIONS and kind.__module__.startswith("torchrec.")


def _torchrec() -> Any:
    from springtide.embedding.modules import torchrec_modules

    return torchrec_modules


def _paths(model: nn.Module) -> dict[nn.Module, list[str]]:
    paths: dict[nn.Module, list[str]] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        paths.setdefault(module, []).append(path)
    return paths


def _held_by_others(paths: dict[nn.Module, list[str]]) -> dict[int, nn.Module]:
    """Map each weight to the other modules that read the whole weight, such as an output layer tied to an embedding."""
    return {
        id(param): module
        for module in paths
        if not isinstance(module, nn.EmbeddingBag | nn.Embedding) or _own_forward(module)
        for param in module.parameters(recurse=False)
    }


def _own_forward(module: nn.EmbeddingBag | nn.Embedding) -> bool:
    if isinstance(module, served.ServedEmbeddingBag | served.ServedEmbedding):
        return False
    base = nn.EmbeddingBag if isinstance(module, nn.EmbeddingBag) else nn.Embedding
    return type(module).forward is not base.forward


def _why_whole(module: Any, paths: dict[nn.Module, list[str]], tied: dict[int, nn.Module]) -> str | None:
    """Return the reason why the worker needs the whole weight; None if the table can be served."""
    base = "nn.EmbeddingBag" if isinstance(module, nn.EmbeddingBag) else "nn.Embedding"
    if _own_forward(module):
        return (
            f"it is an {base} with its own forward() ({type(module).__name__}). "
            f"To serve it, write a module that holds an {base} and calls it"
        )
    if "weight" not in module._parameters:
        return f"its weight is not a parameter but computed ({type(module).__name__})"
    other = tied.get(id(module.weight))
    return None if other is None else f"{paths[other][0]!r} ({type(other).__name__}) has the same weight"


def _bind_open(module: Any, path: str, lookups: Lookups, book: TableBook) -> None:
    if module.springtide_binding is not None:
        raise errors.BadInput(f"{path!r} was already bound: prepare a model only once")
    added = []
    for (name, request), own in zip(module.requests(path), module.state_names(), strict=True):
        keys, rows = module.loaded.pop(own, (None, None))
        added.append(book.add(request, name=name, path=path, weight=module.weight, initial=rows, initial_keys=keys))
        added[-1].follow_device(module.weight.device)
        added[-1].on_cpu = POOLS_MAX if getattr(module, "mode", None) == "max" else ""
    module.springtide_binding = served.Binding(lookups, tuple(added), module.features(added))
    table_weight.serve_weight(module.weight, lookups, added[0])


def _bind_plain(
    module: Any,
    path: str,
    lookups: Lookups,
    book: TableBook,
    by_weight: dict[int, ServedTable],
    init_fn: InitFunction | None,
) -> None:
    base = nn.EmbeddingBag if isinstance(module, nn.EmbeddingBag) else nn.Embedding
    if isinstance(module, served.ServedEmbeddingBag | served.ServedEmbedding):
        raise errors.BadInput(f"{path!r} is already served: prepare a model only once")
    served.check_supported(module, path)
    for size in ("num_embeddings", "embedding_dim", "padding_idx"):
        setattr(module, size, plain(getattr(module, size)))
    weight = module.weight
    if weight._backward_hooks or weight._post_accumulate_grad_hooks:
        raise errors.BadInput(
            f"{path!r} has a hook on its weight, which would never run: gradients go to servers by rows. Remove the "
            f"hook; after loss.backward(), weight.grad has the gradient of the step's rows"
        )
    if weight.device.type not in ("cpu", "cuda", "meta"):
        raise errors.BadInput(
            f"{path!r} is on {weight.device}: a served table returns its outputs on the CPU or on a CUDA GPU. Build "
            f"the module on the CPU, on a GPU, or on 'meta', because its rows go to the servers anyway"
        )
    known = by_weight.get(id(weight))
    if known is None:
        dtype: Any = str(weight.dtype).removeprefix("torch.")
        if dtype not in tables.DTYPES:
            raise errors.BadInput(
                f"the weight of {path!r} is {dtype}; servers keep {', '.join(tables.DTYPES)}: call .float() on it"
            )
        declared = declared_weight.take_values(weight)
        init, keys, initial = _first_values(module, path, init_fn, None if declared is None else declared[0])
        request = TableRequest(dim=module.embedding_dim, rows=module.num_embeddings, dtype=dtype, init=init)
        known = book.add(request, name=path, path=path, weight=weight, initial=initial, initial_keys=keys)
        known.follow_device(weight.device if declared is None else declared[1])
        known.declared = weight.is_meta
        known.on_cpu = POOLS_MAX if getattr(module, "mode", None) == "max" else ""
        known.sparse = bool(module.sparse)
        by_weight[id(weight)] = known
        table_weight.serve_weight(weight, lookups, known)
    else:
        known.paths = (*known.paths, path)
        known.sparse &= bool(module.sparse)
    feature = calls.LookupFeature(path, known, module.padding_idx, pull_padding=base is nn.Embedding)
    served_class = PLAIN[base]
    module.__class__ = (
        served_class if type(module) is base else type(type(module).__name__, (served_class, type(module)), {})
    )
    module.springtide_binding = served.Binding(lookups, (known,), (feature,))


def _first_values(
    module: Any, path: str, init_fn: InitFunction | None, declared: InitialValues | None
) -> tuple[tables.Init, torch.Tensor | None, torch.Tensor | None]:
    """Return the init with which servers create rows, and the keys and rows that the job assigns once.

    If a weight is on the meta device, its rows get the initial values that torch.nn, or TorchRec's `init_fn`, would
    give to them. `declared` has the initial values of a weight that was built in `serving`.
    """
    weight = module.weight
    if declared is not None:
        return declared.init, *declared.given(path)
    if not weight.is_meta:
        return tables.Init(), None, weight.detach().cpu()  # not copied: serve_weight takes this memory from the weight
    if init_fn is None:  # as nn.Embedding.reset_parameters does
        if weight._version > 1 + (module.padding_idx is not None):  # each call of nn.init or load_state_dict counts
            raise errors.BadInput(
                f"{path!r} is on the meta device, where torch ignores initializations and load_state_dict(), and the "
                "script has called one of them. Build the module in `with st.serving():` instead, which keeps them"
            )
        padding = None if module.padding_idx is None else torch.tensor([module.padding_idx], device="cpu")
        zeros = None if padding is None else torch.zeros(1, module.embedding_dim, device="cpu")
        return tables.Init(kind="normal", b=1.0), padding, zeros
    if isinstance(init_fn, functools.partial) and init_fn.func is nn.init.uniform_ and not init_fn.args:
        low, high = init_fn.keywords.get("a", 0.0), init_fn.keywords.get("b", 1.0)
        return tables.Init(kind="uniform", a=float(low), b=float(high)), None, None
    made = torch.empty(weight.shape, dtype=weight.dtype, device="cpu")
    with torch.no_grad():
        init_fn(made)
    return tables.Init(), None, made


def grant(served: Sequence[ServedTable], wishes: Mapping[str, TableWish]) -> None:
    by_name = {table.name: table for table in served}
    for name, wish in wishes.items():
        if name not in by_name:
            raise errors.UnknownName("table (the job's spec names it) in the model", name, by_name)
        options = {field.name: getattr(wish, field.name) for field in fields(wish)}
        table = by_name[name]
        table.spec = replace(table.spec, **{what: value for what, value in options.items() if value is not None})
