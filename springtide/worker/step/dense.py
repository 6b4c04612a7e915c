"""Dense parameters: on servers in an async job, in this process in a bsp group or without a cluster.

On servers, dense parameters are split into chunks, pushed with the tables' gradients, and pulled a step later. In this
process, the user's optimizer updates the parameters after the group's all-reduce. In: calls of the step, when the loop
has stepped.
Next: step.py.
"""

import math
import weakref
from collections.abc import Callable, Iterator, Sequence, Set
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from springtide import _native, errors
from springtide.domain.model.tables import TableSpec
from springtide.embedding.device.copies import copies_of, register, unregister
from springtide.embedding.device.request_line import LatePart
from springtide.embedding.lookup.device_tables import DeviceTables
from springtide.embedding.lookup.table_client import TableClient
from springtide.embedding.modules import optimizers
from springtide.worker.bsp.allreduce import Reducer
from springtide.worker.link.optimizer import JobOptimizer, is_watched
from springtide.worker.step.hyperparams import TableRates

# steps between two checks for NaN; checking rarely is enough, because NaN in a gradient stays in the parameters and
# returns in later gradients
STEPS_A_CHECK = 16
# floats per row (4 KiB): large enough to transfer efficiently, and small enough to spread a layer over servers
CHUNK = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseGroup:
    """Dense parameters of one optimizer group, with their names in the model."""

    optimizer: torch.optim.Optimizer
    index: int
    members: tuple[tuple[str, nn.Parameter], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseSlot:
    """Location of one parameter: `chunks` rows of a table, from key `first` on. No other parameter uses these rows."""

    name: str
    param: torch.Tensor
    table: int
    first: int
    chunks: int
    optimizer: torch.optim.Optimizer | None = None


def declare(client: TableClient, groups: Sequence[DenseGroup], rates: TableRates) -> list[DenseSlot]:
    """Declare one table per group, which the kernel of the group's optimizer trains. Each parameter gets separate
    chunks.
    """
    held: list[DenseSlot] = []
    refuse_shared(groups, rates.optimizers)
    for number, group in enumerate(groups):
        kernel = optimizers.spec_of(group.optimizer, group.optimizer.param_groups[group.index])
        table = next_id(client)
        client.declare([TableSpec(id=table, name=f"dense:{number}", dim=CHUNK, optim=kernel)])
        rates.follow_dense(group.optimizer, group.index, table)
        first = 0
        for name, param in group.members:
            check_dtype(name, param)
            chunks = max(1, -(-param.numel() // CHUNK))
            held.append(
                DenseSlot(name=name, param=param, table=table, first=first, chunks=chunks, optimizer=group.optimizer)
            )
            first += chunks
    return held


def declare_still(client: TableClient, tensors: Sequence[tuple[str, torch.Tensor]]) -> list[DenseSlot]:
    """Declare a table for frozen parameters and float buffers, which no worker trains."""
    held: list[DenseSlot] = []
    first, table = 0, next_id(client)
    for name, tensor in tensors:
        if tensor.is_floating_point() and tensor.numel():
            chunks = -(-tensor.numel() // CHUNK)
            held.append(DenseSlot(name=name, param=tensor, table=table, first=first, chunks=chunks))
            first += chunks
    if held:
        client.declare([TableSpec(id=table, name="dense:still", dim=CHUNK)])
    return held


def refuse_shared(groups: Sequence[DenseGroup], optimizers: Sequence[torch.optim.Optimizer]) -> None:
    names = {id(param): name for group in groups for name, param in group.members}
    holders: dict[int, torch.optim.Optimizer] = {}
    for optimizer in optimizers:
        for param in (param for group in optimizer.param_groups for param in group["params"]):
            if holders.setdefault(id(param), optimizer) is not optimizer and id(param) in names:
                raise errors.BadInput(
                    f"parameter {names[id(param)]!r} is in two optimizers, but servers train it with only one: take it "
                    'out of one of them, or use sync="bsp"'
                )


def next_id(client: TableClient) -> int:
    return max((spec.id for spec in client.specs), default=-1) + 1


def check_dtype(name: str, param: torch.Tensor) -> None:
    if param.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise errors.BadInput(
            f"parameter {name!r} is {param.dtype}; servers keep dense parameters as float32, so expected float32, "
            'bfloat16 or float16. Convert the model, or use sync="bsp", which keeps dense parameters in the workers'
        )


class GpuBucket:
    """Flat buffers for values and gradients on the GPU, each with a pinned flat buffer in CPU memory.

    Uploads run on their own stream and do not wait for the step that the GPU computes.
    """

    def __init__(self, values: torch.Tensor, grads: torch.Tensor, gpu: torch.device) -> None:
        self.flat, self.flat_grads = torch.zeros_like(values, device=gpu), torch.zeros_like(grads, device=gpu)
        self._values, self._grads = values, grads
        self.sum_of_grads = copies_of(gpu).pinned(1, dtype=torch.float32)
        """Sum of the downloaded gradients. The sum is finite if all gradients are finite."""
        self._upload = torch.cuda.Stream(gpu)
        self._free = torch.cuda.Event()
        """Recorded after the last use of `flat`."""
        for memory in (values, grads):
            if memory.nbytes:  # if the process may not lock memory, transfers only become slower
                register(memory.data_ptr(), memory.nbytes)
                weakref.finalize(self, unregister, memory.data_ptr())

    @contextmanager
    def uploaded(self) -> Iterator[None]:
        """Copy the values to `flat` for the `with` block. After the block, the caller may change its own memory."""
        step = torch.cuda.current_stream(self.flat.device)
        self._upload.wait_event(self._free)
        with torch.cuda.stream(self._upload):
            self.flat.copy_(self._values, non_blocking=True)
        step.wait_stream(self._upload)
        yield
        self._free.record(step)
        self._upload.synchronize()  # this call waits for the copy, not for the step

    def download(self) -> Any:
        """Start to copy `flat_grads` to the memory of the gradients. Return an event to wait for."""
        total = self.flat_grads.sum().view(1)
        return copies_of(self.flat.device).to_host((self.flat_grads, self._grads), (total, self.sum_of_grads))


class DenseChunks(LatePart):
    """Rows of some parameters as one flat buffer for values and one for gradients."""

    def __init__(self, client: TableClient, held: Sequence[DenseSlot]) -> None:
        tables = np.concatenate([np.full(part.chunks, part.table, dtype=np.uint16) for part in held])
        keys = np.concatenate([np.arange(part.first, part.first + part.chunks, dtype=np.int64) for part in held])
        self._client, self._tables = client, {part.table for part in held}
        self.rows = client.dense(tables, keys, CHUNK)
        self._sent = client.dense(tables, keys, CHUNK)
        """Gradients. A pull writes to separate rows, because values may arrive while a push still waits for the GPU."""
        self.params = [part.param for part in held]
        self.named = [(f"parameter {part.name!r}", part.param) for part in held]
        flat_values, self.flat_grads = torch.from_numpy(self.rows.rows()), torch.from_numpy(self._sent.grads())
        self.values, self.grads = self._views(flat_values, held), self._views(self.flat_grads, held)
        self._gpu, self._near, self._near_grads = None, list[torch.Tensor](), list[torch.Tensor]()
        self._copied: Any = None
        if len(devices := {param.device for param in self.params}) == 1 and (gpu := devices.pop()).type == "cuda":
            self._gpu = GpuBucket(flat_values, self.flat_grads, gpu)
            self._near, self._near_grads = self._views(self._gpu.flat, held), self._views(self._gpu.flat_grads, held)

    @staticmethod
    def _views(flat: torch.Tensor, held: Sequence[DenseSlot]) -> list[torch.Tensor]:
        begin, views = 0, []
        for part in held:
            views.append(flat[begin : begin + part.param.numel()].view(part.param.shape))
            begin += part.chunks * CHUNK
        return views

    def assign(self) -> None:
        """Assign the current values on the servers, unless another worker has assigned its own."""
        with torch.no_grad():
            torch._foreach_copy_(self.values, [param.detach() for param in self.params])
        self._client.backend.assign([self.rows], keep=True)
        self._client.finish_first_values(self._tables)

    def take(self) -> None:
        self.rows.wait()
        with torch.no_grad():
            if self._gpu is None:
                torch._foreach_copy_(self.params, self.values)
            else:
                with self._gpu.uploaded():
                    torch._foreach_copy_(self.params, self._near)
        self.rows.hold_basis()

    def take_grads(self, grads: list[torch.Tensor]) -> Any:
        """Return the gradients as a part of a push."""
        self._sent.base_on(self.rows)
        if self._gpu is not None:
            torch._foreach_copy_(self._near_grads, grads)
            self.begin_copy()
            return self
        torch._foreach_copy_(self.grads, grads)
        if not math.isfinite(float(self.flat_grads.sum())):
            check_finite(self.named)
        return self._sent

    def begin_copy(self) -> None:
        assert self._gpu is not None
        self._copied = self._gpu.download()

    def finish_copy(self) -> _native.DenseRows:
        assert self._gpu is not None
        self._copied.synchronize()
        if not math.isfinite(float(self._gpu.sum_of_grads)):
            check_gradients([(name, grad) for (name, _), grad in zip(self.named, self.grads, strict=True)])
        return self._sent


class ServedDense:
    """Dense parameters of an async job."""

    def __init__(
        self,
        client: TableClient,
        held: Sequence[DenseSlot],
        *,
        frozen: Sequence[tuple[str, nn.Parameter]],
        bounded: bool,
        still: Sequence[DenseSlot],
    ) -> None:
        """Create the parameters. With `bounded`, the step decides when values are read. No optimizer trains the tensors
        in `still`.
        """
        self._client = client
        self._bounded = bounded
        self.held, self.still = list(held), list(still)
        self._frozen = list(frozen)
        self._all = DenseChunks(client, self.held) if self.held else None
        self._by_present: dict[tuple[bool, ...], DenseChunks] = {}
        self._pulling = False
        self._asked: Future[None] | None = None

    def begin(self, once: Callable[[Callable[[], None]], None]) -> None:
        """Give all workers the same values: trained values if there are any, otherwise the first worker's. `once` runs
        a function on only one worker."""
        still = DenseChunks(self._client, self.still) if self.still else None
        chunks = [rows for rows in (self._all, still) if rows is not None]

        def assign() -> None:
            for chunk in chunks:
                chunk.assign()

        once(assign)
        self.settle()
        if still is not None:
            self._client.pull([still.rows])
            still.take()

    def agree(self, *, share: float, skip: bool, again: bool = False) -> bool:
        return skip

    def parts(self, stepped: Sequence[JobOptimizer]) -> list[Any]:
        thawed = next((name for name, param in self._frozen if param.grad is not None), None)
        if thawed is not None:
            raise errors.BadInput(
                f"parameter {thawed!r} was frozen at job.prepare, so servers do not hold it. Now it has a gradient. "
                'Freeze it after job.prepare, or use sync="bsp"'
            )
        awake = {id(optimizer.own) for optimizer in stepped}
        grads = [part.param.grad if id(part.optimizer) in awake else None for part in self.held]
        present = tuple(grad is not None for grad in grads)
        if not any(present):
            return []
        chunks = self._chunks(present)
        return [chunks.take_grads([grad.to_dense() if grad.is_sparse else grad for grad in grads if grad is not None])]

    def update(self, stepped: Sequence[JobOptimizer], tables: Sequence[nn.Parameter]) -> None:
        """Write the values that the previous step requested into the model. Then request new values, which arrive
        after this push. Computation therefore never waits for a push. At most, the last step of this worker is
        missing in the values.
        """
        if not self._bounded:
            self._take()
            self._ask()

    def settle(self) -> None:
        self._take()
        self._ask()
        self._take()

    def _ask(self) -> None:
        if self._all is not None:
            self._asked = self._client.pull_later([self._all.rows])
            self._pulling = True

    def _take(self) -> None:
        if self._all is not None and self._pulling:
            self._pulling = False
            if self._asked is not None:
                self._asked.result()
            self._all.take()

    def _chunks(self, present: tuple[bool, ...]) -> DenseChunks:
        if all(present) and self._all is not None:
            return self._all
        if present not in self._by_present:
            # keep only the latest combinations, because a model may produce new ones forever
            if len(self._by_present) >= 32:
                self._by_present.pop(next(iter(self._by_present)))
            chosen = [part for part, here in zip(self.held, present, strict=True) if here]
            self._by_present[present] = DenseChunks(self._client, chosen)
        return self._by_present[present]


class LocalDense:
    """Dense parameters that the user's optimizers update in this process."""

    def __init__(
        self,
        named: Sequence[tuple[str, nn.Parameter]],
        reducer: Reducer | None,
        own: Sequence[torch.optim.Optimizer] = (),
        on_device: DeviceTables | None = None,
    ) -> None:
        """Create the parameters. With `on_device`, gradients on a GPU are checked on the GPU, without waiting for
        it."""
        self._on_device, self._steps = on_device, 0
        self._named = [(f"parameter {name!r}", param) for name, param in named]
        self._reducer, self._own = reducer, list(own)
        self._tables: Sequence[nn.Parameter] = ()
        self._served: Set[int] = frozenset()

    def agree(self, *, share: float, skip: bool, again: bool = False) -> bool:
        """Sum gradients over the group, and refuse NaN. Return True if the step is skipped. `again` repeats the last
        sum."""
        if self._reducer is not None:
            if not again:
                self._reducer.load(share=share, skip=skip)
            skip = self._reducer.reduce()
            self._reducer.follow(self._own)
        if skip:
            return skip
        if not self._checks_later:
            check_finite(self._named)
            return skip
        self._steps += 1
        if self._steps % STEPS_A_CHECK == 0:
            mark_finite(self._named, self._on_device)  # type: ignore[arg-type]
        check_finite([(name, param) for name, param in self._named if not param.is_cuda])
        return skip

    @property
    def _checks_later(self) -> bool:
        """Return True if the GPU itself checks gradients. With rows on servers, a bad gradient must stop the push."""
        return self._on_device is not None and (self._reducer is None or bool(self._on_device.by_name))

    def parts(self, stepped: Sequence[JobOptimizer]) -> list[Any]:
        return []

    def update(self, stepped: Sequence[JobOptimizer], tables: "Sequence[nn.Parameter]") -> None:
        if tables is not self._tables:  # the list is always the same object, so compute the ids only once
            self._tables, self._served = tables, {id(weight) for weight in tables}
        working = [optimizer for optimizer in stepped if has_work(optimizer.own, self._served)]
        if not working:
            return
        kept = [(weight, weight.__dict__.get("springtide_grad")) for weight in tables]
        for weight in tables:
            weight.grad = None
        for optimizer in working:
            optimizer.own.step()
        for weight, grad in kept:
            weight.grad = grad

    def settle(self) -> None:
        """Wait for the GPU at the end of a pass, so that no bad id or gradient is missed."""
        if self._on_device is not None and self._checks_later:
            mark_finite(self._named, self._on_device)
            self._on_device.poll(wait=True)


def has_work(own: torch.optim.Optimizer, served: Set[int]) -> bool:
    """Return True if a step of this optimizer can change anything other than tables. `served` has the ids of the
    tables' weights."""
    if is_watched(own) or not type(own).__module__.startswith("torch.optim."):
        return True
    return any(
        id(param) not in served and param.grad is not None for group in own.param_groups for param in group["params"]
    )


def check_finite(named: Sequence[tuple[str, torch.Tensor]]) -> None:
    """Raise NonFiniteGradient for the first parameter with NaN or infinity in its gradient."""
    grads = [param.grad for _, param in named if param.grad is not None and not param.grad.is_sparse]
    # use the 2-norm, which is seven times faster than the 1-norm; if large finite values overflow it, the loop below
    # checks every gradient
    norms: dict[torch.device, list[torch.Tensor]] = {}
    for norm in torch._foreach_norm(grads, 2) if grads else ():
        norms.setdefault(norm.device, []).append(norm)
    if all(bool(torch.stack(near).isfinite().all()) for near in norms.values()):  # this call waits once for each device
        return
    check_gradients([(name, param.grad) for name, param in named if param.grad is not None])


def check_gradients(named: Sequence[tuple[str, torch.Tensor]]) -> None:
    """Raise NonFiniteGradient for the first gradient with NaN or infinity."""
    for name, grad in named:
        if not bool(grad.isfinite().all()):
            bad = int((~grad.isfinite()).sum())
            raise errors.NonFiniteGradient(
                f"the gradient of {name} has NaN or infinity in {bad} of {grad.numel()} places; nothing of this "
                "step was applied. Lower the learning rate, clip gradients, or look at this batch"
            )


def mark_finite(named: Sequence[tuple[str, torch.Tensor]], tables: DeviceTables) -> None:
    """Each GPU sets a mark if a gradient is not finite."""
    grads = [param.grad for _, param in named if param.grad is not None and param.grad.is_cuda]
    norms: dict[torch.device, list[torch.Tensor]] = {}
    dense = [grad.to_dense() if grad.is_sparse else grad for grad in grads]
    for norm in torch._foreach_norm(dense, math.inf) if dense else ():
        norms.setdefault(norm.device, []).append(norm.float())
    for device, found in norms.items():
        # infinity times zero and NaN times zero are NaN
        tables.flags(device).bad.add_(torch.stack(found).max(), alpha=0)
    tables.poll()


Dense = ServedDense | LocalDense
