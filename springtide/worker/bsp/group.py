"""Forms the bsp group of this worker, and forms it again when a member is lost or the group size changes.

In: worker/setup.py calls it for the first group, and worker/step/bsp_step.py for later groups. Out: ranks with the same
step, model and data position. Ranks that join get the leader's model. For checkpoints, the model goes to a reserved
table on the servers. A step counts once all servers have the parts of all ranks; otherwise the next group repeats the
step. docs/design/training.md.
"""

import logging
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import msgspec
import numpy as np
import torch

from springtide import errors
from springtide.checkpoint.format import group_model
from springtide.checkpoint.format.group_model import FORMAT, TABLE, GroupPosition, SavedGroup, flat, shaped
from springtide.domain.core.validation import plain
from springtide.domain.model.tables import TableSpec
from springtide.embedding.lookup.table_client import TableClient
from springtide.job import bsp_group
from springtide.planning.guards.cache_benefit import CrashRisk
from springtide.rpc.messages.coordination import AtStep, GroupReply, GroupRequest
from springtide.worker import connect
from springtide.worker.bsp import allreduce, nccl
from springtide.worker.bsp.allreduce import GroupStore, Reducer
from springtide.worker.link import master_link

log = logging.getLogger(__name__)

NEVER = 2**62  # checkpoint number that is never requested
PROBES = 5  # number of round trips from which a median is taken
# seconds to wait until a server has the parts of all ranks; then this rank checks whether a member was lost
LOOK_S = 0.5
TENSOR, TUPLE = "springtide: tensor", "springtide: tuple"  # keys that mark values for which MessagePack has no type
PLAIN = (bool, int, float, str, type(None))


class GroupPlace(NamedTuple):
    """This worker's rank in the group, the group size and the generation, which determine its part of each batch."""

    rank: int
    workers: int
    generation: int


class DataPosition(NamedTuple):
    """First sample that the group has not trained."""

    shard: int = 0
    first: int = 0


class GroupStep(Protocol):
    """Interface of worker/step/bsp_step.py that the group needs."""

    @property
    def idle(self) -> bool: ...

    @property
    def count(self) -> int: ...

    @property
    def bound(self) -> bool: ...

    def catch_up(self, step: int) -> None: ...

    def position(self) -> DataPosition: ...

    def counts(self) -> list[int]: ...

    def begin_at(self, step: int, position: DataPosition, counts: list[int]) -> None: ...


@dataclass(slots=True)
class GroupModel:
    """State other than the tables that must be equal on all ranks."""

    optimizers: list[torch.optim.Optimizer]
    tensors: Callable[[], list[torch.Tensor]]
    assign_tables: Callable[[], None]
    """Function that assigns the tables' initial weights; the leader of the first group calls it once."""


def pack_model(model: GroupModel, place: GroupPosition) -> bytes:
    tensors: list[torch.Tensor] = []
    plan = [_pack(optimizer.state_dict(), tensors) for optimizer in model.optimizers]
    saved = SavedGroup(
        FORMAT, place, [flat(tensor) for tensor in model.tensors()], plan, [flat(tensor) for tensor in tensors]
    )
    return msgspec.msgpack.encode(saved)


def load_model(model: GroupModel, body: bytes) -> GroupPosition:
    """Restore the model from these bytes, and return the model's position in the data. Raise `BadInput` if the bytes
    belong to another model.
    """
    saved = group_model.decode(body)
    own = model.tensors()
    there, here = [shape for _, shape, _ in saved.dense], [list(param.shape) for param in own]
    if there != here or len(saved.plan) != len(model.optimizers):
        raise errors.BadInput(
            f"the group's model has {len(there)} dense tensors and {len(saved.plan)} optimizers, shapes "
            f"{there[:3]}...; this worker's model has {len(here)} and {len(model.optimizers)}, shapes {here[:3]}...: "
            f"use the script that made the group's model"
        )
    with torch.no_grad():
        for tensor, there_is in zip(own, saved.dense, strict=True):
            tensor.copy_(shaped(*there_is))
    tensors = [shaped(*tensor) for tensor in saved.tensors]
    for optimizer, packed in zip(model.optimizers, saved.plan, strict=True):
        optimizer.load_state_dict(_unpack(packed, tensors))
    return saved.place


def broadcast_bytes(gloo: Any, body: bytes, leader: int) -> bytes:
    """Return the leader's bytes on every rank. Raise `GroupChanged` if a rank is lost."""
    size = torch.tensor([len(body)], device="cpu")
    allreduce.broadcast(gloo, size, leader)
    held = torch.frombuffer(bytearray(body.ljust(int(size))), dtype=torch.uint8)
    allreduce.broadcast(gloo, held, leader)
    return held.numpy().tobytes()


def _pack(value: Any, tensors: list[torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        tensors.append(value.detach().to("cpu", copy=True).contiguous())
        return {TENSOR: len(tensors) - 1}
    if isinstance(value, dict):
        return {key: _pack(part, tensors) for key, part in value.items()}
    if isinstance(value, tuple):
        return {TUPLE: [_pack(part, tensors) for part in value]}
    if isinstance(value, list):
        return [_pack(part, tensors) for part in value]
    if isinstance(number := plain(value), PLAIN):
        return number
    raise errors.BadInput(
        f"an optimizer keeps a {type(value).__name__} in its state, which cannot be given to a worker that joins the "
        "bsp group: expected numbers, text, tensors, and lists and dicts of them"
    )


def _unpack(value: Any, tensors: list[torch.Tensor]) -> Any:
    if isinstance(value, dict):
        if TENSOR in value:
            return tensors[value[TENSOR]]
        if TUPLE in value:
            return tuple(_unpack(part, tensors) for part in value[TUPLE])
        return {key: _unpack(part, tensors) for key, part in value.items()}
    return [_unpack(part, tensors) for part in value] if isinstance(value, list) else value


def put_model(client: TableClient, body: bytes) -> None:
    rows = group_model.rows_of(body)
    client.assign(TABLE, np.arange(len(rows)), rows)


def get_model(client: TableClient) -> bytes:
    """Return the bytes that `put_model` stored last. Raise `JobFailed` if rows of the model are missing or
    incomplete."""
    count = group_model.rows_after(client.read(TABLE, np.arange(1)))
    if count is None:
        raise errors.JobFailed(
            "the servers do not have the dense parameters of a bsp group: the checkpoint from which this job continues "
            'was not made with sync="bsp"'
        )
    try:
        return group_model.body_of(client.read(TABLE, np.arange(1 + count)))
    except errors.BadInput as error:
        raise errors.JobFailed(f"{error} (read from the servers)") from None


class BspGroup:
    """The bsp group, as seen by this worker."""

    def __init__(
        self, to_master: master_link.MasterLink, client: TableClient, model: GroupModel, reducer: Reducer
    ) -> None:
        welcome = to_master.join()
        number = max((spec.id for spec in client.specs), default=-1) + 1
        client.declare([TableSpec(id=number, name=TABLE, dim=group_model.ROW)])
        self._link, self._model, self._reducer = to_master, model, reducer
        self._client = client
        self._backend: Any = client.tables
        self._kept = 0
        self._welcome = welcome
        self._fresh = self._in = True
        self._formed, self._formed_at = GroupReply(0, (), 0), time.monotonic()
        self.place = GroupPlace(welcome.rank, welcome.spec.workers, welcome.generation)
        self._told = welcome.generation
        """Newest generation that the master has announced."""

    def form(self, stepper: GroupStep, *, resting: bool = False) -> int:
        """Wait for the group and join it. Return the last step that is complete on all servers, or -1 at the end of the
        job."""
        while self._in:
            self._reducer.leave()
            asked = GroupRequest(self._fresh, stepper.idle, resting, self._told, bound=stepper.bound)
            formed = self._link.group.form(asked)
            self._told = formed.generation
            if formed.over:
                self._in = False
                if formed.save and formed.leader == self._welcome.rank and not self._fresh:
                    self._ship(formed.save, stepper, last=True)
                self._link.dismiss()
                return -1
            if formed.resting and not stepper.idle:
                raise errors.JobFailed(
                    f"worker-{formed.resting[0]} has left its loop while others still train: "
                    "in a bsp group every rank must take the same steps"
                )
            try:
                return self._meet(formed, stepper)
            except errors.GroupChanged:
                continue
        return -1

    def rest(self, stepper: GroupStep) -> None:
        """Stay in the group after the script has ended, because another rank may still need this rank's copy of the
        model."""
        while self._in:
            self.form(stepper, resting=True)

    def await_complete(self, step: int) -> None:
        """Wait until every rank's part of the step is on every server. Raise `GroupChanged` if a member is lost."""
        while not self._backend.step_complete(step, LOOK_S):
            if self._link.group.lost >= self.place.generation:
                raise errors.GroupChanged(f"a member of group {self.place.generation} is lost")

    def round_trip_s(self, step: int) -> float:
        """Return the median round trip to all servers in seconds. The measurement asks about a complete step."""
        took = []
        for _ in range(PROBES):
            began = time.perf_counter()
            self._backend.step_complete(step, 0.0)
            took.append(time.perf_counter() - began)
        return statistics.median(took)

    @property
    def save_due(self) -> bool:
        return self._link.group.save_due > self._kept and not self.place.rank

    def risk(self) -> CrashRisk:
        """Return the expected cost of losing a rank while the group caches rows, from the losses and rollbacks seen so
        far."""
        formed, rules = self._formed, self._welcome.spec.checkpoints
        return CrashRisk(
            workers=self.place.workers,
            deaths=formed.deaths,
            checkpoint_s=rules.every_s if rules.on else None,
            return_s=formed.return_s,
            watched_s=formed.watched_s + time.monotonic() - self._formed_at,
            saved_once=formed.saved or 0 < self._kept < NEVER,
        )

    def keep(self, stepper: GroupStep, applied: Any) -> None:
        """Save the model if a checkpoint is due. The lowest rank waits for `applied`, then stops until all slots are
        copied. The other ranks wait for the lowest rank, so the servers contain exactly this step until then.
        """
        due = self._link.group.save_due
        if not self.save_due or applied is None:
            return
        applied.wait()
        if self._ship(due, stepper):
            self._kept = max(self._kept, due)

    def _ship(self, number: int, stepper: GroupStep, *, last: bool = False) -> bool:
        spot = stepper.position()
        place = group_model.GroupPosition(stepper.count, *spot, stepper.counts())
        try:
            body = pack_model(self._model, place)
        except errors.BadInput as error:
            log.warning("the group takes no more checkpoints: %s", error)
            self._kept = NEVER
            return False
        put_model(self._client, body)
        log.info("checkpoint %d: the model of step %d is on the servers", number, stepper.count)
        return self._link.group.stop_at(AtStep(number, stepper.count, *spot, last=last))

    def _meet(self, formed: GroupReply, stepper: GroupStep) -> int:
        rank, leads = self._welcome.rank, formed.leader == self._welcome.rank
        self._backend.set_generation(formed.generation)
        index, leader, workers = formed.ranks.index(rank), formed.ranks.index(formed.leader), len(formed.ranks)
        device, host = self._reducer.device, connect.own_host(self._welcome)
        store = GroupStore(self._link.group, formed.generation, **{f"{nccl.DEVICE}{index}": nccl.device_id(device)})
        gloo = allreduce.form_group(store, rank=index, workers=workers, host=host)
        self._reducer.nccl = nccl.form(
            store,
            gloo,
            rank=index,
            workers=workers,
            host=host,
            device=device,
            lost=lambda: self._link.group.lost >= formed.generation,
        )
        body = b""
        if leads:
            if formed.first and not formed.restored:
                self._model.assign_tables()
            on_servers, restored = self._backend.regroup(), None
            if formed.restored:
                restored = load_model(self._model, get_model(self._client))
                log.info("continuing after step %d with the model on the servers", restored.step)
            complete = bsp_group.step_to_continue(
                on_servers,
                at_rest=formed.at_rest,
                own=stepper.count,
                restored=None if restored is None else restored.step,
            )
            self._backend.settle_group(complete, len(formed.ranks), at_rest=formed.at_rest)
            stepper.catch_up(complete)
            spot, counts = stepper.position(), stepper.counts()
            if restored is not None:
                spot, counts = DataPosition(restored.shard, restored.first), restored.counts
            body = pack_model(self._model, group_model.GroupPosition(complete, *spot, counts))
        body = broadcast_bytes(gloo, body, leader)
        joins = self._fresh and not leads
        place = load_model(self._model, body) if joins else group_model.decode(body).place
        if self._fresh:
            self._fresh = False
            stepper.begin_at(place.step, DataPosition(place.shard, place.first), place.counts)
        else:
            stepper.catch_up(place.step)
        self.place = GroupPlace(index, len(formed.ranks), formed.generation)
        self._formed, self._formed_at = formed, time.monotonic()
        self._reducer.group = gloo
        self._reducer.elder = leader if formed.generation > 1 else None
        return place.step
