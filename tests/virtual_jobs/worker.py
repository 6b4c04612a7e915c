"""Virtual worker: real leases and messages to the master, virtual training.

In: leases of the master. Out: pushes to servers, and progress. The worker trains runs of batches for the time that
`step_time` gives, and pushes each run to every server. It sends moved slots again to their new owner. Like
`worker.link.master_link` and `worker.input.lease_prefetch`, it sends heartbeats, prefetches leases and obeys
revocations.
"""

import asyncio
import contextlib
from collections.abc import Iterable
from typing import Any

from springtide import errors
from springtide.domain.data.leases import LeaseHolder
from springtide.domain.data.samples import DatasetCard
from springtide.domain.plan import profile
from springtide.rpc.messages import messages
from springtide.rpc.messages.types import MemberReport, Reply
from springtide.sim.world.world import Speed
from springtide.worker.input.lease_prefetch import LEAD_S, MOST, MOST_HELD
from springtide.worker.link.lease_tracker import BatchClaim, LeaseTracker
from tests.virtual_jobs import virtual_loop
from tests.virtual_jobs.counting_oracle import BatchRun, VirtualLog
from tests.virtual_jobs.machines import VirtualProcess
from tests.virtual_jobs.network import Network, Push, PushReply
from tests.virtual_jobs.step_time import StepTime

AGAIN_S = 0.5  # wait after an unreachable server
HEALING = 0.2  # share of the heartbeat interval used while a server is away
TERMS = ("gradient", "update", "synchronization", "lookup")
SECONDS = tuple(name.removesuffix("_s") for name in profile.SUM_FIELDS if name.endswith("_s"))


class VirtualWorker:
    """One life of a virtual worker."""

    def __init__(
        self,
        holder: LeaseHolder,
        card: DatasetCard,
        network: Network[Any],
        pace: StepTime,
        stride_s: float,
        log: VirtualLog | None = None,
    ) -> None:
        """Create the worker. `stride_s` is the approximate seconds of work between two pushes, at least one batch."""
        self._log = log
        self._holder, self._card, self._network, self._pace, self._stride_s = holder, card, network, pace, stride_s
        self._tracker = LeaseTracker()
        self._owners: list[int] = []
        self._addresses: list[str] = []
        self._lives: list[int] = []
        self._epoch = 0
        self._whole: tuple[list[int], dict[int, tuple[int, ...]]] = [], {}
        """All slots grouped by server, cached with the owners that they were grouped by."""
        self._news = asyncio.Event()
        self._asking: asyncio.Task[Reply] | None = None
        self._over = False
        """True if the last reply was End: only the leases in hand are left."""
        self._draining = self._fenced = self._training = False
        self._done = dict.fromkeys(SECONDS, 0.0)
        self._steps = self._samples = 0

    async def run(self, process: VirtualProcess) -> int:
        self._process, self._wire = process, process.wire
        hello = messages.JoinWorker(self._holder.rank, process.pid, self._holder.incarnation)
        welcome = await self._wire.ask(hello)
        assert isinstance(welcome, messages.WorkerWelcome)
        self._wire.introduce(hello)
        self._owners, self._epoch = list(welcome.placement.server_of_slot), welcome.placement.epoch
        self._addresses, self._lives = list(welcome.servers), list(welcome.lives)
        process.spawn(self._beat(welcome.spec.heartbeat_s))
        try:
            await self._train()
            self._tracker.release_all()
            words = self._tracker.report()
            await self._wire.ask(messages.FinishRequest(words.progress, self._report(), words.era))
        except errors.Fenced:
            return 1
        except errors.UserError as error:
            await self._wire.ask(
                messages.ScriptError(self._holder.rank, str(error), incarnation=self._holder.incarnation)
            )
            return 1
        finally:
            self._rest()
        return 0

    def ask_to_end(self) -> bool:
        """Handle SIGTERM: a training script without a handler ends at once."""
        return False

    def killed(self) -> None:
        self._rest()

    # ---- training ----

    async def _train(self) -> None:
        card, tracker = self._card, self._tracker
        tracker.begin_pass(card)
        while not self._draining:
            if self._fenced:
                raise errors.Fenced(f"{self._holder} was given up")
            now = self._pace_now()
            claim = self._claim(max(1, int(self._stride_s / now.step_s)) * card.batch_size)
            if claim is None:
                self._rest()
                answer = await self._more()
                if isinstance(answer, messages.DataEnd) and not tracker.is_busy:
                    return
                continue
            if not self._training:
                self._training, self._pace.at_work = True, self._pace.at_work + 1
                now = self._pace_now()
            self._keep_up(now.step_s)
            if not tracker.holds(claim):
                continue
            batches = -(-(claim.end - claim.begin) // card.batch_size)
            await virtual_loop.sleep(batches * now.step_s)
            self._take_down(now, batches, claim.end - claim.begin)
            await self._push(claim.shard, claim.begin, claim.end, range(len(self._owners)))
            tracker.acknowledge([claim])

    def _claim(self, samples: int) -> BatchClaim | None:
        if self._log is None:
            claimed = self._tracker.claim(samples)
            return claimed[1] if claimed is not None else None
        for tail in self._tracker.tails():
            if tail.begin < tail.end:
                return self._tracker.claim_run(tail, min(tail.end, tail.begin + samples))
        return None

    def _rest(self) -> None:
        if self._training:
            self._training, self._pace.at_work = False, self._pace.at_work - 1

    def _pace_now(self) -> Speed:
        return self._pace.slowed(self._pace.speed(self._process.cpu), self._process.speed)

    def _take_down(self, now: Speed, batches: int, samples: int) -> None:
        for name, seconds in zip(TERMS, now.terms, strict=True):
            self._done[name] += batches * seconds
        self._done["data"] += batches * max(0.0, now.step_s - sum(now.terms))
        self._done["total"] += batches * now.step_s
        self._process.cpu_s += batches * self._pace.job.worker_core_s
        self._steps += batches
        self._samples += samples

    async def _push(self, shard: int, first: int, end: int, slots: Iterable[int]) -> None:
        """Push a run until every slot has it.

        Each request names the slots that it covers. The first request to a server covers all its slots. A retry covers
        only the slots that were refused or had no reply.
        """
        left: set[int] = set(slots)
        torn: set[int] = set()
        batch = self._card.batch_size
        row = self._log.row(shard) if self._log is not None else -1
        batches = BatchRun(shard, first, end, -(-(end - first) // batch), row)
        while left:
            sent = [
                (covers, self._network.send(self._address(server), Push(batches, covers)))
                for server, covers in self._parts(left).items()
            ]
            before = len(left)
            for covers, answer in sent:
                said = await answer
                if said is not None and not said.failed:
                    torn |= said.torn
                    left.difference_update(covers if not said.refused else set(covers) - said.refused)
                    self._learn(said)
            if left and len(left) == before:
                self._news.clear()
                self._rest()
                if self._fenced:
                    raise errors.Fenced(f"{self._holder} was given up")
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(AGAIN_S):
                        await self._news.wait()
        if torn:
            assert end - first > batch, f"slots {sorted(torn)} have a part of one batch of shard {shard}"
            for begin in range(first, end, batch):
                await self._push(shard, begin, min(begin + batch, end), sorted(torn))

    def _parts(self, slots: set[int]) -> dict[int, tuple[int, ...]]:
        """Group slots by their last known server."""
        whole = len(slots) == len(self._owners)
        if whole and self._whole[0] == self._owners:
            return self._whole[1]
        parts: dict[int, list[int]] = {}
        for slot in sorted(slots):
            parts.setdefault(self._owners[slot], []).append(slot)
        found = {server: tuple(covers) for server, covers in parts.items()}
        if whole:
            self._whole = list(self._owners), found
        return found

    def _address(self, server: int) -> str:
        return self._addresses[server] if server < len(self._addresses) else ""

    def _learn(self, said: PushReply) -> None:
        """Learn the new owners of refused slots from a reply."""
        if said.placement is not None and said.placement.epoch > self._epoch:
            self._epoch, self._owners = said.placement.epoch, list(said.placement.server_of_slot)
            self._reach(said.addresses, ())
        for slot, (server, address) in (said.owners or {}).items():
            self._owners[slot] = server
            self._addresses += [""] * (server + 1 - len(self._addresses))
            self._addresses[server] = address

    def _reach(self, addresses: tuple[str, ...], lives: tuple[int, ...]) -> None:
        """Switch to new lives of servers; each address belongs to one life."""
        count = max(len(addresses), len(self._addresses))
        self._addresses += [""] * (count - len(self._addresses))
        self._lives += [0] * (count - len(self._lives))
        for rank, address in enumerate(addresses):
            life = lives[rank] if rank < len(lives) else self._lives[rank]
            if address and life >= self._lives[rank]:
                self._addresses[rank], self._lives[rank] = address, life
        self._news.set()

    # ---- leases, as `worker.input.lease_prefetch.PrefetchedLeases` ----

    async def _more(self) -> Reply:
        """Return the reply to the pending lease request, or to a new request; the worker holds no lease."""
        if self._asking is None:
            self._ask(2 if not self._steps else 1)
        assert self._asking is not None
        asked, self._asking = self._asking, None
        return await asked

    def _keep_up(self, step_s: float) -> None:
        """Request more leases before the current leases run out."""
        if self._asking is not None and self._asking.done():
            asked, self._asking = self._asking, None
            self._over = isinstance(asked.result(), messages.DataEnd)
        batch, tracker = self._card.batch_size, self._tracker
        missing = max(batch / step_s * max(LEAD_S, 2 * self._stride_s), batch) - tracker.unclaimed
        short = max(min(-(-int(missing) // self._card.shard_size), MOST_HELD - len(tracker)), int(tracker.hurry))
        if self._asking is None and not self._over and short > 0:
            tracker.hurry = False
            self._ask(min(MOST, short))

    def _ask(self, most: int) -> None:
        task = asyncio.get_running_loop().create_task(self._lease(most))
        self._asking = task
        self._process.adopt(task)

    async def _lease(self, most: int) -> Reply:
        """Lease as `worker.link.master_link.MasterLink.lease` does."""
        if self._fenced:
            raise errors.Fenced(f"{self._holder} was given up")
        if self._draining:
            return messages.DataEnd()
        words = self._tracker.report()
        seen = self._log.bounds() if self._log is not None else ()
        asked = messages.LeaseRequest(
            self._card, words.progress, words.failures, most, self._tracker.ends, words.era, seen
        )
        reply = await self._wire.ask(asked)
        self._tracker.on_reported(words)
        if isinstance(reply, messages.LeaseReply):
            if reply.servers is not None:
                self._reach(reply.servers.addresses, reply.servers.lives)
            self._tracker.add_grants(self._card, reply.grants, reply.era)
        return reply

    # ---- heartbeats, as `worker.link.master_link` and `rpc.transport.channel` ----

    async def _beat(self, every_s: float) -> None:
        clock = asyncio.get_running_loop().time
        rest_s, began = every_s, clock()
        told = self._tracker.report()

        def beat() -> messages.Heartbeat:
            nonlocal told
            told = self._tracker.report()
            return messages.Heartbeat(self._report(), told.progress, told.failures, told.era, self._epoch)

        with contextlib.suppress(errors.Fenced):
            while True:
                await virtual_loop.sleep(max(0.0, began + rest_s - clock()))
                began = clock()
                pulse = await self._wire.ask(beat)
                assert isinstance(pulse, messages.HeartbeatReply)
                self.hear(pulse)
                self._draining, self._fenced = self._draining or pulse.drain, self._fenced or pulse.fenced
                self._tracker.on_reported(told)
                if pulse.servers is not None:
                    self._reach(pulse.servers.addresses, pulse.servers.lives)
                if pulse.goal is not None and pulse.goal.placement.epoch > self._epoch:
                    self._epoch, self._owners = pulse.goal.placement.epoch, list(pulse.goal.placement.server_of_slot)
                    self._reach(pulse.goal.addresses, ())
                granted = self._tracker.apply_changes(pulse.revoked, pulse.truncate, hurry=pulse.hurry, era=pulse.era)
                rest_s = 0.0 if granted else HEALING * every_s if pulse.healing else every_s
        self._fenced = True
        self._news.set()

    def hear(self, pulse: messages.HeartbeatReply) -> None:
        """Take in what only a bsp group needs."""

    def _report(self) -> MemberReport:
        return MemberReport(step=self._steps, samples=self._samples, seconds=dict(self._done))
