"""Stand-ins for TorchRec's collections: a KeyedJaggedTensor in, what the collection gives out, as flat tensors between.

Imported only when a model holds one (the extra `torchrec`). Called by: prep/standins.py.
"""

import json
from collections.abc import Sequence
from typing import Any

import torch
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import JaggedTensor, KeyedJaggedTensor, KeyedTensor

Inputs = Sequence[torch.Tensor | None]


def forward(number: int, module: Any) -> Any:
    """A forward that makes one node of its call."""
    pooled = isinstance(module, EmbeddingBagCollection)

    def stand_in(features: Any) -> Any:
        keys = list(features.keys())
        inputs = [features.values(), features.lengths(), features.weights_or_none()]
        if not pooled:  # how many ids each feature has is known outside of the node only
            given = features.to_dict()
            inputs += [given[feature].values() for feature, _ in _pairs(module)]
        outs = torch.ops.springtide.table(number, json.dumps(keys), inputs)
        if pooled:
            return KeyedTensor(
                keys=module._embedding_names, values=outs[0], length_per_key=module._lengths_per_embedding
            )
        result = {}
        for (feature, shown), rows in zip(_pairs(module), outs, strict=True):
            jagged = given[feature]
            result[shown] = JaggedTensor(
                values=rows, lengths=jagged.lengths(), weights=jagged.values() if module._need_indices else None
            )
        return result

    return stand_in


def call(module: Any, layout: str, inputs: Inputs) -> list[torch.Tensor]:
    """The live collection's tensors, in the order of the node's outputs."""
    values, lengths, weights, *_ = inputs
    given = module(KeyedJaggedTensor(keys=json.loads(layout), values=values, lengths=lengths, weights=weights))
    if isinstance(module, EmbeddingBagCollection):
        return [given.values()]
    return [given[shown].values() for _, shown in _pairs(module)]


def shapes(module: Any, layout: str, inputs: Inputs) -> list[tuple[Any, ...]]:
    """Shapes of the node's outputs."""
    keys = json.loads(layout)
    _, lengths, _, *each = inputs
    assert lengths is not None
    if isinstance(module, EmbeddingBagCollection):
        return [(lengths.shape[0] // len(keys), sum(module._lengths_per_embedding))]
    return [(one.shape[0], module.embedding_dim()) for one in each if one is not None]


def _pairs(module: Any) -> list[tuple[str, str]]:
    features = [name for names in module._feature_names for name in names]
    shown = [name for names in module._embedding_names_by_table for name in names]
    return list(zip(features, shown, strict=True))
