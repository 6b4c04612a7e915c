"""Sums the gradients of a bsp step in the order of the batch, for any assignment of samples to ranks.

In: each rank's part of a batch, which the loop gets in units of a few samples. Out: sums of rows and dense gradients
in the order of the units, equal on every rank. The gradients of a row are summed by the lowest rank that has the
row. Each slice of the dense parameters is summed by one rank. Design: docs/design/batch-order.md.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from springtide import _native, errors
from springtide.embedding.lookup.lookup import Lookups
from springtide.embedding.lookup.table_client import TableClient
from springtide.worker.bsp.allreduce import Reducer, noticing_loss
from springtide.worker.input.batch_plan import BatchUnit, ReadBatch
from springtide.worker.input.batch_rows import SamplePicker
from springtide.worker.link.optimizer import JobOptimizer

Tables = NDArray[np.uint16]
Numbers = NDArray[np.int64]
Floats = NDArray[np.float32]
NOT_STEPPED = (
    'the loop asked for its next samples without optimizer.step(): with reduction="batch-order" it gets a batch a few '
    "samples at a time, and must step after each part. To train on more samples at once, raise batch_size"
)
CHANGED = (
    '{what} changed in the middle of a batch: with reduction="batch-order" the loop gets a batch a few samples at a '
    "time, and trains the batch after the last part. Step schedulers once an epoch, not after every optimizer.step()"
)
SCHEDULED = {"lr": "the learning rate", "weight_decay": "weight_decay", "momentum": "momentum", "betas": "betas"}
"""Options of a parameter group that schedulers change, with the names that messages use for them."""
Rate = tuple[str, list[float]]
Stepped = tuple[list[int], list[Rate]]
"""Optimizers that have stepped, by id, with their learning rates."""
ACROSS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
BY_CHANCE = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
OPTION = 'reduction="batch-order"'


class RowGradients(NamedTuple):
    """Gradients of rows in one flat array. All rows of a table have the same length."""

    tables: Tables
    keys: Numbers
    places: Numbers
    """For each gradient, the position of its unit in the batch."""
    dims: Numbers
    """Number of floats of each gradient."""
    grads: Floats

    def where(self, chosen: NDArray[np.bool_]) -> "RowGradients":
        here = np.repeat(chosen, self.dims)
        return RowGradients(
            self.tables[chosen], self.keys[chosen], self.places[chosen], self.dims[chosen], self.grads[here]
        )

    def to_bytes(self) -> bytes:
        return msgspec.msgpack.encode([column.tobytes() for column in self])

    @staticmethod
    def from_bytes(parcel: bytes) -> "RowGradients":
        columns: Any = zip(msgspec.msgpack.decode(parcel), NO_ROWS, strict=True)
        return RowGradients(*(np.frombuffer(column, empty.dtype) for column, empty in columns))


NO_ROWS = RowGradients(
    np.empty(0, np.uint16), np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.float32)
)


def join_rows(parts: Sequence[RowGradients]) -> RowGradients:
    return RowGradients(*(np.concatenate(columns) for columns in zip(*parts, strict=True))) if parts else NO_ROWS


def distinct_rows(tables: Tables, keys: Numbers) -> tuple[Numbers, Numbers]:
    """Return the index of each (table, key) among the sorted distinct pairs, and the first position of each pair."""
    order = np.lexsort((keys, tables))  # the sort is stable, so the first of several equal pairs stays first
    new = np.ones(len(keys), dtype=bool)
    new[1:] = (np.diff(keys[order]) != 0) | (np.diff(tables[order]) != 0)
    number = np.empty(len(keys), dtype=np.int64)
    number[order] = np.cumsum(new) - 1
    return number, order[new]


def sum_rows(rows: RowGradients) -> RowGradients:
    """Return one gradient per row, summed in the order of its units. The sum starts with the first gradient, not with
    zero, so that no bit changes."""
    number, first = distinct_rows(rows.tables, rows.keys)
    order = np.lexsort((rows.places, number))
    number = number[order]
    # index of each gradient among the gradients of its row
    turn = np.arange(len(order)) - np.searchsorted(number, number)
    dims = rows.dims[first]
    ends, begins = np.cumsum(rows.dims), np.cumsum(dims) - dims
    out = np.empty(int(dims.sum()), dtype=np.float32)
    by_turn = np.argsort(turn, kind="stable")
    cuts = np.searchsorted(turn[by_turn], np.arange(1, int(turn.max(initial=0)) + 1))
    for nth, chosen in enumerate(np.split(by_turn, cuts)):
        for dim in np.unique(dims[number[chosen]]):
            mine = chosen[dims[number[chosen]] == dim]
            columns = np.arange(dim)
            to = begins[number[mine]][:, None] + columns
            came = rows.grads[(ends[order[mine]] - dim)[:, None] + columns]
            out[to] = came if nth == 0 else out[to] + came
    return RowGradients(rows.tables[first], rows.keys[first], np.zeros(len(first), np.int64), dims, out)


def home_ranks(ids: Sequence[tuple[Tables, Numbers]], rank: int) -> Numbers:
    """Return, for each row of `rank`, the rank that sums the row's gradients: the lowest rank that has the row. `ids`
    has the rows of every rank.
    """
    ranks = np.repeat(np.arange(len(ids)), [len(keys) for _, keys in ids])
    number, first = distinct_rows(
        np.concatenate([table_ids[0] for table_ids in ids]), np.concatenate([table_ids[1] for table_ids in ids])
    )
    mine: Numbers = ranks[first][number[ranks == rank]]
    return mine


def exchange_bytes(group: Any, parcels: Sequence[bytes]) -> list[bytes]:
    """Send one buffer to every rank, and receive one buffer from every rank. Raise `GroupChanged` if a rank is lost."""
    sizes = torch.tensor([len(parcel) for parcel in parcels], device="cpu")
    coming = torch.empty_like(sizes)
    with noticing_loss():
        group.alltoall_base(coming, sizes, [], []).wait()
        leaving = torch.from_numpy(np.frombuffer(b"".join(parcels), np.uint8).copy())  # the tensor may be empty
        arriving = torch.empty(int(coming.sum()), dtype=torch.uint8, device="cpu")
        group.alltoall_base(arriving, leaving, coming.tolist(), sizes.tolist()).wait()
    return [part.numpy().tobytes() for part in arriving.split(coming.tolist())]


class OrderedReducer(Reducer):
    """Sums the gradients of units in order. A unit without a gradient for a parameter counts as zeros."""

    def __init__(self, params: Sequence[nn.Parameter], group: Any, *, words: int = 0) -> None:
        super().__init__(params, group, words=words)
        self._units: list[tuple[int, list[torch.Tensor]]] = []
        self._present: list[list[bool]] = []
        self.drop()

    def keep(self, place: int, share: float) -> None:
        if not self._units:
            self.drop()
        flats = []
        for members, bucket, present in zip(self._members, self._buckets, self._present, strict=True):
            grads = [self.params[index].grad for index in members]
            flat = torch.zeros(sum(view.numel() for view in bucket.views), dtype=bucket.flat.dtype, device="cpu")
            parts = flat.split([view.numel() for view in bucket.views])
            for number, (grad, part) in enumerate(zip(grads, parts, strict=True)):
                if grad is not None:
                    part.copy_((grad.to_dense() if grad.is_sparse else grad).reshape(-1))
                    present[number] = True
            flats.append(flat.mul_(share))
        self._units.append((place, flats))

    def drop(self) -> None:
        self.follow_moves()
        self._units = []
        self._present = [[False] * len(members) for members in self._members]

    def load(self, *, share: float, skip: bool) -> None:
        self._load_flags(skip, self._present)

    def reduce(self) -> bool:
        """Replace each `p.grad` with the sum of all units in order. Return True if any rank wants to skip the step."""
        if self._sum(lambda bucket: bucket.flags):
            return True
        for number, bucket in enumerate(self._buckets):
            units = [(place, flats[number]) for place, flats in self._units]
            total = sum_in_order(units) if self.group is None else sum_units(self.group, units)
            bucket.flat[: len(total)] = total
        self.deal()
        return False


def sum_in_order(units: Sequence[tuple[int, torch.Tensor]]) -> torch.Tensor:
    first, *others = [flat for _, flat in sorted(units, key=lambda unit: unit[0])]
    total = first.clone()
    for flat in others:
        total += flat
    return total


def sum_units(group: Any, units: Sequence[tuple[int, torch.Tensor]]) -> torch.Tensor:
    """Return the sum over the units of all ranks, in order. Every rank has at least one unit."""
    if not units[0][1].numel():  # on every rank, the model has no parameter of this data type
        return units[0][1]
    ranks, (floats, kind) = group.size(), (units[0][1].numel(), units[0][1].dtype)
    chunk = -(-floats // ranks)
    bounds = [(min(floats, rank * chunk), min(floats, (rank + 1) * chunk)) for rank in range(ranks)]
    parcels = [
        msgspec.msgpack.encode([(place, to_bytes(flat[begin:end])) for place, flat in units]) for begin, end in bounds
    ]
    came = [unit for parcel in exchange_bytes(group, parcels) for unit in msgspec.msgpack.decode(parcel)]
    mine = [(place, from_bytes(values, kind)) for place, values in came]
    slices = exchange_bytes(group, [to_bytes(sum_in_order(mine))] * ranks)
    return torch.cat([from_bytes(part, kind) for part in slices])


def to_bytes(flat: torch.Tensor) -> bytes:
    return flat.contiguous().view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def from_bytes(values: bytes, kind: torch.dtype) -> torch.Tensor:
    return torch.frombuffer(bytearray(values), dtype=kind) if values else torch.empty(0, dtype=kind, device="cpu")


class UnitGradients:
    """Gradients of the units of a step. Each `job.prepare` with sums in batch order creates one object of this
    class.
    """

    def __init__(self, client: TableClient, reducer: OrderedReducer) -> None:
        self._client, self._reducer = client, reducer
        self._now: BatchUnit | None = None
        self._rows: list[RowGradients] = []
        self._as: Stepped | None = None
        self._done = True

    @property
    def share(self) -> float:
        return 1.0 if self._now is None else self._now.share

    def begin(self, unit: BatchUnit) -> None:
        self._now, self._done = unit, False

    def keep(self, stepped: Sequence[JobOptimizer], parts: Sequence[_native.StepRows]) -> bool:
        """Store the gradients of the current unit after the loop has stepped. Return True if the unit was this rank's
        last."""
        if self._now is None:
            return True
        seen = (
            [id(optimizer) for optimizer in stepped],
            [rate for optimizer in stepped for rate in rates_of(optimizer)],
        )
        if self._as is not None and self._as != seen:
            raise errors.BadInput(CHANGED.format(what=changed(self._as, seen)))
        self._as, self._done = seen, True
        for part in parts:
            tables, keys, dims, grads = part.pushed()
            places = np.full(len(keys), self._now.place, dtype=np.int64)
            self._rows.append(RowGradients(tables, keys, places, dims.astype(np.int64), grads))
        self._reducer.keep(self._now.place, self._now.share)
        return self._now.last

    def check_kept(self) -> None:
        """Raise BadInput if the loop asks for the next unit before it has stepped on the current unit."""
        if not self._done:
            raise errors.BadInput(NOT_STEPPED)

    def parts(self) -> list[_native.DenseRows]:
        """Return what this rank pushes: the rows that no lower rank has, summed over the units of all ranks."""
        mine, group = join_rows(self._rows), self._reducer.group
        if group is not None:
            mine = exchanged(group, mine)
        if not len(mine.keys):
            return []
        mine = sum_rows(mine)
        part = self._client.dense(mine.tables, mine.keys, mine.dims)
        part.grads()[:] = mine.grads
        return [part]

    def drop(self) -> None:
        self._now, self._rows, self._as, self._done = None, [], None, True
        self._reducer.drop()


def rates_of(optimizer: JobOptimizer) -> list[Rate]:
    return [
        (label, [float(value) for value in (group[name] if isinstance(group[name], tuple | list) else [group[name]])])
        for group in optimizer.param_groups
        for name, label in SCHEDULED.items()
        if name in group
    ]


def changed(before: Stepped, now: Stepped) -> str:
    if before[0] != now[0]:
        return "the optimizers that step"
    pairs = zip(before[1], now[1], strict=False)
    return next((label for (label, old), (_, new) in pairs if old != new), "the parameter groups")


def exchanged(group: Any, mine: RowGradients) -> RowGradients:
    ranks, rank = group.size(), group.rank()
    number, first = distinct_rows(mine.tables, mine.keys)
    ids = msgspec.msgpack.encode([mine.tables[first].tobytes(), mine.keys[first].tobytes()])
    came = [msgspec.msgpack.decode(parcel) for parcel in exchange_bytes(group, [ids] * ranks)]
    known = [(np.frombuffer(tables, np.uint16), np.frombuffer(keys, np.int64)) for tables, keys in came]
    home = home_ranks(known, rank)[number]
    parcels = [mine.where(home == peer).to_bytes() for peer in range(ranks)]
    return join_rows([RowGradients.from_bytes(parcel) for parcel in exchange_bytes(group, parcels)])


class UnitSplitter:
    """Splits batches into units. Each `job.prepare` creates one such object."""

    def __init__(self, lookups: Lookups, picker: SamplePicker, unit: int) -> None:
        self.unit = unit
        self._lookups, self._picker = lookups, picker

    def cut(self, feed: Iterator[ReadBatch]) -> Iterator[ReadBatch]:
        for handed in feed:
            if handed.batch is None:
                yield handed
            else:
                yield from self.units(handed)

    def units(self, handed: ReadBatch) -> Iterator[ReadBatch]:
        order, jagged = handed.order, self._jagged(handed.batch)
        assert order.places is not None and order.whole is not None
        numbers = order.places // self.unit
        begins = np.flatnonzero(np.diff(numbers, prepend=-1))
        for begin, end in zip(begins, [*begins[1:], len(numbers)], strict=True):
            mine = np.arange(begin, end)
            batch = self._picker.pick(handed.batch, order.indices, mine, jagged=jagged)
            share = len(mine) / len(order.whole)
            unit = BatchUnit(int(numbers[begin]), share, first=begin == 0, last=end == len(numbers))
            # the results of data workers belong to this rank's whole part of the batch, not to one unit
            yield replace(handed, batch=batch, unit=unit, crossing=None)

    def _jagged(self, batch: Any) -> bool:
        """Return True if the batch may not have one row per sample, or if its rows are not known yet."""
        if not self._lookups.settled:
            return True
        return any(bag[3] for call in self._lookups.announced(batch) for bag in call.bags)


def refuse_mode(mode: str, *, indexed: bool) -> None:
    if mode == "async":
        raise errors.BadInput(f'{OPTION} needs sync="bsp": in async mode every worker\'s gradients are applied alone')
    if mode == "bsp" and not indexed:
        raise errors.BadInput(
            f"{OPTION} needs a data set whose samples have indices: samples of an IterableDataset or a stream have no "
            "position in a batch that all workers know"
        )


def refuse_model(model: nn.Module) -> None:
    """Refuse layers that look across samples or draw random numbers, because the gradient of a sample must depend only
    on the sample and the parameters."""
    for name, module in model.named_modules():
        what = f"layer {name!r} ({type(module).__name__})"
        if isinstance(module, ACROSS):
            raise errors.BadInput(
                f"{OPTION}: {what} looks across samples, and keeps statistics of each worker's samples. Use "
                'LayerNorm, or reduction="rank-order"'
            )
        chance = module.p if isinstance(module, BY_CHANCE) else getattr(module, "dropout", 0.0)
        if isinstance(chance, float) and chance > 0:
            raise errors.BadInput(
                f"{OPTION}: {what} draws random numbers, so its result depends on which worker has the sample. "
                'Set its probability to 0, or use reduction="rank-order"'
            )


def refuse_batch(batch_size: int, unit: int, workers: int) -> None:
    if batch_size < unit * workers:
        raise errors.BadInput(
            f'reduction="batch-order:{unit}" with a batch of {batch_size} samples: each of {workers} workers needs '
            f"{unit} of them. Raise batch_size, or train fewer samples at a time"
        )
