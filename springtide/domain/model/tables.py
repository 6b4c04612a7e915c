"""Pure. Specification of embedding tables: row type, initialization, optimizer, and when rows are created and
evicted."""

import math
from dataclasses import dataclass
from typing import Literal, get_args

import msgspec

from springtide import errors
from springtide.domain.core import validation

DType = Literal["float32", "float16", "bfloat16"]
InitKind = Literal["zeros", "uniform", "normal", "xavier"]
OptimKind = Literal["sgd", "adagrad", "rowwise_adagrad", "adam", "rmsprop", "ftrl"]

DTYPES: tuple[str, ...] = get_args(DType)
INIT_KINDS: tuple[str, ...] = get_args(InitKind)
OPTIM_KINDS: tuple[str, ...] = get_args(OptimKind)
# largest table id; in a request, higher bits than those of the id ask for other data of a row than its weights
LARGEST_TABLE_ID = 2**14 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Init:
    """Initial value of an untrained row: a hash of (seed, table, key), identical on every server."""

    kind: InitKind = "zeros"
    a: float = 0.0
    """uniform: lower bound; normal: mean; xavier: gain."""
    b: float = 0.0
    """uniform: upper bound; normal: standard deviation; xavier: row count used as fan-out."""

    def __post_init__(self) -> None:
        if self.kind not in INIT_KINDS:
            raise errors.UnknownName("init", str(self.kind), INIT_KINDS)
        got = f"init {(self.kind, self.a, self.b)}"
        if not (math.isfinite(self.a) and math.isfinite(self.b)):
            raise errors.BadInput(f"{got}: expected finite numbers")
        if self.kind == "uniform" and self.a > self.b:
            raise errors.BadInput(f"{got}: expected the low end first, then the high end")
        if self.kind in ("normal", "xavier") and self.b < 0:
            what = "standard deviation" if self.kind == "normal" else "row count"
            raise errors.BadInput(f"{got}: expected a {what} of 0 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimSpec:
    """Optimizer kernel of a table, fixed for the lifetime of the table. Each push carries the learning rate."""

    kind: OptimKind = "sgd"
    momentum: float = 0.0
    dampening: float = 0.0
    nesterov: bool = False
    beta1: float = 0.9
    beta2: float = 0.999
    eps_outside: bool = True
    """adam: if True, eps is added as in torch.optim.Adam; if False, as in SparseAdam."""
    decoupled_decay: bool = False
    """adam: if True, the optimizer is AdamW."""
    eps: float = 1e-8
    alpha: float = 0.99
    """rmsprop: smoothing constant."""
    ftrl_beta: float = 1.0
    l1: float = 0.0
    l2: float = 0.0
    initial_accumulator: float = 0.0
    """adagrad, rowwise_adagrad and ftrl: initial value of the accumulator."""

    def __post_init__(self) -> None:
        if self.kind not in OPTIM_KINDS:
            raise errors.UnknownName("table optimizer", self.kind, OPTIM_KINDS)


class Hyper(msgspec.Struct, frozen=True, kw_only=True):
    """Hyperparameters that a scheduler may change from push to push."""

    lr: float
    weight_decay: float = 0.0
    step: int = 0
    """adam: step count for the bias correction; 0: each row has a step count of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSpec:
    """Specification of one table of the job, identical on all servers."""

    id: int
    name: str
    dim: int
    dtype: DType = "float32"
    init: Init = Init()
    optim: OptimSpec = OptimSpec()
    min_count: int = 0
    """Number of gradients that a key needs before its row is created. With 0 or 1, the first gradient creates the
    row."""
    ttl: int = 0
    """Evict a row that is unused for this many ticks of the push clock; 0 means never."""
    capacity_rows: int = 0
    """Maximum rows of the whole job; 0 means no limit. Each slot gets an equal share of these rows, rounded up to whole
    rows.
    """

    def __post_init__(self) -> None:
        who = f"table {self.name!r}"
        if not 0 <= self.id <= LARGEST_TABLE_ID:
            raise errors.BadInput(
                f"{who}: id {self.id}; expected 0 to {LARGEST_TABLE_ID}, so at most {LARGEST_TABLE_ID + 1} tables a job"
            )
        validation.number(self.dim, f"{who}: dim", "a whole number of floats a row, 1 or more", least=1)
        if self.dtype not in DTYPES:
            raise errors.UnknownName(f"dtype ({who})", str(self.dtype), DTYPES)
        wanted = "a whole number, 0 (none) or more"
        validation.number(self.min_count, f"{who}: min_count", f"{wanted}, below 2^32", most=2**32 - 1)
        validation.number(self.ttl, f"{who}: ttl", wanted)
        validation.number(self.capacity_rows, f"{who}: capacity", wanted)


def parse_init(init: "str | tuple[str | float, ...] | Init", *, table: str) -> Init:
    """Parse ``"zeros"``, ``"uniform"``, ``("uniform", low, high)``, ``("normal", mean, std)`` or ``("xavier",
    gain)``."""
    if isinstance(init, Init):
        return init
    kind, *numbers = init if isinstance(init, tuple | list) and init else (init,)
    if kind not in INIT_KINDS:
        raise errors.UnknownName(f"init (table {table!r})", str(kind), INIT_KINDS)
    defaults = {"zeros": (), "uniform": (-0.05, 0.05), "normal": (0.0, 0.01), "xavier": (1.0, 0.0)}[str(kind)]
    if len(numbers) > len(defaults):
        raise errors.BadInput(f"table {table!r}: init {init!r} has {len(numbers)} numbers; expected {len(defaults)}")
    try:
        given = tuple(float(number) for number in numbers)
        a, b = (*given, *defaults[len(given) :], 0.0, 0.0)[:2]
        return Init(kind=kind, a=a, b=b)  # type: ignore[arg-type]
    except (ValueError, TypeError) as error:
        why = str(error) if isinstance(error, errors.BadInput) else f"init {init!r}: expected numbers after {kind!r}"
        raise errors.BadInput(f"table {table!r}: {why}, as in init=('normal', 0.0, 0.01)") from None


SHARED_KEY = "springtide: outline of the model"
"""Key under which a worker shares the outline with the master."""


class TableOutline(msgspec.Struct, frozen=True, kw_only=True):
    """Outline of one embedding table."""

    name: str
    paths: tuple[str, ...]
    """Modules of the model that look up rows in the table."""
    rows: int
    """Number of rows, with ids in [0, rows); 0 means unlimited."""
    dim: int = 0
    """Floats per row; 0 if an earlier version did not record the number."""


class DenseOutline(msgspec.Struct, frozen=True, kw_only=True):
    """Outline of one dense tensor, which is stored as `chunks` rows of a table, starting at key `first`. The last row
    is padded."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    table: int
    first: int
    chunks: int


class Outline(msgspec.Struct, frozen=True, kw_only=True):
    """Outline of the whole model: its tables and dense tensors."""

    tables: tuple[TableOutline, ...] = ()
    dense: tuple[DenseOutline, ...] = ()
    group: tuple[str, ...] = ()
    """Names of the tensors of a bsp group's model, in the order of the checkpoint; "" for a tensor outside the model's
    state dict."""
    in_workers: tuple[str, ...] = ()
    """State tensors of the model whose trained values are not on servers. In async mode these tensors are buffers, and
    each worker has its own copy.
    """


def check_same_dense(before: Outline, now: Outline) -> None:
    """Raise BadInput unless a model's dense tensors have the same places as in an earlier model with the same tables.

    Values are stored by position. If a layer was inserted, every later tensor would get the values of the tensor that
    was at its position before.
    """
    places = {(part.table, part.first): part for part in before.dense}
    for part in now.dense:
        held = places.get((part.table, part.first), part)
        if (held.name, held.shape) != (part.name, part.shape):
            raise errors.BadInput(
                f"the model has the dense tensor {part.name!r} of shape {list(part.shape)} where the servers have "
                f"{held.name!r} of shape {list(held.shape)}: all workers, and a run that continues another, need the "
                "same dense layers in the same order. Embedding tables may be added"
            )
