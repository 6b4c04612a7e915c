"""Random histories of an online job. Records arrive, partitions are added, and batches are cut, forwarded and
duplicated.

Servers, moves, checkpoints and the master's `JobLedger` are those of `exactly_once_world`. Workers hold partitions,
notice new records late, request cuts at the end of the stream and forward batches to peers. Fenced workers may continue
for long. Every key belongs to one (slot, record) and counts how often it was trained. Some records have nothing to
train; the ledger counts them too. `RULES` can be dropped one by one, to show that each is needed.
"""

import random
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from springtide.data.ledger.job_ledger import JobLedger
from springtide.domain.data.leases import Grant, LeaseHolder, LeaseKey, NoLease, Progress
from springtide.domain.data.samples import DatasetCard
from springtide.domain.data.streams import BatchCut, PartitionRange, StreamCard
from tests.property import exactly_once_world
from tests.property.exactly_once_world import ALL_SLOTS, EMPTY, HYPER, SLOTS, WINDOW, Checkpoint, new_store

RULES = {
    "noted": "a batch that is not full is trained only when the master has noted where it ends",
    "cuts": "a lease comes with all cuts that are known of it",
    "back": "cuts outlive the return to a checkpoint",
    "era": "words on leases from before the return do not count",
    "kept": "a cut is forgotten only when a complete checkpoint has what lies before it as trained",
}
GRID, PARTITIONS, RECORDS = 4, 3, 14
CARD = DatasetCard(samples=0, batch_size=GRID, stream=StreamCard(url="log:///world"))
ALL_RECORDS = [(partition, offset) for partition in range(PARTITIONS) for offset in range(RECORDS)]


def counting_keys():
    """Return a different key for every slot and record."""
    candidates = np.arange(40_000, dtype=np.int64)
    slot_of = new_store().slot_of(0, candidates)
    return {
        (slot, *name): int(key)
        for slot in SLOTS
        for name, key in zip(ALL_RECORDS, candidates[slot_of == slot], strict=False)
    }


KEYS = counting_keys()


class Run(NamedTuple):
    """A batch of a worker's lease."""

    owner: int
    holder: LeaseHolder
    shard: int
    first: int
    begin: int
    end: int
    era: int


@dataclass
class Push:
    """A message to a server."""

    sender: int
    run: Run
    keys: tuple[tuple[int, int, int], ...]
    covers: tuple[int, ...]
    server: int
    epoch: int


@dataclass
class Ack:
    """The server's reply, with the slots that it refused."""

    push: Push
    refused: frozenset[int]


@dataclass
class Told:
    """A peer's message to the owner of a batch: the batch is trained."""

    run: Run


@dataclass
class Part:
    """A lease that a worker holds."""

    grant: Grant
    end: int
    claimed: int
    offset: int
    cuts: set[int]
    runs: list[Run] = field(default_factory=list)
    """Claimed and not known to be trained."""
    trained: dict[int, tuple[int, int]] = field(default_factory=dict)
    void: int = 0

    def acknowledge(self, run: Run, void: int) -> None:
        """As `worker.link.lease_tracker` does."""
        if run in self.runs:
            self.runs.remove(run)
            self.trained[run.begin] = (run.end, void)
        while self.offset in self.trained:
            self.offset, void = self.trained.pop(self.offset)
            self.void += void


@dataclass
class Worker:
    """A process."""

    holder: LeaseHolder
    alive: bool = True
    era: int = 0
    parts: dict[LeaseKey, Part] = field(default_factory=dict)
    open: dict[Run, set[int]] = field(default_factory=dict)
    """Batches it trains, its own and others', with the slots that have not answered."""
    owner: dict[int, int] = field(default_factory=dict)
    epoch: int = 0
    heads: dict[int, int] = field(default_factory=dict)
    """Ends of the partitions when it last looked."""


class StreamWorld(exactly_once_world.World):
    """The whole system with streams; see `World`."""

    def __init__(self, seed: int, *, dropped: str = "") -> None:
        super().__init__(seed)
        assert not dropped or dropped in RULES
        self.dropped, self.chance = dropped, random.Random(seed)
        self.touched = {name: tuple(slot for slot in SLOTS if self.chance.random() < 0.6) for name in ALL_RECORDS}
        self.void = {name for name in ALL_RECORDS if self.chance.random() < 0.2}
        """Records that cannot be trained: they touch nothing."""
        self.touched |= dict.fromkeys(self.void, ())
        self.book = JobLedger(workers=self.chance.choice([1, 2]), lease_s=float("inf"), keeps=1)
        self.workers = [Worker(LeaseHolder(0)), Worker(LeaseHolder(1))]
        self.ends = {0: 3, 1: 0}
        self.saved = Checkpoint(self.book.note(), EMPTY)
        self.torn: list[str] = []
        self.tears = 0

    def run(self) -> list[str]:
        """Run as in any job; a torn batch with a valid lease would be resent for ever."""
        found = super().run()
        return self.torn or found

    @property
    def over(self) -> bool:
        """All records are trained and no message is in transit."""
        flows = self.book.flows()
        return bool(flows) and flows[0].over and not self.wire and self.saving is None

    def moves(self) -> list[str]:
        """Return the moves of any job, and those of streams and of balancing partitions."""
        moves = super().moves()
        if self.faulty:
            moves += self.chance.choices(["grow", "assign", "idle"], weights=[6, 2, 8])
        elif self.book.holders.expected > 1:
            self.book.expect(1)
        return moves

    def violations(self) -> list[str]:
        """Every (record, touched slot) not applied exactly once, and valid batches found torn."""
        found = list(self.torn)
        wanted = sum(offset < self.ends.get(partition, 0) for partition, offset in self.void)
        if self.over and self.book.flows()[0].void != wanted:
            found.append(f"{self.book.flows()[0].void} records are said to hold nothing to train, not {wanted}")
        for slot in SLOTS:
            out = np.zeros(len(ALL_RECORDS), dtype=np.float32)
            keys = np.array([KEYS[slot, *name] for name in ALL_RECORDS])
            self.stores[self.owner[slot]].pull(np.zeros(len(keys), dtype=np.uint16), keys, out)
            for name, count in zip(ALL_RECORDS, out, strict=True):
                there = name[1] < self.ends.get(name[0], 0)
                wanted = int(there and slot in self.touched[name])
                if count != wanted:
                    found.append(f"slot {slot}, partition {name[0]}, offset {name[1]}: {count:.0f}, not {wanted}")
        return found

    # ---- the stream and who has what of it ----

    def grow(self) -> None:
        """Append records, sometimes to a new partition."""
        if self.chance.random() < 0.1 and len(self.ends) < PARTITIONS:
            self.ends[len(self.ends)] = 0
        partition = self.chance.choice(list(self.ends))
        self.ends[partition] = min(RECORDS, self.ends[partition] + self.chance.randrange(1, 4))

    def assign(self) -> None:
        """Let the master move a partition."""
        ranks = [worker.holder.rank for worker in self.workers if worker.alive]
        if ranks:
            self.book.assign([(self.chance.randrange(PARTITIONS), self.chance.choice(ranks))])

    # ---- messages ----

    def send_run(self, worker: Worker, run: Run, *, again: bool = False) -> None:
        """Send a push. The first covers all slots of a server, with or without keys; a repeat names its slots."""
        names = [(run.shard, offset) for offset in range(run.begin, run.end)]
        left = worker.open.setdefault(run, set())
        if not again:
            left.update(slot for name in names for slot in self.touched[name])
        for server in sorted(set(worker.owner.values())):
            slots = {slot for slot in left if worker.owner[slot] == server}
            keys = tuple((slot, *name) for name in names for slot in self.touched[name] if slot in slots)
            covers = tuple(sorted(slots)) if again else tuple(s for s in SLOTS if worker.owner[s] == server)
            if covers:
                self.wire.append(Push(self.workers.index(worker), run, keys, covers, server, worker.epoch))
        if not left:
            self.done(worker, run)

    def deliver(self) -> None:
        """Deliver any message now, and perhaps once more later."""
        at = self.chance.randrange(len(self.wire))
        message = self.wire[at]
        if not (self.faulty and self.chance.random() < 0.15):
            self.wire.pop(at)
        if isinstance(message, Push):
            refused = self.apply(message)
            if refused is not None:
                self.wire.append(Ack(message, refused))
        elif isinstance(message, Told):
            owner = self.workers[message.run.owner]
            if owner.alive:
                self.trained(owner, message.run)
        else:
            self.acknowledge(message)

    def apply(self, push: Push) -> frozenset[int] | None:
        """Apply a push on a server; return the slots it refuses, or None if it already has part of the batch."""
        run, wanted = push.run, frozenset(slot for slot, _, _ in push.keys)
        if push.server not in self.stores:
            return wanted
        mask = np.zeros(ALL_SLOTS, dtype=np.uint8)
        for slot in push.covers:
            mask[slot] = self.owner[slot] == push.server and self.since[slot] <= push.epoch
        stats = self.stores[push.server].push_once(
            np.zeros(len(push.keys), dtype=np.uint16),
            np.array([KEYS[key] for key in push.keys], dtype=np.int64),
            np.full(len(push.keys), -1.0, dtype=np.float32),
            HYPER,
            [(0, run.shard, run.begin, run.end - run.begin)],
            mask,
            unique=True,
        )
        if stats.torn:
            self.tears += 1
            flow = self.book.flows()[0]
            lease = flow.leases.get(LeaseKey(run.shard, run.first))
            if lease is not None and lease.holder == run.holder and run.era == self.book.era:
                self.torn.append(f"{run} is torn, though its lease is its owner's")
            return None
        return frozenset(stats.foreign)

    def acknowledge(self, ack: Ack) -> None:
        """A worker gets a reply: refused slots go to their owners by its newest placement."""
        worker, run = self.workers[ack.push.sender], ack.push.run
        if not worker.alive or run not in worker.open:
            return
        left = worker.open[run]
        left -= {slot for slot, _, _ in ack.push.keys} - ack.refused
        if ack.refused & left:
            worker.owner, worker.epoch = dict(self.owner), self.epoch
            self.send_run(worker, run, again=True)
        elif not left:
            self.done(worker, run)

    def done(self, worker: Worker, run: Run) -> None:
        """Report to the owner of a batch that every server has it."""
        del worker.open[run]
        if self.workers[run.owner] is worker:
            self.trained(worker, run)
        else:
            self.wire.append(Told(run))

    def trained(self, worker: Worker, run: Run) -> None:
        part = worker.parts.get(LeaseKey(run.shard, run.first))
        if part is not None and (run.era == worker.era or self.dropped == "era") and run.holder == worker.holder:
            part.acknowledge(run, sum((run.shard, offset) in self.void for offset in range(run.begin, run.end)))

    # ---- workers ----

    def work(self) -> None:
        """A worker leases, reports, polls, trains a batch, forwards one, or resends unanswered pushes."""
        worker = self.chance.choice([worker for worker in self.workers if worker.alive])
        act = self.chance.random()
        if not worker.parts or act < 0.1:
            self.lease(worker)
        elif act < 0.35:
            self.report(worker)
        elif act < 0.5:
            worker.heads = dict(self.ends)
        elif act < 0.9:
            self.train(worker, self.chance.choice(list(worker.parts.values())))
        elif not self.wire or self.faulty:
            self.send_again(worker)

    def lease(self, worker: Worker) -> None:
        """Request all available leases; a fenced worker starts a new life."""
        sealed = not self.faulty
        seen = [PartitionRange(partition, 0, end, sealed) for partition, end in self.ends.items()]
        answer = self.book.lease(worker.holder, CARD, 99, 0.0, list(worker.parts), worker.era, seen)
        if answer is NoLease.FENCED:
            worker.holder = LeaseHolder(worker.holder.rank, worker.holder.incarnation + 1)
            worker.parts, worker.open = {}, {}
        elif not isinstance(answer, NoLease):
            self.enter(worker)
            cuts = self.book.cuts_of(answer) if self.dropped != "cuts" else ()
            worker.owner, worker.epoch = dict(self.owner), self.epoch
            for grant in answer:
                key = LeaseKey(grant.shard, grant.first)
                mine = {cut.at for cut in cuts if (cut.shard, cut.first) == key}
                if self.dropped != "era" or key not in worker.parts:  # it has this one, and goes on where it was
                    worker.parts[key] = Part(grant, grant.end, grant.first, grant.first, mine)

    def enter(self, worker: Worker) -> None:
        """Let a worker learn the ledger's era."""
        if worker.era < self.book.era:
            worker.era = self.book.era
            if self.dropped != "era":
                worker.parts = {}

    def train(self, worker: Worker, part: Part) -> None:
        """Train the next batch of a lease: full, ending at a known cut, or cut now."""
        grant, begin = part.grant, part.claimed
        if len(part.runs) >= WINDOW or begin >= part.end:
            return
        head = min(part.end, worker.heads.get(grant.nth, 0))
        end = min([(begin // GRID + 1) * GRID, *(at for at in part.cuts if at > begin), part.end])
        if end > head:
            if head <= begin:
                return
            cut, end = BatchCut(grant.shard, grant.first, head), head
            if self.dropped != "noted" and cut not in self.book.cut(worker.holder, [cut], worker.era):
                return
            part.cuts.add(head)
        run = Run(self.workers.index(worker), worker.holder, grant.shard, grant.first, begin, end, worker.era)
        part.claimed = end
        part.runs.append(run)
        peers = [other for other in self.workers if other.alive and other is not worker and other.owner]
        if peers and self.chance.random() < 0.3:
            self.send_run(self.chance.choice(peers), run)
        else:
            self.send_run(worker, run)

    def send_again(self, worker: Worker) -> None:
        """Resend unanswered pushes; batches that a peer does not answer for are trained locally."""
        worker.owner, worker.epoch = dict(self.owner), self.epoch
        for run in list(worker.open):
            self.send_run(worker, run, again=True)
        for part in worker.parts.values():
            for run in [run for run in part.runs if run not in worker.open]:
                self.send_run(worker, run)

    def report(self, worker: Worker) -> None:
        """Report acknowledged progress. Leases may be revoked, and the worker may learn it late."""
        words = [
            Progress(part.grant.shard, part.grant.first, min(part.offset, part.end), part.end, part.void)
            for part in worker.parts.values()
        ]
        verdict = self.book.report(worker.holder, words, 0.0, None if self.dropped == "era" else worker.era)
        if (verdict.fenced or verdict.revoked) and self.chance.random() < 0.3:
            for key in worker.parts if verdict.fenced else verdict.revoked:
                worker.parts = {other: part for other, part in worker.parts.items() if other != key}
            self.enter(worker)
        for wish in verdict.wishes:
            part = worker.parts.get(LeaseKey(wish.shard, wish.first))
            if part is not None:
                part.end = max(part.claimed, part.offset, min(part.end, wish.end))
        for word in words:
            if word.offset == word.end:
                worker.parts.pop(LeaseKey(word.shard, word.first), None)

    def spawn(self) -> None:
        """Add a rank."""
        self.workers.append(Worker(LeaseHolder(len(self.workers))))

    # ---- servers ----

    def save(self) -> None:
        """Advance a checkpoint by one slot; a complete one forgets cuts it no longer needs."""
        before = self.saved
        super().save()
        if self.saved is not before:
            self.book.keep(self.saved.note)
        if self.dropped == "kept" and self.book.flows():
            for partition in self.book.flows()[0].partitions.values():
                if partition.waiting:
                    partition.forget(partition.waiting[0].first)
                for lease in self.book.flows()[0].leases.values():
                    self.book.flows()[0].partitions[lease.running].forget(lease.offset)

    def die(self) -> None:
        """Lose a server."""
        super().die()
        if self.dropped == "back" and self.book.flows():
            for partition in self.book.flows()[0].partitions.values():
                partition.cuts.clear()
