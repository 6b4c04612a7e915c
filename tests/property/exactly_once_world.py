"""Random histories of a job. Messages are lost, duplicated, reordered and late. Slots move, and workers and servers
die.

Servers are native `Store`s, moves and checkpoints are slot images, and the ledger is the master's own `JobLedger`. Only
the wire, the workers and the clock are simulated. Every key belongs to one (slot, batch) and counts how often that
batch was applied there. `RULES` can be dropped one by one, to show that each is needed and that a violation would be
seen.
"""

import dataclasses
import itertools
import random
from dataclasses import dataclass, field

import numpy as np

from springtide import _native
from springtide.data.ledger.job_ledger import JobLedger
from springtide.data.ledger.passes import JobProgress
from springtide.domain.data.leases import Grant, LeaseHolder, NoLease, Progress
from springtide.domain.data.samples import DatasetCard
from tests.oracles import ledger_invariants

RULES = {
    "revoke": "when a server is lost and the ledger goes back, all leases are taken back",
    "begin": "a checkpoint notes the ledger before it copies the first slot",
    "era": "words on leases from before the return do not count, though the same lease is given again",
    "covers": "a part that is sent again speaks for the slots it names, and for no other",
}
ALL_SLOTS = 256
SLOTS = (12, 13, 14, 77, 255)
"""The slots that matter here, of `ALL_SLOTS`; the first three share a lock stripe, and at times a set."""
SHARDS, BATCHES, GRID, WINDOW = 3, 5, 4, 3
CARD = DatasetCard(samples=SHARDS * BATCHES * GRID, batch_size=GRID, shard_batches=BATCHES)
ALL_BATCHES = [(shard, batch) for shard in range(SHARDS) for batch in range(BATCHES)]
HYPER = [(0, _native.Hyper(1.0, 0.0, 0))]
FAULTS_UNTIL, STEPS = 900, 6000


def new_store():
    """An empty server with one zero-initialized counting table."""
    store = _native.Store(slots=ALL_SLOTS, seed=1, reserve_bytes=1 << 26)
    store.declare(_native.TableSpec(id=0, name="counts", dim=1, optimizer="sgd"))
    return store


def counting_keys():
    """Return a different key for every slot and batch."""
    store, keys = new_store(), {}
    candidates = np.arange(20_000, dtype=np.int64)
    slot_of = store.slot_of(0, candidates)
    for slot in SLOTS:
        mine = candidates[slot_of == slot]
        keys |= {(slot, *name): int(key) for name, key in zip(ALL_BATCHES, mine, strict=False)}
    return keys


KEYS = counting_keys()
EMPTY = {slot: new_store().export_slot(slot) for slot in SLOTS}


@dataclass
class Push:
    """A message to a server."""

    sender: int
    lease: int
    shard: int
    batch: int
    keys: tuple[int, ...]
    covers: tuple[int, ...]
    server: int
    epoch: int


@dataclass
class Ack:
    """The server's reply, with the slots that it refused."""

    push: Push
    refused: frozenset[int]


@dataclass
class Worker:
    """A worker process. `lease` counts its leases, so that a reply to an earlier lease is recognized."""

    holder: LeaseHolder
    alive: bool = True
    era: int = 0
    grant: Grant | None = None
    lease: int = 0
    next: int = 0
    open: dict[int, set[int]] = field(default_factory=dict)
    owner: dict[int, int] = field(default_factory=dict)
    epoch: int = 0

    @property
    def trained(self) -> int:
        """Return the position before which all servers have acknowledged the lease's batches."""
        return min((batch for batch, left in self.open.items() if left), default=self.next)


@dataclass
class Checkpoint:
    """Slot images and the ledger's note, which is older than any of them."""

    note: JobProgress = field(default_factory=JobProgress)
    images: dict[int, bytes] = field(default_factory=dict)


class World:
    """The whole system. `run()` returns the batches not applied exactly once."""

    def __init__(self, seed: int, *, dropped: str = "") -> None:
        assert not dropped or dropped in RULES
        self.chance, self.dropped = random.Random(seed), dropped
        self.touched = {name: tuple(slot for slot in SLOTS if self.chance.random() < 0.6) for name in ALL_BATCHES}
        self.stores = {0: new_store(), 1: new_store()}
        self.fresh = itertools.count(2)
        self.epoch = 0
        self.owner = {slot: self.chance.choice([0, 1]) for slot in SLOTS}
        self.since = dict.fromkeys(SLOTS, 0)
        self.book = JobLedger(workers=self.chance.choice([1, 2]), lease_s=float("inf"))
        self.workers = [Worker(LeaseHolder(0)), Worker(LeaseHolder(1))]
        self.wire: list[Push | Ack] = []
        self.step = 0
        self.saved = Checkpoint(self.book.note(), EMPTY)
        self.saving: Checkpoint | None = None

    # ---- a run ----

    def run(self) -> list[str]:
        """Inject faults for a while, then none until all samples are trained."""
        for self.step in range(STEPS):
            if self.over:
                return self.violations()
            getattr(self, self.chance.choice(self.moves()))()
        return ["stuck: " + str(self.book.totals())]

    @property
    def over(self) -> bool:
        """All samples are trained and no message is in transit."""
        if self.wire or self.saving is not None:
            return False
        totals = self.book.totals()
        return totals.samples > 0 and totals.samples_done == totals.samples

    @property
    def faulty(self) -> bool:
        return self.step < FAULTS_UNTIL

    def moves(self) -> list[str]:
        """Possible next moves, weighted by likelihood."""
        live = [worker for worker in self.workers if worker.alive]
        moves = ["deliver"] * 6 if self.wire else []
        moves += ["work"] * 6 if live else ["spawn"]
        if self.faulty:
            faults = ["kill", "suspect", "move", "save", "die", "spawn", "idle"]
            moves += self.chance.choices(faults, weights=[2, 3, 8, 12, 4, 4, 30])
        elif not live:
            return ["spawn"]
        elif self.saving is not None:
            moves.append("save")
        return moves

    def violations(self) -> list[str]:
        """Every (batch, touched slot) not applied exactly once; untouched slots must be zero."""
        found = []
        for slot in SLOTS:
            names = list(ALL_BATCHES)
            out = np.zeros(len(names), dtype=np.float32)
            keys = np.array([KEYS[slot, *name] for name in names])
            self.stores[self.owner[slot]].pull(np.zeros(len(names), dtype=np.uint16), keys, out)
            for name, count in zip(names, out, strict=True):
                wanted = int(slot in self.touched[name])
                if count != wanted:
                    found.append(f"slot {slot}, shard {name[0]}, batch {name[1]}: {count:.0f} times, not {wanted}")
        return found

    # ---- messages ----

    def send(self, worker: Worker, batch: int, slots: tuple[int, ...], *, again: bool = False) -> None:
        """Send a push. The first covers all slots of a server, with or without keys; a repeat names its slots."""
        assert worker.grant is not None
        for server in sorted(set(worker.owner.values())):
            keys = tuple(slot for slot in slots if worker.owner[slot] == server)
            covers = keys
            if not again or self.dropped == "covers":
                covers = tuple(slot for slot in SLOTS if worker.owner[slot] == server)
            if covers:
                index = self.workers.index(worker)
                self.wire.append(
                    Push(index, worker.lease, worker.grant.shard, batch, keys, covers, server, worker.epoch)
                )
                worker.open[batch].update(keys)

    def deliver(self) -> None:
        """Deliver any message now, and perhaps once more later."""
        at = self.chance.randrange(len(self.wire))
        message = self.wire[at]
        if not (self.faulty and self.chance.random() < 0.15):
            self.wire.pop(at)
        if isinstance(message, Push):
            self.wire.append(Ack(message, self.apply(message)))
        else:
            self.acknowledge(message)

    def apply(self, push: Push) -> frozenset[int]:
        """Apply a push on a server to the slots it owns; return the slots it refuses."""
        if push.server not in self.stores:
            return frozenset(push.keys)
        mask = np.zeros(ALL_SLOTS, dtype=np.uint8)
        for slot in push.covers:
            mask[slot] = self.owner[slot] == push.server and self.since[slot] <= push.epoch
        stats = self.stores[push.server].push_once(
            np.zeros(len(push.keys), dtype=np.uint16),
            np.array([KEYS[slot, push.shard, push.batch] for slot in push.keys], dtype=np.int64),
            np.full(len(push.keys), -1.0, dtype=np.float32),
            HYPER,
            [(BATCHES * GRID, push.shard, push.batch * GRID, GRID)],
            mask,
            unique=True,
        )
        assert stats.torn == []
        assert set(stats.foreign) == {slot for slot in push.keys if not mask[slot]}
        return frozenset(stats.foreign)

    def acknowledge(self, ack: Ack) -> None:
        """A worker gets a reply: refused slots go to their owners by its newest placement."""
        worker, push = self.workers[ack.push.sender], ack.push
        if not worker.alive or worker.grant is None or worker.lease != push.lease or push.batch not in worker.open:
            return
        worker.open[push.batch] -= set(push.keys) - ack.refused
        if left := ack.refused & worker.open[push.batch]:
            worker.owner, worker.epoch = dict(self.owner), self.epoch
            self.send(worker, push.batch, tuple(sorted(left)), again=True)

    # ---- workers ----

    def work(self) -> None:
        """A worker leases, reports, pushes the next batch, or resends unanswered pushes."""
        worker = self.chance.choice([worker for worker in self.workers if worker.alive])
        if worker.grant is None:
            self.lease(worker)
        elif self.chance.random() < 0.4:
            self.report(worker)
        elif worker.next * GRID < worker.grant.end and sum(map(bool, worker.open.values())) < WINDOW:
            worker.open[worker.next] = set()
            self.send(worker, worker.next, self.touched[worker.grant.shard, worker.next])
            worker.next += 1
        elif not self.wire or (self.faulty and self.chance.random() < 0.1):
            worker.owner, worker.epoch = dict(self.owner), self.epoch
            for batch, left in worker.open.items():
                if left:
                    self.send(worker, batch, tuple(sorted(left)), again=True)

    def lease(self, worker: Worker) -> None:
        """Request a lease; a fenced worker starts a new life."""
        answer = self.book.lease(worker.holder, CARD, 1, 0.0)
        if answer is NoLease.FENCED:
            worker.holder = LeaseHolder(worker.holder.rank, worker.holder.incarnation + 1)
        elif not isinstance(answer, NoLease):
            if self.dropped == "era" and worker.grant == answer[0]:
                return  # it has this one already, and goes on where it was
            (worker.grant,) = answer
            worker.era = self.book.era
            worker.lease += 1
            worker.next, worker.open = worker.grant.first // GRID, {}
            worker.owner, worker.epoch = dict(self.owner), self.epoch

    def report(self, worker: Worker) -> None:
        """Report acknowledged progress. The lease may be revoked, and the worker may learn it late."""
        assert worker.grant is not None
        grant, offset = worker.grant, min(worker.trained * GRID, worker.grant.end)
        word = Progress(grant.shard, grant.first, offset, grant.end)
        verdict = self.book.report(worker.holder, [word], 0.0, None if self.dropped == "era" else worker.era)
        if verdict.fenced or verdict.revoked:
            if self.chance.random() < 0.2:
                worker.grant = None
            elif self.chance.random() < 0.2:
                self.lease(worker)
        elif offset == grant.end:
            worker.grant = None

    def spawn(self) -> None:
        """Add a rank."""
        self.workers.append(Worker(LeaseHolder(len(self.workers))))

    def kill(self) -> None:
        """Kill a worker; the master notices."""
        self.suspect(dies=True)

    def suspect(self, *, dies: bool = False) -> None:
        """Let the master fence a worker that is still alive, and may continue for long as a zombie."""
        live = [worker for worker in self.workers if worker.alive]
        if live:
            worker = self.chance.choice(live)
            worker.alive = not dies
            self.book.fence(*worker.holder)

    # ---- servers ----

    def move(self) -> None:
        """Move a slot to another server, with its rows and its set of batches."""
        slot, to = self.chance.choice(SLOTS), self.chance.choice(list(self.stores))
        if to != self.owner[slot]:
            image = self.stores[self.owner[slot]].export_slot(slot)
            self.stores[self.owner[slot]].clear_slot(slot)
            self.stores[to].import_slot(image)
            self.epoch += 1
            self.owner[slot], self.since[slot] = to, self.epoch
        if self.chance.random() < 0.2:
            self.stores[next(self.fresh)] = new_store()

    def save(self) -> None:
        """Advance a checkpoint by one slot: begin it, copy a slot, or complete it."""
        if self.saving is None:
            self.saving = Checkpoint(self.book.note())
        left = [slot for slot in SLOTS if slot not in self.saving.images]
        if left:
            slot = self.chance.choice(left)
            self.saving.images[slot] = self.stores[self.owner[slot]].export_slot(slot)
            if self.dropped == "begin":
                self.saving.note = self.book.note()
            return
        self.saved, self.saving = self.saving, None

    def die(self) -> None:
        """Lose a server. Its slots are restored from the last checkpoint, and the ledger rolls back to it."""
        if len(self.stores) == 1:
            return
        dead = self.chance.choice(list(self.stores))
        del self.stores[dead]
        self.epoch += 1
        for slot in SLOTS:
            if self.owner[slot] == dead:
                self.owner[slot], self.since[slot] = self.chance.choice(list(self.stores)), self.epoch
                self.stores[self.owner[slot]].import_slot(self.saved.images[slot])
        self.saving = None
        if self.dropped == "revoke":
            self.keep_leases()
        else:
            self.book.restore(self.saved.note)
        ledger_invariants.check(self.book)

    def keep_leases(self) -> None:
        """A rollback that revokes only leases without a holder."""
        note = self.saved.note
        self.book = JobLedger.from_state(dataclasses.replace(self.book.to_state(), ledgers=note.ledgers))
        if not note.ledgers:
            self.book.opened.clear()  # before the first lease: all cards are shown anew
        self.book.take_back(
            key
            for _, key, lease in self.book.leases()
            if lease.holder.incarnation <= self.book.holders.fenced.get(lease.holder.rank, -1)
            or lease.holder.incarnation < self.book.holders.living[lease.holder.rank]
        )

    def idle(self) -> None:
        """Do nothing."""
