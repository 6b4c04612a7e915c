"""The record of a job, which survives the master: state machine, data ledger, placement and shared values.

In: entries (`master.core.journal_entries`), in order. Out: the effects of each entry. The record uses no clock and no
socket, so the same entries always produce the same record. A master that takes over replays the journal of its
predecessor.
"""

import msgspec

from springtide import errors
from springtide.data.ledger.job_ledger import JobLedger, JobLedgerState
from springtide.data.ledger.passes import JobProgress
from springtide.domain.core.roles import Placement, RoleKind
from springtide.domain.data.data_workers import BatchName, LeftOut
from springtide.domain.data.leases import Grant, LeaseHolder, LedgerReply, NoLease
from springtide.domain.data.samples import EpochPlace
from springtide.domain.spec.job_spec import JobSpec
from springtide.embedding.placement import placement
from springtide.job.core import actions, events
from springtide.job.state import JobState
from springtide.master.core import journal_entries

MAX_SHARED_BYTES = 2**20  # size of one value: addresses and the like, not tensors
MAX_SHARED_KEYS = 10_000
DONE = LeaseHolder(-1, -1)
"""Holder that marks a claim as done."""


class JobRecordState(msgspec.Struct, frozen=True, kw_only=True):
    """A record as plain data, for snapshots."""

    job: JobState
    book: JobLedgerState
    addresses: tuple[str, ...]
    shared: dict[str, bytes]
    once: dict[str, LeaseHolder]
    gates: dict[str, int]
    owners: tuple[int, ...]
    epoch: int
    leased_at: float | None
    trained_at: float
    ended_at: float | None
    last_at: float
    objects: dict[int, dict[str, bytes]] = {}
    begun: bool = False
    left_out: tuple[LeftOut, ...] = ()
    samples_before: int = 0
    places: dict[int, EpochPlace] = {}


class JobRecord:
    """The record of one job. `changes` grows with every change that a journal must keep."""

    def __init__(self, spec: JobSpec) -> None:
        self.state = JobState(spec)
        rules = spec.checkpoints
        self.book = JobLedger(workers=spec.workers, max_failures=spec.tries, saves=rules.on, keeps=rules.keep)
        self.addresses: tuple[str, ...] = ()
        """Server addresses by rank. Empty until all servers listen; "" for a server that has left or is down."""
        self.owners: tuple[int, ...] = ()
        """Owner of each slot, as reported by the servers."""
        self.epoch = 0
        self.shared: dict[str, bytes] = {}
        self.once: dict[str, LeaseHolder] = {}
        self.objects: dict[int, dict[str, bytes]] = {}
        """States of the workers' registered objects, by rank and name."""
        self.places: dict[int, EpochPlace] = {}
        """Place in the script at which each rank's states were taken."""
        self.left_out: dict[BatchName, LeftOut] = {}
        """Batches that were trained without some of their samples. A batch that is trained again counts once."""
        self.gates: dict[str, int] = {}
        """Number of times that each barrier has opened."""
        self.leased_at: float | None = None
        """When the first shard was leased."""
        self.begun = False
        """True if a shard was leased since the job began or its bsp group last rolled back. Only workers have its model
        then."""
        self.samples_before = 0
        """Samples trained by the run from which this run resumed."""
        self.trained_at = 0.0
        """When a worker last made progress."""
        self.ended_at: float | None = None
        self.last_at = 0.0
        """Time of the newest entry, from which a new master's clock continues."""
        self._changes = 0
        self._placement: Placement | None = None

    @property
    def changes(self) -> int:
        """Return the number of changes that must survive."""
        return self._changes + self.book.changes

    @property
    def placement(self) -> Placement | None:
        """Return the owner of every slot; None until all servers listen."""
        if not self.owners:
            return None
        known = self._placement  # cached, because every heartbeat asks for it
        if known is None or (known.epoch, known.servers) != (self.epoch, len(self.addresses)):
            known = Placement(epoch=self.epoch, servers=len(self.addresses), server_of_slot=self.owners)
            self._placement = known
        return known

    @property
    def reachable(self) -> bool:
        """Return True if every server that owns slots has an address."""
        return bool(self.owners) and all(self.addresses[rank] for rank in set(self.owners))

    # ---- changes ----

    def happen(self, event: events.Event, at: float) -> list[actions.Action]:
        """Run an event through the state machine, and apply the resulting actions to the ledger."""
        if isinstance(event, events.RoleAlive):  # the most frequent event, which changes nothing in the journal
            self.last_at = max(self.last_at, at)
            return self.state.handle(event, at=at)
        before, workers = self._worker_ranks(), self.state.workers
        done = self.state.handle(event, at=at)
        self._changes += 1
        self.last_at = max(self.last_at, at)
        for action in done:
            match action:
                case actions.PlaceSlots(addresses):
                    self.addresses = addresses
                    ranks = [rank for rank, address in enumerate(addresses) if address]
                    first = placement.even(self.state.spec.slots, len(ranks))
                    self.owners, self.epoch = tuple(ranks[each] for each in first.server_of_slot), first.epoch
                case actions.ServerLeft(role):
                    self._readdress(role.rank, "")
                case actions.ServerLost(role):
                    self._readdress(role.rank, "")
                case actions.ServerReturned(role, _, address):
                    self._readdress(role.rank, address)
                case actions.FenceWorker(role, incarnation) if role.kind is RoleKind.WORKER:
                    self.book.fence(role.rank, incarnation)
                    self._release(LeaseHolder(role.rank, incarnation))
                case actions.RollBack(anew):
                    self.begun = False
                    if anew:
                        self._begin_anew()
                case actions.DrainWorkers():
                    self.book.close()
                case actions.EndJob():
                    self.ended_at = at
        if isinstance(event, events.GroupFormed):
            self.book.regroup([holder.rank for holder in event.members])
        if not isinstance(event, events.EvictionNoticed):  # the replacement of an evicted worker continues at its place
            self._forget(self._worker_ranks() - before)
        if self.state.workers != workers:
            self.book.expect(self.state.workers)
        return done

    def lease(self, entry: journal_entries.LeaseEntry) -> tuple[Grant, ...] | NoLease:
        answer = self.book.lease(
            entry.holder, entry.card, entry.most, entry.at, set(entry.known), entry.era, entry.seen
        )
        if not isinstance(answer, NoLease):
            self.begun = True
            self.leased_at = entry.at if self.leased_at is None else self.leased_at
        self.last_at = max(self.last_at, entry.at)
        return answer

    def report(self, entry: journal_entries.ReportEntry) -> LedgerReply:
        """Apply a worker's progress to its leases."""
        before = self.book.changes
        verdict = self.book.report(entry.holder, entry.words, entry.at, entry.era)
        if self.book.changes != before:
            self.trained_at = self.last_at = max(self.last_at, entry.at)
        return verdict

    def share(self, key: str, value: bytes) -> None:
        """Store a shared value. A second value under the same key replaces the first."""
        if len(value) > MAX_SHARED_BYTES or (len(self.shared) >= MAX_SHARED_KEYS and key not in self.shared):
            raise errors.BadInput(
                f"shared value {key!r} of {len(value)} bytes: "
                f"at most {MAX_SHARED_KEYS} values of {MAX_SHARED_BYTES} bytes each"
            )
        self._changes += self.shared.get(key) != value
        self.shared[key] = value

    def claim(self, key: str, holder: LeaseHolder) -> bool | None:
        """Return True if this worker must do the task, False if it is done, None while another worker does it."""
        doer = self.once.get(key)
        if doer is None:
            self.once[key] = holder
            self._changes += 1
            return True
        return doer == holder if doer in (holder, DONE) else None

    def settle(self, key: str, holder: LeaseHolder) -> None:
        """Mark a claimed task as done. Reports of fenced workers do not count."""
        if self.once.get(key) == holder:
            self.once[key] = DONE
            self._changes += 1

    def resume(self, entry: journal_entries.ResumeEntry) -> None:
        """Resume from another run's checkpoint, before any member has joined."""
        self.book.resume(entry.note)
        self.samples_before = self.book.samples_trained
        self.once = dict.fromkeys(entry.claims, DONE)
        self.state.safety.origin = self.state.spec.checkpoints.resume_number
        self.objects, self.places = dict(entry.objects), dict(entry.places)
        self._changes += 1

    def restore(self, entry: journal_entries.RestoreEntry) -> int:
        """Roll the ledger back to a restored checkpoint. Return the number of samples to train again."""
        if entry.objects is not None:
            self.objects, self.places = dict(entry.objects), dict(entry.places)
        return self.book.restore(entry.note)

    def remember(self, rank: int, objects: dict[str, bytes], place: EpochPlace | None = None) -> None:
        """Store the states of a worker's registered objects, and its place in the script.

        A place before the known place changes nothing. Either the heartbeat arrived after the begin of a later epoch,
        or a relaunched worker has not reached its place yet.
        """
        if place is not None:
            if place.is_before(self.places.get(rank, place)):
                return
            self.places = {**self.places, rank: place}
        self.objects = {**self.objects, rank: objects}
        self._changes += 1

    def place_for(self, rank: int) -> EpochPlace | None:
        """Return where a worker's script begins: at its own place, else at the place of the most advanced rank."""
        known = self.places.get(rank)
        return max(self.places.values(), default=None) if known is None else known

    def objects_for(self, rank: int) -> dict[str, bytes]:
        """Return the object states for a starting worker: its own, else those of ranks at the place where it begins.
        Lower ranks win.
        """
        place = self.place_for(rank)
        found: dict[str, bytes] = {}
        for other in sorted(self.objects, key=lambda one: (one == rank, self.places.get(one) == place, -one)):
            found |= self.objects[other]
        return found

    def leave_out(self, left_out: LeftOut) -> bool:
        """Record a batch that was trained without unreadable samples. Return True if that is new."""
        news = self.left_out.get(left_out.batch) != left_out
        self.left_out[left_out.batch] = left_out
        self._changes += news
        return news

    def all_left_out(self) -> str:
        """Return an error text if every sample was left out; empty if some were trained."""
        count = sum(len(each.indices) for each in self.left_out.values())
        if not count or count < self.book.totals().samples_done:
            return ""
        return f"none of {count:,} samples could be made; {next(iter(self.left_out.values()))}"

    def open_gate(self, name: str, turn: int) -> None:
        """Open a barrier that every worker has reached. Workers that repeat the request need not wait."""
        self.gates[name] = max(turn, self.gates.get(name, 0))
        self._changes += 1

    def moved(self, slots: tuple[int, ...], server: int) -> int:
        """Assign slots to a server. Return the number of slots whose owner changed."""
        owners = list(self.owners)
        for slot in slots:
            owners[slot] = server
        changed = sum(a != b for a, b in zip(owners, self.owners, strict=True))
        if changed:
            self.owners, self.epoch = tuple(owners), self.epoch + 1
            self._changes += 1
        return changed

    def apply(self, entry: journal_entries.AnyEntry) -> None:
        """Replay a journal entry. An entry that was rejected the first time is rejected again."""
        try:
            self._apply(entry)
        except errors.SpringtideError:
            return

    def _apply(self, entry: journal_entries.AnyEntry) -> None:
        match entry:
            case journal_entries.EventEntry():
                self.happen(journal_entries.event_of(entry), entry.at)
            case journal_entries.LeaseEntry():
                self.lease(entry)
            case journal_entries.ReportEntry():
                self.report(entry)
            case journal_entries.EndEntry():
                self.book.end(entry.holder, entry.card, entry.samples)
            case journal_entries.CutEntry():
                self.book.cut(entry.holder, entry.cuts, entry.era)
            case journal_entries.StretchEntry():
                self.book.plan(entry.rank, entry.shard, entry.stretch)
            case journal_entries.AssignEntry():
                self.book.assign(entry.owners)
            case journal_entries.FailEntry():
                self.book.fail(entry.holder, entry.failure)
            case journal_entries.ExpireEntry():
                self.book.take_back(entry.keys)
            case journal_entries.RestoreEntry():
                self.restore(entry)
            case journal_entries.KeepEntry():
                self.book.keep(entry.note, floors=entry.floors)
            case journal_entries.ResumeEntry():
                self.resume(entry)
            case journal_entries.HaltEntry():
                self.book.halt()
            case journal_entries.ResizeEntry():
                self.book.resize(entry.rank, entry.halvings)
            case journal_entries.ShortenEntry():
                self.book.wish(entry.wish)
            case journal_entries.ShareEntry():
                self.share(entry.key, entry.value)
            case journal_entries.ObjectsEntry():
                self.remember(entry.rank, entry.objects, entry.place)
            case journal_entries.ClaimEntry():
                self.claim(entry.key, entry.holder)
            case journal_entries.SettleEntry():
                self.settle(entry.key, entry.holder)
            case journal_entries.LeftOutEntry():
                self.leave_out(entry.left_out)
            case journal_entries.MovedEntry():
                self.moved(entry.slots, entry.server)
            case journal_entries.BarrierEntry():
                self.open_gate(entry.name, entry.turn)

    def _worker_ranks(self) -> set[int]:
        return {each.role.rank for each in self.state.wanted() if each.role.kind is RoleKind.WORKER}

    def _forget(self, ranks: set[int]) -> None:
        """Forget the places of additional workers, so that they begin where the other workers are."""
        self.objects = {rank: states for rank, states in self.objects.items() if rank not in ranks}
        self.places = {rank: place for rank, place in self.places.items() if rank not in ranks}

    def _readdress(self, rank: int, address: str) -> None:
        """Set a server's address; empty if it is down."""
        if self.addresses:
            known = [*self.addresses, *[""] * (rank + 1 - len(self.addresses))]
            known[rank] = address
            self.addresses = tuple(known)

    def _begin_anew(self) -> None:
        """Restart the job from nothing: no samples trained, no tasks done."""
        self.book.restore(JobProgress())
        self.once, self.objects, self.places, self.leased_at = {}, {}, {}, None

    def _release(self, holder: LeaseHolder) -> None:
        """Release the tasks that a lost worker had claimed, so that another worker does them."""
        for key in [key for key, doer in self.once.items() if doer == holder]:
            del self.once[key]

    # ---- whole ----

    def to_bytes(self) -> bytes:
        """Encode the whole record as a snapshot."""
        return msgspec.msgpack.encode(
            JobRecordState(
                job=self.state,
                book=self.book.to_state(),
                addresses=self.addresses,
                shared=self.shared,
                once=self.once,
                gates=self.gates,
                owners=self.owners,
                epoch=self.epoch,
                leased_at=self.leased_at,
                trained_at=self.trained_at,
                ended_at=self.ended_at,
                last_at=self.last_at,
                objects=self.objects,
                begun=self.begun,
                left_out=tuple(self.left_out.values()),
                samples_before=self.samples_before,
                places=self.places,
            )
        )

    @staticmethod
    def from_bytes(body: bytes) -> "JobRecord":
        """Decode a snapshot."""
        state = msgspec.msgpack.decode(body, type=JobRecordState)
        record = JobRecord(state.job.spec)
        record.state, record.book = state.job, JobLedger.from_state(state.book)
        record.addresses, record.shared = state.addresses, state.shared
        record.once, record.gates = state.once, state.gates
        record.owners, record.epoch = state.owners, state.epoch
        record.leased_at, record.trained_at = state.leased_at, state.trained_at
        record.ended_at, record.last_at, record.objects = state.ended_at, state.last_at, state.objects
        record.begun, record.left_out = state.begun, {each.batch: each for each in state.left_out}
        record.samples_before, record.places = state.samples_before, state.places
        return record
