"""The record of a job, which survives the master: state machine, data ledger, placement and shared values.

The record uses no clock and no socket, so the same entries always produce the same record. A master that takes over
replays the journal of its predecessor.
"""

from dataclasses import dataclass, field

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


@dataclass(slots=True, kw_only=True)
class SlotOwners:
    """Owner of each slot, and the addresses of the servers."""

    addresses: tuple[str, ...] = ()
    """Server addresses by rank. Empty until all servers listen; "" for a server that has left or is down."""
    placement: Placement | None = None
    """Owner of every slot, as reported by the servers; None until all servers listen."""
    changes: int = 0

    @property
    def owners(self) -> tuple[int, ...]:
        return self.placement.server_of_slot if self.placement is not None else ()

    @property
    def epoch(self) -> int:
        return self.placement.epoch if self.placement is not None else 0

    @property
    def reachable(self) -> bool:
        """Return True if every server that owns slots has an address."""
        return bool(self.owners) and all(self.addresses[rank] for rank in set(self.owners))

    def place(self, addresses: tuple[str, ...], slots: int) -> None:
        """Distribute all slots evenly over the servers that have an address."""
        self.addresses = addresses
        ranks = [rank for rank, address in enumerate(addresses) if address]
        first = placement.even(slots, len(ranks))
        self._own(first.epoch, tuple(ranks[server] for server in first.server_of_slot))

    def set_address(self, rank: int, address: str) -> None:
        """Set a server's address; empty if it is down."""
        if self.addresses:
            known = [*self.addresses, *[""] * (rank + 1 - len(self.addresses))]
            known[rank] = address
            self.addresses = tuple(known)
            self._own(self.epoch, self.owners)

    def move(self, slots: tuple[int, ...], server: int) -> int:
        """Assign slots to a server. Return the number of slots whose owner changed."""
        owners = list(self.owners)
        for slot in slots:
            owners[slot] = server
        changed = sum(a != b for a, b in zip(owners, self.owners, strict=True))
        if changed:
            self._own(self.epoch + 1, tuple(owners))
            self.changes += 1
        return changed

    def _own(self, epoch: int, owners: tuple[int, ...]) -> None:
        self.placement = Placement(epoch=epoch, servers=len(self.addresses), server_of_slot=owners)


@dataclass(slots=True, kw_only=True)
class ScriptPlaces:
    """Where each worker's script is, and the states of its registered objects there."""

    objects: dict[int, dict[str, bytes]] = field(default_factory=dict)
    """States of the workers' registered objects, by rank and name."""
    places: dict[int, EpochPlace] = field(default_factory=dict)
    """Place in the script at which each rank's states were taken."""
    changes: int = 0

    def remember(self, rank: int, objects: dict[str, bytes], place: EpochPlace | None = None) -> None:
        """Store the states of a worker's registered objects, and its place in the script.

        A place before the known place changes nothing: the heartbeat arrived after the begin of a later epoch, or a
        relaunched worker has not reached its place yet.
        """
        if place is not None:
            if place.is_before(self.places.get(rank, place)):
                return
            self.places = {**self.places, rank: place}
        self.objects = {**self.objects, rank: objects}
        self.changes += 1

    def place_for(self, rank: int) -> EpochPlace | None:
        """Return where a worker's script begins: at its own place, else at the place of the most advanced rank."""
        known = self.places.get(rank)
        return max(self.places.values(), default=None) if known is None else known

    def objects_for(self, rank: int) -> dict[str, bytes]:
        """Return the object states for a starting worker, by name: its own first, then those of the lowest rank at the
        same place."""
        place = self.place_for(rank)
        states: dict[str, bytes] = {}
        for other in sorted(self.objects, key=lambda one: (one == rank, self.places.get(one) == place, -one)):
            states |= self.objects[other]
        return states

    def reset(self, objects: dict[int, dict[str, bytes]], places: dict[int, EpochPlace]) -> None:
        self.objects, self.places = dict(objects), dict(places)

    def forget(self, ranks: set[int]) -> None:
        """Forget the places of additional workers, so that they begin where the other workers are."""
        self.objects = {rank: states for rank, states in self.objects.items() if rank not in ranks}
        self.places = {rank: place for rank, place in self.places.items() if rank not in ranks}


@dataclass(slots=True, kw_only=True)
class SharedState:
    """Values, tasks and barriers that the workers of a job share."""

    values: dict[str, bytes] = field(default_factory=dict)
    claims: dict[str, LeaseHolder] = field(default_factory=dict)
    """Worker that does each task that must be done once, or `DONE`."""
    gates: dict[str, int] = field(default_factory=dict)
    changes: int = 0

    def share(self, key: str, value: bytes) -> None:
        """Store a shared value. A second value under the same key replaces the first."""
        if len(value) > MAX_SHARED_BYTES or (len(self.values) >= MAX_SHARED_KEYS and key not in self.values):
            raise errors.BadInput(
                f"shared value {key!r} of {len(value)} bytes: "
                f"at most {MAX_SHARED_KEYS} values of {MAX_SHARED_BYTES} bytes each"
            )
        self.changes += self.values.get(key) != value
        self.values[key] = value

    def claim(self, key: str, holder: LeaseHolder) -> bool | None:
        """Return True if this worker must do the task, False if it is done, None while another worker does it."""
        doer = self.claims.get(key)
        if doer is None:
            self.claims[key] = holder
            self.changes += 1
            return True
        return doer == holder if doer in (holder, DONE) else None

    def settle(self, key: str, holder: LeaseHolder) -> None:
        """Mark a claimed task as done. Reports of fenced workers do not count."""
        if self.claims.get(key) == holder:
            self.claims[key] = DONE
            self.changes += 1

    def release(self, holder: LeaseHolder) -> None:
        """Release the tasks that a lost worker had claimed, so that another worker does them."""
        self.claims = {key: doer for key, doer in self.claims.items() if doer != holder}

    def open_gate(self, name: str, turn: int) -> None:
        """Open a barrier that every worker has reached. A worker that repeats its request then passes without
        waiting."""
        self.gates[name] = max(turn, self.gates.get(name, 0))
        self.changes += 1


@dataclass(slots=True, kw_only=True)
class TrainingSpan:
    """When training began and ended, by the job's clock."""

    leased_at: float | None = None
    trained_at: float = 0.0
    """When a worker last made progress."""
    ended_at: float | None = None
    last_at: float = 0.0
    """Time of the newest entry, from which a new master's clock continues."""
    begun: bool = False
    """True if a shard was leased since the job began or its bsp group last rolled back."""
    samples_before: int = 0


class RecordSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A record as plain data."""

    job: JobState
    book: JobLedgerState
    slots: SlotOwners
    scripts: ScriptPlaces
    shared: SharedState
    span: TrainingSpan
    left_out: tuple[LeftOut, ...]


class JobRecord:
    """The record of one job. `changes` grows with every change that a journal must keep."""

    def __init__(self, spec: JobSpec) -> None:
        self.state = JobState(spec)
        rules = spec.checkpoints
        self.book = JobLedger(workers=spec.workers, max_failures=spec.tries, saves=rules.on, keeps=rules.keep)
        self.slots, self.scripts, self.shared, self.span = SlotOwners(), ScriptPlaces(), SharedState(), TrainingSpan()
        self.left_out: dict[BatchName, LeftOut] = {}
        """Batches that were trained without some of their samples. A batch that is trained again counts once."""
        self._changes = 0

    @property
    def changes(self) -> int:
        parts = (self.slots, self.scripts, self.shared)
        return self._changes + self.book.changes + sum(part.changes for part in parts)

    # ---- changes ----

    def happen(self, event: events.JobEvent, at: float) -> list[actions.JobAction]:
        """Run an event through the state machine, and apply the resulting actions to the ledger."""
        if isinstance(event, events.RoleAlive):  # the most frequent event; it is not journaled
            self.span.last_at = max(self.span.last_at, at)
            return self.state.handle(event, at=at)
        before, workers = self._worker_ranks(), self.state.workers
        done = self.state.handle(event, at=at)
        self._changes += 1
        self.span.last_at = max(self.span.last_at, at)
        for action in done:
            match action:
                case actions.PlaceSlots(addresses):
                    self.slots.place(addresses, self.state.spec.slots)
                case actions.ServerLeft(role) | actions.ServerLost(role):
                    self.slots.set_address(role.rank, "")
                case actions.ServerReturned(role, _, address):
                    self.slots.set_address(role.rank, address)
                case actions.FenceWorker(role, incarnation) if role.kind is RoleKind.WORKER:
                    self.book.fence(role.rank, incarnation)
                    self.shared.release(LeaseHolder(role.rank, incarnation))
                case actions.RollBack(anew):
                    self.span.begun = False
                    if anew:
                        self._begin_anew()
                case actions.DrainWorkers():
                    self.book.close()
                case actions.EndJob():
                    self.span.ended_at = at
        if isinstance(event, events.GroupFormed):
            self.book.regroup([holder.rank for holder in event.members])
        if not isinstance(event, events.EvictionNoticed):  # the replacement of an evicted worker continues at its place
            self.scripts.forget(self._worker_ranks() - before)
        if self.state.workers != workers:
            self.book.expect(self.state.workers)
        return done

    def lease(self, entry: journal_entries.LeaseEntry) -> tuple[Grant, ...] | NoLease:
        answer = self.book.lease(
            entry.holder, entry.card, entry.most, entry.at, set(entry.known), entry.era, entry.seen
        )
        if not isinstance(answer, NoLease):
            self.span.begun = True
            self.span.leased_at = entry.at if self.span.leased_at is None else self.span.leased_at
        self.span.last_at = max(self.span.last_at, entry.at)
        return answer

    def report(self, entry: journal_entries.ReportEntry) -> LedgerReply:
        before = self.book.changes
        verdict = self.book.report(entry.holder, entry.words, entry.at, entry.era)
        if self.book.changes != before:
            self.span.trained_at = self.span.last_at = max(self.span.last_at, entry.at)
        return verdict

    def resume(self, entry: journal_entries.ResumeEntry) -> None:
        """Resume from another run's checkpoint, before any member has joined."""
        self.book.resume(entry.note)
        self.span.samples_before = self.book.samples_trained
        self.shared.claims = dict.fromkeys(entry.claims, DONE)
        self.state.safety.origin = self.state.spec.checkpoints.resume_number
        self.scripts.reset(entry.objects, entry.places)
        self._changes += 1

    def restore(self, entry: journal_entries.RestoreEntry) -> int:
        """Roll the ledger back to a restored checkpoint. Return the number of samples to train again."""
        if entry.objects is not None:
            self.scripts.reset(entry.objects, entry.places)
        return self.book.restore(entry.note)

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

    def apply(self, entry: journal_entries.JournalEntry) -> None:
        """Replay a journal entry. An entry that was rejected the first time is rejected again."""
        try:
            self._apply(entry)
        except errors.SpringtideError:
            return

    def _apply(self, entry: journal_entries.JournalEntry) -> None:
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
                self.shared.share(entry.key, entry.value)
            case journal_entries.ObjectsEntry():
                self.scripts.remember(entry.rank, entry.objects, entry.place)
            case journal_entries.ClaimEntry():
                self.shared.claim(entry.key, entry.holder)
            case journal_entries.SettleEntry():
                self.shared.settle(entry.key, entry.holder)
            case journal_entries.LeftOutEntry():
                self.leave_out(entry.left_out)
            case journal_entries.MovedEntry():
                self.slots.move(entry.slots, entry.server)
            case journal_entries.BarrierEntry():
                self.shared.open_gate(entry.name, entry.turn)

    def _worker_ranks(self) -> set[int]:
        return {each.role.rank for each in self.state.wanted() if each.role.kind is RoleKind.WORKER}

    def _begin_anew(self) -> None:
        self.book.restore(JobProgress())
        self.shared.claims, self.span.leased_at = {}, None
        self.scripts.reset({}, {})

    # ---- whole ----

    def to_bytes(self) -> bytes:
        """Encode the whole record as a snapshot."""
        return msgspec.msgpack.encode(
            RecordSnapshot(
                job=self.state,
                book=self.book.to_state(),
                slots=self.slots,
                scripts=self.scripts,
                shared=self.shared,
                span=self.span,
                left_out=tuple(self.left_out.values()),
            )
        )

    @staticmethod
    def from_bytes(body: bytes) -> "JobRecord":
        kept = msgspec.msgpack.decode(body, type=RecordSnapshot)
        record = JobRecord(kept.job.spec)
        record.state, record.book = kept.job, JobLedger.from_state(kept.book)
        record.slots, record.scripts, record.shared, record.span = kept.slots, kept.scripts, kept.shared, kept.span
        record.left_out = {left_out.batch: left_out for left_out in kept.left_out}
        return record
