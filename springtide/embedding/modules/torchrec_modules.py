"""TorchRec collections over served tables. The collections take a KeyedJaggedTensor, and return a KeyedTensor or
JaggedTensors.

embedding/modules/convert.py imports this module only for a model with a TorchRec collection (extra `torchrec`). State
dicts keep TorchRec's names, because the inner modules keep their places.
"""

import platform
from typing import Any

import torch

from springtide import errors
from springtide.embedding.lookup import calls
from springtide.embedding.modules.served import Binding

try:
    from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
    from torchrec.sparse.jagged_tensor import JaggedTensor, KeyedJaggedTensor, KeyedTensor
except ImportError as error:
    then = "pip install --no-deps torchrec" if platform.machine() == "aarch64" else ""
    raise errors.MissingExtra(
        f"TorchRec cannot be imported ({error}): serving its collections", "torchrec", then=then
    ) from error


def first_values(collection: Any) -> list[tuple[torch.nn.Module, Any]]:
    if isinstance(collection, EmbeddingBagCollection):
        return [
            (collection.embedding_bags[embedding_bag_config.name], embedding_bag_config.init_fn)
            for embedding_bag_config in collection.embedding_bag_configs()
        ]
    return [
        (collection.embeddings[embedding_config.name], embedding_config.init_fn)
        for embedding_config in collection.embedding_configs()
    ]


def bind(collection: Any, path: str) -> None:
    """Turn a collection of served inner modules into a collection that looks up the rows of all modules together."""
    for base, turned in ((EmbeddingBagCollection, ServedBagCollection), (EmbeddingCollection, ServedCollection)):
        if type(collection) is base:
            inner = collection.embedding_bags if base is EmbeddingBagCollection else collection.embeddings
            features, modules = [], list(inner.values())
            for module, names in zip(modules, collection._feature_names, strict=True):
                table = module.springtide_binding.tables[0]
                table.on_cpu = "TorchRec collections look rows up on the CPU"
                features += [
                    calls.LookupFeature(
                        f"{path}: {name}", table, module.padding_idx, pull_padding=base is EmbeddingCollection
                    )
                    for name in names
                ]
            first = modules[0].springtide_binding
            tables = tuple(module.springtide_binding.tables[0] for module in modules)
            collection.__class__ = turned
            collection._device = torch.device("cpu")
            collection.springtide_binding = Binding(first.lookups, tables, tuple(features))


def check_keyed(features: Any, path: str) -> None:
    if not isinstance(features, KeyedJaggedTensor):
        raise errors.BadInput(
            f"{path}: features are a {type(features).__name__}; expected a KeyedJaggedTensor, such as "
            "KeyedJaggedTensor.from_lengths_sync(keys, values, lengths)"
        )


def _jagged(features: Any, name: str, path: str) -> Any:
    jagged = features.to_dict()
    if name not in jagged:
        raise errors.UnknownName(f"feature of {path}", name, jagged)
    return jagged[name]


class ServedBagCollection(EmbeddingBagCollection):  # type: ignore[misc]
    """EmbeddingBagCollection over served tables."""

    springtide_binding: Binding

    def call(self, features: Any, weights: torch.Tensor | None = None) -> calls.LookupCall:
        """Build the lookup for one forward pass, with one bag for each feature; the bags are columns of one output."""
        names = [name for names in self._feature_names for name in names]
        modes = [
            module.mode
            for module, own in zip(self.embedding_bags.values(), self._feature_names, strict=True)
            for _ in own
        ]
        total = sum(self._lengths_per_embedding)
        parts: list[Any] = []
        for feature, name, mode in zip(self.springtide_binding.features, names, modes, strict=True):
            jagged = _jagged(features, name, type(self).__name__)
            own = jagged.weights() if self._is_weighted else None
            parts.append(
                calls.bag_call(feature, jagged.values(), jagged.offsets(), mode=mode, closed=True, weights=own)
            )
        starts = [sum(self._lengths_per_embedding[:i]) for i in range(len(parts))]
        return calls.LookupCall(
            self.springtide_binding.features,
            [ids for part in parts for ids in part.ids],
            [bag for part in parts for bag in part.bags],
            [(parts[0].shapes[0][0], total)],
            [(0, start, total) for start in starts],
            tuple(kept for part in parts for kept in (*part.keep, part.weights) if kept is not None),
        )

    def forward(self, features: Any) -> Any:
        check_keyed(features, type(self).__name__)
        if features.inverse_indices_or_none() is not None or features.variable_stride_per_key():
            raise errors.BadInput("served collections take one batch size for all features; got inverse indices")
        if self._is_weighted and features.weights().requires_grad:
            raise errors.BadInput("served collections take constant weights; detach them")
        (values,) = self.springtide_binding.lookups.run(self, features)
        return KeyedTensor(keys=self._embedding_names, values=values, length_per_key=self._lengths_per_embedding)


class ServedCollection(EmbeddingCollection):  # type: ignore[misc]
    """EmbeddingCollection over served tables."""

    springtide_binding: Binding

    def call(self, features: Any) -> calls.LookupCall:
        """Build the lookup for one forward pass, with one row for each id of each feature."""
        names = [name for names in self._feature_names for name in names]
        parts: list[Any] = [
            calls.row_call(feature, _jagged(features, name, type(self).__name__).values())
            for feature, name in zip(self.springtide_binding.features, names, strict=True)
        ]
        return calls.LookupCall(
            self.springtide_binding.features,
            [ids for part in parts for ids in part.ids],
            [bag for part in parts for bag in part.bags],
            [shape for part in parts for shape in part.shapes],
            [(i, 0, stride) for i, part in enumerate(parts) for _, _, stride in part.places],
            tuple(kept for part in parts for kept in part.keep),
        )

    def forward(self, features: Any) -> dict[str, Any]:
        check_keyed(features, type(self).__name__)
        outs = self.springtide_binding.lookups.run(self, features)
        names = [name for names in self._feature_names for name in names]
        shown = [name for names in self._embedding_names_by_table for name in names]
        result = {}
        for feature, embedding, rows in zip(names, shown, outs, strict=True):
            jagged = _jagged(features, feature, type(self).__name__)
            result[embedding] = JaggedTensor(
                values=rows, lengths=jagged.lengths(), weights=jagged.values() if self._need_indices else None
            )
        return result
