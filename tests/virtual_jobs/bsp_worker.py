"""Virtual bsp group: steps of all ranks together, on servers that apply a step when every rank's part is there.

In: groups and leases of the real master. Out: applied steps, and a model that checkpoints hold. `BspWorker` does what
`worker.bsp.group` and `worker.step.bsp_step` do, with `job.bsp_group` for the decisions. Only rank 0 of a group pushes
gradients, so that a batch counts once. Next: `step_buffer`.
"""

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np

from springtide import _native, errors
from springtide.job import bsp_group
from springtide.rpc.messages import coordination, messages
from springtide.worker.link.lease_tracker import BatchClaim
from tests.virtual_jobs import counting_oracle, virtual_loop
from tests.virtual_jobs.counting_oracle import BatchRun
from tests.virtual_jobs.worker import AGAIN_S, VirtualWorker

MODEL_SLOT = 0
Result = TypeVar("Result")


class ModelPlace(NamedTuple):
    """The model of a group: its step, and the first sample that it has not seen."""

    step: int
    shard: int = 0
    first: int = 0


class Ring:
    """Connections between the ranks of one generation of a group; they break together."""

    def __init__(self, ranks: tuple[int, ...]) -> None:
        self._ranks = ranks
        self._news = asyncio.Event()
        self._at: dict[int, int] = {}
        self.broken = False
        self.model: ModelPlace | None = None

    def leave(self) -> None:
        self.broken = True
        self._wake()

    def share(self, model: ModelPlace) -> None:
        self.model = model
        self._wake()

    async def meet(self, rank: int, step: int) -> None:
        """Wait for all ranks, as an all-reduce does."""
        self._at[rank] = step
        self._wake()
        await self.until(lambda: all(self._at.get(other, -1) >= step for other in self._ranks))

    async def until(self, true: Callable[[], bool]) -> None:
        while not true():
            if self.broken:
                raise errors.GroupChanged("a member is lost")
            await self._news.wait()

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()


def write_model(store: _native.Store, model: ModelPlace) -> None:
    row = np.array((model.step + 1, model.shard, model.first), dtype=np.float32)
    store.assign(np.full(1, counting_oracle.MODEL, dtype=np.uint16), _model_key(), row)


def read_model(store: _native.Store) -> ModelPlace:
    """Return the model that a server holds. Step -1 means none."""
    row = np.zeros(counting_oracle.MODEL_FLOATS, dtype=np.float32)
    store.pull(np.full(1, counting_oracle.MODEL, dtype=np.uint16), _model_key(), row)
    step, shard, first = map(int, row)
    return ModelPlace(step - 1, shard, first)


def _model_key() -> counting_oracle.Keys:
    return counting_oracle.junk_keys(counting_oracle.MODEL, MODEL_SLOT)[:1]


class BspWorker(VirtualWorker):
    """One life of a rank of a bsp group."""

    rings: dict[int, Ring]
    """Rings of the job by generation."""

    def use(self, rings: dict[int, Ring], finished: list[int]) -> "BspWorker":
        """Share the job's rings, and the list of the steps at which ranks finished."""
        self.rings, self._finished = rings, finished
        self._ended = False
        self._fresh, self._told, self._lost, self._save_due, self._kept = True, 0, 0, 0, 0
        self._ring: Ring | None = None
        self._rank = self._holder.rank
        self._index = self._generation = self._count = 0
        self._claim_now: BatchClaim | None = None
        self._place = ModelPlace(0)
        return self

    def killed(self) -> None:
        super().killed()
        self._leave()

    def hear(self, pulse: messages.HeartbeatReply) -> None:
        self._lost, self._save_due = max(self._lost, pulse.group_lost), pulse.save
        if self._lost >= self._generation > 0:
            self._leave()

    async def _train(self) -> None:
        tracker, card = self._tracker, self._card
        tracker.begin_pass(card)
        if not await self._form():
            return
        while True:
            if self._fenced:
                raise errors.Fenced(f"{self._holder} was given up")
            claimed = tracker.claim(card.batch_size)
            if claimed is None:
                answer = await self._lease(1)
                if isinstance(answer, coordination.Regroup):
                    if not await self._form():
                        return
                elif isinstance(answer, messages.DataEnd):
                    break
                continue
            await self._step(claimed[1])
            if self._ended:
                return
        while await self._form(resting=True):
            pass
        self._finished.append(self._count)

    async def _step(self, claim: BatchClaim) -> None:
        """Train a batch with all ranks. If a member is lost, repeat the step with the next group."""
        self._claim_now, number = claim, self._count + 1
        while self._count < number:
            try:
                await virtual_loop.sleep(self._pace_now().step_s)
                ring = self._ring
                if ring is None:
                    raise errors.GroupChanged("the group is over")
                await ring.meet(self._rank, number)
                await self._push_part(number, claim)
                await self._all(lambda server: server.steps.complete() >= number or None)
                self._catch_up(number)
            except errors.GroupChanged:
                if not await self._form():
                    self._ended = True
                    return
        await self._applied(number)
        if self._save_due > self._kept and not self._index and await self._ship(self._save_due):
            self._kept = max(self._kept, self._save_due)

    async def _push_part(self, number: int, claim: BatchClaim) -> None:
        batch = BatchRun(claim.shard, claim.begin, claim.end, 1) if not self._index else None
        generation = self._generation
        await self._all(lambda server: server.steps.add(number, self._rank, generation, batch) or None)

    async def _applied(self, number: int) -> None:
        try:
            await self._all(lambda server: server.steps.apply(number, server.push_step) or True)
        except errors.GroupChanged:
            return  # the next group applies it

    def _catch_up(self, step: int) -> None:
        claim = self._claim_now
        if claim is not None and step > self._count:
            self._count, self._claim_now = step, None
            self._place = ModelPlace(step, claim.shard, claim.end)
            self._tracker.acknowledge([claim])

    # ---- groups ----

    async def _form(self, *, resting: bool = False) -> bool:
        """Wait for the next group and join it; False at the end of the job."""
        while True:
            self._leave()
            idle = self._claim_now is None
            formed = await self._wire.ask(coordination.GroupRequest(self._fresh, idle, resting, self._told))
            assert isinstance(formed, coordination.GroupReply)
            self._told = formed.generation
            if formed.over:
                if formed.save and formed.leader == self._rank and not self._fresh:
                    await self._ship(formed.save, last=True)
                return False
            try:
                await self._meet(formed)
                return True
            except errors.GroupChanged:
                continue

    async def _meet(self, formed: coordination.GroupReply) -> None:
        index, generation = formed.ranks.index(self._rank), formed.generation
        names = tuple(f"at{number}" for number in range(len(formed.ranks)))
        await self._wire.ask(coordination.MeetRequest(generation, {names[index]: b"here"}, names))
        ring = self._ring = self.rings.setdefault(generation, Ring(formed.ranks))
        self._index, self._generation = index, generation
        leads = formed.leader == self._rank
        if leads:
            on_servers = min(await self._all(lambda server: server.steps.complete()))
            restored = await self._read() if formed.restored else None
            step = bsp_group.step_to_continue(
                on_servers, at_rest=formed.at_rest, own=self._count, restored=restored.step if restored else None
            )
            workers, rest = len(formed.ranks), formed.at_rest
            await self._all(lambda server: server.steps.settle(step, workers, generation, rest, server.push_step))
            self._catch_up(step)
            claim = self._claim_now
            spot = restored or (ModelPlace(step, claim.shard, claim.begin) if claim is not None else self._place)
            ring.share(ModelPlace(step, spot.shard, spot.first))
        await ring.until(lambda: ring.model is not None)
        assert ring.model is not None
        if self._fresh:
            self._fresh, self._count, self._place = False, ring.model.step, ring.model
            self._tracker.skip_to(ring.model.shard, ring.model.first)
        else:
            self._catch_up(ring.model.step)

    def _leave(self) -> None:
        if self._ring is not None:
            self._ring.leave()
            self._ring = None

    async def _ship(self, number: int, *, last: bool = False) -> bool:
        """Write the model to the servers, and pause until all slots are copied."""
        model = self._place._replace(step=self._count)
        try:
            await self._one(MODEL_SLOT, lambda server: write_model(server.store, model) or True)
        except errors.GroupChanged:
            return False
        asked = coordination.AtStep(number, model.step, model.shard, model.first, last=last)
        return isinstance(await self._wire.ask(asked), messages.Ok)

    async def _read(self) -> ModelPlace:
        model = await self._one(MODEL_SLOT, lambda server: read_model(server.store))
        if model.step < 0:
            raise errors.JobFailed("the servers do not have the model of a group")
        return model

    # ---- servers ----

    async def _all(self, ask: Callable[[Any], Result | None]) -> list[Result]:
        """Ask every server that has slots until all have answered; None means not yet."""
        answers: dict[int, Result] = {}
        while missing := set(self._owners) - answers.keys():
            for rank in sorted(missing):
                server = await self._reach_server(rank)
                answer = ask(server) if server is not None else None
                if answer is not None:
                    answers[rank] = answer
            if set(self._owners) - answers.keys():
                await self._pause()
        return list(answers.values())

    async def _one(self, slot: int, ask: Callable[[Any], Result]) -> Result:
        while True:
            server = await self._reach_server(self._owners[slot])
            if server is not None and server.owns(slot):
                return ask(server)
            await self._pause()

    async def _reach_server(self, rank: int) -> Any:
        await virtual_loop.sleep(self._network.delay_s())
        server = self._network.reach(self._address(rank))
        # a real server keeps rows of all slots until it knows its own slots; a virtual one would keep none
        return server if server is not None and server.knows_slots else None

    async def _pause(self) -> None:
        if self._fenced:
            raise errors.Fenced(f"{self._holder} was given up")
        if self._lost >= self._generation > 0 or (self._ring is not None and self._ring.broken):
            raise errors.GroupChanged("a member is lost")
        await virtual_loop.sleep(AGAIN_S / 10)
