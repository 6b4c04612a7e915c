"""Client of the tables, which are in this process or on servers. Every call to the native core goes through this
client.

In: table specs, addresses of ids, parts of a step. Out: rows, and the acknowledgement of each push. Next:
embedding/lookup/lookup.py uses the client for a model's lookups. worker/step uses the client for dense chunks and
pushes.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Union

import numpy as np
import numpy.typing as npt

from springtide import _native, errors
from springtide.domain.core.roles import Placement
from springtide.domain.model import tables
from springtide.embedding.device.request_line import LatePart, LatePush, RequestLine
from springtide.rpc.transport.addresses import parse as parse_address

if TYPE_CHECKING:  # import torch only for types, because servers use this module without torch
    from springtide.embedding.lookup.device_tables import DeviceTables
    from springtide.embedding.lookup.row_gradients import DeviceGradients

Part = _native.StepRows | _native.DenseRows
SentPush = _native.Pending | LatePush
RowGradients = Union[_native.StepRows, LatePart, "DeviceGradients"]
Keys = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]
Behind = Callable[[_native.Backend], _native.Backend]
BeforeRead = Callable[[Sequence[int]], None]
READ_CHUNK_ROWS = 1 << 18
READ_CHUNK_BYTES = 1 << 26
"""Limits on the rows and bytes of one read or assign request. These limits bound the size of frames and the memory of a
request."""
IMAGE = 0x8000
"""Flag of a table id (kImage in cpp/base/types.h): the request is for images, which are rows with optimizer state."""
WHOLE_TABLE_BYTES = 1 << 29
"""Default size limit, in bytes, of a table that a script may read whole through its `weight`."""


CONNECT_OPTIONS: dict[str, Any] = {
    "epoch": 0,
    "rank": 0,
    "incarnation": 0,
    "generation": 0,
    "connect_timeout_s": 30.0,
    "request_timeout_s": 60.0,
    "shared_memory": True,
}


def chunk_rows(dim: int) -> int:
    return max(1, min(READ_CHUNK_ROWS, READ_CHUNK_BYTES // (4 * dim)))


class TableClient:
    """The tables of one job, as this process sees them."""

    def __init__(
        self,
        backend: _native.Backend,
        *,
        threads: int = 1,
        behind: Behind | None = None,
        whole_table_bytes: int = WHOLE_TABLE_BYTES,
        loads: bool = True,
        before_read: BeforeRead = lambda tables: None,
    ) -> None:
        """Create a client over `backend`.

        `threads` threads work on a large batch. `behind` wraps the tables in a row cache. `loads` allows
        load_state_dict to write rows. `before_read` is called with the tables of every read that was not announced,
        and may refuse the read.
        """
        self.tables = backend
        """Backend that holds the tables."""
        self.backend: _native.Backend = backend if behind is None else behind(backend)
        """Backend that receives requests: the row cache if there is one, else `tables`."""
        self.source = _native.RowSource(self.backend, threads)
        copies = isinstance(self.backend, _native.VersionedBackend)
        self._servers = _native.RowSource(backend, threads) if copies else self.source
        """Source of exact reads outside a step, which bypasses a cache, because cached copies may lack updates."""
        self.before_read = before_read
        self.whole_table_bytes = whole_table_bytes
        self.loads = loads
        self.on_device: DeviceTables | None = None
        """Tables whose rows are in GPU memory, in a job without servers."""
        self._line = RequestLine()
        self._specs: dict[str, tables.TableSpec] = {}
        self.age = 0
        """Highest age clock of the servers when tables were declared. An async worker counts on from there, so that
        rows keep aging after a restart or in a run that continues another."""

    @classmethod
    def local(
        cls, *, slots: int = 1024, seed: int = 0, threads: int = 1, servers: int = 1, **options: Any
    ) -> "TableClient":
        """Create tables in this process. With several `servers`, which tests use, each server is a store with a share
        of the slots."""
        backend = _native.LocalBackend(slots=slots, seed=seed, threads=threads, servers=servers)
        return cls(backend, threads=threads, **options)

    @classmethod
    def connect(
        cls,
        addresses: Sequence[tuple[str, int]],
        *,
        secret: bytes,
        placement: Sequence[int] | npt.NDArray[Any],
        threads: int = 1,
        certificates: str = "",
        client: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> "TableClient":
        """Connect to tables on servers: (host, port) of each server, the server of each slot, and the job's secret.

        `client`: options of this class. `options`: options of `_native.RemoteBackend`. ServerUnreachable
        names the server that does not answer within `connect_timeout_s`. If a TCP connection breaks later, the client
        reconnects for up to `reconnect_s` and resends unanswered requests.
        """
        backend = _native.RemoteBackend(
            hosts=[host for host, _ in addresses],
            ports=[port for _, port in addresses],
            secret=secret,
            server_of_slot=[int(server) for server in placement],
            tls=certificates,
            **{**CONNECT_OPTIONS, **options},
        )
        return cls(backend, threads=threads, **(client or {}))

    def stats(self) -> dict[str, Any]:
        """Return sums since the start: requests, keys, bytes, and nanoseconds by term. Empty if tables are in this
        process.
        """
        return self.tables.stats() if isinstance(self.tables, _native.RemoteBackend) else {}

    @property
    def servers(self) -> int:
        return self.tables.servers

    @property
    def specs(self) -> tuple[tables.TableSpec, ...]:
        return tuple(self._specs.values())

    def declare(self, specs: Iterable[tables.TableSpec]) -> None:
        fresh = []
        for spec in specs:
            known = self._specs.get(spec.name)
            if known is not None and known != spec:
                raise errors.BadInput(f"table {spec.name!r} is declared twice: {_difference(known, spec)}")
            fresh.append(spec)
        self.age = max(self.age, self.backend.declare([native_spec(spec) for spec in fresh]))
        self._specs.update({spec.name: spec for spec in fresh})

    def table(self, name: str) -> tables.TableSpec:
        if name not in self._specs:
            raise errors.UnknownName("table", name, self._specs)
        return self._specs[name]

    def gather(self, plan: _native.StepPlan, *ids: Any, after_step: int = 0) -> _native.StepRows:
        """Start pulling the unique rows of a batch.

        `ids` is a list with (address, count, stride) of int64 ids for each feature, or address, rows and strides of
        one id tensor with a column per feature.
        """
        step = _native.StepRows(self.source, plan, *ids)
        self.pull([step], after_step=after_step)
        return step

    def dense(
        self, table_ids: npt.ArrayLike, keys: npt.ArrayLike, dims: npt.ArrayLike, *, exact: bool = False
    ) -> _native.DenseRows:
        """Return the rows of the given keys, in the order of the keys. `exact` reads the values on the servers, not
        those in the row cache."""
        keys = np.ascontiguousarray(keys, dtype=np.int64)
        return _native.DenseRows(
            self._servers if exact else self.source,
            np.ascontiguousarray(np.broadcast_to(np.asarray(table_ids, dtype=np.uint16), keys.shape)),
            keys,
            np.ascontiguousarray(np.broadcast_to(np.asarray(dims, dtype=np.uint32), keys.shape)),
        )

    def pull(self, parts: Sequence[Part], *, after_step: int = 0) -> None:
        """Start pulling all parts with one request per server; wait with ``part.wait()``."""
        self._line.settle()
        _native.pull(list(parts), after_step)

    def gather_later(
        self, find: "Callable[[], _native.StepRows]", *, after_step: int = 0
    ) -> "tuple[Future[_native.StepRows], Future[None]]":
        """Find the unique rows of a batch in another thread, and then start to pull them. Return both as futures."""
        found = self._line.find(find)
        return found, self._line.submit(lambda: _native.pull([found.result()], after_step))

    def pull_later(self, parts: Sequence[Part], *, after_step: int = 0) -> "Future[None] | None":
        """Like `pull`, but the request may still wait for the GPU. Wait for the result of the future first."""
        asked = list(parts)
        if self._line.busy:
            return self._line.submit(lambda: _native.pull(asked, after_step))
        _native.pull(asked, after_step)
        return None

    def push(
        self,
        parts: "Sequence[Part | LatePart | DeviceGradients]",
        *,
        step: int,
        hyper: Sequence[tuple[int, float, float, int]],
        bsp: bool = False,
        batches: Sequence[tuple[int, int, int, int]] = (),
        clock: int = 0,
        unique: bool = True,
    ) -> SentPush:
        """Push the gradients of all parts with one request per server, and the identities of their batches.

        `hyper` holds (table id, lr, weight decay, step) by table, `batches` (samples of the shard or 0, shard, first,
        count). The batches count as trained when ``wait()`` of the result returns, because every server then has them.
        A slot that already has all of these batches skips the push. A slot that has only some of these batches refuses
        the push (PartlyApplied).
        """
        sent = [part for part in parts if isinstance(part, _native.StepRows | _native.DenseRows | LatePart)]
        others: Any = [part for part in parts if not isinstance(part, _native.StepRows | _native.DenseRows | LatePart)]
        self.train(others, hyper)
        identities, rates = list(batches), list(hyper)

        def send() -> _native.Pending:
            native = [part.finish_copy() if isinstance(part, LatePart) else part for part in sent]
            return self.backend.push(native, step, bsp, unique, clock, identities, rates)

        if any(isinstance(part, LatePart) for part in sent):
            return self._line.submit_push(send)
        self._line.settle()
        return send()

    def train(self, rows: "Sequence[DeviceGradients]", hyper: Sequence[tuple[int, float, float, int]]) -> None:
        """Make one optimizer step for rows in device memory."""
        if rows and self.on_device is not None:
            self.on_device.push(rows, hyper)

    @property
    def ahead_of_servers(self) -> bool:
        """Return True if rows in device memory have changes that the servers lack."""
        return self.on_device is not None and self.on_device.changed

    def changed_parts(self) -> Iterator[list[Part]]:
        """Return what writes the changed rows in device memory back to the servers, one push after another."""
        for portion in () if self.on_device is None else self.on_device.changed_rows():
            parts: list[Part] = []
            for table, ids, images in portion:
                part = self.dense(table.id | IMAGE, ids, images.shape[1])
                part.grads()[:] = images.reshape(-1)
                parts.append(part)
            yield parts

    def reroute(self, placement: Placement, addresses: Sequence[str] = ()) -> None:
        """Use a new placement. Usually, requests already go to the right server, because a server that refuses a slot
        names the new owner."""
        if isinstance(self.tables, _native.RemoteBackend) and placement.epoch >= self.tables.epoch:
            known = {rank: address for rank, address in enumerate(addresses) if address}
            self.tables.reroute(placement.epoch, list(placement.server_of_slot), known)

    def readdress(self, addresses: Sequence[str], lives: Sequence[int]) -> None:
        """Send unanswered requests to the new addresses of restarted servers; an empty address means that the server is
        down."""
        if isinstance(self.tables, _native.RemoteBackend):
            for server, (address, life) in enumerate(zip(addresses, lives, strict=False)):
                if address and life:
                    self.tables.readdress(server, life, *parse_address(address))

    def read(self, name: str, keys: npt.NDArray[Any]) -> Floats:
        spec = self.table(name)
        keys = _as_keys(keys, name)
        self.before_read([spec.id])
        if self.on_device is not None and name in self.on_device.by_name:
            return self.on_device.read(name, keys)
        out = np.empty((len(keys), spec.dim), dtype=np.float32)
        chunk_size = chunk_rows(spec.dim)
        for first in range(0, len(keys), chunk_size):
            chunk = keys[first : first + chunk_size]
            part = self.dense(spec.id, chunk, spec.dim, exact=True)
            self.pull([part])
            out[first : first + len(chunk)] = part.rows().reshape(-1, spec.dim)
        return out

    def images(self, name: str, keys: Keys, floats: int, *, after_step: int = 0) -> Floats:
        """Return the images of rows: weights, and then the optimizer state, together `floats` numbers."""
        part = self.dense(self.table(name).id | IMAGE, keys, floats)
        self.pull([part], after_step=after_step)
        rows: Floats = part.rows().reshape(-1, floats)
        return rows

    def assign(self, name: str, keys: npt.NDArray[Any], rows: npt.NDArray[Any], *, keep: bool = False) -> None:
        """Set the weights of these rows and reset their optimizer state. With `keep`, change only rows that do not
        exist yet."""
        self._line.settle()
        spec = self.table(name)
        keys = _as_keys(keys, name)
        self.before_read([spec.id])
        if rows.shape != (len(keys), spec.dim):
            raise errors.BadInput(
                f"table {name!r}: rows of shape {tuple(rows.shape)} for {len(keys)} keys; "
                f"expected ({len(keys)}, {spec.dim})"
            )
        if self.on_device is not None and name in self.on_device.by_name:
            self.on_device.assign(name, keys, rows)
            return
        chunk_size = chunk_rows(spec.dim)
        for first in range(0, len(keys), chunk_size):
            chunk = keys[first : first + chunk_size]
            part = self.dense(spec.id, chunk, spec.dim)
            part.rows()[:] = rows[first : first + len(chunk)].reshape(-1)
            self.backend.assign([part], keep)

    def finish_first_values(self, table_ids: Iterable[int]) -> None:
        """Mark the initial values of these tables as complete, so that slots ignore later initial values (`assign` with
        `keep`). Without this mark, a worker that was suspended while it assigned values could overwrite rows that were
        trained or evicted meanwhile.
        """
        under_way = [
            self.tables.push([], 0, False, True, 0, [(0, _native.FIRST_VALUES, table, 1)], []) for table in table_ids
        ]
        for pending in under_way:
            pending.wait()

    def scan(self, name: str) -> tuple[Keys, Floats]:
        spec = self.table(name)
        self.before_read([spec.id])
        if self.on_device is not None and name in self.on_device.by_name:
            ids = np.arange(self.on_device.by_name[name].request.rows)
            return ids, self.on_device.read(name, ids)
        self._line.settle()
        keys, rows = self.backend.scan(spec.id)
        order = np.argsort(keys, kind="stable")
        return keys[order], rows.reshape(-1, spec.dim)[order]


def _as_keys(keys: npt.NDArray[Any], name: str) -> Keys:
    keys = np.asarray(keys)
    if keys.ndim != 1 or not np.issubdtype(keys.dtype, np.integer):
        raise errors.BadInput(
            f"table {name!r}: keys must be a 1-D array of integers, got {keys.dtype} of shape {keys.shape}"
        )
    return np.ascontiguousarray(keys, dtype=np.int64)


def _difference(known: tables.TableSpec, spec: tables.TableSpec) -> str:
    fields = [field for field in known.__slots__ if getattr(known, field) != getattr(spec, field)]
    return ", ".join(f"{field} {getattr(known, field)!r} and {getattr(spec, field)!r}" for field in fields)


_KERNEL = tuple(field.name for field in dataclasses.fields(tables.OptimSpec) if field.name != "kind")


def native_spec(spec: tables.TableSpec) -> _native.TableSpec:
    return _native.TableSpec(
        id=spec.id,
        name=spec.name,
        dim=spec.dim,
        dtype=spec.dtype,
        init=(spec.init.kind, spec.init.a, spec.init.b),
        optimizer=spec.optim.kind,
        min_count=spec.min_count,
        ttl=spec.ttl,
        capacity_rows=spec.capacity_rows,
        **{name: getattr(spec.optim, name) for name in _KERNEL},
    )


def plain_spec(spec: _native.TableSpec) -> tables.TableSpec:
    """Convert a native spec back to a `TableSpec`. Numbers are rounded to single precision, so that converting there
    and back gives the same spec."""
    kernel: dict[str, Any] = {"kind": spec.optimizer, **{name: getattr(spec, name) for name in _KERNEL}}
    kind, a, b = spec.init
    dtype: Any = spec.dtype
    return tables.TableSpec(
        id=spec.id,
        name=spec.name,
        dim=spec.dim,
        dtype=dtype,
        init=tables.Init(kind=kind, a=a, b=b),
        optim=tables.OptimSpec(**kernel),
        min_count=spec.min_count,
        ttl=spec.ttl,
        capacity_rows=spec.capacity_rows,
    )
