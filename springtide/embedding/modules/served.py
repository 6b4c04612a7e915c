"""nn.Embedding and nn.EmbeddingBag whose rows live on servers; `convert` turns plain modules into served modules in
place.

In and out: the inputs and outputs of the torch modules. Next: embedding/lookup/lookup.py. See table_weight.py for
the `weight` of these modules, and embedding/modules/modules.py for tables without a row count.
"""

import math
from typing import Any

import numpy as np
import torch
from torch import nn

from springtide import errors
from springtide.embedding.lookup import calls
from springtide.embedding.lookup.lookup import Lookups
from springtide.embedding.lookup.table_client import TableClient
from springtide.embedding.lookup.tables import ServedTable

LOAD_BEFORE = (
    "load_state_dict() after job.prepare() would run on every worker, and again on a restarted worker, and overwrite "
    "trained rows. Call load_state_dict() before job.prepare(), which gives the model's weights to the job once. To "
    "inspect other "
    "weights, load them into a separate model"
)
NOT_PICKLED = "a model with served tables cannot be pickled: its rows are on servers. Save model.state_dict() instead"


class Binding:
    """Lookups, tables and features that a served module uses. `convert` sets this attribute, and all copies of the
    module share it.
    """

    __slots__ = ("dtype", "features", "lookups", "tables")

    def __init__(self, lookups: Lookups, tables: tuple[ServedTable, ...], features: tuple[calls.LookupFeature, ...]):
        self.lookups = lookups
        self.tables = tables
        self.features = features
        self.dtype: torch.dtype = getattr(torch, tables[0].request.dtype)

    @property
    def client(self) -> TableClient:
        return self.lookups.client

    def refuse_load(self) -> None:
        """Raise BadInput in a job, where values are assigned once before training."""
        if not self.client.loads:
            raise errors.BadInput(LOAD_BEFORE)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Binding":
        return self

    def __reduce__(self) -> Any:
        raise errors.BadInput(NOT_PICKLED)


class KeepsWeight(nn.Module):
    """Module whose `weight` has no memory, because the rows of the weight are on servers. The weight follows moves of
    the model to another device, so that outputs are there too, and ignores casts.
    """

    springtide_binding: Binding | None

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        weight: Any = self._parameters["weight"]
        self._parameters["weight"] = None
        try:
            return super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        finally:
            self._parameters["weight"] = weight
            self._move(weight, fn)

    def _move(self, weight: torch.Tensor, fn: Any) -> None:
        with torch._C.DisableTorchFunctionSubclass(), torch.no_grad():
            device = fn(torch.empty(0, device=weight.device)).device
            if device.type == "meta" or device == weight.device:
                return
            weight.data = torch.full((), math.nan, dtype=weight.dtype, device=device).expand(weight.shape)
        for table in self.springtide_binding.tables if self.springtide_binding is not None else ():
            table.follow_device(device)

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        self._load(state_dict, prefix, missing_keys if strict else [], error_msgs)

    def _load(self, state: dict[str, Any], prefix: str, missing: list[str], wrong: list[str]) -> None:
        """Load rows from a state dict. Append the names of missing entries to `missing`, and messages about wrong
        entries to `wrong`."""


class _WholeTable(KeepsWeight):
    """Mixin whose state_dict() reads the table under the usual name of the weight, and whose load_state_dict() writes
    the table.
    """

    springtide_binding: Binding

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        binding = self.springtide_binding
        table = binding.tables[0]
        size, most = table.request.rows * table.request.dim * binding.dtype.itemsize, binding.client.whole_table_bytes
        if table.declared and size > most:
            raise errors.BadInput(
                f"state_dict() would read all {table.request.rows} rows of table {table.name!r}: {size} bytes, more "
                f"than whole_table_bytes={most}. Use springtide export, which writes the trained rows. "
                f"If the worker has the memory, raise the limit: st.join(whole_table_bytes={size})"
            )
        rows = binding.client.read(table.name, np.arange(table.request.rows))
        destination[prefix + "weight"] = torch.from_numpy(rows).to(binding.dtype)

    def _load(self, state: dict[str, Any], prefix: str, missing: list[str], wrong: list[str]) -> None:
        key, binding = prefix + "weight", self.springtide_binding
        binding.refuse_load()
        if key not in state:
            missing.append(key)
            return
        table, shape = binding.tables[0], tuple(state[key].shape)
        if shape != (expected := (table.request.rows, table.request.dim)):  # use the message of torch's load_state_dict
            wrong.append(f"size mismatch for {key}: the checkpoint has {shape}, the model has {expected}.")
            return
        rows = state[key].detach().to("cpu", torch.float32).numpy()
        binding.client.assign(table.name, np.arange(table.request.rows), rows)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return self


class ServedEmbeddingBag(_WholeTable, nn.EmbeddingBag):
    """nn.EmbeddingBag over a served table."""

    def call(
        self, input: torch.Tensor, offsets: torch.Tensor | None = None, weights: torch.Tensor | None = None
    ) -> calls.Call:
        mode: Any = self.mode
        table = self.springtide_binding.tables[0]
        who = f"table {table.name!r}"
        input = calls.as_ids(input, who, table)
        if input.dim() == 1 and offsets is None:
            raise errors.BadInput(
                f"{who}: 1-D ids need offsets, the start of each bag; for one id a bag use ids.unsqueeze(1)"
            )
        return calls.bag_call(
            self.springtide_binding.features[0],
            input,
            offsets,
            mode=mode,
            closed=bool(self.include_last_offset) and offsets is not None,
            weights=weights,
        )

    def forward(
        self, input: torch.Tensor, offsets: torch.Tensor | None = None, per_sample_weights: torch.Tensor | None = None
    ) -> torch.Tensor:
        binding = self.springtide_binding
        (out,) = binding.lookups.run(self, input, offsets, weights=per_sample_weights)
        return out if binding.dtype is torch.float32 else out.to(binding.dtype)


class ServedEmbedding(_WholeTable, nn.Embedding):
    """nn.Embedding over a served table."""

    def call(self, input: torch.Tensor) -> calls.Call:
        return calls.row_call(self.springtide_binding.features[0], input)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        binding = self.springtide_binding
        (out,) = binding.lookups.run(self, input)
        return out if binding.dtype is torch.float32 else out.to(binding.dtype)


def check_supported(module: nn.EmbeddingBag | nn.Embedding, path: str) -> None:
    if module.max_norm is not None:
        raise errors.BadInput(
            f"{path!r} has max_norm={module.max_norm}: served tables cannot rescale rows on lookup; "
            "leave it out and use weight decay"
        )
    if module.scale_grad_by_freq:
        raise errors.BadInput(
            f"{path!r} has scale_grad_by_freq=True: served tables sum gradients of a batch; leave it out"
        )
