"""Embedding modules without a row count. Any 64-bit id has a row, which is created when it is first trained.

In: ids of a batch. Out: rows, pooled or not. `job.prepare(model, ...)` must bind the modules to servers first. Next:
embedding/modules/convert.py binds, embedding/lookup/lookup.py looks up.
"""

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict, Unpack

import numpy as np
import torch
from torch import nn

from springtide import errors
from springtide.domain.core import validation
from springtide.domain.core.validation import takes_numbers
from springtide.domain.model import tables
from springtide.embedding.lookup import calls, row_batch
from springtide.embedding.lookup.tables import ServedTable, TableRequest
from springtide.embedding.modules import optimizers
from springtide.embedding.modules.served import Binding, KeepsWeight

Init = str | tuple[str | float, ...] | tables.Init


class _OpenTable(KeepsWeight):
    """Base class of modules without a row count: the binding, and state dicts of keys and rows."""

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)
        self.springtide_binding: Binding | None = None
        self.loaded: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
        """Keys and rows by state dict name, loaded before the module was bound. The tables start with these rows."""

    @property
    def binding(self) -> Binding:
        """Return the binding to the tables; BadInput before the module is bound."""
        if self.springtide_binding is None:
            raise errors.BadInput(
                f"{type(self).__name__} has no tables yet: call `model, optimizer, batches = job.prepare(model, "
                "optimizer, dataset)` before the first forward (`job = st.join()` works without a cluster too)"
            )
        return self.springtide_binding

    name: str | None
    request: TableRequest

    def requests(self, path: str) -> list[tuple[str, TableRequest]]:
        return [(self.name or path, self.request)]

    def state_names(self) -> list[str]:
        """Return the prefix of each table's entries in a state dict, in the order of the binding's tables."""
        return [""]

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        for name, table in zip(self.state_names(), self.binding.tables, strict=True):
            keys, rows = self.binding.client.scan(table.name)
            destination[f"{prefix}{name}keys"] = torch.from_numpy(np.ascontiguousarray(keys))
            destination[f"{prefix}{name}rows"] = torch.from_numpy(np.ascontiguousarray(rows))

    def _load(self, state: dict[str, Any], prefix: str, missing: list[str], wrong: list[str]) -> None:
        bound = self.springtide_binding
        if bound is not None:
            bound.refuse_load()
        for number, (name, (_, request)) in enumerate(zip(self.state_names(), self.requests(""), strict=True)):
            keys_name, rows_name = f"{prefix}{name}keys", f"{prefix}{name}rows"
            if lacking := [key for key in (keys_name, rows_name) if key not in state]:
                missing += lacking
                continue
            keys, rows = state[keys_name], state[rows_name]
            if tuple(rows.shape) != (len(keys), request.dim):
                wrong.append(
                    f"size mismatch for {rows_name}: the checkpoint has {tuple(rows.shape)}, "
                    f"the model needs ({len(keys)}, {request.dim})."
                )
            elif bound is None:
                self.loaded[name] = keys.clone(), rows.detach().clone()
            else:
                bound.client.assign(bound.tables[number].name, keys.cpu().numpy(), rows.detach().float().cpu().numpy())

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if self.springtide_binding is not None:
            return self
        memo[id(self)] = made = type(self).__new__(type(self))
        for name, value in self.__dict__.items():
            made.__dict__[name] = copy.deepcopy(value, memo)
        return made


def _checked(dim: Any, name: str) -> int:
    return validation.number(dim, f"{name}: dim", "a whole number of floats a row, 1 or more", least=1)


def _name(name: Any, kind: str) -> str | None:
    if name is None or isinstance(name, str):
        return name
    raise errors.BadInput(f"{kind}: name={name!r}: expected a text, or None for the module's path in the model")


def _padding(padding_idx: Any, name: str) -> int | None:
    if padding_idx is None:
        return None
    return validation.number(padding_idx, f"{name}: padding_idx", "a 64-bit id, or None", least=-validation.LARGEST - 1)


def _kernel(optimizer: Any, name: str) -> tables.OptimSpec | None:
    if isinstance(optimizer, str):
        if optimizer not in optimizers.NAMED:
            raise errors.UnknownName("table optimizer", optimizer, optimizers.NAMED)
        return optimizers.NAMED[optimizer]
    if optimizer is not None and not isinstance(optimizer, tables.OptimSpec):
        raise errors.BadInput(
            f"{name}: optimizer={optimizer!r}: expected the name of a table optimizer "
            f"({', '.join(optimizers.NAMED)}), or None for the optimizer of the parameter group"
        )
    return optimizer


def _rate(lr: Any, name: str) -> float | None:
    if lr is None or (isinstance(lr, int | float) and not isinstance(lr, bool) and 0 <= lr < math.inf):
        return lr
    raise errors.BadInput(f"{name}: lr={lr!r}: expected a number, 0 or more, or None for the lr of the parameter group")


class TableOptions(TypedDict, total=False):
    """Options of a table."""

    optimizer: str | tables.OptimSpec | None
    """Name of the table's optimizer, such as "rowwise_adagrad"; None for the optimizer of the parameter group."""
    lr: float | None
    """Learning rate; None for the learning rate of the parameter group."""
    init: Init
    """Distribution of new rows, such as "normal" or ("uniform", -0.1, 0.1)."""
    dtype: str
    """Type of the rows: "float32", "float16" or "bfloat16"."""
    min_count: int
    """Gradients that an id must receive before it gets a row; 0 for none."""
    ttl: int
    """Pushes after which an unused row is dropped; 0 for never."""
    capacity: int
    """Maximum number of rows; 0 for no limit. Each slot of the job stores an equal share of this number of rows: its
    most recently used rows.
    """


def _request(
    dim: int,
    name: str,
    *,
    rows: int = 0,
    optimizer: str | tables.OptimSpec | None = None,
    lr: float | None = None,
    init: Init = "normal",
    dtype: str = "float32",
    min_count: int = 0,
    ttl: int = 0,
    capacity: int = 0,
) -> TableRequest:
    if str(dtype).removeprefix("torch.") not in tables.DTYPES:
        raise errors.UnknownName(f"dtype ({name})", str(dtype), tables.DTYPES)
    short: Any = str(dtype).removeprefix("torch.")
    wanted = "a whole number, 0 (none) or more"
    return TableRequest(
        dim=int(dim),
        rows=validation.number(rows, f"{name}: rows", wanted),
        optimizer=_kernel(optimizer, name),
        lr=_rate(lr, name),
        init=tables.parse_init(init, table=name),
        dtype=short,
        min_count=validation.number(min_count, f"{name}: min_count", f"{wanted}, below 2^32", most=2**32 - 1),
        ttl=validation.number(ttl, f"{name}: ttl", wanted),
        capacity_rows=validation.number(capacity, f"{name}: capacity", wanted),
    )


class EmbeddingBag(_OpenTable):
    """nn.EmbeddingBag without a row count: rows of `dim` floats for any 64-bit id, pooled by bag."""

    @takes_numbers("self")
    def __init__(
        self,
        dim: int,
        *,
        name: str | None = None,
        mode: Literal["sum", "mean", "max"] = "sum",
        padding_idx: int | None = None,
        rows: int = 0,
        **options: Unpack[TableOptions],
    ) -> None:
        """Create the module. Ids are in [0, rows), or any 64-bit ids for 0. `TableOptions` explains the options."""
        super().__init__(torch.empty(0, _checked(dim, _name(name, "EmbeddingBag") or "EmbeddingBag")))
        validation.choice(mode, "mode", ("sum", "mean", "max"))
        self.name, self.mode, self.padding_idx = name, mode, _padding(padding_idx, name or "EmbeddingBag")
        self.request = _request(dim, name or "EmbeddingBag", rows=rows, **options)

    def features(self, served: Sequence[ServedTable]) -> tuple[calls.LookupFeature, ...]:
        return (calls.LookupFeature(served[0].name, served[0], self.padding_idx),)

    def call(
        self, ids: torch.Tensor, offsets: torch.Tensor | None = None, weights: torch.Tensor | None = None
    ) -> calls.Call:
        return calls.bag_call(self.binding.features[0], ids, offsets, mode=self.mode, weights=weights)

    def forward(
        self,
        ids: torch.Tensor,
        offsets: torch.Tensor | None = None,
        per_sample_weights: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return pooled rows. With 2-D ids, each row is a bag. 1-D ids need offsets; without offsets, each id is
        a bag.
        """
        (out,) = self.binding.lookups.run(self, ids, offsets, weights=per_sample_weights)
        return out


class Embedding(_OpenTable):
    """nn.Embedding without a row count: a row of `dim` floats for any 64-bit id."""

    @takes_numbers("self")
    def __init__(
        self,
        dim: int,
        *,
        name: str | None = None,
        padding_idx: int | None = None,
        rows: int = 0,
        **options: Unpack[TableOptions],
    ) -> None:
        """Create the module. Lookups read the row of `padding_idx` but never train it. Ids are in [0, rows), or any
        64-bit ids for 0."""
        super().__init__(torch.empty(0, _checked(dim, _name(name, "Embedding") or "Embedding")))
        self.name, self.padding_idx = name, _padding(padding_idx, name or "Embedding")
        self.request = _request(dim, name or "Embedding", rows=rows, **options)

    def features(self, served: Sequence[ServedTable]) -> tuple[calls.LookupFeature, ...]:
        return (calls.LookupFeature(served[0].name, served[0], self.padding_idx, pull_padding=True),)

    def call(self, ids: torch.Tensor) -> calls.Call:
        return calls.row_call(self.binding.features[0], ids)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the row of each id: the shape of `ids`, and `dim`."""
        (out,) = self.binding.lookups.run(self, ids)
        return out


class EmbeddingBags(_OpenTable):
    """Many pooled tables behind one lookup call: the fastest way to embed a click log.

    ``forward(ids)`` takes int64 ids of shape [batch, tables], one id per bag, and returns [batch, sum of dims]. If
    the ids are a dict of ``name: ids`` or ``name: (ids, offsets)``, ``forward`` returns a dict of tensors [bags,
    dim].
    """

    @takes_numbers("self")
    def __init__(
        self,
        dims: Mapping[str, int] | Sequence[int],
        *,
        name: str | None = None,
        mode: Literal["sum", "mean", "max"] = "sum",
        output: Literal["concat", "list"] = "concat",
        **options: Unpack[TableOptions],
    ) -> None:
        """Create the tables of `dims`, which has row lengths by table name. A list names the tables by number."""
        super().__init__(torch.empty(0))
        if not isinstance(dims, Mapping | Sequence) or not dims:
            raise errors.BadInput(
                f"EmbeddingBags({dims!r}): expected at least one table, by name: EmbeddingBags({{'user': 16}}), "
                "or by number: EmbeddingBags([16, 8])"
            )
        named = dict(dims) if isinstance(dims, Mapping) else {str(i): dim for i, dim in enumerate(dims)}
        validation.choice(mode, "mode", ("sum", "mean", "max"))
        validation.choice(output, "output", ("concat", "list"))
        self.name, self.mode, self.output, self.dims = _name(name, "EmbeddingBags"), mode, output, named
        self.lengths = tuple(named.values())
        self.request_of = {
            table: _request(_checked(dim, f"EmbeddingBags {table!r}"), table, **options) for table, dim in named.items()
        }

    def requests(self, path: str) -> list[tuple[str, TableRequest]]:
        return [(f"{self.name or path}.{table}", request) for table, request in self.request_of.items()]

    def features(self, served: Sequence[ServedTable]) -> tuple[calls.LookupFeature, ...]:
        return tuple(calls.LookupFeature(table.name, table) for table in served)

    def state_names(self) -> list[str]:
        return [f"{table}." for table in self.dims]

    def call(self, ids: torch.Tensor) -> calls.LookupCall:
        ids = calls.as_ids(ids, self.name or "EmbeddingBags")
        if ids.dim() != 2 or ids.shape[1] != len(self.lengths):
            raise errors.BadInput(
                f"{self.name or 'EmbeddingBags'}: ids have shape {tuple(ids.shape)}; "
                f"expected [batch, {len(self.dims)}], a column a table"
            )
        call = row_batch.ColumnsCall(self.binding.features, ids, calls.POOLING[self.mode], self.lengths)
        if self.output == "concat":
            return call
        shapes: list[tuple[int, ...]] = [(ids.shape[0], dim) for dim in self.lengths]
        places = [(i, 0, dim) for i, dim in enumerate(self.lengths)]
        return calls.LookupCall(self.binding.features, call.ids, call.bags, shapes, places, (ids,))

    def forward(self, ids: torch.Tensor | Mapping[str, Any]) -> Any:
        if isinstance(ids, Mapping):
            return self._forward_named(ids)
        outs = self.binding.lookups.run(self, ids)
        return outs[0] if self.output == "concat" else list(outs)

    def _forward_named(self, ids: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        by_name = dict(zip(self.dims, self.binding.features, strict=True))
        parts = []
        for table, given in ids.items():
            if table not in by_name:
                raise errors.UnknownName("table", table, by_name)
            values, offsets = given if isinstance(given, tuple) else (given, None)
            parts.append(calls.bag_call(by_name[table], values, offsets, mode=self.mode))
        outs = self.binding.lookups.run_together(parts)
        return {table: out for table, (out,) in zip(ids, outs, strict=True)}
