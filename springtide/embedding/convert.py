"""Makes a model's tables served, in place: parameters keep their identity, so optimizers and names stay valid.

In: a model with nn.Embedding, nn.EmbeddingBag, st.* or TorchRec collections. Out: the served tables, numbered in the
order of the model. Next: train/ fits optimizers (embedding/optim.py), declares the tables and assigns the weights.
"""

import logging
from typing import Any

import torch
from torch import nn

from springtide import errors
from springtide.domain import tables
from springtide.embedding import calls, modules, served
from springtide.embedding.client import TableClient
from springtide.embedding.tables import ServedTable, TableBook, TableRequest

log = logging.getLogger(__name__)

PLAIN: dict[type[nn.Module], type[nn.Module]] = {
    nn.EmbeddingBag: served.ServedEmbeddingBag,
    nn.Embedding: served.ServedEmbedding,
}
OPEN = (modules.EmbeddingBag, modules.Embedding, modules.EmbeddingBags)


def convert(model: nn.Module, client: TableClient) -> list[ServedTable]:
    """Bind every table of the model to the client. The model is changed in place and keeps all its parameters."""
    book = TableBook()
    paths = _paths(model)
    by_weight: dict[int, ServedTable] = {}
    for module, places in paths.items():
        path = places[0] or "table"
        if isinstance(module, OPEN):
            _bind_open(module, path, client, book)
        elif isinstance(module, nn.EmbeddingBag | nn.Embedding):
            _bind_plain(module, path, client, book, by_weight)
    for module, places in paths.items():
        if type(module).__name__ in ("EmbeddingBagCollection", "EmbeddingCollection"):
            from springtide.embedding import torchrec_modules

            torchrec_modules.bind(module, places[0])
    return list(book.by_name.values())


def _paths(model: nn.Module) -> dict[nn.Module, list[str]]:
    paths: dict[nn.Module, list[str]] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        paths.setdefault(module, []).append(path)
    return paths


def _bind_open(module: Any, path: str, client: TableClient, book: TableBook) -> None:
    if module.springtide_binding is not None:
        raise errors.BadInput(f"{path!r} is bound already: a model is prepared once")
    added = tuple(
        book.add(request, name=name, path=path, weight=module.weight) for name, request in module.requests(path)
    )
    module.springtide_binding = served.Binding(client, added, module.features(added))


def _bind_plain(
    module: Any,
    path: str,
    client: TableClient,
    book: TableBook,
    by_weight: dict[int, ServedTable],
) -> None:
    base = nn.EmbeddingBag if isinstance(module, nn.EmbeddingBag) else nn.Embedding
    if isinstance(module, served.ServedEmbeddingBag | served.ServedEmbedding):
        raise errors.BadInput(f"{path!r} is served already: a model is prepared once")
    if type(module).forward is not base.forward:  # which reads the weight: it stays a dense parameter
        log.warning(
            "%r is an nn.%s with a forward of its own (%s): it is not served, but trained whole as a dense parameter. "
            "To have it served, let a module of yours hold an nn.%s and call it",
            path, base.__name__, type(module).__name__, base.__name__,
        )  # fmt: skip
        return
    served.check_supported(module, path)
    weight = module.weight
    if weight.device.type != "cpu":
        raise errors.BadInput(
            f"{path!r} is on {weight.device}: served tables are looked up on the CPU; build it there (rows leave it "
            "for the servers anyway) and move only the dense part"
        )
    known = by_weight.get(id(weight))
    if known is None:
        dtype: Any = str(weight.dtype).removeprefix("torch.")
        if dtype not in tables.DTYPES:
            raise errors.UnknownName(f"dtype of {path!r}", dtype, tables.DTYPES)
        request = TableRequest(dim=module.embedding_dim, rows=module.num_embeddings, dtype=dtype)
        initial = weight.detach().clone()
        known = book.add(request, name=path, path=path, weight=weight, initial=initial)
        by_weight[id(weight)] = known
        weight.data = torch.empty(0, module.embedding_dim)
    else:
        known.paths = (*known.paths, path)
    feature = calls.Feature(path, known, module.padding_idx, pull_padding=base is nn.Embedding)
    served_class = PLAIN[base]
    module.__class__ = (
        served_class if type(module) is base else type(type(module).__name__, (served_class, type(module)), {})
    )
    module.springtide_binding = served.Binding(client, (known,), (feature,))
