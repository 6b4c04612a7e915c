"""Turns a trained model back into a plain model, so that the model can load the weights of a checkpoint.

In: a model with served tables. Out: the same modules as plain torch modules, with unset weights in this process. The
trained rows stay on the servers. Next: the framework's load_state_dict sets the weights.
"""

from typing import Any

import torch
from torch import nn

from springtide import errors
from springtide.embedding.modules import served
from springtide.worker.setup import LoadGuard


def make_plain(model: nn.Module) -> None:
    """Give the tables of a model weights of their own, and let the model load a state again."""
    weights: dict[int, nn.Parameter] = {}
    for path, module in model.named_modules():
        binding = getattr(module, "springtide_binding", None)
        if binding is not None and not isinstance(module, served.ServedEmbedding | served.ServedEmbeddingBag):
            raise errors.BadInput(
                f"{path!r} ({type(module).__name__}) cannot load the best weights after training, because its rows are "
                "on servers: read the best checkpoint in a script of its own"
            )
        if binding is not None:
            table, old = binding.tables[0], module._parameters["weight"]
            size = table.request.rows, table.request.dim
            weights.setdefault(id(old), nn.Parameter(torch.empty(size, dtype=binding.dtype, device=old.device)))
            _restore_class(module, weights[id(old)])
    LoadGuard.lift(model)


def _restore_class(module: Any, weight: nn.Parameter) -> None:
    own = type(module)
    base = nn.EmbeddingBag if isinstance(module, nn.EmbeddingBag) else nn.Embedding
    module.__class__ = base if own in (served.ServedEmbedding, served.ServedEmbeddingBag) else own.__bases__[1]
    module._parameters["weight"] = weight
    del module.springtide_binding
