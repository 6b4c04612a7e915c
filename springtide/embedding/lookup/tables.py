"""Describes the tables that a model's modules request, and the served tables that they get.

In: embedding/modules/modules.py makes one TableRequest per table. Out: a ServedTable, which worker/setup.py declares
and assigns. Next: embedding/modules/optimizers.py chooses the optimizer, embedding/lookup/lookup.py looks rows up.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from springtide import errors
from springtide.domain.model import tables
from springtide.embedding.device.arena import Arena

# floats to copy at once when initial rows are assigned (4 MiB); this size avoids a second copy of the table
FIRST_FLOATS = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRequest:
    """Options that a module requests for its table, before the table has a name."""

    dim: int
    rows: int = 0
    """Number of rows; ids lie in [0, rows). 0 accepts any 64-bit id."""
    optimizer: tables.OptimSpec | None = None
    """Table optimizer. None uses the optimizer of the parameter group that holds the weight."""
    lr: float | None = None
    """Learning rate. None uses the learning rate of the parameter group."""
    init: tables.Init = field(default_factory=tables.Init)
    dtype: tables.DType = "float32"
    min_count: int = 0
    ttl: int = 0
    capacity_rows: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class TablePlace:
    """Rows of one table in an arena (embedding/device/arena.py)."""

    arena: Arena
    first: int
    """Place of the row with id 0."""


@dataclass(slots=True, kw_only=True, eq=False)
class ServedTable:
    """Table on servers, as the model sees it."""

    spec: tables.TableSpec
    request: TableRequest
    paths: tuple[str, ...]
    """Paths in the model of the modules that use the table; a shared module has several."""
    weight: torch.nn.Parameter
    """Parameter that receives the gradient of the step's rows. All tables of one `EmbeddingBags` share this
    parameter.
    """
    initial: torch.Tensor | None = None
    """Weights before `job.prepare`, assigned once by the job; None means that rows start from the table's init."""
    initial_keys: torch.Tensor | None = None
    """Keys of the rows in `initial`. None means the keys 0, 1, 2 and so on."""
    sparse: bool = True
    """Whether plain PyTorch would make sparse gradients for the weight. True for tables without a module in torch."""
    declared: bool = False
    """True if the weight was built without memory, on the meta device or by `serving`."""
    gpu: torch.device | None = None
    """GPU that holds the model. Lookups return their outputs on this GPU. None means that outputs are in CPU memory."""
    place: TablePlace | None = None
    """Place of the rows in device memory. None means that the rows are on servers or in CPU memory."""
    on_cpu: str = ""
    """Reason why the rows cannot be in device memory; empty if they can."""

    @property
    def name(self) -> str:
        return self.spec.name

    def first_rows(self) -> Iterator[tuple[npt.NDArray[Any], npt.NDArray[Any]]]:
        """Yield the initial keys and rows of the table in parts, each with little memory of its own."""
        count = 0 if self.initial is None else len(self.initial)
        part = max(1, FIRST_FLOATS // self.spec.dim)
        for first in range(0, count, part):
            rows = self.initial[first : first + part]  # type: ignore[index]
            keys = np.arange(first, first + len(rows))
            if self.initial_keys is not None:
                keys = self.initial_keys[first : first + part].cpu().numpy()
            yield keys, rows.float().cpu().numpy()

    def release_first_rows(self) -> None:
        """Free the initial rows after the job has assigned them."""
        self.initial = self.initial_keys = None

    def follow_device(self, device: torch.device) -> None:
        """Make lookups return their outputs on the device to which the model has moved."""
        self.gpu = device if device.type == "cuda" else None


def place_of(table: ServedTable) -> TablePlace:
    assert table.place is not None
    return table.place


def named_spec(request: TableRequest, *, name: str, table_id: int) -> tables.TableSpec:
    return tables.TableSpec(
        id=table_id,
        name=name,
        dim=request.dim,
        dtype=request.dtype,
        init=request.init,
        optim=request.optimizer or tables.OptimSpec(),
        min_count=request.min_count,
        ttl=request.ttl,
        capacity_rows=request.capacity_rows,
    )


def _options(own: TableRequest, other: TableRequest) -> str:
    names = [field.name for field in fields(TableRequest) if getattr(own, field.name) != getattr(other, field.name)]
    return ", ".join(f"{name}={getattr(own, name)!r}" for name in names)


class TableBook:
    """Numbers tables in the order of the model, and rejects conflicting uses of a name."""

    def __init__(self) -> None:
        self.by_name: dict[str, ServedTable] = {}

    def add(
        self,
        request: TableRequest,
        *,
        name: str,
        path: str,
        weight: torch.nn.Parameter,
        initial: torch.Tensor | None = None,
        initial_keys: torch.Tensor | None = None,
    ) -> ServedTable:
        """Return the table of this request: a new table, or the existing table of the same name if the two match."""
        known = self.by_name.get(name)
        if known is None:
            spec = named_spec(request, name=name, table_id=len(self.by_name))
            self.by_name[name] = ServedTable(
                spec=spec, request=request, paths=(path,), weight=weight, initial=initial, initial_keys=initial_keys
            )
            return self.by_name[name]
        if known.request.dim != request.dim:
            raise errors.BadInput(
                f"table {name!r} is declared twice: dim {known.request.dim} at {known.paths[0]!r}, dim {request.dim} "
                f"at {path!r}; give one table another name"
            )
        if known.request != request:
            raise errors.BadInput(
                f"table {name!r} is declared twice with different options: {_options(known.request, request)} at "
                f"{known.paths[0]!r}, {_options(request, known.request)} at {path!r}; give both the same options, or "
                f"give one table another name"
            )
        if known.weight is not weight:
            raise errors.BadInput(
                f"table {name!r} is declared by two modules, at {known.paths[0]!r} and {path!r}; use one module in "
                f"both places, or give one table another name"
            )
        known.paths = (*known.paths, path)
        return known
