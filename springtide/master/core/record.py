"""The record of a job, which survives the master: state machine, data ledger, placement and shared values.

The record uses no clock and no socket, so the same calls always produce the same record. The journal stores each call
of a method in `JOURNALED` with its arguments. A master that takes over repeats the calls of its predecessor.
"""

import contextlib
import functools
import operator
import typing
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeVar

import msgspec

from springtide import errors
from springtide.checkpoint.format.manifest import ScriptStates
from springtide.data.ledger.job_ledger import JobLedger, JobLedgerState
from springtide.data.ledger.passes import JobProgress
from springtide.domain.core.roles import Placement, RoleKind
from springtide.domain.core.validation import UNDECODABLE
from springtide.domain.data.data_workers import BatchName, LeftOut
from springtide.domain.data.leases import Grant, LeaseHolder, LeaseKey, LedgerReply, NoLease, Progress
from springtide.domain.data.samples import DatasetCard, EpochPlace
from springtide.domain.data.streams import PartitionRange
from springtide.domain.spec.job_spec import JobSpec
from springtide.embedding.placement import placement
from springtide.job.core import actions, events
from springtide.job.core.nodes import NodeState
from springtide.job.state import JobState

MAX_SHARED_BYTES = 2**20  # most bytes of one shared value; enough for an address, and too few for a tensor
MAX_SHARED_KEYS = 10_000
MAX_GATHERED_BYTES = 8 * 2**20  # bytes of the gathered values to keep, and of one gather: half of a frame
MAX_GATHERED = 1000  # gathers to store; a restarted worker repeats at most the gathers of one epoch
DONE = LeaseHolder(-1, -1)
Loaded = TypeVar("Loaded")


class SlotOwners(msgspec.Struct, kw_only=True):
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
        return bool(self.owners) and all(self.addresses[rank] for rank in set(self.owners))

    def place(self, addresses: tuple[str, ...], slots: int) -> None:
        self.addresses = addresses
        ranks = [rank for rank, address in enumerate(addresses) if address]
        first = placement.even(slots, len(ranks))
        self._place(first.epoch, tuple(ranks[server] for server in first.server_of_slot))

    def set_address(self, rank: int, address: str) -> None:
        if self.addresses:
            known = [*self.addresses, *[""] * (rank + 1 - len(self.addresses))]
            known[rank] = address
            self.addresses = tuple(known)
            self._place(self.epoch, self.owners)

    def move(self, slots: tuple[int, ...], server: int) -> int:
        """Assign slots to a server. Return the number of slots whose owner changed."""
        owners = list(self.owners)
        for slot in slots:
            owners[slot] = server
        changed = sum(a != b for a, b in zip(owners, self.owners, strict=True))
        if changed:
            self._place(self.epoch + 1, tuple(owners))
            self.changes += 1
        return changed

    def _place(self, epoch: int, owners: tuple[int, ...]) -> None:
        self.placement = Placement(epoch=epoch, servers=len(self.addresses), server_of_slot=owners)


class ScriptPlaces(msgspec.Struct, kw_only=True):
    """Each worker's position (place) in its script, with the states of the objects that it has registered."""

    objects: dict[int, dict[str, bytes]] = msgspec.field(default_factory=dict)
    places: dict[int, EpochPlace] = msgspec.field(default_factory=dict)
    """Place in the script at which each rank's states were saved."""
    changes: int = 0

    def remember(self, rank: int, objects: dict[str, bytes], place: EpochPlace | None = None) -> None:
        """Store the states of a worker's registered objects, and the worker's place in its script.

        A place that is earlier than the stored place changes nothing. Either the heartbeat arrived late, or a
        relaunched worker has not yet reached the place where it was before.
        """
        if place is not None:
            if place.is_before(self.places.get(rank, place)):
                return
            self.places = {**self.places, rank: place}
        self.objects = {**self.objects, rank: objects}
        self.changes += 1

    def place_for(self, rank: int) -> EpochPlace | None:
        """Return the place where a worker's script begins: the worker's own last place, or else the place of the
        most advanced rank.
        """
        known = self.places.get(rank)
        return max(self.places.values(), default=None) if known is None else known

    def objects_for(self, rank: int) -> dict[str, bytes]:
        """Return the object states for a starting worker, by name. The worker's own states come first, then the states
        of the lowest rank at the same place.
        """
        place = self.place_for(rank)
        states: dict[str, bytes] = {}
        for other in sorted(
            self.objects, key=lambda candidate: (candidate == rank, self.places.get(candidate) == place, -candidate)
        ):
            states |= self.objects[other]
        return states

    def reset(self, objects: dict[int, dict[str, bytes]], places: dict[int, EpochPlace]) -> None:
        self.objects, self.places = dict(objects), dict(places)

    def forget(self, ranks: set[int]) -> None:
        """Forget the places of these workers, so that they start at the place of the remaining workers."""
        self.objects = {rank: states for rank, states in self.objects.items() if rank not in ranks}
        self.places = {rank: place for rank, place in self.places.items() if rank not in ranks}


class SharedState(msgspec.Struct, kw_only=True):
    """Values and tasks that the workers of a job share."""

    values: dict[str, bytes] = msgspec.field(default_factory=dict)
    claims: dict[str, LeaseHolder] = msgspec.field(default_factory=dict)
    """For each task that the job does only once: the worker that does the task, or `DONE`."""
    gathered: dict[str, dict[int, bytes]] = msgspec.field(default_factory=dict)
    """Values of all workers by rank, of the newest gathers."""
    changes: int = 0

    def load(self, key: str, kind: type[Loaded], default: Loaded) -> Loaded:
        """Return the value that a worker or a part of a master shared under this key, or the default."""
        stored = self.values.get(key)
        try:
            return msgspec.msgpack.decode(stored, type=kind) if stored else default
        except UNDECODABLE:  # another version or a user's script wrote this value
            return default

    def share(self, key: str, value: bytes) -> None:
        if len(value) > MAX_SHARED_BYTES or (len(self.values) >= MAX_SHARED_KEYS and key not in self.values):
            raise errors.BadInput(
                f"shared value {key!r} of {len(value)} bytes: "
                f"at most {MAX_SHARED_KEYS} values of {MAX_SHARED_BYTES} bytes each"
            )
        self.changes += self.values.get(key) != value
        self.values[key] = value

    def claim(self, key: str, holder: LeaseHolder) -> bool | None:
        """Return True if this worker must do the task, False if the task is done, and None while another worker does
        the task.
        """
        doer = self.claims.get(key)
        if doer is None:
            self.claims[key] = holder
            self.changes += 1
            return True
        return doer == holder if doer in (holder, DONE) else None

    def finish(self, key: str, holder: LeaseHolder) -> None:
        if self.claims.get(key) == holder:
            self.claims[key] = DONE
            self.changes += 1

    def gather(self, key: str, values: dict[int, bytes]) -> None:
        """Store the values of all workers, and forget the oldest gathers."""
        if (size := _size_of(values)) > MAX_GATHERED_BYTES:
            raise errors.BadInput(
                f"the values that {len(values)} workers gave to job.gather or job.reduce have {size:,} bytes together, "
                f"at most {MAX_GATHERED_BYTES:,} are possible: reduce sums instead of single predictions"
            )
        self.gathered[key] = values
        self.changes += 1
        total = sum(_size_of(kept) for kept in self.gathered.values())
        while total > MAX_GATHERED_BYTES or len(self.gathered) > MAX_GATHERED:
            oldest = next(iter(self.gathered))
            total -= _size_of(self.gathered.pop(oldest))

    def release(self, holder: LeaseHolder) -> None:
        """Release the tasks that a lost worker had claimed, so that another worker can do these tasks."""
        self.claims = {key: doer for key, doer in self.claims.items() if doer != holder}


def _size_of(values: dict[int, bytes]) -> int:
    return sum(map(len, values.values()))


class TrainingSpan(msgspec.Struct, kw_only=True):
    """When training began and ended, by the job's clock."""

    leased_at: float | None = None
    trained_at: float = 0.0
    ended_at: float | None = None
    last_at: float = 0.0
    """Time of the newest entry in the journal; the clock of a new master continues from it."""
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
    """The record of one job. `changes` increases with every change that a journal must keep."""

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
        return self._changes + self.book.changes + self.slots.changes + self.scripts.changes + self.shared.changes

    # ---- changes ----

    def apply(self, event: events.JobEvent, at: float) -> list[actions.JobAction]:
        """Run an event through the state machine, and apply the resulting actions to the ledger."""
        if isinstance(event, events.RoleAlive):  # heartbeats are the most frequent event, and are not journaled
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
                    self.shared.gathered = {}
                    if anew:
                        self.book.restore(JobProgress())
                        self.shared.claims, self.span.leased_at = {}, None
                        self.scripts.reset({}, {})
                case actions.DrainWorkers():
                    self.book.close()
                case actions.EndJob():
                    self.span.ended_at = at
        if isinstance(event, events.GroupFormed):
            self.book.regroup([holder.rank for holder in event.members])
        # the replacement of an evicted worker continues at the place of that worker
        if not isinstance(event, events.EvictionNoticed):
            self.scripts.forget(self._worker_ranks() - before)
        if self.state.workers != workers:
            self.book.expect(self.state.workers)
        return done

    def lease(
        self,
        holder: LeaseHolder,
        card: DatasetCard,
        most: int,
        at: float,
        known: Collection[LeaseKey] = (),
        era: int = 0,
        seen: Sequence[PartitionRange] = (),
    ) -> tuple[Grant, ...] | NoLease:
        answer = self.book.lease(holder, card, most, at, set(known), era, seen)
        if not isinstance(answer, NoLease):
            self.span.begun = True
            self.span.leased_at = at if self.span.leased_at is None else self.span.leased_at
        self.span.last_at = max(self.span.last_at, at)
        return answer

    def report(self, holder: LeaseHolder, words: Sequence[Progress], at: float, era: int = 0) -> LedgerReply:
        before = self.book.changes
        verdict = self.book.report(holder, words, at, era)
        if self.book.changes != before:
            self.span.trained_at = self.span.last_at = max(self.span.last_at, at)
        return verdict

    def resume(self, note: JobProgress, scripts: ScriptStates) -> None:
        """Continue from another run's checkpoint, before any member has joined."""
        rules = self.state.spec.checkpoints
        self.book.resume(note, f"checkpoint {rules.resume_number} in {rules.resume}", new_data=rules.new_data)
        self.span.samples_before = self.book.samples_trained
        self.shared.claims = dict.fromkeys(scripts.claims, DONE)
        self.state.safety.origin = self.state.spec.checkpoints.resume_number
        self.scripts.reset(scripts.objects, scripts.places)
        self._changes += 1

    def restore(self, note: JobProgress, scripts: ScriptStates | None = None) -> int:
        """Roll the ledger back to a restored checkpoint. Return the number of samples to train again.

        `scripts` has the states of registered objects in the checkpoint, if all scripts restart; None if the scripts
        continue.
        """
        if scripts is not None:
            self.scripts.reset(scripts.objects, scripts.places)
        return self.book.restore(note)

    def leave_out(self, left_out: LeftOut) -> bool:
        """Record a batch that was trained without unreadable samples. Return True if the batch was not recorded
        before.
        """
        news = self.left_out.get(left_out.batch) != left_out
        self.left_out[left_out.batch] = left_out
        self._changes += news
        return news

    def all_left_out(self) -> str:
        """Return an error text if every sample was left out. Return an empty text if some samples were trained."""
        count = sum(len(batch.indices) for batch in self.left_out.values())
        if not count or count < self.book.totals().samples_done:
            return ""
        return f"none of the {count:,} samples could be read; {next(iter(self.left_out.values()))}"

    def replay(self, body: bytes) -> None:
        """Repeat a journaled call. If the record rejected the call the first time, it rejects the call again."""
        name, arguments, named = _calls.decode(body)
        kind, _, method = name.partition(".")
        parts = (self, self.book, self.slots, self.scripts, self.shared)
        owner = next(part for part in parts if type(part).__name__ == kind)
        raw = dict(zip(JOURNALED[name], arguments, strict=False)) | named
        given = {parameter: JOURNALED[name][parameter].decode(value) for parameter, value in raw.items()}
        with contextlib.suppress(errors.SpringtideError):
            getattr(owner, method)(**given)

    def _worker_ranks(self) -> set[int]:
        present = [node for node in self.state.nodes.values() if node.state is not NodeState.GONE]
        return {node.role.rank for node in present if node.role.kind is RoleKind.WORKER}

    # ---- whole ----

    def to_bytes(self) -> bytes:
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


def _decoders(change: Callable[..., Any]) -> dict[str, msgspec.msgpack.Decoder[Any]]:
    hints = {name: hint for name, hint in typing.get_type_hints(change).items() if name != "return"}
    event = functools.reduce(operator.or_, events.JobEvent.__subclasses__())
    return {name: msgspec.msgpack.Decoder(event if hint is events.JobEvent else hint) for name, hint in hints.items()}


JOURNALED = {
    change.__qualname__: _decoders(change)
    for change in (
        JobRecord.apply,
        JobRecord.lease,
        JobRecord.report,
        JobRecord.resume,
        JobRecord.restore,
        JobRecord.leave_out,
        JobLedger.end,
        JobLedger.cut,
        JobLedger.plan,
        JobLedger.assign,
        JobLedger.fail,
        JobLedger.take_back,
        JobLedger.keep,
        JobLedger.halt,
        JobLedger.resize,
        JobLedger.wish,
        SharedState.share,
        SharedState.claim,
        SharedState.finish,
        SharedState.gather,
        ScriptPlaces.remember,
        SlotOwners.move,
    )
}
"""Decoders of the arguments of every method whose calls are journaled."""
_calls = msgspec.msgpack.Decoder(tuple[str, list[msgspec.Raw], dict[str, msgspec.Raw]])
_encoder = msgspec.msgpack.Encoder()


def encode_call(change: Callable[..., Any], arguments: Sequence[Any], named: dict[str, Any]) -> bytes:
    name = change.__qualname__
    assert name in JOURNALED, name
    return _encoder.encode((name, arguments, named))
